r"""Six features in two dimensions: polygons, their losses and coefficients, and which of them wins.

:math:`f(x) = \operatorname{ReLU}(W^\top Wx + b)` is asked for x itself, of which one of six coordinates is not zero.
Four, five or six features make the corners of a regular polygon; the others are answered by a constant where their
bias is positive (a ``+`` for each of them), and by nothing where it is negative. All are critical points with exact
losses and coefficients. Descent from squares with noise ends at one of them, and the posterior moves between them
with n.
"""

import functools
import itertools

import numpy as np
import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from icllab.core.axes import Quantity
from icllab.core.grid import Seeds
from icllab.experiments import checks, estimates
from icllab.experiments.checks import Finding
from icllab.experiments.estimates import Estimate
from icllab.experiments.experiment import Control, Experiment
from icllab.figures import style
from icllab.figures.labels import named
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


EXACT = {name: superposition.polygon(k, features=FEATURES, positive=p) for name, (k, p) in POLYGONS.items()}


def theory(dataset: xr.Dataset, *, constants: bool = True, half_rank: bool = False) -> xr.Dataset:
    """The exact losses and coefficients; of controls without constant answers, or of the Hessian's rank."""
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
    loss, slope = (Estimate(dataset[name], ROUNDING) for name in ("polygon_loss", "polygon_slope"))
    sampled, known = estimates.stored(dataset, "learning_coefficient"), dataset["learning_coefficient_theory"]
    quiet = not dataset["sampler_warnings"].values.any()
    return [
        *checks.covers("loss", "loss", loss, dataset["polygon_loss_theory"], largest_error=ROUNDING),
        *checks.covers("slope", "largest slope of the loss", slope, 0.0, largest_error=ROUNDING),
        *checks.covers("coefficient", "learning coefficient", sampled, known, largest_error=LARGEST),
        *checks.complete("sampler_warnings", "no estimate at a polygon warns", quiet),
        *_descents(dataset),
        *_posterior(dataset),
    ]


def ends(dataset: xr.Dataset) -> list[str]:
    """The polygon whose loss each descent has at its end; empty where it has none's."""
    last = dataset["descent_loss"].isel(step=-1).values
    return [next((name for name, one in EXACT.items() if abs(one.loss - value) < ARRIVED), "") for value in last]


def _descents(dataset: xr.Dataset) -> list[Finding]:
    """Where they end, and the coefficients there."""
    found = ends(dataset)
    findings = checks.complete("arrived", "all descents end at a polygon's loss", all(found))
    if not all(found):
        return findings
    falls = sum(name[0] in "56" for name in found)
    findings += checks.above("falls", "descents that leave the square for five or six corners", Estimate(falls, 0.0))
    changes = Estimate(_changes(dataset, found), 0.0)
    findings += checks.above("changes", "of those, with a change point that is reported", changes)
    last = dataset.isel(step=-1, drop=True)
    for name in dict.fromkeys(found):
        sound = (np.array(found) == name) & (last["descent_warnings"].values == 0)
        at_end = estimates.stored(last.isel(seed=np.flatnonzero(sound)), "descent_coefficient")
        mean = at_end.average("seed") if sound.any() else Estimate(np.nan, np.nan)
        what, known = "mean coefficient at the end of descents", EXACT[name].coefficient.value
        findings += checks.covers("end", what, mean, known, largest_error=LARGEST, at={"polygon": name})
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
    share = estimates.stored(dataset, "posterior_share")
    five, six = share.sel(corners="5"), share.sel(corners="6")
    quiet = float(dataset["annealing_warnings"]) == 0
    findings = checks.complete("annealing_warnings", "the annealing does not warn", quiet)
    for fewer, more in itertools.pairwise(n):
        if fewer >= FEW / 4:
            gain, what = six.sel(nbeta=more) - six.sel(nbeta=fewer), "share of six corners, n - that at the n before"
            findings += checks.above("gain", what, gain, at={"nbeta": float(more)})
    few, many = n[np.argmin(np.abs(n - FEW))], n[-1]
    before, after = (five - six).sel(nbeta=few), (six - five).sel(nbeta=many)
    findings += checks.above("five_first", "share of five corners - that of six", before)
    return [*findings, *checks.above("six_last", "share of six corners - that of five", after)]


def figure(dataset: xr.Dataset) -> Figure:
    """Descents between the exact losses, the coefficients at their ends, and the posterior's shares."""
    with style.context():
        drawn = Figure(figsize=(1.9 * style.COLUMN, 4.6), layout="constrained")
        FigureCanvasAgg(drawn)
        (left, right), (lower, last) = drawn.subplots(2, 2)
        _draw_descents(left, lower, dataset)
        _draw_polygons(right, dataset)
        _draw_posterior(last, dataset)
    return drawn


def _draw_descents(above, below, dataset) -> None:
    steps = np.maximum(dataset["step"].values, 1)
    for name, one in EXACT.items():
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
    above.set(xscale="log", ylabel=named(dataset, "descent_loss").label, xlim=(30, 1.3 * steps[-1]), ylim=(0.04, 0.16))
    for value in sorted({one.coefficient.value for one in EXACT.values()}):
        below.axhline(value, color=style.FAINT, linewidth=0.7, linestyle=":", zorder=1)
    below.set(
        xscale="log", xlabel=named(dataset, "step").label, ylabel="learning coefficient,\nestimates that do not warn"
    )
    below.set_xlim(above.get_xlim())
    for panel in (above, below):
        panel.xaxis.set_minor_formatter(NullFormatter())
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
    axes.set(ylabel=named(dataset, "learning_coefficient").label, xlabel=named(dataset, "polygon").label, ylim=(5, 9.2))
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
        "Squares, pentagons and the hexagon are critical points; the learning coefficient of squares is not half the "
        "rank of the Hessian, and the posterior moves from pentagons to hexagons."
    ),
    conditions=(
        "Six features in two dimensions, of which one at a time is not zero. Losses and coefficients (7 to 8.5) are "
        "exact. Descent from squares with noise ends at one of the polygons, some after a reported fall; the posterior "
        "has five corners at a hundred samples, and six at four hundred."
    ),
    sources=("Elhage22", "Chen23"),
    quantities=(
        "learning_coefficient",
        "sampler_warnings",
        "annealing_warnings",
        Quantity("polygon_loss", "L", "loss"),
        Quantity("polygon_slope", r"|\nabla L|", "largest slope of the loss"),
        Quantity("hessian_half_rank", r"\frac{1}{2}\mathrm{rank}H", "half the rank of the Hessian"),
        Quantity("descent_loss", "L", "loss"),
        Quantity("descent_coefficient", r"\hat\lambda", "learning coefficient during descent"),
        Quantity("descent_warnings", "W", "warnings of that estimate"),
        Quantity("posterior_share", "p", "share of the posterior"),
    ),
    static=(),
    outputs=("step", "nbeta", "corners"),
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
            "seed": Seeds(48, block=6),
            "step": STEPS,
            "nbeta": (10.0, 20.0, 30.0, 50.0, 100.0, 150.0, 200.0, 300.0, 400.0, 800.0, 1600.0),
            "corners": COUNTS,
        },
    },
    precision="float64",
    theory=theory,
    check=check,
    figure=figure,
    controls={
        "linear": Control("the output is not rectified", measure={"rectified": False}),
        "regular": Control(
            "every coefficient is half the rank of the Hessian", theory=functools.partial(theory, half_rank=True)
        ),
        "no_constants": Control(
            "features without a corner are answered by nothing", theory=functools.partial(theory, constants=False)
        ),
    },
)
