r"""A head of three strengths moves along a long plateau by one of them, and then falls off a cliff.

The simulation is attention, token by token, on :math:`x_1, \ell_1, \dots, x_N, \ell_N, x_k` with items and labels
orthogonal, averaged over all k. It is of two kinds: ``even``, where every label sees N + 1 tokens and nothing but its
own item counts, which is :mod:`icllab.theory.induction_landscape`; and ``causal``, where every token sees itself and
all before it, takes up a part of each, and positions differ.
"""

from typing import Any

import numpy as np
import xarray as xr

from icllab.core.axes import Axis, Quantity
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Estimate, Finding, checks
from icllab.lab.results import fixed_values
from icllab.theory import induction_landscape as landscape

STRENGTHS = ("beta", "alpha", "xi")
TOP, FOOT = 0.9, 0.1  # of the cliff, as shares of ln N
SHARP = 1 / 2  # of the plateau: the drop takes less
ROUNDING = 1e-9
HORIZONS = ("saddle_horizon", "horizon")  # with as many labels as pairs, and with more


def theory(dataset: xr.Dataset, leak_corrected: bool = False, context: bool = True) -> xr.Dataset:
    """Times of the flow from every start, its path, and the gradient at the origin."""
    constants, levels, times = fixed_values(dataset), dataset.loss_level.values.tolist(), dataset.time.values
    order = [STRENGTHS.index(str(name)) for name in dataset.strength.values]

    def of_flow(pairs: np.integer, labels: np.integer, start: np.floating) -> tuple[np.ndarray, ...]:
        """Crossing times, path of strengths and loss, and slope at the origin; NaN if there are too few labels."""
        if labels < pairs:
            return tuple(np.full(shape, np.nan) for shape in (len(levels), (len(times), 3), len(times), 3))
        sizes: dict[str, Any] = {"pairs": int(pairs), "labels": int(labels)}
        until = constants[HORIZONS[int(labels > pairs)]]
        flow = landscape.flow((float(start),) * 3, time=until, levels=levels, leak_corrected=leak_corrected, **sizes)
        curves = [np.interp(times, flow.time, curve) for curve in (*flow.parameters.T[order], flow.loss)]
        path = np.where(times <= until, curves, np.nan)
        slope = landscape.gradient(0.0, 0.0, 0.0, **sizes)[order]
        gradient = slope if context else slope * labels / max(labels - pairs, 1)
        return np.array(list(flow.crossings.values())), path[:3].T, path[3], gradient

    dims = [["loss_level"], ["time", "strength"], ["time"], ["strength"]]
    swept = (dataset.pairs, dataset.label_count, dataset.start)
    *lines, slopes = xr.apply_ufunc(of_flow, *swept, output_core_dims=dims, vectorize=True, keep_attrs=False)
    names = ("crossing_time_theory", "strength_curve_line", "label_loss_line")
    variables = dict(zip(names, lines, strict=True)) | {"origin_gradient_theory": slopes.isel(start=0, drop=True)}
    return dataset.assign(variables)


def at_rate_zero(times: xr.DataArray) -> Estimate:
    """Times at step size zero, from the three smallest step sizes; the error is the effect of the largest of them."""
    smallest = times.sortby("rate").isel(rate=slice(3))
    if smallest.sizes["rate"] < 3:
        return Estimate(smallest.isel(rate=0, drop=True) * np.nan, np.nan)
    (a, b, c), (at_a, at_b, at_c) = smallest.rate.values, (smallest.isel(rate=i, drop=True) for i in range(3))
    two = (at_a * b - at_b * a) / (b - a)
    three = (two * c - (at_b * c - at_c * b) / (c - b) * a) / (c - a)  # Neville's scheme
    return Estimate(three, np.abs(three - two))


def half_time(curve: xr.DataArray, foot: xr.DataArray) -> xr.DataArray:
    """Time at which a strength reaches half its value at the foot of the cliff."""

    def one(times: np.ndarray, values: np.ndarray, end: float) -> float:
        times, values = times[np.isfinite(values)], values[np.isfinite(values)]
        if not (len(values) and np.isfinite(end)):
            return np.nan
        half = np.interp(end, times, values) / 2
        first = max(int(np.argmax(values >= half)), 1)
        return np.interp(half, values[first - 1 : first + 1], times[first - 1 : first + 1])

    return xr.apply_ufunc(one, curve.time, curve, foot, input_core_dims=[["time"], ["time"], []], vectorize=True)


def check(dataset: xr.Dataset) -> list[Finding]:
    """The gradient at the origin, the times of the cliff, the order of growth, and the saddle at L = N."""
    findings, counts = [], dataset.label_count.values
    for pairs in dataset.pairs.values:
        part = dataset.sel(pairs=pairs, label_count=counts >= pairs)
        slope, line = Estimate(part["origin_gradient"], ROUNDING), part["origin_gradient_theory"]
        findings += checks.agrees("slope", "slope at the origin", slope, line, largest_error=ROUNDING)
        saddle, cliff = bool((counts == pairs).any()), bool((counts > pairs).any())
        findings += _saddle(part.sel(label_count=pairs), int(pairs)) if saddle else []
        findings += _cliff(part.sel(label_count=counts[counts > pairs])) if cliff else []
        if saddle and cliff:  # the same start with as many labels as pairs, and with more
            first = _finest(part).sel(loss_level=TOP, start=part.start.max(), drop=True)
            equal, many = (first.sel(label_count=count, drop=True) for count in (pairs, part.label_count.max()))
            findings += checks.above("delay", "plateau at L=N / at the most labels", Estimate(equal / many, 0.0), 2.0)
        complete = saddle and cliff
        findings += checks.complete("counts", "as many labels as pairs, and more", complete, at={"pairs": int(pairs)})
    return findings


def _cliff(part: xr.Dataset) -> list[Finding]:
    """Times of the flow; the drop relative to the plateau; and the readout before both attentions."""
    even = part.sel(start=part.start >= 0, attention="even")
    limit, line = at_rate_zero(even["crossing_time"]), even["crossing_time_theory"]
    times = Estimate(limit.value, limit.error + 1e-4 * line)
    findings = checks.agrees("time", "time at a share of ln N", times, line, largest_error=0.01 * line)
    zero = part.sel(start=0.0, drop=True)
    top, foot = (_finest(zero).sel(loss_level=level, drop=True) for level in (TOP, FOOT))
    findings += checks.below("drop", "drop / plateau", Estimate((foot - top) / top, 0.0), SHARP)
    half = half_time(zero["strength_curve"], foot)
    lead = half.sel(strength=["alpha", "beta"]) / half.sel(strength="xi", drop=True)
    return findings + checks.above("readout_first", "time of half / the readout's", Estimate(lead, 0.0), 1.0)


def _finest(part: xr.Dataset) -> xr.DataArray:
    """Crossing times at the smallest step size."""
    return part["crossing_time"].sel(rate=part.rate.min(), drop=True)


def _saddle(part: xr.Dataset, pairs: int) -> list[Finding]:
    """Descent stays at the saddle, but leaves from a point near it, at the rate of the negative curvature."""
    small = np.sort(part.start.values[part.start.values > 0])[:2]
    falls = _finest(part).sel(loss_level=TOP, drop=True).notnull()
    findings = checks.equal("at_rest", "falls from the saddle itself", falls.sel(start=0.0, drop=True), 0)
    away = falls.sel(start=small).sum("start")
    findings += checks.equal("escapes", "starts beside the saddle that fall", away, len(small))
    if len(small) < 2:
        return findings
    times = at_rate_zero(part["crossing_time"].sel(loss_level=TOP, drop=True).sel(attention="even", start=small))
    gain, line = float(np.log(small[1] / small[0])), 1 / float(landscape.escape_rate(pairs=pairs))
    rate = -times.value.diff("start").squeeze("start", drop=True) / gain
    slower = Estimate(rate, times.error.sum("start", skipna=False) / gain + 0.01 * line)
    quantity = "time for a start e times nearer to the saddle"
    return findings + checks.agrees("escape", quantity, slower, line, largest_error=0.03 * line)


def figure(dataset: xr.Dataset):
    """Draw the loss against time with more labels than pairs, and the three strengths below it."""
    part = dataset.isel(pairs=0, label_count=-1, drop=True).sel(start=0.0, drop=True)
    third = xr.DataArray(np.arange(part.sizes["time"]) % 3 == 0, dims="time")  # points that leave the line to be seen
    part = part.assign({name: part[name].where(third) for name in ("label_loss", "strength_curve")})
    rows = [Panel("label_loss", "label_loss_line")]
    rows += [Panel("strength_curve", "strength_curve_line", at={"strength": name}) for name in ("xi", "alpha")]
    return panels(part, rows, x="time", hue="attention", line_x="time", line_name="flow")


COMMON = {"attention": ("even", "causal"), "pairs": (8,), "rate": (0.2, 0.1, 0.05), "loss_level": (0.9, 0.5, 0.1)}
COMMON |= {"strength": STRENGTHS, "time": tuple(2.0 * i for i in range(66))}

claim = Claim(
    title="A head of three numbers: a cliff",
    sentence=(
        "A three-parameter induction head first grows its readout, on a plateau over twice as long as the drop after "
        "it; at L = N the origin is a saddle."
    ),
    conditions=(
        "Attention on N = 8 orthogonal items and labels, L from 8 to 32, exact loss averaged over the query. The "
        "plateau ends at 0.9 ln N and the drop at 0.1 ln N. At the saddle itself nothing moves; starts near it escape."
    ),
    sources=("Reddy24",),
    axes=(Axis("loss_level", r"\mathcal{L}/\ln N", "loss over ln N", above=0),),
    quantities=(
        Quantity("origin_gradient", r"\nabla\mathcal{L}", "gradient of the loss at the origin"),
        Quantity("crossing_time", "t_x", "time at which the loss falls through a level"),
        Quantity("strength_curve", "w", "strength"),
        "label_loss",
    ),
    static=("pairs", "label_count", "attention"),
    outputs=("loss_level", "strength", "time"),
    fixed={"horizon": 130.0, "saddle_horizon": 1600.0},
    sizes={
        "smoke": COMMON
        | {"pairs": (4,), "label_count": (4, 16), "rate": (0.8, 0.4, 0.2), "start": (0.0, 0.003, 0.01)}
        | {"time": COMMON["time"][:41]},
        "small": COMMON | {"label_count": (8, 32), "start": (-0.01, 0.0, 0.001, 0.01)},
        "medium": COMMON
        | {"label_count": (8, 9, 16, 32, 64), "start": (-0.01, 0.0, 0.0001, 0.001, 0.01)}
        | {"time": tuple(2.0 * i for i in range(131)), "horizon": 400.0, "saddle_horizon": 2400.0},
    },
    precision="float64",
    controls={
        "formed": Control("both attentions are formed at the start: the readout alone has to grow", {"formed": 8.0}),
        "held": Control("attention stays as it begins: the readout alone does not leave the saddle", {"held": True}),
        "leak_corrected": Control(
            "the first layer is credited only with what it attends above chance",
            theory={"leak_corrected": True},
            axes={"pairs": (4,), "label_count": (4, 16)},
        ),
        "no_context": Control("the readout gains as much from labels in the context", theory={"context": False}),
    },
)
