r"""A head of three numbers descends a long plateau along one of them, and then falls off a cliff.

The landscape is that of :mod:`icllab.theory.induction_landscape`. The simulation is attention, token by token, on the
prompt :math:`x_1, \ell_1, \dots, x_N, \ell_N, x_k` with items and labels orthogonal, averaged over all k, with its
gradient by automatic differentiation and Euler's steps of descent. Of two kinds: ``even``, where every label sees N + 1
tokens and nothing but its own item counts, which is the landscape; and ``causal``, where every token sees itself and
all before it, takes up a part of each, and places differ.

What the two have in common is not an artefact of the average over places.
"""

import numpy as np
import xarray as xr

from icllab.core.statistics import extrapolate
from icllab.experiments.checks import Finding, Outcome, agreement, exactly, exceeds
from icllab.experiments.experiment import Experiment, World
from icllab.experiments.results import fixed_values
from icllab.figures.curves import Panel, panels
from icllab.theory import induction_landscape as landscape

STRENGTHS = ("beta", "alpha", "xi")
TOP, FOOT = 0.9, 0.1  # of the cliff, as shares of ln N
SHARP = 1 / 2  # of the plateau: the drop takes less
ROUNDING = 1e-9
FLOOR = 0.02  # of ln N: where descent may end
STILL = 1e-15  # a slope that is nothing but rounding


def measure(point, *, key):
    """One cell: both kinds of attention with every number of labels, from all starts, at all step sizes."""
    import itertools

    import jax
    import jax.numpy as jnp

    del key  # nothing is random: the loss is exact
    pairs, most = point.pairs, max(point.label_count)
    tokens, grid = 2 * pairs + 1, np.asarray(point.time)
    levels, spacing = jnp.asarray(point.loss_level) * np.log(pairs), float(grid[1] - grid[0])
    items, labels = np.arange(0, tokens - 1, 2), np.arange(1, tokens, 2)
    # Of each query: the tokens whose content it is, the last among them; and the token of its label.
    same, right = np.zeros((2, pairs, tokens))
    same[np.arange(pairs), items], same[:, -1], right[np.arange(pairs), labels] = 1.0, 1.0, 1.0
    sees = np.tril(np.ones((tokens, tokens))) > 0

    def loss(w, causal, count):
        beta, alpha, xi = w
        pattern = jax.nn.softmax(jnp.where(sees, beta * np.eye(tokens, k=-1), -jnp.inf), axis=1)
        even = jax.nn.softmax(beta * np.eye(1, pairs + 1)[0])[0] * right
        buffers = jnp.where(causal, same @ pattern.T, even)  # what tokens have stored of each query
        attention = jax.nn.softmax(alpha * buffers, axis=1)
        logits = jnp.zeros((pairs, most)).at[:, :pairs].set(xi * attention[:, labels])
        logits = jnp.where(jnp.arange(most)[None] < count, logits, -jnp.inf)
        return jnp.mean(jax.nn.logsumexp(logits, axis=1) - jnp.diagonal(logits))

    def descended(causal, count, start, rate):
        """When the loss falls through the levels; the strengths and the loss on the grid of times."""
        until = jnp.where(count > pairs, point.horizon, point.saddle_horizon)

        def goes_on(state):
            i, _, here, moved, _, _ = state
            return (i.astype(float) * rate < until) & (here > FLOOR * np.log(pairs)) & (moved > STILL)

        def step(state):
            i, w, before, _, crossed, curve = state
            here, slope = jax.value_and_grad(loss)(w, causal, count)
            t = i.astype(float) * rate
            at = t - rate * (levels - here) / (before - here)
            crossed = jnp.where((before > levels) & (here <= levels) & jnp.isnan(crossed), at, crossed)
            place = jnp.round(t / spacing).astype(int)
            place = jnp.where(jnp.abs(t - place.astype(float) * spacing) < rate / 2, place, len(grid))
            curve = curve.at[place].set(jnp.append(w, here), mode="drop")
            return i + 1, w - rate * slope, here, jnp.max(jnp.abs(slope)), crossed, curve

        missing = jnp.full((len(grid), 4), jnp.nan)
        state = (jnp.asarray(0), jnp.full(3, start), jnp.inf, jnp.inf, jnp.full(len(levels), jnp.nan), missing)
        *_, crossed, curve = jax.lax.while_loop(goes_on, step, state)
        return crossed, curve

    kinds, counts, rates = point.attention, point.label_count, point.rate
    shape = (len(kinds), len(counts), len(point.start), len(rates))
    finest = int(np.argmin(rates))
    # Only the landscape's own times are taken to step size zero.
    cases = [at for at in np.ndindex(shape) if kinds[at[0]] == "even" or at[3] == finest]
    values = [(kinds[a] == "causal", counts[c], float(point.start[s]), rates[r]) for a, c, s, r in cases]
    crossed, curve = jax.jit(jax.vmap(descended))(*map(jnp.asarray, zip(*values, strict=True)))
    times = np.full((*shape, len(levels)), np.nan)
    curves = np.full((*shape[:3], len(grid), 4), np.nan)
    for at, of_times, of_curve in zip(cases, np.asarray(crossed), np.asarray(curve), strict=True):
        times[at] = of_times
        if at[3] == finest:
            curves[at[:3]] = of_curve
    ends = list(itertools.product(kinds, counts))
    origin = jax.jit(jax.vmap(jax.grad(loss), (None, 0, 0)))
    slopes = origin(jnp.zeros(3), jnp.asarray([k == "causal" for k, _ in ends]), jnp.asarray([c for _, c in ends]))
    dims = ("attention", "label_count")
    return {
        "origin_gradient": ((*dims, "strength"), np.asarray(slopes).reshape(*shape[:2], 3)),
        "crossing_time": ((*dims, "start", "rate", "loss_level"), times),
        "strength_curve": ((*dims, "start", "time", "strength"), curves[..., :3]),
        "label_loss": ((*dims, "start", "time"), curves[..., 3]),
    }


def theory(dataset: xr.Dataset, leak_corrected: bool = False, context: bool = True) -> xr.Dataset:
    """Times of the flow from every start, and the slope at the origin."""
    fixed = fixed_values(dataset)
    counts = [(int(n), int(labels)) for n in dataset.pairs.values for labels in dataset.label_count.values]
    shape = (dataset.sizes["pairs"], dataset.sizes["label_count"])
    starts, levels = dataset.start.values, dataset.loss_level.values.tolist()
    times = np.full((*shape, len(starts), len(levels)), np.nan)
    slopes = np.full((*shape, 3), np.nan)
    lines = np.full((*shape, len(starts), dataset.sizes["time"], 4), np.nan)
    for at, (pairs, labels) in zip(np.ndindex(shape), counts, strict=True):
        if labels < pairs:
            continue
        slopes[at] = landscape.gradient(0.0, 0.0, 0.0, pairs=pairs, labels=labels)
        slopes[at] *= 1.0 if context else labels / max(labels - pairs, 1)
        until = fixed["horizon" if labels > pairs else "saddle_horizon"]
        for s, start in enumerate(starts):
            how = {"pairs": pairs, "labels": labels, "time": until, "levels": levels, "leak_corrected": leak_corrected}
            found = landscape.flow((start,) * 3, **how)
            times[(*at, s)] = list(found.crossings.values())
            inside = dataset.time.values <= until
            for i, values in enumerate((*found.parameters.T, found.loss)):
                lines[at][s][inside, i] = np.interp(dataset.time.values[inside], found.time, values)
    # The axes of a dataset are sorted.
    order = [STRENGTHS.index(str(name)) for name in dataset.strength.values]
    slopes, lines = slopes[..., order], lines[..., [*order, 3]]
    dims = ("pairs", "label_count")
    return dataset.assign(
        flow_time=((*dims, "start", "loss_level"), times),
        flow_gradient=((*dims, "strength"), slopes),
        strength_line=((*dims, "start", "time", "strength"), lines[..., :3]),
        label_loss_line=((*dims, "start", "time"), lines[..., 3]),
    )


def limit(rates: np.ndarray, times: np.ndarray) -> tuple[float, float]:
    """A time at step size zero, from three; its error is what the largest of them changes it by."""
    order = np.argsort(rates)[:3]
    sizes, values = 1 / rates[order], times[order]
    if len(order) < 3 or np.isnan(values).any():
        return np.nan, np.nan
    whole, _ = extrapolate(sizes, values, np.ones(3), order=2)
    part, _ = extrapolate(sizes[:2], values[:2], np.ones(2), order=1)
    return whole, abs(whole - part)


def check(dataset: xr.Dataset) -> list[Finding]:
    """The slope at the origin, the times of the cliff, what grows first, and the saddle where L = N."""
    findings = []
    for pairs in dataset.pairs.values:
        counts = dataset.label_count.values
        for labels in counts[counts >= pairs]:
            part, at = dataset.sel(pairs=pairs, label_count=labels), f"N={pairs}, L={labels}"
            findings += _slope(part, at)
            findings += _saddle(part, int(pairs), at) if labels == pairs else _cliff(part, at)
        both = bool((counts == pairs).any() and (counts > pairs).any())
        if both:
            findings += _delay(dataset.sel(pairs=pairs), int(pairs))
        findings.append(exactly(f"as many labels as pairs, and more, N={pairs}", 1, both, otherwise=Outcome.UNDECIDED))
    return findings


def _slope(part: xr.Dataset, at: str) -> list[Finding]:
    findings = []
    for kind in part.attention.values:
        for name in STRENGTHS:
            found, line = (part[v].sel(strength=name) for v in ("origin_gradient", "flow_gradient"))
            what = f"slope along {name} at the origin, {kind}, {at}"
            measured = float(found.sel(attention=kind))
            findings.append(agreement(what, float(line), measured, ROUNDING, largest_error=ROUNDING))
    return findings


def _cliff(part: xr.Dataset, at: str) -> list[Finding]:
    findings = []
    for start in part.start.values:
        if start < 0:
            continue
        here = part.sel(start=start)
        for level in part.loss_level.values:
            time, error = limit(part.rate.values, here["crossing_time"].sel(attention="even", loss_level=level).values)
            line = float(here["flow_time"].sel(loss_level=level))
            what = f"time at {level:g} ln N from {start:g}, even, {at}"
            findings.append(agreement(what, line, time, error + 1e-4 * line, largest_error=0.01 * line))
    for kind in part.attention.values:
        where = part.sel(start=0.0, attention=kind)
        top, foot = (float(_finest(where, level)) for level in (TOP, FOOT))
        share = (foot - top) / top
        findings.append(exceeds(f"1/2 above drop over plateau, {kind}, {at}", SHARP - share, 0.0))
        halves = {name: half_time(where["strength_curve"].sel(strength=name), foot) for name in STRENGTHS}
        for name in ("alpha", "beta"):
            lead = halves[name] / halves["xi"]
            findings.append(exceeds(f"time of half of {name} over that of xi, {kind}, {at}", lead, 0.0, bound=1.0))
    return findings


def _finest(part: xr.Dataset, level: float) -> xr.DataArray:
    """Crossing times at the smallest step."""
    return part["crossing_time"].sel(loss_level=level).isel(rate=int(part.rate.values.argmin()))


def half_time(curve: xr.DataArray, foot: float) -> float:
    """When a strength has half of what it has at the foot of the cliff."""
    t, values = curve.time.values, curve.values
    known = np.isfinite(values)
    last = np.interp(foot, t[known], values[known])
    first = int(np.argmax(values[known] >= last / 2))
    return float(np.interp(last / 2, values[known][first - 1 : first + 1], t[known][first - 1 : first + 1]))


def _saddle(part: xr.Dataset, pairs: int, at: str) -> list[Finding]:
    findings, first = [], _finest(part, TOP)
    small = np.sort(part.start.values[part.start.values > 0])[:2]
    for kind in part.attention.values:
        still = int(np.isfinite(first.sel(attention=kind, start=0.0)))
        findings.append(exactly(f"falls from the saddle itself, {kind}, {at}", 0, still))
        away = first.sel(attention=kind, start=small)
        findings.append(exactly(f"starts beside it that fall, {kind}, {at}", len(small), int(np.isfinite(away).sum())))
    if len(small) == 2:
        even = part["crossing_time"].sel(attention="even", loss_level=TOP)
        times = [limit(part.rate.values, even.sel(start=start).values) for start in small]
        gained = float(np.log(small[1] / small[0]))
        rate, error = (times[0][0] - times[1][0]) / gained, (times[0][1] + times[1][1]) / gained
        line = 1 / float(landscape.escape_rate(pairs=pairs))
        what = f"time for a start e times nearer to the saddle, even, {at}"
        findings.append(agreement(what, line, rate, error + 0.01 * line, largest_error=0.03 * line))
    return findings


def _delay(dataset: xr.Dataset, pairs: int) -> list[Finding]:
    """The same start with as many labels as pairs, and with more."""
    findings, more = [], int(dataset.label_count.values.max())
    start = float(dataset.start.values.max())
    first = _finest(dataset, TOP).sel(start=start)
    for kind in dataset.attention.values:
        few, many = (float(first.sel(attention=kind, label_count=count)) for count in (pairs, more))
        what = f"plateau from {start:g} with L=N over that with L={more}, {kind}, N={pairs}"
        findings.append(exceeds(what, few / many, 0.0, bound=2.0))
    return findings


def figure(dataset: xr.Dataset):
    """The loss against time with more labels than pairs, and the three strengths below it."""
    part = dataset.isel(pairs=0, label_count=-1, drop=True).sel(start=0.0, drop=True)
    third = xr.DataArray(np.arange(part.sizes["time"]) % 3 == 0, dims="time")  # points that leave the line to be seen
    part = part.assign({name: part[name].where(third) for name in ("label_loss", "strength_curve")})
    rows = [Panel("label_loss", "label_loss_line")]
    rows += [Panel("strength_curve", "strength_line", at={"strength": name}) for name in ("xi", "alpha")]
    return panels(part, rows, x="time", hue="attention", line_x="time", line_name="flow")


SMALL = {
    "attention": ("even", "causal"),
    "rate": (0.2, 0.1, 0.05),
    "loss_level": (0.9, 0.5, 0.1),
    "strength": STRENGTHS,
}

experiment = Experiment(
    claim=(
        "At the origin the loss of an induction head of three strengths slopes along the reader's alone, by "
        "(L-N)/(L(2N+1)); on its way down the reader grows first, and the loss stays above 0.9 ln N for more than "
        "twice as long as it then takes to 0.1 ln N. Where L = N the origin is a saddle: a start beside it falls too, "
        "later."
    ),
    sources=("Reddy24",),
    static=("pairs",),
    fixed={"horizon": 130.0, "saddle_horizon": 1600.0},
    sizes={
        "smoke": SMALL
        | {
            "pairs": (4,),
            "label_count": (4, 16),
            "rate": (0.8, 0.4, 0.2),
            "start": (0.0, 0.003, 0.01),
            "time": tuple(2.0 * i for i in range(41)),
        },
        "small": SMALL
        | {
            "pairs": (8,),
            "label_count": (8, 32),
            "start": (-0.01, 0.0, 0.001, 0.01),
            "time": tuple(2.0 * i for i in range(66)),
        },
        "medium": SMALL
        | {
            "pairs": (8,),
            "label_count": (8, 9, 16, 32, 64),
            "start": (-0.01, 0.0, 0.0001, 0.001, 0.01),
            "time": tuple(2.0 * i for i in range(131)),
        },
    },
    shows="smoke",
    precision="float64",
    measure=measure,
    theory=theory,
    check=check,
    figure=figure,
    worlds={
        "leak_corrected": World(
            "the first layer is credited only with what it attends above chance",
            theory=lambda dataset: theory(dataset, leak_corrected=True),
        ),
        "no_context": World(
            "the reader gains as much from labels that are in the context",
            theory=lambda dataset: theory(dataset, context=False),
        ),
    },
)
