"""One look for every figure: a column of a paper, readable in print, in grey and to the colour-blind.

Settings hold inside :func:`context` only. They start from matplotlib's defaults, so a figure does not
depend on the user's ``matplotlibrc``.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

COLUMN = 3.4
"""Width of one column, in inches."""

INK = "#1a1a1a"
FAINT = "#8a8a8a"

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "h")

DASHES = ("-", (0, (5, 1.6)), (0, (5, 1.6, 1, 1.6)), (0, (1.2, 1.2)), (0, (9, 1.6)), (0, (5, 1.6, 1, 1.6, 1, 1.6)))

# Okabe and Ito's palette without black and yellow: for names, which have no order.
CATEGORIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")

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


@contextlib.contextmanager
def context() -> Iterator[None]:
    """Draw and save in the library's look; afterwards all settings are what they were."""
    import matplotlib

    settings: Any = {k: v for k, v in matplotlib.rcParamsDefault.items() if k not in _NOT_STYLE} | SETTINGS
    with matplotlib.rc_context(settings):
        yield


def colours(values: Sequence[Any]) -> list[Any]:
    """One colour per value: a scale for numbers, in their order; a palette for names."""
    if all(isinstance(v, int | float | np.number) for v in values):
        import matplotlib

        scale = matplotlib.colormaps["inferno"]
        places = np.linspace(_LIGHT, _DARK, len(values)) if len(values) > 1 else [_DARK]
        rank = np.argsort(np.argsort(np.asarray(values, dtype=float)))
        return [scale(places[i]) for i in rank]
    return [CATEGORIES[i % len(CATEGORIES)] for i in range(len(values))]


def marker(index: int) -> str:
    """The marker of the ``index``-th curve, so that a grey print still tells them apart."""
    return MARKERS[index % len(MARKERS)]


def dashes(index: int) -> Any:
    """The line style of the ``index``-th curve, for the same reason."""
    return DASHES[index % len(DASHES)]
