"""Curves: closed forms as lines, simulations as points with standard errors, against one axis."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.axis import Axis as Ruler
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from icllab.core.axes import Quantity
from icllab.core.errors import expected, unknown
from icllab.core.statistics import mean_and_error
from icllab.figures import style
from icllab.figures.labels import named, valued

Scale: TypeAlias = Literal["linear", "log"]
Limits: TypeAlias = tuple[float, float]


@dataclass(frozen=True)
class Panel:
    """One of several panels that share their horizontal axis.

    Attributes:
        y: The variable drawn as points; None where there is only a line.
        line: The variable drawn as a line.
        yscale: ``"linear"`` or ``"log"``.
        ylim: Lower and upper end; points beyond are marked at the frame, never dropped in silence.
        at: Axis -> value: where on axes that the panel does not draw. It is written above the panel.
    """

    y: str | None
    line: str | None = None
    yscale: Scale = "linear"
    ylim: Limits | None = None
    at: Mapping[str, float | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.y is None and self.line is None:
            raise expected("panel", "a variable y, a line, or both", None)

    @property
    def shown(self) -> str:
        """The variable that the vertical axis is named after."""
        return self.y or self.line or ""

    def corner(self, dataset: xr.Dataset) -> str:
        """What tells the panel from the others."""
        return ", ".join(valued(dataset, name, value) for name, value in self.at.items())

    def of(self, dataset: xr.Dataset) -> xr.Dataset:
        """The part of the dataset that the panel shows."""
        for name, value in self.at.items():
            if name not in dataset.dims:
                raise unknown("dimension", name, map(str, dataset.dims))
            if value not in dataset[name].values:
                raise expected(name, f"one of {dataset[name].values.tolist()}", value)
        return dataset.sel(dict(self.at))


@dataclass(frozen=True)
class _Curve:
    """What one colour stands for: the points' means and errors, or a line (without errors)."""

    name: str
    colour: Any
    marker: str
    dashes: Any
    x: np.ndarray
    y: np.ndarray
    error: np.ndarray


def curves(
    dataset: xr.Dataset,
    *,
    x: str,
    y: str | None,
    hue: str | None = None,
    over: str = "seed",
    line: str | None = None,
    line_x: str | None = None,
    line_name: str = "closed form",
    xscale: Scale = "linear",
    yscale: Scale = "linear",
    vertical: float | None = None,
    ylim: Limits | None = None,
) -> Figure:
    """One panel: points with error bars and, where a ``line`` is named, its closed form.

    Args:
        dataset: Its dimensions and variables have shared names, or a claim's own (attribute ``names``).
        x: The dimension along the horizontal axis.
        y: The variable drawn as points: means over ``over`` with standard errors, NaN left out. None: only a line.
        hue: A dimension told apart by colour and marker.
        over: The dimension of independent repetitions.
        line: The variable drawn as a line; it breaks where it is not finite.
        line_x: The line's own dimension; by default the one that is neither ``hue`` nor ``over``.
        line_name: What the legend calls the line.
        xscale: ``"linear"`` or ``"log"``.
        yscale: ``"linear"`` or ``"log"``.
        vertical: Where a thin dashed line stands, such as a divergence.
        ylim: Lower and upper end; points beyond are marked at the frame.

    Raises:
        InputError: A name that the dataset or the axis table lacks, or a dimension left over.
    """
    return panels(
        dataset,
        [Panel(y, line, yscale, ylim)],
        x=x,
        hue=hue,
        over=over,
        line_x=line_x,
        line_name=line_name,
        xscale=xscale,
        vertical=vertical,
    )


def panels(
    dataset: xr.Dataset,
    rows: Sequence[Panel],
    *,
    x: str,
    hue: str | None = None,
    over: str = "seed",
    line_x: str | None = None,
    line_name: str = "closed form",
    xscale: Scale = "linear",
    vertical: float | None = None,
    title: str | None = None,
) -> Figure:
    """Panels below each other that share the horizontal axis and one legend; see :func:`curves`."""
    if not rows:
        raise expected("panels", "at least one panel", list(rows))
    for name in (x, hue):
        if name is not None and name not in dataset.dims:
            raise unknown("dimension", name, map(str, dataset.dims))
    shown = [row.of(dataset) for row in rows]
    points = [_points(part, row.y, x, hue, over) if row.y else [] for row, part in zip(rows, shown, strict=True)]
    lines = [_lines(part, row.line, hue, line_x) if row.line else [] for row, part in zip(rows, shown, strict=True)]

    with style.context():
        height = 2.4 if len(rows) == 1 else 0.65 + 1.65 * len(rows)
        figure = Figure(figsize=(style.COLUMN, height), layout="constrained")
        FigureCanvasAgg(figure)
        grid: list[Axes] = list(figure.subplots(len(rows), 1, sharex=True, squeeze=False)[:, 0])
        for axes, row, some, theory in zip(grid, rows, points, lines, strict=True):
            _draw(axes, row, some, theory, xscale, vertical)
            axes.set_ylabel(_wrapped(named(dataset, row.shown)))
            if row.at:
                axes.set_title(row.corner(dataset), loc="right", fontsize="medium")
        grid[-1].set_xlabel(named(dataset, x).label)
        _legend(figure, title, points[0], next((some for some in lines if some), []), line_name)
    return figure


def _variable(dataset: xr.Dataset, name: str, dims: Sequence[str | None]) -> xr.DataArray:
    """The variable over exactly the dimensions a figure can show; a dimension of length 1 falls away."""
    if name not in dataset.data_vars:
        raise unknown("variable", name, map(str, dataset.data_vars))
    values = dataset[name].astype(float)
    values = values.squeeze([d for d in values.dims if d not in dims and values.sizes[d] == 1], drop=True)
    left = [str(d) for d in values.dims if d not in dims]
    if left:
        shown = ", ".join(d for d in dims if d)
        raise expected(name, f"no dimensions but {shown}", left[0], f"choose one value: dataset.sel({left[0]}=...)")
    return values


def _points(dataset: xr.Dataset, y: str, x: str, hue: str | None, over: str) -> list[_Curve]:
    values = _variable(dataset, y, (x, hue, over))
    if x not in values.dims:
        raise expected(y, f"a variable over {x}", [str(d) for d in values.dims])
    if over not in values.dims:
        return _curves(dataset, values, xr.full_like(values, np.nan), x, hue)
    like = values.isel({over: 0}, drop=True)
    mean, error = mean_and_error(values.transpose(*like.dims, over).to_numpy())
    return _curves(dataset, like.copy(data=mean), like.copy(data=error), x, hue)


def _lines(dataset: xr.Dataset, line: str, hue: str | None, line_x: str | None) -> list[_Curve]:
    if line not in dataset.data_vars:
        raise unknown("variable", line, map(str, dataset.data_vars))
    own = [str(d) for d in dataset[line].dims if d != hue]
    line_x = line_x or (own[0] if own else "")
    if line_x not in own:
        raise expected("line_x", f"a dimension of {line} ({', '.join(own) or 'it has none'})", line_x)
    values = _variable(dataset, line, (line_x, hue))
    return _curves(dataset, values, xr.full_like(values, np.nan), line_x, hue)


def _curves(dataset: xr.Dataset, mean: xr.DataArray, error: xr.DataArray, x: str, hue: str | None) -> list[_Curve]:
    at = mean[x].to_numpy().astype(float)
    order = np.argsort(at)
    if hue is None or hue not in mean.dims:
        return [_Curve("", style.INK, "o", "-", at[order], mean.to_numpy()[order], error.to_numpy()[order])]
    values = mean[hue].to_numpy().tolist()
    return [
        _Curve(
            valued(dataset, hue, value),
            colour,
            style.marker(i),
            style.dashes(i),
            at[order],
            mean.isel({hue: i}).to_numpy()[order],
            error.isel({hue: i}).to_numpy()[order],
        )
        for i, (value, colour) in enumerate(zip(values, style.colours(values), strict=True))
    ]


def _draw(
    axes: Axes, row: Panel, points: Sequence[_Curve], lines: Sequence[_Curve], xscale: Scale, vertical: float | None
) -> None:
    if xscale == "log":
        axes.set_xscale("log")
    if row.yscale == "log":
        axes.set_yscale("log", nonpositive="clip")
    low, high = row.ylim or _limits(points, lines, row.yscale)
    axes.set_ylim(low, high)
    for line in lines:
        broken = np.where(np.isfinite(line.y), line.y, np.nan)
        axes.plot(line.x, broken, color=line.colour, linestyle=line.dashes, zorder=2.5)
    for curve in points:
        inside = (curve.y >= low) & (curve.y <= high)
        # Bars end just outside the frame: on a log axis mean - error may have no place at all.
        bottom, top = (
            (0.9 * low, 1.1 * high) if row.yscale == "log" else (1.1 * low - 0.1 * high, 1.1 * high - 0.1 * low)
        )
        error = np.where(np.isfinite(curve.error), curve.error, 0.0)
        reach = np.stack([np.minimum(error, curve.y - bottom), np.minimum(error, top - curve.y)])
        look = {"color": curve.colour, "marker": curve.marker, "linestyle": "none"}
        edge = {"markeredgecolor": "white", "markeredgewidth": 0.35, "elinewidth": 0.8, "zorder": 3}
        axes.errorbar(curve.x[inside], curve.y[inside], reach[:, inside], **look, **edge)
        for beyond, end, arrow in ((curve.y > high, 1.0, "^"), (curve.y < low, 0.0, "v")):
            if not beyond.any():
                continue
            axes.plot(
                curve.x[beyond],
                np.full(int(beyond.sum()), end),
                arrow,
                color=curve.colour,
                markerfacecolor="white",
                markeredgewidth=0.8,
                transform=axes.get_xaxis_transform(),
                clip_on=False,
                zorder=4,
            )
    if vertical is not None:
        axes.axvline(vertical, color=style.FAINT, linewidth=0.7, dashes=(4, 3), zorder=1)
    for scale, ruler in ((xscale, axes.xaxis), (row.yscale, axes.yaxis)):
        if scale == "log":
            _log_ticks(ruler)


def _limits(points: Sequence[_Curve], lines: Sequence[_Curve], scale: Scale) -> Limits:
    """From the points with their errors and the lines; a line that diverges does not stretch the axis."""
    seen: list[np.ndarray] = []
    for curve in points:
        y, error = (part[np.isfinite(curve.y)] for part in (curve.y, curve.error))
        # On a log axis the lower end of a long bar would stretch it downwards without saying more.
        seen += [y, y - (np.minimum(error, 2 / 3 * y) if scale == "log" else error), y + error]
    seen += [line.y for line in lines if np.isfinite(line.y).all()]
    diverging = [line.y for line in lines if not np.isfinite(line.y).all()]

    def usable(parts: Sequence[np.ndarray]) -> np.ndarray:
        flat = np.concatenate(parts) if parts else np.empty(0)
        return flat[np.isfinite(flat) & ((flat > 0) | (scale == "linear"))]

    shown, rest = usable(seen), usable(diverging)
    if rest.size:
        # Its lower part is shown in full, its pole up to where the points go.
        top = max(shown.max(), np.median(rest)) if shown.size else np.quantile(rest, 0.95)
        shown = np.append(shown, rest[rest <= top])
    if not shown.size:
        return (0.1, 1.0) if scale == "log" else (0.0, 1.0)
    low, high = float(shown.min()), float(shown.max())
    if scale == "log":
        margin = max((high / low) ** 0.06, 1.1)
        return low / margin, high * margin
    margin = 0.06 * (high - low) or 0.5
    return low - margin, high + margin


def _wrapped(row: Quantity) -> str:
    """A quantity's label in lines short enough for the height of a panel."""
    text = row.label.replace(f"${row.symbol}$", "@@@")
    text = textwrap.fill(text, 34, break_long_words=False, break_on_hyphens=False)
    return text.replace("@@@", f"${row.symbol}$")


def _log_ticks(ruler: Ruler) -> None:
    """Over two decades or less 1, 2, 5 in plain numbers, or whatever gives two of them; over more, the decades."""
    low, high = sorted(ruler.get_view_interval())
    if high / low <= 150:
        locator = LogLocator(subs=(1.0, 2.0, 5.0))
        marked = [tick for tick in locator.tick_values(low, high) if low <= tick <= high]
        ruler.set_major_locator(locator if len(marked) > 1 else MaxNLocator(4, steps=[1, 2, 5, 10]))
        ruler.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ruler.set_minor_locator(NullLocator())
    ruler.set_minor_formatter(NullFormatter())


def _legend(
    figure: Figure, title: str | None, points: Sequence[_Curve], lines: Sequence[_Curve], line_name: str
) -> None:
    """Above the panels, where it cannot cover data; a title is the legend's."""
    edge = {"linestyle": "none", "markeredgecolor": "white", "markeredgewidth": 0.35}
    handles = [Line2D([], [], color=c.colour, marker=c.marker, label=c.name, **edge) for c in points if c.name]
    if len(lines) == 1 or handles:
        handles += [Line2D([], [], color=style.INK, label=line_name) for _ in lines[:1]]
    else:
        handles = [Line2D([], [], color=c.colour, linestyle=c.dashes, label=c.name) for c in lines]
    if handles or title:
        legend = figure.legend(
            handles=handles,
            title=title,
            loc="outside upper left",
            ncols=len(handles) if len(handles) <= 4 else -(-len(handles) // 2),
            alignment="left",
        )
        legend.get_title().set_fontsize(8.0)
