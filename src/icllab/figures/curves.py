"""Curves: closed forms as lines, simulations as points with standard errors, against one axis."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import xarray as xr

from icllab.core.axes import Quantity
from icllab.core.errors import expected, require_known
from icllab.core.statistics import mean_and_error
from icllab.figures import style
from icllab.figures.labels import named, told_apart, valued

if TYPE_CHECKING:  # matplotlib is imported when something is drawn: claims import this module to be judged
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis as Ruler
    from matplotlib.figure import Figure

HOLLOW = {"markerfacecolor": "white", "markeredgewidth": 0.8}
Scale: TypeAlias = Literal["linear", "log"]
Limits: TypeAlias = tuple[float, float]


@dataclass(frozen=True)
class Panel:
    """One of several panels, which share their horizontal axis unless they have one of their own.

    Attributes:
        y: The variable drawn as points; None where there is only a line.
        line: The variable drawn as a line, which breaks where it is not finite; None where there are only points.
        yscale: ``"linear"`` or ``"log"``.
        ylim: Lower and upper end; points beyond are marked at the frame, not dropped. None: those of the data.
        at: Axis -> value: where on axes that the panel does not draw. It is written above the panel.
        x: The dimension along its own horizontal axis, which may be one of names; None: that of all panels.
        hue: The dimension that it tells apart itself, in a legend of its own; None: that of all panels.
        xscale: ``"linear"`` or ``"log"``, of its own horizontal axis; None: that of all panels.
        hollow: A variable that is 0 for what can be relied upon; points are hollow where any part of them has more.
            None: no point is.
    """

    y: str | None
    line: str | None = None
    yscale: Scale = "linear"
    ylim: Limits | None = None
    at: Mapping[str, float | str] = field(default_factory=dict)
    x: str | None = None
    hue: str | None = None
    xscale: Scale | None = None
    hollow: str | None = None

    def __post_init__(self) -> None:
        if self.y is None and self.line is None:
            raise expected("panel", "a variable y, a line, or both", None)

    @property
    def shown(self) -> str:
        """The variable that the vertical axis is named after."""
        return self.y or self.line or ""

    def corner(self, dataset: xr.Dataset) -> str:
        """Text in the corner of the panel: the values at which it is taken."""
        return ", ".join(valued(dataset, name, value) for name, value in self.at.items())

    def of(self, dataset: xr.Dataset) -> xr.Dataset:
        """The part of the dataset that the panel shows."""
        for name, value in self.at.items():
            require_known("dimension", name, map(str, dataset.dims))
            if value not in dataset[name].values:
                raise expected(name, f"one of {dataset[name].values.tolist()}", value)
        return dataset.sel(dict(self.at))


@dataclass(frozen=True)
class _Curve:
    """Points with their means and errors, or a line without errors, in one colour."""

    name: str
    colour: Any
    marker: str
    dashes: Any
    x: np.ndarray
    y: np.ndarray
    error: np.ndarray
    hollow: np.ndarray


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
) -> "Figure":
    """One panel: points with error bars and, where a ``line`` is named, its closed form.

    Args:
        dataset: Its dimensions and variables have shared names, or a claim's own (attribute ``names``).
        x: The dimension along the horizontal axis.
        y: The quantity, as for :class:`Panel`; so are ``line``, ``xscale``, ``yscale`` and ``ylim``. Points are means
            over ``over`` with standard errors, NaN left out; without that dimension, with the ``_error`` that stands
            beside them.
        hue: A dimension told apart by colour and marker; members of a run by the values that were swept.
        over: The dimension of independent repetitions.
        line_x: The line's own dimension; by default the one that is neither ``hue`` nor ``over``.
        line_name: What the legend calls the line.
        vertical: Where a thin dashed line stands, such as a divergence.

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
    columns: int = 1,
) -> "Figure":
    """Panels below each other, in so many columns, that share the horizontal axis and one legend; see :func:`curves`.

    Where a panel has a horizontal axis or a hue of its own, each has its own axis and its own legend.

    Args:
        dataset: Results with the variables of the panels.
        rows: The panels.
        x: The dimension along the horizontal axis, of panels that name none.
        hue: The dimension told apart by colours, of panels that name none; None: one colour.
        over: The dimension of repetitions, whose mean and error are drawn.
        line_x: The lines' own dimension; by default the one that is neither ``hue`` nor ``over``.
        line_name: What the legend calls the lines.
        xscale: ``"linear"`` or ``"log"``, of panels that name none.
        vertical: Where a vertical line is drawn; None: nowhere.
        title: Title of the figure; None: none.
        columns: Number of columns.
    """
    from icllab.figures.output import Drawing

    if not rows:
        raise expected("panels", "at least one panel", list(rows))
    rows = [replace(row, x=row.x or x, hue=row.hue or hue, xscale=row.xscale or xscale) for row in rows]
    for name in {name for row in rows for name in (row.x, row.hue)} - {None}:
        require_known("dimension", str(name), map(str, dataset.dims))
    datasets = [row.of(dataset) for row in rows]
    points = [_points(part, row, over) if row.y else [] for row, part in zip(rows, datasets, strict=True)]
    lines = [_lines(part, row, line_x) if row.line else [] for row, part in zip(rows, datasets, strict=True)]
    alike = len({(row.x, row.hue) for row in rows}) == 1

    with style.context():
        count = -(-len(rows) // columns)
        height = 2.4 if count == 1 else 0.65 + (1.65 if alike else 1.9) * count
        figure = Drawing(width=columns * style.COLUMN, height=height)
        beside = min(columns, len(rows))  # one panel may be as wide as several columns
        grid: list[Any] = list(figure.subplots(count, beside, sharex=alike, squeeze=False).flat)
        for axes in grid[len(rows) :]:
            axes.remove()
        for axes, row, part, curves, theory in zip(grid, rows, datasets, points, lines, strict=False):
            _draw(axes, row, curves, theory, vertical)
            axes.set_ylabel(_wrapped(named(dataset, row.shown)))
            if row.at:
                axes.set_title(row.corner(dataset), loc="right", fontsize="medium")
            if _names(part, row.x):
                axes.set_xticks(range(part.sizes[row.x]), part[row.x].values, rotation=30, ha="right")
                axes.tick_params(axis="x", length=0)
            if not alike:
                axes.set_xlabel(named(dataset, str(row.x)).label)
                _legend(axes, None, curves, theory, line_name)
        if alike:
            for axes in grid[len(rows) - beside : len(rows)]:
                axes.set_xlabel(named(dataset, x).label)
            _legend(figure, title, points[0], next((curves for curves in lines if curves), []), line_name)
    return figure


def _variable(dataset: xr.Dataset, name: str, dims: Sequence[str | None]) -> xr.DataArray:
    """The variable over exactly the dimensions a figure can show; a dimension of length 1 falls away."""
    require_known("variable", name, map(str, dataset.data_vars))
    values = dataset[name].astype(float)
    values = values.squeeze([d for d in values.dims if d not in dims and values.sizes[d] == 1], drop=True)
    left = [str(d) for d in values.dims if d not in dims]
    if left:
        allowance = ", ".join(d for d in dims if d)
        raise expected(name, f"no dimensions but {allowance}", left[0], f"choose one value: dataset.sel({left[0]}=...)")
    return values


def _names(dataset: xr.Dataset, x: str | None) -> bool:
    """Whether a dimension is one of names, which stand side by side."""
    return x is not None and dataset[x].dtype.kind in "OU"


def _points(dataset: xr.Dataset, row: Panel, over: str) -> list[_Curve]:
    y, x = str(row.y), str(row.x)
    values = _variable(dataset, y, (x, row.hue, over))
    if x not in values.dims:
        raise expected(y, f"a variable over {x}", [str(d) for d in values.dims])
    if over in values.dims and over != row.hue:
        like = values.isel({over: 0}, drop=True)
        mean, error = mean_and_error(values.transpose(*like.dims, over).to_numpy())
        return _curves(dataset, like.copy(data=mean), like.copy(data=error), x, row.hue, row.hollow)
    beside = f"{y}_error" in dataset
    error = _variable(dataset, f"{y}_error", (x, row.hue)) if beside else xr.full_like(values, np.nan)
    return _curves(dataset, values, error.transpose(*values.dims), x, row.hue, row.hollow)


def _lines(dataset: xr.Dataset, row: Panel, line_x: str | None) -> list[_Curve]:
    line = str(row.line)
    require_known("variable", line, map(str, dataset.data_vars))
    line_dims = [str(d) for d in dataset[line].dims if d != row.hue]
    line_x = line_x or next((name for name in (str(row.x), *line_dims) if name in line_dims), "")
    if line_x not in line_dims:
        raise expected("line_x", f"a dimension of {line} ({', '.join(line_dims) or 'it has none'})", line_x)
    values = _variable(dataset, line, (line_x, row.hue))
    return _curves(dataset, values, xr.full_like(values, np.nan), line_x, row.hue)


def _hollow(dataset: xr.Dataset, name: str | None, like: xr.DataArray) -> xr.DataArray:
    """Points of which any part is marked as unreliable."""
    if name is None:
        return xr.zeros_like(like, dtype=bool)
    require_known("variable", name, map(str, dataset.data_vars))
    unreliable = dataset[name] > 0
    unreliable = unreliable.any([dim for dim in unreliable.dims if dim not in like.dims])
    return unreliable.broadcast_like(like).transpose(*like.dims)


def _curves(
    dataset: xr.Dataset, mean: xr.DataArray, error: xr.DataArray, x: str, hue: str | None, hollow: str | None = None
) -> list[_Curve]:
    names = _names(dataset, x)
    at = np.arange(float(mean.sizes[x])) if names else mean[x].to_numpy().astype(float)
    order = np.argsort(at)
    mean, error, open_ = (part.isel({x: order}) for part in (mean, error, _hollow(dataset, hollow, mean)))
    if hue is None or hue not in mean.dims:
        arrays = (mean.to_numpy(), error.to_numpy(), open_.to_numpy())
        return [_Curve("", style.INK, "o", "none" if names else "-", at[order], *arrays)]
    values = mean[hue].to_numpy().tolist()
    # Points of one name stand side by side.
    spread = names and (hue == "seed" or bool(np.isfinite(error).any()))
    shift = min(0.12, 0.5 / len(values)) if spread else 0.0
    return [
        _Curve(
            told_apart(dataset, hue, i),
            colour,
            style.marker(i),
            "none" if names else style.dashes(i),
            at[order] + shift * (i - (len(values) - 1) / 2),
            mean.isel({hue: i}).to_numpy(),
            error.isel({hue: i}).to_numpy(),
            open_.isel({hue: i}).to_numpy(),
        )
        for i, colour in enumerate(style.colours(values))
    ]


def _draw(axes: "Axes", row: Panel, points: Sequence[_Curve], lines: Sequence[_Curve], vertical: float | None) -> None:
    if row.xscale == "log":
        axes.set_xscale("log")
    if row.yscale == "log":
        axes.set_yscale("log", nonpositive="clip")
    low, high = row.ylim or _limits(points, lines, row.yscale)
    axes.set_ylim(low, high)
    for line in lines:
        heights = np.where(np.isfinite(line.y), line.y, np.nan)
        # Of names, levels side by side.
        look: dict[str, Any] = {"marker": "_", "markersize": 12} if line.dashes == "none" else {}
        axes.plot(line.x, heights, color=line.colour, linestyle=line.dashes, zorder=2.5, **look)
    # Bars end just outside the frame: on a log axis mean - error may have no place at all.
    bottom, top = (0.9 * low, 1.1 * high) if row.yscale == "log" else (1.1 * low - 0.1 * high, 1.1 * high - 0.1 * low)
    outside = {"markerfacecolor": "white", "markeredgewidth": 0.8, "clip_on": False, "zorder": 4}
    for curve in points:
        inside = (curve.y >= low) & (curve.y <= high)
        error = np.where(np.isfinite(curve.error), curve.error, 0.0)
        reach = np.stack([np.minimum(error, curve.y - bottom), np.minimum(error, top - curve.y)])
        look = {"color": curve.colour, "marker": curve.marker, "linestyle": "none"}
        edge = {"markeredgecolor": "white", "markeredgewidth": 0.35, "elinewidth": 0.8, "zorder": 3}
        for subset, inner in ((inside & ~curve.hollow, {}), (inside & curve.hollow, HOLLOW)):
            if subset.any() or not inner:
                shade = edge | inner | ({"markeredgecolor": curve.colour} if inner else {})
                axes.errorbar(curve.x[subset], curve.y[subset], reach[:, subset], **look, **shade)
        for beyond, end, arrow in ((curve.y > high, 1.0, "^"), (curve.y < low, 0.0, "v")):
            x = curve.x[beyond]
            if x.size:
                place: Any = {"color": curve.colour, "transform": axes.get_xaxis_transform(), **outside}
                axes.plot(x, np.full(x.size, end), arrow, **place)
    if vertical is not None:
        axes.axvline(vertical, color=style.FAINT, linewidth=0.7, dashes=(4, 3), zorder=1)
    for scale, ruler in ((row.xscale, axes.xaxis), (row.yscale, axes.yaxis)):
        if scale == "log":
            _log_ticks(ruler)


def _limits(points: Sequence[_Curve], lines: Sequence[_Curve], scale: Scale) -> Limits:
    """From the points with their errors and the lines; a line that diverges does not stretch the axis."""
    arrays: list[np.ndarray] = []
    for curve in points:
        y, error = (part[np.isfinite(curve.y)] for part in (curve.y, curve.error))
        # On a log axis the lower end of a long bar would stretch it downwards without saying more.
        arrays += [y, y - (np.minimum(error, 2 / 3 * y) if scale == "log" else error), y + error]
    arrays += [line.y for line in lines if np.isfinite(line.y).all()]
    diverging = [line.y for line in lines if not np.isfinite(line.y).all()]

    def usable(parts: Sequence[np.ndarray]) -> np.ndarray:
        flat = np.concatenate(parts) if parts else np.empty(0)
        return flat[np.isfinite(flat) & ((flat > 0) | (scale == "linear"))]

    heights, poles = usable(arrays), usable(diverging)
    if poles.size:
        # Its lower part is shown in full, its pole up to where the points go.
        top = max(heights.max(), np.median(poles)) if heights.size else np.quantile(poles, 0.95)
        heights = np.append(heights, poles[poles <= top])
    if not heights.size:
        return (0.1, 1.0) if scale == "log" else (0.0, 1.0)
    low, high = float(heights.min()), float(heights.max())
    if scale == "log":
        margin = max((high / low) ** 0.06, 1.1)
        return low / margin, high * margin
    margin = 0.06 * (high - low) or 0.5
    return low - margin, high + margin


def _wrapped(row: Quantity) -> str:
    """A quantity's label in lines short enough for the height of a panel."""
    text = row.label.replace(f"${row.symbol}$", "@@@")
    text = textwrap.fill(text, 32, break_long_words=False, break_on_hyphens=False)
    return text.replace("@@@", f"${row.symbol}$")


def _log_ticks(ruler: "Ruler") -> None:
    """Over two decades or less 1, 2, 5 in plain numbers, or whatever gives two of them; over more, the decades."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

    low, high = sorted(ruler.get_view_interval())
    if high / low <= 150:
        locator = LogLocator(subs=(1.0, 2.0, 5.0))
        ticks = [tick for tick in locator.tick_values(low, high) if low <= tick <= high]
        ruler.set_major_locator(locator if len(ticks) > 1 else MaxNLocator(4, steps=[1, 2, 5, 10]))
        ruler.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ruler.set_minor_locator(NullLocator())
    ruler.set_minor_formatter(NullFormatter())


def _legend(
    place: "Figure | Axes", title: str | None, points: Sequence[_Curve], lines: Sequence[_Curve], line_name: str
) -> None:
    """Above the panels, where it cannot cover data, or in a panel; a title is the legend's."""
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

    edge = {"linestyle": "none", "markeredgecolor": "white", "markeredgewidth": 0.35}
    handles = [Line2D([], [], color=c.colour, marker=c.marker, label=c.name, **edge) for c in points if c.name]
    if len(lines) == 1 or handles or not any(line.name for line in lines):
        handles += [Line2D([], [], color=style.INK, label=line_name) for _ in lines[:1] if points or len(lines) == 1]
    else:
        marks = [{"linestyle": c.dashes, "marker": "_" if c.dashes == "none" else ""} for c in lines]
        handles = [Line2D([], [], color=c.colour, label=c.name, **look) for c, look in zip(lines, marks, strict=True)]
    if not (handles or title):
        return
    if isinstance(place, Axes):
        place.legend(handles=handles, title=title, loc="best", ncols=-(-len(handles) // 4), alignment="left")
        return
    columns_at_most = len(handles) if len(handles) <= 4 else -(-len(handles) // 2)
    location: Any = {"loc": "outside upper left", "alignment": "left"}
    for columns in range(max(columns_at_most, 1), 0, -1):  # as many as fit
        legend = place.legend(handles=handles, title=title, ncols=columns, **location)
        legend.get_title().set_fontsize(8.0)
        if columns == 1 or legend.get_window_extent().width <= place.bbox.width:
            extra_rows = -(-len(handles) // columns) - 2  # two rows are counted in the figure's height
            place.set_figheight(place.get_figheight() + 0.16 * max(extra_rows, 0))
            return
        legend.remove()
