"""The form of an explorer: controls with ranges, and an answer that is computed from their values.

An answer is a dict for JSON: floats, lists and text, None for a number that is not finite. It has

- ``curves``: a list of ``{"label", "x", "y"}``, with ``axes``: ``{"x": axis, "y": axis, "mark": x or None}``;
- ``map``, optional: ``{"x", "y", "z", "axes"}`` with the value ``z[i][j]`` at ``x[i]``, ``y[j]``, and optionally
  ``path``, ``{"label", "x", "y", "z"}``, and ``mark``, ``{"x", "y", "z"}``: the point at which the controls are;
- ``numbers``: label -> number or text;
- ``note``, optional: a sentence on a missing figure.

An axis is ``{"label", "scale"}`` with the scale ``"linear"`` or ``"log"``.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, asdict, dataclass, field
from typing import Any

import numpy as np

from icllab.core.errors import expected, require_known, unknown
from icllab.page.markup import joined, prose, tag

When = Mapping[str, tuple[str, ...]]  # choice -> the options under which a control has an effect


@dataclass(frozen=True)
class Slider:
    """A control for a number.

    Attributes:
        name: Keyword of the answer.
        label: Symbol, and after two spaces its meaning.
        low: Lowest value.
        high: Highest value.
        start: Initial value.
        scale: ``"linear"``, ``"log"``, ``"integer"`` or ``"log integer"``.
        zero: Whether zero is allowed as well, below ``low`` of a logarithmic scale.
        when: Choices and their options for which it has an effect; empty: always.
    """

    name: str
    label: str
    low: float
    high: float
    start: float
    _: KW_ONLY
    scale: str = "linear"
    zero: bool = False
    when: When = field(default_factory=dict)

    def read(self, value: object) -> float:
        """Return a number or text as the value; raise unless it is in the range."""
        try:
            number = math.nan if isinstance(value, bool) else float(value)  # pyright: ignore[reportArgumentType]
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        integer = self.scale.endswith("integer")
        inside = self.low <= number <= self.high or (self.zero and number == 0)
        if not inside or (integer and number != round(number)):
            kind = "an integer" if integer else "zero, or a number" if self.zero else "a number"
            raise expected(self.name, f"{kind} from {self.low:g} to {self.high:g}", value)
        return int(number) if integer else number


@dataclass(frozen=True)
class Choice:
    """A control for one of several options.

    Attributes:
        name: Keyword of the answer.
        label: Name on the page.
        options: Value -> its name on the page.
        start: Initial value.
        when: Choices and their options for which it has an effect; empty: always.
    """

    name: str
    label: str
    options: Mapping[str, str]
    start: str
    _: KW_ONLY
    when: When = field(default_factory=dict)

    def read(self, value: object) -> str:
        """Return the value; raise unless it is an option."""
        if not isinstance(value, str) or value not in self.options:
            raise unknown(f"option of {self.name}", str(value), self.options)
        return value


@dataclass(frozen=True, kw_only=True)
class Explorer:
    """Controls, and an answer that is computed from their values.

    Attributes:
        id: Name in addresses.
        title: Heading.
        about: Description for a new reader.
        controls: The controls in order.
        view: The first figure, ``"curves"`` or ``"map"``.
        compute: Function from the values of all controls, by name, to the answer, with arrays for its lists.
        theory: Functions of :mod:`icllab.theory` that it evaluates; the page shows their formulas.
        more: Page of the documentation on the theory.
    """

    id: str
    title: str
    about: str
    controls: tuple[Slider | Choice, ...]
    view: str
    compute: Callable[..., dict[str, Any]]
    theory: tuple[Callable[..., Any], ...]
    more: str = ""

    def read(self, values: Mapping[str, object]) -> dict[str, float | str]:
        """The value of every control, by default its start.

        Raises:
            InputError: A ValueError of one line, at an unknown name or a value out of range.
        """
        controls = {control.name: control for control in self.controls}
        for name in values:
            require_known(f"control of {self.id}", name, controls)
        return {name: control.read(values.get(name, control.start)) for name, control in controls.items()}

    def answer(self, **values: object) -> dict[str, Any]:
        """The answer at these values, numbers or text, in the form of this module; errors as `read`'s."""
        return plain(self.compute(**self.read(values)))

    def declaration(self) -> dict[str, Any]:
        """The description and the controls, for JSON."""
        controls = [
            {"kind": type(control).__name__.lower(), **asdict(control)}
            | {"options": list(control.options.items()) if isinstance(control, Choice) else []}
            for control in self.controls
        ]
        formulas = [
            joined(
                tag("h3", tag("code", f"{item.__module__.removeprefix('icllab.')}.{item.__name__}")),
                prose(item.__doc__ or ""),
            )
            for item in self.theory
        ]
        texts = {"id": self.id, "title": self.title, "about": self.about, "view": self.view, "more": self.more}
        return plain({**texts, "theory": joined(*formulas), "controls": controls})


def plain(value: Any) -> Any:
    """The value with lists for arrays and None for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray):
        if np.isfinite(value).all():
            return value.tolist()
        gaps = value.astype(object)
        gaps[~np.isfinite(value)] = None
        return gaps.tolist()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def axis(label: str, scale: str = "linear") -> dict[str, str]:
    """The label of an axis, and its scale."""
    return {"label": label, "scale": scale}


def curve(label: str, x: Any, y: Any) -> dict[str, Any]:
    """One curve of an answer."""
    return {"label": label, "x": x, "y": np.broadcast_to(y, np.shape(x))}
