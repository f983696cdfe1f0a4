"""HTML from text: whatever is not HTML already is escaped, so that nothing stored can be markup."""

import html
import json
from typing import Any


class Html(str):
    """Text that is HTML: made by :func:`tag`, never from what was read."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str | int | bool | None) -> Html:
    """An element; children that are not :class:`Html` are text, and so is every attribute.

    Args:
        name: Name of the element.
        children: In their order.
        attributes: ``class_`` is ``class``, ``data_id`` is ``data-id``. True: without a value. None, False: left out.
    """
    said = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{html.escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in ("img", "br", "meta"):
        return Html(f"<{name}{said}>")
    return Html(f"<{name}{said}>{joined(*children)}</{name}>")


def joined(*parts: str) -> Html:
    """One after the other."""
    return Html("".join(part if isinstance(part, Html) else html.escape(part) for part in parts))


def table(columns: dict[str, str], rows: list[list[str]], **attributes: str | int | bool | None) -> Html:
    """A table; ``columns`` are headings and the class of their cells, empty for none."""
    kinds = [kind or None for kind in columns.values()]
    heads = [tag("th", name, scope="col", class_=kind) for name, kind in zip(columns, kinds, strict=True)]
    body = [tag("tr", *(tag("td", cell, class_=kind) for cell, kind in zip(row, kinds, strict=True))) for row in rows]
    return tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *body), **attributes)


def spelled(value: Any) -> str:
    """A value of a configuration, as JSON has it; text without its quotes."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
