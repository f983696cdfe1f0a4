"""Closed forms as lines, and simulations as points with standard errors, against one axis."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from icllab.core.errors import expected, require_known
from icllab.core.statistics import mean_and_error
from icllab.figures import layout, legends, style
from icllab.figures.captions import caption
from icllab.figures.labels import named, shown, told_apart
from icllab.figures.panel import Curve, Limits, Panel, Scale

if TYPE_CHECKING:  # matplotlib is imported when something is drawn: claims import this module to be judged
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis as Ruler
    from matplotlib.figure import Figure


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
    """One panel: points with error bars and, if a ``line`` is named, its closed form.

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
    """A grid of panels in ``columns`` columns that share the horizontal axis and one legend; see :func:`curves`.

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
    if not rows:
        raise expected("panels", "at least one panel", list(rows))
    rows = [replace(row, x=row.x or x, hue=row.hue or hue, xscale=row.xscale or xscale) for row in rows]
    rows = rows[:1] if style.look().single else rows
    for name in {name for row in rows for name in (row.x, row.hue)} - {None}:
        require_known("dimension", str(name), map(str, dataset.dims))
    datasets = [row.of(dataset) for row in rows]
    points = [_points(part, row, over) if row.y else [] for row, part in zip(rows, datasets, strict=True)]
    lines = [_lines(part, row, line_x) if row.line else [] for row, part in zip(rows, datasets, strict=True)]
    alike = len({(row.x, row.hue) for row in rows}) == 1

    with style.context():
        columns = layout.arranged(len(rows), columns)
        figure = layout.canvas(len(rows), columns, alike=alike)
        count, beside = -(-len(rows) // columns), min(columns, len(rows))  # one panel may be as wide as several columns
        grid: list[Any] = list(figure.subplots(count, beside, sharex=alike, squeeze=False).flat)
        for axes in grid[len(rows) :]:
            axes.remove()
        grid = grid[: len(rows)]
        for place, (axes, row, part, curves, theory) in enumerate(
            zip(grid, rows, datasets, points, lines, strict=True)
        ):
            _draw(axes, row, curves, theory, vertical)
            label = named(dataset, row.shown).label
            if place % beside == 0 or label != named(dataset, rows[place - 1].shown).label:
                axes.set_ylabel(label)
            if row.at:
                layout.title(axes, row.corner(dataset), "right")
            if _names(part, row.x):
                axes.set_xticks(range(part.sizes[row.x]), [shown(name) for name in part[row.x].values])
                axes.set_xlim(-0.5, part.sizes[row.x] - 0.5)
                axes.tick_params(axis="x", length=0)
            if not alike or place >= len(rows) - beside:
                axes.set_xlabel(named(dataset, str(row.x)).label)
                axes.tick_params(axis="x", labelbottom=True)
        layout.letter(grid)
        together = _draw_legends(figure, grid, dataset, rows, points, lines, line_name)
        look = style.look()
        legends.draw_above(figure, together or {}, title if not look.letters or (title or "").startswith("$") else None)
        if look.place is None:
            layout.fit(figure)
            figure.caption = caption(dataset, rows, over=over, line_name=line_name, vertical=vertical)  # pyright: ignore[reportAttributeAccessIssue]
    return figure


def _draw_legends(
    figure: "Figure",
    grid: Sequence["Axes"],
    dataset: xr.Dataset,
    rows: Sequence[Panel],
    points: Sequence[list[Curve]],
    lines: Sequence[list[Curve]],
    line_name: str,
) -> legends.Marks | None:
    """Draw a colour bar, or a legend in each panel if they disagree; return the marks of the legend above them."""
    names = [legends.marks(curves, theory, line_name) for curves, theory in zip(points, lines, strict=True)]
    hues = {row.hue for row, curves in zip(rows, zip(points, lines, strict=True), strict=True) if _named(*curves)}
    together = legends.merged(names) if len(hues) <= 1 else None
    if together is None:
        for axes, marks in zip(grid, names, strict=True):
            legends.draw_inside(axes, marks)
        return None
    bar = _many(dataset, next(iter(hues), None))
    if bar:
        labels = {told_apart(dataset, str(rows[0].hue), i) for i in range(len(bar))}
        together = {name: mark for name, mark in together.items() if name not in labels}
        legends.draw_bar(figure, grid, bar, named(dataset, str(rows[0].hue)).label)
    return together


def _variable(dataset: xr.Dataset, name: str, dims: Sequence[str | None]) -> xr.DataArray:
    """The variable over the dimensions that a figure can show; other dimensions of length 1 are dropped."""
    require_known("variable", name, map(str, dataset.data_vars))
    values = dataset[name].astype(float)
    values = values.squeeze([d for d in values.dims if d not in dims and values.sizes[d] == 1], drop=True)
    left = [str(d) for d in values.dims if d not in dims]
    if left:
        allowance = ", ".join(d for d in dims if d)
        raise expected(
            name, f"only the dimensions {allowance}", left[0], f"choose one value: dataset.sel({left[0]}=...)"
        )
    return values


def _named(*curves: Sequence[Curve]) -> bool:
    return any(curve.name for part in curves for curve in part)


def _many(dataset: xr.Dataset, hue: str | None) -> list[float]:
    """Values of a numeric hue with too many for a legend, if their labels differ; else an empty list."""
    if hue is None or dataset.sizes[hue] <= legends.MANY or dataset[hue].dtype.kind not in "iuf":
        return []
    values = dataset[hue].values.tolist()
    return values if len({told_apart(dataset, hue, i) for i in range(len(values))}) == len(values) else []


def _names(dataset: xr.Dataset, x: str | None) -> bool:
    """True if the coordinate of a dimension holds names, which are placed side by side."""
    return x is not None and dataset[x].dtype.kind in "OU"


def _points(dataset: xr.Dataset, row: Panel, over: str) -> list[Curve]:
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


def _lines(dataset: xr.Dataset, row: Panel, line_x: str | None) -> list[Curve]:
    line = str(row.line)
    require_known("variable", line, map(str, dataset.data_vars))
    line_dims = [str(d) for d in dataset[line].dims if d != row.hue]
    line_x = line_x or next((name for name in (str(row.x), *line_dims) if name in line_dims), "")
    if line_x not in line_dims:
        raise expected("line_x", f"a dimension of {line} ({', '.join(line_dims) or 'none'})", line_x)
    values = _variable(dataset, line, (line_x, row.hue))
    return _curves(dataset, values, xr.full_like(values, np.nan), line_x, row.hue)


def _hollow(dataset: xr.Dataset, name: str | None, like: xr.DataArray) -> xr.DataArray:
    """True for points whose data are partly marked as unreliable."""
    if name is None:
        return xr.zeros_like(like, dtype=bool)
    require_known("variable", name, map(str, dataset.data_vars))
    unreliable = dataset[name] > 0
    unreliable = unreliable.any([dim for dim in unreliable.dims if dim not in like.dims])
    return unreliable.broadcast_like(like).transpose(*like.dims)


def _curves(
    dataset: xr.Dataset, mean: xr.DataArray, error: xr.DataArray, x: str, hue: str | None, hollow: str | None = None
) -> list[Curve]:
    names = _names(dataset, x)
    places = np.arange(float(mean.sizes[x])) if names else mean[x].to_numpy().astype(float)
    order = np.argsort(places)
    mean, error, open_ = (part.isel({x: order}) for part in (mean, error, _hollow(dataset, hollow, mean)))
    if hue is None or hue not in mean.dims:
        arrays = (mean.to_numpy(), error.to_numpy(), open_.to_numpy())
        return [Curve("", style.INK, "o", "none" if names else "-", places[order], *arrays)]
    values = mean[hue].to_numpy().tolist()
    labels = [told_apart(dataset, hue, i) for i in range(len(values))]
    looks = _looks(labels, values)
    if _many(dataset, hue):  # colours alone tell them apart
        looks = {label: (colour, 0) for label, (colour, _) in looks.items()}
    # Points of one name stand side by side.
    spread = names and (hue == "seed" or bool(np.isfinite(error).any()))
    shift = min(0.12, 0.5 / len(values)) if spread else 0.0
    return [
        Curve(
            label,
            looks[label][0],
            style.marker(looks[label][1]),
            "none" if names else style.dashes(looks[label][1]),
            places[order] + shift * (i - (len(values) - 1) / 2),
            mean.isel({hue: i}).to_numpy(),
            error.isel({hue: i}).to_numpy(),
            open_.isel({hue: i}).to_numpy(),
        )
        for i, label in enumerate(labels)
    ]


def _looks(labels: Sequence[str], values: Sequence[Any]) -> dict[str, tuple[Any, int]]:
    """A colour and an index of markers and dashes for each label; repetitions look the same."""
    if not any(labels):
        return {"": (style.REPETITION, 0)}
    first = list(dict.fromkeys(labels))
    colours = style.colours([values[labels.index(label)] for label in first])
    return {label: (colour, index) for index, (label, colour) in enumerate(zip(first, colours, strict=True))}


def _draw(axes: "Axes", row: Panel, points: Sequence[Curve], lines: Sequence[Curve], vertical: float | None) -> None:
    scale = style.look().scale
    if row.xscale == "log":
        axes.set_xscale("log")
    if row.yscale == "log":
        axes.set_yscale("log", nonpositive="clip")
    low, high = row.ylim or _limits(points, lines, row.yscale)
    axes.set_ylim(low, high)
    for line in lines:
        heights = np.where(np.isfinite(line.y), line.y, np.nan)
        # Of names, levels side by side.
        look: dict[str, Any] = {"marker": "_", "markersize": 12 * scale} if line.dashes == "none" else {}
        axes.plot(line.x, heights, color=line.colour, linestyle=line.dashes, zorder=2.5, **look)
    # Bars end just outside the frame: on a log axis mean - error may have no place at all.
    bottom, top = (0.9 * low, 1.1 * high) if row.yscale == "log" else (1.1 * low - 0.1 * high, 1.1 * high - 0.1 * low)
    hollow = {"markerfacecolor": "white", "markeredgewidth": 0.8 * scale}
    for curve in points:
        inside = (curve.y >= low) & (curve.y <= high)
        error = np.where(np.isfinite(curve.error), curve.error, 0.0)
        reach = np.stack([np.minimum(error, curve.y - bottom), np.minimum(error, top - curve.y)])
        look = {"color": curve.colour, "marker": curve.marker, "linestyle": "none"}
        edge = {"markeredgecolor": "white", "markeredgewidth": 0.35 * scale, "elinewidth": 0.8 * scale, "zorder": 3}
        for subset, inner in ((inside & ~curve.hollow, {}), (inside & curve.hollow, hollow)):
            if subset.any() or not inner:
                shade = edge | inner | ({"markeredgecolor": curve.colour} if inner else {})
                axes.errorbar(curve.x[subset], curve.y[subset], reach[:, subset], **look, **shade)
        for beyond, end, arrow in ((curve.y > high, 1.0, "^"), (curve.y < low, 0.0, "v")):
            x = curve.x[beyond]
            if x.size:
                place: Any = {"transform": axes.get_xaxis_transform(), "clip_on": False, "zorder": 4, **hollow}
                axes.plot(x, np.full(x.size, end), arrow, color=curve.colour, **place)
    if vertical is not None:
        axes.axvline(vertical, color=style.FAINT, linewidth=0.7 * scale, dashes=(4, 3), zorder=1)
    for kind, ruler in ((row.xscale, axes.xaxis), (row.yscale, axes.yaxis)):
        if kind == "log":
            _log_ticks(ruler)
    _place_ticks(axes, [curve.x for curve in (*points, *lines)], row.xscale)


def _limits(points: Sequence[Curve], lines: Sequence[Curve], scale: Scale) -> Limits:
    """Limits from the points with their errors and the lines; a diverging line does not stretch the axis."""
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


def _place_ticks(axes: "Axes", places: Sequence[np.ndarray], scale: Scale | None) -> None:
    """Put ticks at the values if they are few and far enough apart; else at integers if all values are."""
    values = np.unique(np.concatenate([np.empty(0), *places]))
    values = values[np.isfinite(values)]
    positions = np.log(values) if scale == "log" else values
    if 1 < len(values) <= 5 and np.diff(positions).min() >= 0.12 * np.ptp(positions):
        axes.set_xticks(values, [f"{value:.3g}" if value < 1 else f"{value:g}" for value in values])
        axes.minorticks_off()
    elif scale == "linear" and np.array_equal(values, np.round(values)):
        locator: Any = axes.xaxis.get_major_locator()
        locator.set_params(integer=True)


def _log_ticks(ruler: "Ruler") -> None:
    """Ticks at 1, 2, 5 in plain numbers over two decades or less, or at least two other ticks; else at decades."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

    low, high = sorted(ruler.get_view_interval())
    if high / low <= 150:
        locator = LogLocator(subs=(1.0, 2.0, 5.0))
        ticks = [tick for tick in locator.tick_values(low, high) if low <= tick <= high]
        ruler.set_major_locator(locator if len(ticks) > 1 else MaxNLocator(4, steps=[1, 2, 5, 10]))
        ruler.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ruler.set_minor_locator(NullLocator())
    ruler.set_minor_formatter(NullFormatter())
