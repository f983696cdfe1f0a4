"""Looks of figures for a screen, a paper or a slide; they are readable in print, in grey and by the colour-blind.

Settings hold inside :func:`context` only. They start from matplotlib's defaults, so a figure does not
depend on the user's ``matplotlibrc``. A claim's figure knows nothing of looks: :func:`drawn_as` says which one is in
force, and what draws asks :func:`look`.
"""

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from icllab.core.errors import expected, require_known

COLUMN = 3.4
"""Width of one column on a screen, in inches."""

INK = "#1a1a1a"
FAINT = "#8a8a8a"
REPETITION = "#0072B2a6"
"""Colour of repetitions that differ in their seeds alone."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "h")

DASHES = ("-", (0, (5, 1.6)), (0, (5, 1.6, 1, 1.6)), (0, (1.2, 1.2)), (0, (9, 1.6)), (0, (5, 1.6, 1, 1.6, 1, 1.6)))

# Okabe and Ito's palette without black and yellow, and two more: for names, which have no order.
CATEGORIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#773300", "#220088")

# Orange to indigo, evenly darker: for numbers, so that a larger size is nearer to the black theory line.
_LIGHT, _DARK = 0.72, 0.17

_TICKS = {"color": INK, "labelsize": 7.0, "major.width": 0.6, "minor.width": 0.4, "major.size": 3.0, "minor.size": 1.6}
SETTINGS: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 7.5,
    "mathtext.fontset": "dejavusans",
    "axes.titlesize": 8.0,
    "axes.titlelocation": "left",
    "axes.labelsize": 7.5,
    "axes.labelpad": 3.0,
    "axes.linewidth": 0.6,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.5,
    "text.color": INK,
    **{f"{axis}tick.{name}": value for axis in "xy" for name, value in _TICKS.items()},
    "legend.fontsize": 7.0,
    "legend.frameon": False,
    "legend.handlelength": 1.4,
    "legend.handletextpad": 0.4,
    "legend.columnspacing": 1.2,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.6,
    "figure.constrained_layout.h_pad": 0.03,
    "figure.constrained_layout.w_pad": 0.03,
    "savefig.dpi": 300,
    "savefig.facecolor": "white",
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
}

# What a figure's look does not depend on, and what must not be set twice in a process.
_NOT_STYLE = frozenset({"backend", "backend_fallback", "interactive", "toolbar", "timezone", "webagg.port"})

_FONTS = ("font.size", "axes.titlesize", "axes.labelsize", "xtick.labelsize", "ytick.labelsize", "legend.fontsize")
_LENGTHS = re.compile(r"axes\.(labelpad|linewidth)|grid\.linewidth|[xy]tick\..*(width|size)|lines\..*|.*_pad")


@dataclass(frozen=True)
class Look:
    """The appearance of figures for one use.

    Attributes:
        font: Size of all letters, in points; None: the sizes of a screen.
        width: Width of a figure, in inches; None: a column for each column of panels.
        page: Width of several figures side by side, in inches.
        family: Font of the letters.
        mathematics: matplotlib's font set of the symbols.
        letters: Whether panels are lettered, and what a caption says is left out.
        wide: Whether panels stand beside each other where they can.
        single: Whether the first panel stands for all.
        first: Number of lettered panels before those of this figure.
        place: The part of a figure that is drawn in; None: a figure of its own.
    """

    font: float | None = None
    width: float | None = None
    page: float = 2 * COLUMN
    family: str = "DejaVu Sans"
    mathematics: str = "dejavusans"
    letters: bool = False
    wide: bool = False
    single: bool = False
    first: int = 0
    place: Any = None

    @property
    def scale(self) -> float:
        """Size of letters, lines and panels relative to a screen."""
        return 1.0 if self.font is None else self.font / SETTINGS["font.size"]

    def settings(self) -> dict[str, Any]:
        """The matplotlib settings that differ from its defaults."""
        scaled = {
            name: value * self.scale if _LENGTHS.fullmatch(name) and not isinstance(value, str) else value
            for name, value in SETTINGS.items()
        }
        fonts = {"font.family": [self.family], "mathtext.fontset": self.mathematics}
        return scaled | fonts | ({} if self.font is None else dict.fromkeys(_FONTS, self.font))


LOOKS = {
    "screen": Look(),
    "paper": Look(8.0, 3.25, 6.75, "STIXGeneral", "stix", letters=True),
    "slide": Look(18.0, 12.0, 12.0, letters=True, wide=True),
}
PAGE = Look(9.0, 9.0, 9.0, wide=True)
"""A figure as wide as a page of a browser."""
CARD = Look(9.0, 3.2, 3.2, single=True)
"""A figure in a list: one panel, with labels that can be read in a third of that width."""
_LOOK: ContextVar[Look] = ContextVar("look", default=LOOKS["screen"])
_INCHES = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72.27}
_NARROWEST, _WIDEST = 1.5, 40.0


def inches(width: str | float) -> float:
    """Convert a width such as ``3.25in``, ``82mm``, ``8.2cm`` or ``234pt`` (TeX's points) to inches."""
    text = width if isinstance(width, str) else f"{width}in"
    match = re.fullmatch(r"\s*([\d.]+(?:e-?\d+)?)\s*(in|cm|mm|pt)\s*", text)
    try:
        value = float(match[1]) * _INCHES[match[2]] if match else np.nan
    except ValueError:
        value = np.nan
    if not _NARROWEST <= value <= _WIDEST:
        needed = f"a length of {_NARROWEST:g}in to {_WIDEST:g}in with its unit (in, cm, mm or pt), such as 3.25in"
        raise expected("width", needed, width)
    return value


def named_look(name: str, width: str | float | None = None) -> Look:
    """The look of this name, at the stated width if there is one."""
    require_known("style", name, LOOKS)
    look = LOOKS[name]
    return look if width is None else replace(look, width=inches(width), page=inches(width))


def look() -> Look:
    """The current look."""
    return _LOOK.get()


@contextlib.contextmanager
def drawn_as(look: Look) -> Iterator[None]:
    """Draw and save in this look inside the block."""
    token = _LOOK.set(look)
    try:
        yield
    finally:
        _LOOK.reset(token)


def import_matplotlib() -> Any:
    """Import matplotlib, without ``MPLBACKEND`` if it names a backend that matplotlib does not know.

    Figures here need no backend. One that matplotlib knows stays in force for the user's own figures.
    """
    if "matplotlib" not in sys.modules:
        backend = os.environ.pop("MPLBACKEND", None)
        import matplotlib

        if backend is not None:
            os.environ["MPLBACKEND"] = backend
        if backend:
            with contextlib.suppress(ValueError):
                matplotlib.rcParams["backend"] = backend
    return sys.modules["matplotlib"]


@contextlib.contextmanager
def context() -> Iterator[None]:
    """Draw and save in the current look inside the block; restore all settings afterwards."""
    matplotlib = import_matplotlib()
    settings: Any = {k: v for k, v in matplotlib.rcParamsDefault.items() if k not in _NOT_STYLE} | look().settings()
    with matplotlib.rc_context(settings):
        yield


def colours(values: Sequence[Any]) -> list[Any]:
    """One colour per value: a scale for ordered numbers, a palette for names."""
    if all(isinstance(v, int | float | np.number) for v in values):
        matplotlib = import_matplotlib()
        scale = matplotlib.colormaps["inferno"]
        places = np.linspace(_LIGHT, _DARK, len(values)) if len(values) > 1 else [_DARK]
        rank = np.argsort(np.argsort(np.asarray(values, dtype=float)))
        return [scale(places[i]) for i in rank]
    return [CATEGORIES[i % len(CATEGORIES)] for i in range(len(values))]


def marker(index: int) -> str:
    """The marker of the ``index``-th curve, which identifies the curve in a grey print."""
    return MARKERS[index % len(MARKERS)]


def dashes(index: int) -> Any:
    """The line style of the ``index``-th curve, which identifies the curve in a grey print."""
    return DASHES[index % len(DASHES)]
