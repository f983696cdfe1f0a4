"""What an explorer is: controls with ranges, and an answer that is computed from their values.

An answer is a dict that is ready for JSON: floats, lists and text, None where a number is not finite. It has

- ``curves``: a list of ``{"label", "x", "y"}``, with ``axes``: ``{"x": axis, "y": axis, "mark": x or None}``;
- ``surface``: ``{"x", "y", "z", "axes"}`` with ``z[i][j]`` the height at ``x[i]``, ``y[j]``, and where there is one
  ``path``, ``{"label", "x", "y", "z"}``, and ``mark``, ``{"x", "y", "z"}``: the point that the controls are at;
- ``numbers``: label -> number or text;
- ``note``, where there is one: a sentence on what is not drawn.

An axis is ``{"label", "scale"}`` with the scale ``"linear"`` or ``"log"``. Either figure may be missing.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from icllab.core.errors import InputError, expected, require_known, unknown

if TYPE_CHECKING:
    import xarray as xr

When = Mapping[str, tuple[str, ...]]  # choice -> the options under which a control has an effect


@dataclass(frozen=True)
class Slider:
    """A number that is moved.

    Attributes:
        name: Keyword of the answer.
        label: What it is, its symbol first.
        low: The least value.
        high: The largest value.
        start: Where it stands at first.
        scale: ``"linear"``, ``"log"``, ``"integer"`` or ``"log integer"``.
        zero: Whether zero is allowed as well, below ``low`` of a logarithmic scale.
        when: Choices and their options under which it has an effect; empty: always.
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
        """The value, given as a number or as text; what is out of range is refused."""
        try:
            number = math.nan if isinstance(value, bool) else float(value)  # pyright: ignore[reportArgumentType]
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        whole = self.scale.endswith("integer")
        fits = self.low <= number <= self.high or (self.zero and number == 0)
        if not fits or (whole and number != round(number)):
            kind = "an integer" if whole else "zero, or a number" if self.zero else "a number"
            raise expected(self.name, f"{kind} from {self.low:g} to {self.high:g}", value)
        return int(number) if whole else number


@dataclass(frozen=True)
class Choice:
    """One of several options.

    Attributes:
        name: Keyword of the answer.
        label: What is chosen.
        options: Value -> what is shown for it.
        start: The value at first.
        when: Choices and their options under which it has an effect; empty: always.
    """

    name: str
    label: str
    options: Mapping[str, str]
    start: str
    _: KW_ONLY
    when: When = field(default_factory=dict)

    def read(self, value: object) -> str:
        """The option's value; another is refused."""
        if not isinstance(value, str) or value not in self.options:
            raise unknown(f"option of {self.name}", str(value), self.options)
        return value


@dataclass(frozen=True, kw_only=True)
class Explorer:
    """Controls, and what is computed and drawn of their values.

    Attributes:
        id: Name in addresses.
        title: Heading.
        about: What is seen, for a reader who sees it first.
        sliders: The controls, in the order in which they are shown.
        view: ``"curves"`` or ``"surface"``: which figure comes first.
        compute: Values of all controls by name -> answer, with arrays where it has lists.
        overlay: Claims of which stored results can be laid over.
        place: A claim's Dataset and the controls' values -> its points, with arrays.
        placed: What these points are, in a sentence.
        more: Page of the documentation on the theory.
    """

    id: str
    title: str
    about: str
    sliders: tuple[Slider | Choice, ...]
    view: str
    compute: Callable[..., dict[str, Any]]
    overlay: tuple[str, ...] = ()
    place: Callable[..., dict[str, Any]] | None = None
    placed: str = ""
    more: str = ""

    def read(self, values: Mapping[str, object]) -> dict[str, float | str]:
        """Every control's value, the start where none is given.

        Raises:
            InputError: A ValueError of one line, at an unknown name or a value out of range.
        """
        known = {control.name: control for control in self.sliders}
        for name in values:
            require_known(f"control of {self.id}", name, known)
        return {name: control.read(values.get(name, control.start)) for name, control in known.items()}

    def answer(self, **values: object) -> dict[str, Any]:
        """The answer at these values, numbers or text, in the form that this module describes; errors as `read`'s."""
        return listed(self.compute(**self.read(values)))

    def points(self, dataset: "xr.Dataset", **values: object) -> dict[str, Any]:
        """Points of a stored result of a claim of ``overlay``, to lay over the answer at these values.

        They are ``curves``, a list of ``{"label", "x", "y", "error"}``; ``surface``, ``{"x", "y", "z"}``; and
        ``settings``, a list of values of controls at which this result has points.
        """
        if self.place is None:
            raise InputError(f"{self.id}: expected an explorer with stored results to lay over, this one has none")
        return listed(self.place(dataset, **self.read(values)))

    def declaration(self) -> dict[str, Any]:
        """What the page shows before any answer, ready for JSON."""
        controls = [
            {"kind": type(control).__name__.lower(), **asdict(control)}
            | {"options": list(control.options.items()) if isinstance(control, Choice) else []}
            for control in self.sliders
        ]
        shown = {"id": self.id, "title": self.title, "about": self.about, "view": self.view, "more": self.more}
        return listed({**shown, "sliders": controls, "overlay": list(self.overlay), "placed": self.placed})


def listed(value: Any) -> Any:
    """Lists for arrays and None for what is not finite, throughout."""
    if isinstance(value, Mapping):
        return {str(name): listed(one) for name, one in value.items()}
    if isinstance(value, np.ndarray):
        if np.isfinite(value).all():
            return value.tolist()
        gaps = value.astype(object)
        gaps[~np.isfinite(value)] = None
        return gaps.tolist()
    if isinstance(value, list | tuple):
        return [listed(one) for one in value]
    if isinstance(value, np.generic):
        return listed(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def axis(label: str, scale: str = "linear") -> dict[str, str]:
    """What stands at an axis, and its scale."""
    return {"label": label, "scale": scale}


def curve(label: str, x: Any, y: Any) -> dict[str, Any]:
    """One curve of an answer."""
    return {"label": label, "x": x, "y": np.broadcast_to(y, np.shape(x))}
