r"""Six features in two dimensions: polygons, their losses and coefficients, and which of them wins.

:math:`f(x) = \operatorname{ReLU}(W^\top Wx + b)` is asked for x itself, of which one of six coordinates is not zero.
Four, five or six features make the corners of a regular polygon; the others are answered by a constant where their
bias is positive (a ``+`` for each of them), and by nothing where it is negative. All are critical points with exact
losses and coefficients. Descent from squares with noise ends at one of them, and the posterior moves between them
with n.
"""

import functools

import numpy as np
import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from icllab.core.axes import axis, quantity
from icllab.experiments.checks import Finding, Outcome, agreement, exactly, exceeds
from icllab.experiments.experiment import Experiment, World
from icllab.figures import style
from icllab.theory import superposition

FEATURES = 6
POLYGONS = {"4": (4, 0), "4+": (4, 1), "4++": (4, 2), "5": (5, 0), "5+": (5, 1), "6": (6, 0)}
COUNTS = ("3 or fewer", "4", "5", "6")
LARGEST = 0.12  # standard error of a coefficient
ROUNDING = 1e-10  # of losses and slopes in float64
ARRIVED = 1e-4  # of the loss, from that of a polygon, where descent has arrived
CHECKED = 5  # of so many recorded steps one has its coefficient estimated
LATE = 1000  # updates before which descents are not asked for coefficients: they are nowhere yet
SETTLED = 30  # updates after which the noise of the start is gone
PRESENT = 0.6  # length of a column from which a feature counts as a corner
FEW = 100.0  # samples at which five corners have more of the posterior than six


def measure(point, *, key):
    """One cell: the polygons, descents from noisy squares, and the posterior at several temperatures."""
    import jax
    import jax.numpy as jnp

    from icllab.diagnostics import HMC, SMC, free_energy, hessian_spectrum, learning_coefficient

    def loss(w):
        g = w["weights"].T @ w["weights"]
        b, own = jnp.broadcast_to(w["bias"][:, None], g.shape), jnp.eye(FEATURES)
        cut = jnp.clip(-b / jnp.where(g == 0, 1, g), 0, 1)
        low = jnp.where(g > 0, cut, 0)
        high = jnp.where(g < 0, cut, jnp.where((g == 0) & (b <= 0), 0, 1))
        cube, square = (high**3 - low**3) / 3, (high**2 - low**2) / 2
        answered = g**2 * cube + 2 * g * b * square + b**2 * (high - low)
        return jnp.sum(own / 3 - 2 * own * (g * cube + b * square) + answered) / FEATURES

    def coefficient(at, key):
        sampler = HMC(warm_up=point.warm_up, draws=2 * point.warm_up, dispersion=0.1)
        how = {"n": point.n, "nbeta": point.n, "localization": point.localization, "sampler": sampler}
        return learning_coefficient(loss, at, **how, key=key)

    def there(name):
        found = superposition.polygon(POLYGONS[name][0], features=FEATURES, positive=POLYGONS[name][1])
        return {"weights": jnp.asarray(found.weights), "bias": jnp.asarray(found.bias)}

    of_polygons, of_descents, of_posterior = jax.random.split(key, 3)
    names = ("polygon_loss", "polygon_slope", "hessian_half_rank", "learning_coefficient", "learning_coefficient_error")
    rows = {name: np.empty(len(point.polygon)) for name in names}
    warned = np.empty(len(point.polygon))
    slope = jax.jit(jax.value_and_grad(loss))
    for i, name in enumerate(point.polygon):
        value, gradient = slope(there(name))
        found = coefficient(there(name), jax.random.fold_in(of_polygons, i))
        half_rank = float(hessian_spectrum(loss, there(name), key=key, threshold=1e-6)["rank"]) / 2
        size = max(float(jnp.max(jnp.abs(part))) for part in jax.tree.leaves(gradient))
        numbers = (float(value), size, half_rank, float(found["estimate"]), float(found["mcse"]))
        for row, number in zip(rows.values(), numbers, strict=True):
            row[i] = number
        warned[i] = len(found.attrs["warnings"])

    @jax.jit
    def descended(at, steps):
        """So many steps from there."""
        slope = jax.grad(loss)
        return jax.lax.fori_loop(0, steps, lambda _, w: jax.tree.map(lambda a, g: a - point.rate * g, w, slope(w)), at)

    shape = (len(point.seed), len(point.step))
    path = {"descent_loss": np.empty(shape)} | {
        name: np.full(shape, np.nan)
        for name in ("descent_coefficient", "descent_coefficient_error", "descent_warnings")
    }
    for s, seed in enumerate(point.seed):
        of_weights, of_bias, of_chains = jax.random.split(jax.random.fold_in(of_descents, seed), 3)
        at, done = there("4"), 0
        at = {
            "weights": at["weights"] + point.noise * jax.random.normal(of_weights, (2, FEATURES)),
            "bias": jnp.where(at["bias"] < 0, 0, at["bias"]) + point.noise * jax.random.normal(of_bias, (FEATURES,)),
        }
        for t, step in enumerate(point.step):
            at, done = descended(at, step - done), step
            path["descent_loss"][s, t] = slope(at)[0]
            if step >= LATE and (len(point.step) - 1 - t) % CHECKED == 0:
                found = coefficient(at, jax.random.fold_in(of_chains, t))
                path["descent_coefficient"][s, t] = found["estimate"]
                path["descent_coefficient_error"][s, t] = found["mcse"]
                path["descent_warnings"][s, t] = len(found.attrs["warnings"])

    def corners(w):
        count = jnp.sum(jnp.sum(w["weights"] ** 2, axis=0) > PRESENT**2)
        return jnp.stack([count <= 3, count == 4, count == 5, count == 6]).astype(float)

    share, of_annealing = np.full((2, len(point.nbeta), len(COUNTS)), np.nan), np.nan
    if len(point.nbeta) > 1:
        origin = {"weights": jnp.zeros((2, FEATURES)), "bias": jnp.zeros(FEATURES)}
        found = free_energy(
            loss, origin, nbeta=point.nbeta, key=of_posterior, observe=corners, sampler=SMC(repeats=point.repeats)
        )
        share[:], of_annealing = (found["observed"], found["observed_error"]), len(found.attrs["warnings"])
    return (
        {name: (("polygon",), row) for name, row in rows.items()}
        | {"sampler_warnings": (("polygon",), warned), "annealing_warnings": ((), of_annealing)}
        | {name: (("seed", "step"), values) for name, values in path.items()}
        | {f"posterior_share{end}": (("nbeta", "corners"), share[i]) for i, end in enumerate(("", "_error"))}
    )


def theory(dataset: xr.Dataset, *, constants: bool = True, half_rank: bool = False) -> xr.Dataset:
    """The exact losses and coefficients; in wrong worlds without constant answers, or those of the Hessian's rank."""
    found = []
    for name in dataset["polygon"].values:
        vertices, positive = POLYGONS[str(name)]
        found.append(superposition.polygon(vertices, features=FEATURES, positive=positive if constants else 0))
    coefficients = dataset["hessian_half_rank"] if half_rank else ("polygon", [one.coefficient.value for one in found])
    return dataset.assign(
        polygon_loss_theory=("polygon", [one.loss for one in found]), learning_coefficient_theory=coefficients
    )


def check(dataset: xr.Dataset) -> list[Finding]:
    """Losses and slopes are exact, coefficients agree, descents arrive, and the posterior takes up corners."""
    findings = []
    for name in dataset["polygon"].values:
        part, at = dataset.sel(polygon=name), f"polygon {name}"
        losses = float(part["polygon_loss_theory"]), float(part["polygon_loss"])
        findings.append(agreement(f"loss, {at}", *losses, ROUNDING, largest_error=ROUNDING))
        findings.append(agreement(f"slope, {at}", 0, float(part["polygon_slope"]), ROUNDING, largest_error=ROUNDING))
        numbers = (part[f"learning_coefficient{end}"] for end in ("_theory", "", "_error"))
        findings.append(agreement(f"learning coefficient, {at}", *map(float, numbers), largest_error=LARGEST))
        warned = float(part["sampler_warnings"])
        findings.append(exactly(f"warnings of the estimate, {at}", 0, warned, otherwise=Outcome.UNDECIDED))
    return [*findings, *_descents(dataset), *_posterior(dataset)]


def ends(dataset: xr.Dataset) -> list[str]:
    """The polygon whose loss each descent has at its end; empty where it has none's."""
    exact = {name: superposition.polygon(k, features=FEATURES, positive=p) for name, (k, p) in POLYGONS.items()}
    last = dataset["descent_loss"].isel(step=-1).values
    return [next((name for name, one in exact.items() if abs(one.loss - value) < ARRIVED), "") for value in last]


def _descents(dataset: xr.Dataset) -> list[Finding]:
    """Where they end, and the coefficients there."""
    found = ends(dataset)
    many = "descents that end at a polygon's loss"
    findings = [exactly(many, len(found), sum(map(bool, found)), otherwise=Outcome.UNDECIDED)]
    falls = [name for name in found if name and name[0] in "56"]
    if found and all(found):
        findings.append(exceeds("descents that leave the square for five or six corners", len(falls), 0.0))
        findings.append(exceeds("of those, with a change point that is reported", _changes(dataset, found), 0.0))
        last = dataset.isel(step=-1)
        for name in dict.fromkeys(found):
            k, p = POLYGONS[name]
            wanted = superposition.polygon(k, features=FEATURES, positive=p).coefficient.value
            sound = [i for i, end in enumerate(found) if end == name and last["descent_warnings"].values[i] == 0]
            values = last["descent_coefficient"].values[sound]
            error = float(np.sqrt(np.sum(last["descent_coefficient_error"].values[sound] ** 2))) / max(len(sound), 1)
            mean = float(values.mean()) if sound else float("nan")
            what = f"mean coefficient at the end of descents to polygon {name}"
            findings.append(agreement(what, wanted, mean, error if sound else float("nan"), largest_error=LARGEST))
    return findings


def _changes(dataset: xr.Dataset, found: list[str]) -> int:
    """How many of the descents that end with five or six corners have a change point."""
    from icllab.diagnostics.curves.breakpoints import change_points

    later = dataset["descent_loss"].isel(step=np.flatnonzero(dataset["step"].values >= SETTLED))
    falls = [s for s, name in enumerate(found) if name[0] in "56"]
    return sum(bool(change_points(later.isel(seed=s), resamples=100)["reported"].any()) for s in falls)


def _posterior(dataset: xr.Dataset) -> list[Finding]:
    """Five corners before six, and more of them with every n."""
    n = dataset["nbeta"].values
    if len(n) < 2:
        return []
    share, error = (
        dataset[name].transpose("nbeta", "corners").values for name in ("posterior_share", "posterior_share_error")
    )
    warned = float(dataset["annealing_warnings"])
    findings = [exactly("warnings of the annealing", 0, warned, otherwise=Outcome.UNDECIDED)]
    for i in range(len(n) - 1):
        if n[i] < FEW / 4:
            continue
        gain = share[i + 1, -1] - share[i, -1]
        what = f"share of six corners gained from n={n[i]:g} to {n[i + 1]:g}"
        findings.append(exceeds(what, gain, float(np.hypot(error[i + 1, -1], error[i, -1]))))
    few = int(np.argmin(np.abs(n - FEW)))
    for i, sign, what in (
        (few, 1, "five corners above that of six"),
        (len(n) - 1, -1, "six corners above that of five"),
    ):
        ahead = sign * (share[i, 2] - share[i, 3])
        findings.append(exceeds(f"share of {what}, n={n[i]:g}", ahead, float(np.hypot(error[i, 2], error[i, 3]))))
    return findings


def figure(dataset: xr.Dataset) -> Figure:
    """Descents between the exact losses, the coefficients at their ends, and the posterior's shares."""
    exact = {name: superposition.polygon(k, features=FEATURES, positive=p) for name, (k, p) in POLYGONS.items()}
    with style.context():
        drawn = Figure(figsize=(1.9 * style.COLUMN, 4.6), layout="constrained")
        FigureCanvasAgg(drawn)
        (left, right), (lower, last) = drawn.subplots(2, 2)
        _draw_descents(left, lower, dataset, exact)
        _draw_polygons(right, dataset)
        _draw_posterior(last, dataset)
    return drawn


def _draw_descents(above, below, dataset, exact) -> None:
    steps = np.maximum(dataset["step"].values, 1)
    for name, one in exact.items():
        above.axhline(one.loss, color=style.FAINT, linewidth=0.7, linestyle=":", zorder=1)
        above.annotate(name, (1.01, one.loss), xycoords=("axes fraction", "data"), va="center", fontsize="small")
    by_end = {}
    for s, end in enumerate(ends(dataset)):
        colour = style.CATEGORIES[int(end[0]) - 4] if end else style.FAINT
        above.plot(steps, dataset["descent_loss"].values[s], color=colour, linewidth=0.9)
        sound = dataset["descent_warnings"].values[s] == 0
        value, error = (dataset[f"descent_coefficient{e}"].values[s][sound] for e in ("", "_error"))
        by_end[end[:1]] = below.errorbar(
            steps[sound] * 1.03 ** (s - 6), value, error, color=colour, marker="o", markersize=3, linestyle="none"
        )
    above.set(xscale="log", ylabel=quantity("descent_loss").label, xlim=(30, 1.3 * steps[-1]), ylim=(0.04, 0.16))
    for value in sorted({one.coefficient.value for one in exact.values()}):
        below.axhline(value, color=style.FAINT, linewidth=0.7, linestyle=":", zorder=1)
    below.set(xscale="log", xlabel=axis("step").label, ylabel="coefficient where\nnothing is warned of")
    below.set_xlim(above.get_xlim())
    shown = {f"ends with {k} corners": handle for k, handle in sorted(by_end.items()) if k}
    below.legend(list(shown.values()), list(shown), loc="lower left")


def _draw_polygons(axes, dataset) -> None:
    places = np.arange(dataset.sizes["polygon"])
    value, error = dataset["learning_coefficient"].values, dataset["learning_coefficient_error"].values
    axes.errorbar(places, value, error, color=style.INK, marker="o", markersize=4, linestyle="none", label="estimate")
    line = dataset["learning_coefficient_theory"].values
    axes.plot(places, line, "_", color=style.CATEGORIES[0], markersize=16, label="exact")
    half = dataset["hessian_half_rank"].values
    axes.plot(places, half, "x", color=style.CATEGORIES[1], label="half the Hessian's rank")
    axes.set_xticks(places, list(dataset["polygon"].values))
    axes.set(ylabel=quantity("learning_coefficient").label, xlabel=axis("polygon").label, ylim=(5, 9.2))
    axes.legend(loc="lower right")


def _draw_posterior(axes, dataset) -> None:
    n = dataset["nbeta"].values
    for i, name in enumerate(COUNTS):
        value, error = (dataset[v].sel(corners=name).values for v in ("posterior_share", "posterior_share_error"))
        look = {"color": style.CATEGORIES[3 if i == 0 else i - 1], "marker": style.marker(i), "markersize": 3.5}
        axes.errorbar(n, value, error, **look, linewidth=0.9, label=name)
    axes.set(xscale="log", xlabel="samples, $n$", ylabel="share of the posterior", ylim=(-0.02, 1.04))
    axes.legend(title="corners", loc="upper left", ncols=2)


STEPS = (0, *(round(10 ** (i / 10)) for i in range(5, 46)))

experiment = Experiment(
    claim=(
        "Of six features in two dimensions, squares, pentagons and the hexagon are critical points whose losses are "
        "known and whose learning coefficients are 7 to 8.5, of squares not half the Hessian's rank. Descent from "
        "squares with noise ends at one of them, at times after a fall whose place is known, to a coefficient that may "
        "be less than that of the square; the posterior has five corners at a hundred samples, and six at four hundred."
    ),
    sources=("Elhage22", "Chen23"),
    static=(),
    fixed={"n": 1e6, "localization": 100.0, "warm_up": 300, "noise": 0.3, "rate": 0.05, "repeats": 4},
    sizes={
        "smoke": {"polygon": ("4++",), "seed": 1, "step": (0, 300), "nbeta": (10.0,), "corners": COUNTS},
        "small": {
            "polygon": tuple(POLYGONS),
            "seed": 12,
            "step": STEPS,
            "nbeta": (10.0, 30.0, 100.0, 200.0, 400.0, 1600.0),
            "corners": COUNTS,
        },
        "medium": {
            "polygon": tuple(POLYGONS),
            "seed": 48,
            "step": STEPS,
            "nbeta": (10.0, 20.0, 30.0, 50.0, 100.0, 150.0, 200.0, 300.0, 400.0, 800.0, 1600.0),
            "corners": COUNTS,
        },
    },
    precision="float64",
    measure=measure,
    theory=theory,
    check=check,
    figure=figure,
    worlds={
        "regular": World(
            "every coefficient is half the rank of the Hessian", theory=functools.partial(theory, half_rank=True)
        ),
        "no_constants": World(
            "features without a corner are answered by nothing", theory=functools.partial(theory, constants=False)
        ),
    },
)
