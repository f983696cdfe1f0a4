"""The form of an explorer: sliders with their values, and an answer that is computed from them.

An answer is a dict for JSON: floats, lists and text, None for a number that is not finite. It has

- ``curves``: a list of ``{"label", "x", "y"}``, with ``axes``: ``{"x": axis, "y": axis, "mark": x or None}``;
- ``map``, optional: ``{"x", "y", "z", "axes"}`` with the value ``z[i][j]`` at ``x[i]``, ``y[j]``, and optionally
  ``path``, ``{"label", "x", "y", "z"}``, and ``mark``, ``{"x", "y", "z"}``: the point of the sliders;
- ``numbers``: label -> number or text;
- ``note``, optional: a sentence on a missing figure.

An axis is ``{"label", "scale"}`` with the scale ``"linear"`` or ``"log"``.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from icllab.core.errors import InputError, expected, require_known, unknown
from icllab.figures.markup import joined, prose, tag

_ROWS = 45  # points of a map along an axis
_LONG = 150.0  # ratio of the ends of a range above which its axis is logarithmic


@dataclass(frozen=True)
class Slider:
    """A control for a number.

    Attributes:
        name: Keyword of the answer.
        label: Symbol, and after two spaces its meaning.
        values: The values of the slider in increasing order; a number between its ends may be typed.
        start: Initial value.
    """

    name: str
    label: str
    values: Sequence[float]
    start: float

    @property
    def scale(self) -> str:
        """The scale of an axis with these values."""
        low, high = next(value for value in self.values if value > 0), self.values[-1]
        return "log" if self.values[0] >= 0 and high / low > _LONG else "linear"

    @property
    def integer(self) -> bool:
        """True if all values are integers."""
        return all(isinstance(value, int) for value in self.values)

    def read(self, value: object) -> float:
        """Return a number or text as the value; raise unless it lies between the ends."""
        try:
            number = math.nan if isinstance(value, bool) else float(value)  # pyright: ignore[reportArgumentType]
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        low, high = self.values[0], self.values[-1]
        if not low <= number <= high or (self.integer and number != round(number)):
            kind = "an integer" if self.integer else "a number"
            raise expected(self.name, f"{kind} from {low:g} to {high:g}", value)
        return int(number) if self.integer else number


@dataclass(frozen=True)
class Choice:
    """A control for one of several options.

    Attributes:
        name: Keyword of the answer.
        label: Name on the page.
        options: Value -> its name on the page.
        start: Initial value.
    """

    name: str
    label: str
    options: Mapping[str, str]
    start: str

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
    view: str = "curves"
    compute: Callable[..., dict[str, Any]]
    theory: tuple[Callable[..., Any], ...]
    more: str

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
            {"kind": "choice", **asdict(control), "options": list(control.options.items())}
            if isinstance(control, Choice)
            else {"kind": "slider", **asdict(control), "scale": control.scale, "integer": control.integer}
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


def swept(
    sliders: Sequence[Slider],
    curves: Callable[..., Mapping[str, Any]],
    *,
    x: str,
    y: dict[str, str],
    extra: Callable[..., Mapping[str, Any]] = lambda **setting: {},
    second: str = "",
    across: Sequence[str] = (),
) -> dict[str, Any]:
    """Controls and answer of an explorer that draws numbers against any of its sliders.

    Args:
        sliders: The sliders.
        curves: Function from the values of the sliders to label -> number.
        x: The slider along the horizontal axis at the start.
        y: The vertical axis.
        extra: Function from the values of the sliders to further numbers, which are not drawn.
        second: The slider along the second axis of a map of the first curve; ``curves`` then broadcasts. Empty: no map.
        across: The sliders that may be the horizontal axis; empty: all.
    """
    named = {slider.name: slider for slider in sliders}
    labels = {slider.name: slider.label for slider in sliders}
    axes = [Choice("x", "horizontal axis", {name: labels[name] for name in across or labels}, x)]
    axes += [Choice("second", "vertical axis of the map", labels, second)] if second else []

    def compute(*, x: str, second: str = "", **setting: float) -> dict[str, Any]:
        slider, here = named[x], curves(**setting)
        values = np.array(_line(slider))
        if second:
            columns = curves(**{**setting, x: values})
        else:
            rows = [_point(curves, here, {**setting, x: value}) for value in values.tolist()]
            columns = {label: np.array([row[label] for row in rows]) for label in here}
        answer: dict[str, Any] = {
            "curves": [curve(label, values, column) for label, column in columns.items()],
            "axes": {"x": axis(slider.label, slider.scale), "y": y, "mark": _mark(slider, setting)},
            "numbers": {**here, **extra(**setting)},
        }
        if second == x:
            return answer | {"note": "A map needs two different axes."}
        return answer | ({"map": heights(slider, named[second], setting, here)} if second else {})

    def heights(slider: Slider, other: Slider, setting: dict[str, float], here: Mapping[str, Any]) -> dict[str, Any]:
        label = next(iter(here))
        columns, rows = _even(slider), _even(other)
        z = curves(**{**setting, slider.name: columns[:, None], other.name: rows})[label]
        across, up = _mark(slider, setting), _mark(other, setting)
        mark = None if across is None or up is None else {"x": across, "y": up, "z": here[label]}
        ends = {
            "x": axis(slider.label, slider.scale),
            "y": axis(other.label, other.scale),
            "z": axis(label, y["scale"]),
        }
        return {"x": columns, "y": rows, "z": np.broadcast_to(z, (len(columns), len(rows))), "axes": ends, "mark": mark}

    return {"controls": (*axes, *sliders), "compute": compute}


def _line(slider: Slider) -> list[float]:
    """The values of a slider that have a place on its axis."""
    return [value for value in slider.values if value > 0 or slider.scale == "linear"]


def _even(slider: Slider) -> np.ndarray:
    """Points that are equidistant on the axis of a slider."""
    space, line = np.geomspace if slider.scale == "log" else np.linspace, _line(slider)
    return space(line[0], line[-1], _ROWS)


def _mark(slider: Slider, setting: Mapping[str, float]) -> float | None:
    value = setting[slider.name]
    return value if value > 0 or slider.scale == "linear" else None


def _point(curves: Callable[..., Mapping[str, Any]], here: Mapping[str, Any], setting: Mapping[str, float]) -> Any:
    """The numbers at a point of an axis; NaN where the other sliders exclude the point."""
    try:
        return curves(**setting)
    except InputError:
        return dict.fromkeys(here, math.nan)


def even(low: float, high: float, count: int = 61) -> list[float]:
    """Equidistant values."""
    return [float(f"{value:.4g}") for value in np.linspace(low, high, count)]


def log(low: float, high: float, count: int = 81, *, zero: bool = False) -> list[float]:
    """Values with equidistant logarithms, and zero before them if it is allowed."""
    return [0.0] * zero + [float(f"{value:.4g}") for value in np.geomspace(low, high, count)]


def whole(low: int, high: int) -> list[int]:
    """All integers of a short range, and some twenty of a long range."""
    if high - low <= 40:
        return list(range(low, high + 1))
    return sorted({round(value) for value in np.geomspace(low, high, 25).tolist()})


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
