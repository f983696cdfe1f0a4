"""Representations of results in a notebook: a heading and a table, as HTML without styles."""

import dataclasses
import html
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
from wadler_lindig import TextDoc, pformat

_LONGEST = 200


def html_table(heading: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A heading in bold and a table; every cell is escaped."""
    names = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    cells = "".join("<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<b>{html.escape(heading)}</b><table><thead><tr>{names}</tr></thead><tbody>{cells}</tbody></table>"


def html_fields(heading: str, fields: Mapping[str, object]) -> str:
    """A heading in bold and a table with one row for each field."""
    rows = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(str(value))}</td></tr>" for name, value in fields.items()
    )
    return f"<b>{html.escape(heading)}</b><table><tbody>{rows}</tbody></table>"


def one_line(name: str, fields: Mapping[str, object]) -> str:
    """``name(field: value, ...)`` in one line of at most 200 characters."""
    text = " ".join(f"{name}({', '.join(f'{field}: {value}' for field, value in fields.items())})".split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]}...)"


def fields_repr(self: Any) -> str:
    """The ``__repr__`` of a named tuple or dataclass with self-explanatory fields."""
    return one_line(type(self).__name__, _fields(self))


def fields_html(self: Any) -> str:
    """The ``_repr_html_`` that matches :func:`fields_repr`."""
    return html_fields(type(self).__name__, _fields(self))


def module_repr(self: Any) -> str:
    """The ``__repr__`` of an Equinox module, with the numbers of its arrays or the first of many."""
    return pformat(self, width=80, short_arrays=True, custom=_array_doc)


def _array_doc(value: Any) -> TextDoc | None:
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        return None
    try:
        first = [_shortened(number) for number in np.asarray(value).reshape(-1)[:4].tolist()]
    except Exception:  # a traced array, or one of random keys, has no numbers to show
        return None
    if value.ndim == 0:
        return TextDoc(first[0])
    if value.ndim == 1 and len(value) <= 4:
        return TextDoc(f"[{', '.join(first)}]")
    first = [*first[:3], "..."] if value.size > 3 else first
    return TextDoc(f"{value.dtype.name}[{','.join(map(str, value.shape))}]({', '.join(first)})")


def _shortened(number: Any) -> str:
    return repr(float(f"{number:.4g}")) if isinstance(number, float) else str(number)


def brief(value: Any) -> str:
    """Short text of a value: four digits of a number; the few numbers of an array, or its shape and range."""
    if isinstance(value, bool | np.bool_ | str | Integral):
        return str(value)
    if isinstance(value, Real):
        return f"{float(value):.4g}"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return _brief_array(value)
    if isinstance(value, tuple | list):
        parts = [brief(item) for item in value[:4]]
        return f"[{', '.join(parts)}{', ...' if len(value) > 4 else ''}]"
    if isinstance(value, Mapping):
        return brief(list(value))
    return "none" if value is None else getattr(value, "__name__", type(value).__name__)


def _brief_array(value: Any) -> str:
    shape = f"[{', '.join(map(str, value.shape))}]"
    try:
        numbers = np.asarray(value)
    except Exception:  # one that is traced, or of random keys, has no numbers to show
        return shape
    if numbers.ndim == 0:
        return brief(numbers.item())
    if numbers.ndim == 1 and len(numbers) <= 4:
        return brief(numbers.tolist())
    if not np.issubdtype(numbers.dtype, np.number) or np.iscomplexobj(numbers):
        return shape
    finite = numbers[np.isfinite(numbers)]
    return f"{shape} from {brief(finite.min())} to {brief(finite.max())}" if finite.size else shape


def _fields(record: Any) -> dict[str, str]:
    names = getattr(record, "_fields", None) or [field.name for field in dataclasses.fields(record)]
    return {name: brief(getattr(record, name)) for name in names}
