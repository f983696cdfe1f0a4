r"""As the pool of training tasks grows, a transformer goes from the answers of dMMSE to those of ridge.

On prompts of a pool of k tasks the best predictor is dMMSE; on fresh tasks it is ridge. A network is trained on the
pool alone. Its relative distance between the two is, 1 at dMMSE and 0 at ridge,

.. math:: p = \frac12 \Big( 1 - \frac{\Delta(T, \text{dMMSE}) - \Delta(T, \text{ridge})}
                                     {\Delta(\text{dMMSE}, \text{ridge})} \Big), \qquad
          \Delta(T, R) = \frac1d\, E\, \frac{1}{\ell + 1} \sum_{i=0}^{\ell} (T_i - R_i)^2.

The threshold is the k at which p = 1/2. In a large pool the two are nearly one predictor, and p still tells them apart.
"""

import numpy as np
import xarray as xr

from iclbook.claims.asymptotics import _statistics
from iclbook.claims.asymptotics._statistics import best_for_others, bootstrap
from icllab.core.axes import Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks
from icllab.lab.estimates import geometric_mean, mean

PREDICTORS = ("dMMSE", "ridge", "dMMSE of another pool")
AT_DMMSE = 0.9  # relative distance from which a network is nearly at dMMSE
LEARNED = 2.0  # factor by which training brings the network nearer to ridge, at least
NEARER = 1.5  # factor by which dMMSE of some pool is further from ridge than the network, at least
TRAINED = 2000  # steps from which it is judged on many tasks, beside dMMSE, at dMMSE, and where the threshold is
MIDDLE = (16, 4)  # parts of the training between which its middle lies
LONG = 8000  # steps from which a transient phase is looked for
EARLY = 4  # thresholds are compared at the end and after this part of the training


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """Relative distance of the network between ridge and dMMSE."""
    for kind in ("fresh", "pool"):
        distance = dataset[f"{kind}_distance"]
        ahead = distance.sel(predictor="dMMSE", drop=True) - distance.sel(predictor="ridge", drop=True)
        dataset = dataset.assign({f"{kind}_relative_distance": 0.5 * (1 - ahead / dataset[f"{kind}_scale"])})
    return dataset


def check(dataset: xr.Dataset) -> list[Finding]:
    """Near dMMSE for few tasks, near ridge for many; the threshold between, and how it moves with training."""
    parts = [dataset.sel(dim=dim).isel(layers=-1, drop=True) for dim in dataset.dim.values]
    steps, since = int(dataset.step[-1]), {_ends: 0, _thresholds: TRAINED, _transient: LONG}
    findings = [
        finding for part in parts for judge, least in since.items() if steps >= least for finding in judge(part)
    ]
    if steps < TRAINED:
        findings += checks.complete("steps", f"training of at least {TRAINED} steps", False)
    return findings


def _ends(part: xr.Dataset) -> list[Finding]:
    """Training brings the network near ridge with many tasks, and near its pool's dMMSE with few.

    On fresh tasks and for some pool it is clearly nearer to ridge than dMMSE of that pool is: it is not Bayesian.
    """
    last, distance = part.isel(step=-1, drop=True), "relative distance (ridge 0, dMMSE 1)"
    small_pool, large_pool = last.isel(tasks=0), last.isel(tasks=-1)
    to_ridge = part["fresh_distance"].sel(predictor="ridge", drop=True)
    before, after = (to_ridge.isel(step=end, drop=True) for end in (0, -1))
    closer = geometric_mean((before / after).isel(tasks=-1))
    to_pool, to_another = (
        small_pool["pool_distance"].sel(predictor=name, drop=True) for name in ("dMMSE", "dMMSE of another pool")
    )
    quantity = "distance to dMMSE of another pool / to that of its own"
    near = AT_DMMSE if part.step[-1] >= TRAINED else 0.5
    findings = [
        *checks.above("few_on_fresh", f"{distance} on fresh tasks", mean(small_pool["fresh_relative_distance"]), 0.5),
        *checks.above(
            "few_on_pool", f"{distance} on tasks of the pool", mean(small_pool["pool_relative_distance"]), near
        ),
        *checks.above("learned", "distance to ridge on fresh tasks, before / after training", closer, LEARNED),
        *checks.above("own_pool", quantity, geometric_mean(to_another / to_pool), 1.0),
    ]
    if part.step[-1] >= TRAINED:
        ratio = part["fresh_scale"] / after
        findings += checks.below(
            "many_on_fresh", f"{distance} on fresh tasks", mean(large_pool["fresh_relative_distance"]), 0.5
        )
        quantity = "distance of dMMSE from ridge / that of the network, at the best pool for the other seeds"
        findings += checks.above("not_bayesian", quantity, geometric_mean(_at_best_pool(ratio, ratio)), NEARER)
    return findings


def _thresholds(part: xr.Dataset) -> list[Finding]:
    """The pool size at which p = 1/2 grows from a part of the training to its end.

    The error is unknown if a resampled curve does not cross inside the grid.
    """
    findings, at, steps, tasks = [], {"dim": int(part.dim)}, part.step.values, part.tasks.values
    early = int(np.argmin(np.abs(steps - steps[-1] / EARLY)))
    for kind in ("fresh", "pool") if steps[-1] >= LONG else ("pool",):
        relative = part[f"{kind}_relative_distance"].transpose("step", "tasks", "seed").values
        growth = bootstrap(lambda means: crossing(tasks, means[-1]) - crossing(tasks, means[early]), relative)
        quantity = f"threshold on {kind} tasks after {steps[-1]} steps / after {steps[early]}"
        findings += checks.above(f"threshold_grows_{kind}", quantity, growth, 1.0, at=at)
    return findings


def _transient(part: xr.Dataset) -> list[Finding]:
    """For some pool, the network is nearer to ridge on fresh tasks in the middle of training than at its end."""
    steps = part.step.values
    middle = np.flatnonzero((steps >= steps[-1] / MIDDLE[0]) & (steps <= steps[-1] / MIDDLE[1]))
    logarithms = xr.apply_ufunc(np.log, part["fresh_distance"])
    change = np.exp(logarithms.isel(step=-1, drop=True) - logarithms.isel(step=middle).mean("step"))
    rise, fall = change.sel(predictor="ridge", drop=True), 1 / change.sel(predictor="dMMSE", drop=True)
    least = np.minimum(rise, fall)
    since = f"at the last step / mean of steps {steps[middle[0]]} to {steps[middle[-1]]}"
    leaves, nears = geometric_mean(_at_best_pool(rise, least)), geometric_mean(1 / _at_best_pool(fall, least))
    findings = checks.above("leaves_ridge", f"distance to ridge {since}", leaves, 1.0)
    return findings + checks.below("nears_dmmse", f"distance to dMMSE {since}", nears, 1.0)


def _at_best_pool(values: xr.DataArray, by: xr.DataArray) -> xr.DataArray:
    """Values of every seed at the pool for which ``by`` has the largest geometric mean over the *other* seeds."""
    best = best_for_others(np.log(by.transpose("tasks", "seed").values))
    return values.isel(tasks=xr.DataArray(best, dims="seed"), seed=xr.DataArray(np.arange(best.size), dims="seed"))


def crossing(tasks: np.ndarray, relative: np.ndarray) -> np.ndarray:
    """Log number of tasks at which each column of distances falls through 1/2 for the last time, NaN outside."""
    places = _statistics.crossing(tasks, -relative, -0.5)
    return np.where(np.isfinite(places), places, np.nan)


def figure(dataset: xr.Dataset):
    """Draw the relative distance on fresh tasks and on those of the pool, against the size of the pool."""
    part = dataset.isel(dim=-1, layers=-1, step=np.flatnonzero(dataset.step.values > 0))
    halfway = xr.full_like(part["fresh_scale"].isel(seed=0, drop=True), 0.5)
    kinds = {f"{kind}_relative_distance": f"{kind}_relative_distance_line" for kind in ("fresh", "pool")}
    rows = [Panel(y, line, ylim=(0.0, 1.0)) for y, line in kinds.items()]
    part = part.assign(dict.fromkeys(kinds.values(), halfway))
    title, name = "relative distance of the transformer: 1 at dMMSE, 0 at ridge", "equally far from both"
    return panels(part, rows, x="tasks", hue="step", xscale="log", title=title, line_name=name)


COMMON = {"dim": (4,), "layers": (2,), "predictor": PREDICTORS}
claim = Claim(
    title="From known tasks to ridge",
    sentence=(
        "A transformer trained on a pool of few tasks is nearer to dMMSE, on many nearer to ridge; the threshold "
        "between, on the pool's tasks, grows with training."
    ),
    conditions=(
        "Two layers, d = 4, prompts of 8 examples; Adam on fresh prompts of pools of 2 to 64 tasks, up to 4000 steps. "
        "Nearer to dMMSE holds on fresh tasks and on the pool's, there at a relative distance above 0.9 (a bound "
        "set after four seeds of another key); nearer to ridge on fresh tasks."
    ),
    sources=("Raventos23", "Carroll25"),
    quantities=(
        "fresh_distance",
        Quantity("pool_distance", r"\Delta", "squared distance on tasks of the pool"),
        Quantity("fresh_scale", r"\Delta_0", "squared distance of dMMSE from ridge on fresh tasks"),
        Quantity("pool_scale", r"\Delta_0", "squared distance of dMMSE from ridge on tasks of the pool"),
        Quantity("fresh_relative_distance", "p", "relative distance, fresh tasks"),
        Quantity("pool_relative_distance", "p", "relative distance, pool's tasks"),
    ),
    static=("dim", "layers", "tasks"),
    outputs=("step", "predictor"),
    fixed={"alpha": 2.0, "width": 32, "batch": 64, "rate": 5e-3, "prompts": 1024, "longest": 1024},
    sizes={
        "smoke": COMMON
        | {"dim": (2,), "layers": (1,), "tasks": (2, 64), "step": (0, 400), "seed": 5}
        | {"width": 16, "batch": 32, "rate": 0.02, "prompts": 255, "longest": 64},
        "small": COMMON | {"tasks": (2, 4, 8, 16, 64), "step": (0, 250, 500, 1000, 2000, 4000), "seed": 10},
        "medium": COMMON
        | {"tasks": (4, 8, 16, 64), "step": (0, 500, 1000, 2000, 4000, 8000, 16000), "seed": Seeds(4, block=2)},
    },
    key=1,
    controls={
        "untrained": Control("the networks make a single step", {"updates": 1}),
        "another_pool": Control("dMMSE is that of a pool which training never saw", {"foreign": True}),
    },
)
