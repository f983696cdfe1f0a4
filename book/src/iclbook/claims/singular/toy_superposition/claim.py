r"""Six features in two dimensions: polygons, their losses and coefficients, and the posterior over them.

:math:`f(x) = \operatorname{ReLU}(W^\top Wx + b)` reconstructs x, of which one of six coordinates is not zero. Four,
five or six features make the corners of a regular polygon; the output of another feature is a constant if its bias is
positive (a ``+`` for each of them), and zero if it is negative. All are critical points.
"""

import itertools
from typing import Any

import numpy as np
import xarray as xr

from icllab.core.axes import Quantity
from icllab.core.grid import Seeds
from icllab.figures import style
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Estimate, Finding, checks, estimates
from icllab.theory import superposition

FEATURES = 6
POLYGONS = {"4": (4, 0), "4+": (4, 1), "4++": (4, 2), "5": (5, 0), "5+": (5, 1), "6": (6, 0)}
COUNTS = ("3 or fewer", "4", "5", "6")
LARGEST = 0.12  # standard error of a coefficient
ROUNDING = 1e-10  # of losses and slopes in float64
ARRIVED = 1e-4  # largest difference of losses between the end of a descent and a polygon
CHECKED = 5  # recorded steps for each estimate of a coefficient
LATE = 1000  # least number of updates for an estimate: before, descents are at no critical point
SETTLED = 30  # updates after which the noise of the start is gone
PRESENT = 0.6  # least length of a column that counts as a corner
FEW, MANY = 100.0, 400.0  # samples at which five corners have more of the posterior than six, and less

EXACT = {name: superposition.polygon(k, features=FEATURES, positive=p) for name, (k, p) in POLYGONS.items()}


def theory(dataset: xr.Dataset, *, constants: bool = True, half_rank: bool = False, turned: bool = False) -> xr.Dataset:
    """Exact losses and coefficients; without constant answers unless ``constants``; ``half_rank``: the Hessian's.

    ``turned``: posteriors of the fewest samples stand in the place of posteriors of the most, and so on.
    """
    if turned:
        dataset = dataset.assign_coords(nbeta=dataset.nbeta.values[::-1]).sortby("nbeta")
    exact = EXACT if constants else {name: EXACT[name.rstrip("+")] for name in EXACT}
    polygons = [exact[str(name)] for name in dataset["polygon"].values]
    coefficients = (
        dataset["hessian_half_rank"] if half_rank else ("polygon", [polygon.coefficient.value for polygon in polygons])
    )
    losses = ("polygon", [polygon.loss for polygon in polygons])
    return dataset.assign(polygon_loss_theory=losses, learning_coefficient_theory=coefficients)


def check(dataset: xr.Dataset) -> list[Finding]:
    """Losses and slopes are exact, coefficients agree, descents arrive, and the posterior occupies corners."""
    loss, slope = (Estimate(dataset[name], ROUNDING) for name in ("polygon_loss", "polygon_slope"))
    sampled, target = estimates.stored(dataset, "learning_coefficient"), dataset["learning_coefficient_theory"]
    quiet = not dataset["sampler_warnings"].values.any()
    polygons = [
        *checks.agrees("loss", "loss", loss, dataset["polygon_loss_theory"], largest_error=ROUNDING),
        *checks.agrees("slope", "largest slope of the loss", slope, 0.0, largest_error=ROUNDING),
        *checks.agrees("coefficient", "learning coefficient", sampled, target, largest_error=LARGEST),
        *checks.complete("sampler_warnings", "no estimate at a polygon warns", quiet),
    ]
    return [*checks.seedless([*polygons, *_posterior(dataset)]), *_descents(dataset)]


def ends(dataset: xr.Dataset) -> list[str]:
    """Polygon whose loss each descent has at its end, or an empty string."""
    last = dataset["descent_loss"].isel(step=-1).values
    return [
        next((name for name, polygon in EXACT.items() if abs(polygon.loss - value) < ARRIVED), "") for value in last
    ]


def _descents(dataset: xr.Dataset) -> list[Finding]:
    """Final polygons of the descents, and the coefficients there."""
    from icllab.diagnostics.curves.breakpoints import change_points

    polygons = ends(dataset)
    findings = checks.complete("arrived", "all descents end at a polygon's loss", all(polygons))
    if not all(polygons):
        return findings
    falls = [seed for seed, name in enumerate(polygons) if name[0] in "56"]
    later = dataset["descent_loss"].sel(step=slice(SETTLED, None))
    changes = sum(bool(change_points(later.isel(seed=s), resamples=100)["reported"].any()) for s in falls)
    quantity = "descents that leave the square for five or six corners"
    findings += checks.complete("falls", quantity, len(falls) > 0)
    findings += checks.complete("changes", "of those, with a change point that is reported", changes > 0)
    last, quantity = dataset.isel(step=-1, drop=True), "mean coefficient at the end of descents"
    exact = dataset["learning_coefficient_theory"]
    for name in dict.fromkeys(polygons):
        sound = (np.array(polygons) == name) & (last["descent_warnings"].values == 0)
        at_end = estimates.stored(last.isel(seed=np.flatnonzero(sound)), "descent_coefficient")
        mean = at_end.average("seed") if sound.any() else Estimate(np.nan, np.nan)
        known = name in dataset.polygon
        target = float(exact.sel(polygon=name)) if known else EXACT[name].coefficient.value
        findings += checks.agrees("end", quantity, mean, target, largest_error=LARGEST, at={"polygon": name})
    return findings


def _posterior(dataset: xr.Dataset) -> list[Finding]:
    """Five corners before six, and more of them with every n."""
    n, share = dataset["nbeta"].values, estimates.stored(dataset, "posterior_share")
    if len(n) < 2:
        return []
    five, six = share.sel(corners="5"), share.sel(corners="6")
    quiet, quantity = float(dataset["annealing_warnings"]) == 0, "share of six corners, n - that at the n before"
    findings = checks.complete("annealing_warnings", "the annealing does not warn", quiet)
    for smaller, larger in itertools.pairwise(n[n >= FEW / 4]):
        gain = six.sel(nbeta=larger) - six.sel(nbeta=smaller)
        findings += checks.above("gain", quantity, gain, at={"nbeta": float(larger)})
    small, large = (n[np.argmin(np.abs(n - samples))] for samples in (FEW, MANY))
    findings += checks.above("five_first", "share of five corners - that of six", (five - six).sel(nbeta=small))
    return findings + checks.above("six_last", "share of six corners - that of five", (six - five).sel(nbeta=large))


def figure(dataset: xr.Dataset):
    """Draw descents between the exact losses, coefficients of polygons and descents, and shares of the posterior."""
    sound = dataset["descent_warnings"] == 0
    series = xr.Variable("series", ["exact", "half the Hessian's rank"])
    coefficients = [dataset[name] for name in ("learning_coefficient_theory", "hessian_half_rank")]
    lines = xr.concat(coefficients, series, coords="minimal", compat="override")
    table = dataset.assign(descent_coefficient=dataset["descent_coefficient"].where(sound))
    table = table.assign(learning_coefficient_line=lines).sel(step=slice(SETTLED, None))
    rows = [
        Panel(None, "descent_loss", hue="seed", ylim=(0.04, 0.16), xscale="log"),
        Panel("learning_coefficient", "learning_coefficient_line", x="polygon", hue="series"),
        Panel("descent_coefficient", hue="seed", xscale="log"),
        Panel("posterior_share", x="nbeta", hue="corners", xscale="log"),
    ]
    drawing = panels(table, rows, x="step", columns=2)
    look: dict[str, Any] = {"color": style.FAINT, "linewidth": 0.7, "linestyle": ":", "zorder": 1}
    for name, polygon in EXACT.items():
        drawing.axes[0].axhline(polygon.loss, **look)
        drawing.axes[0].annotate(
            name, (1.01, polygon.loss), xycoords=("axes fraction", "data"), va="center", fontsize="small"
        )
        drawing.axes[2].axhline(polygon.coefficient.value, **look)
    return drawing


POSTERIOR = {"polygon": ("4",), "seed": (0,), "step": (0, 300)}
COMMON = {"polygon": tuple(POLYGONS), "corners": COUNTS, "step": (0, *(round(10 ** (i / 10)) for i in range(5, 46)))}

claim = Claim(
    title="Polygons of six features in a plane",
    sentence=(
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
        Quantity("posterior_share", "p", "posterior mass"),
    ),
    static=(),
    outputs=("step", "nbeta", "corners"),
    fixed={"n": 1e6, "localization": 100.0, "warm_up": 300, "noise": 0.3, "rate": 0.05, "repeats": 4},
    sizes={
        "smoke": COMMON | {"polygon": ("4++",), "seed": 1, "step": (0, 300), "nbeta": (10.0,)},
        "small": COMMON | {"seed": 12, "nbeta": (10.0, 30.0, 100.0, 200.0, 400.0, 1600.0)},
        "medium": COMMON
        | {"seed": Seeds(48, block=6)}
        | {"nbeta": (10.0, 20.0, 30.0, 50.0, 100.0, 150.0, 200.0, 300.0, 400.0, 800.0, 1600.0)},
    },
    precision="float64",
    controls={
        "linear": Control("the output is not rectified", measure={"rectified": False}),
        "held": Control(
            "chains are held near where they start",
            measure={"localization": 1e7},
            axes={"polygon": ("4",), "seed": (0, 1, 2, 3), "nbeta": (10.0,)},
        ),
        "summed": Control(
            "the posterior's loss is the sum over features, not the mean", measure={"factor": 6.0}, axes=POSTERIOR
        ),
        "regular": Control("coefficients are half the Hessian's rank", theory={"half_rank": True}),
        "no_constants": Control("features without a corner get no answer", theory={"constants": False}),
        "turned": Control("posteriors of few samples are those of many", theory={"turned": True}),
    },
)
