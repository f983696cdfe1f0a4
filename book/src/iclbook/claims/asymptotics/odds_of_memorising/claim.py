r"""Three numbers for the odds of memorising on a grid of tasks K and steps N, scored where they were not fitted.

A network trained on a pool answers near the line from the predictor G of fresh tasks to the posterior M over its pool:
in linear regression ridge and dMMSE, of balls and urns counts and the urns' posterior. Its place on that line,

.. math:: p = \frac12\Bigl(1 - \frac{\Delta(T,M) - \Delta(T,G)}{\Delta(M,G)}\Bigr)
            = \frac{\langle T-G,\,M-G\rangle}{\lVert M-G\rVert^2},

is the weight of M in the best mixture. A theory gives its log odds by K and N. It is fitted on every other K and on
early N, on tasks of the pool, and scored on the other K, on late N, and with the same numbers on fresh tasks.
"""

import numpy as np
import xarray as xr

from iclbook.claims.asymptotics import _held_out
from iclbook.claims.asymptotics._held_out import NULLS, THEORIES, Known
from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks
from icllab.lab.estimates import Estimate
from icllab.lab.results import fixed_values

STRATEGIES = ("memorising", "generalising")
TEST_SETS = ("pool", "fresh")
PARTS = ("tasks", "steps")
FORMULA = "posterior"
HALF = 0.5  # of the variance
WORDS = {"urns": "balls and urns", "regression": "regression"}
LATE = 500  # steps after which all cells are held out
RESAMPLES = 30  # bootstrap samples of seeds
ORDER = (3, 0, 5, 1, 6, 2, 4)  # of the pools whose sizes are permuted


def theory(dataset: xr.Dataset, *, permuted: bool = False, evidence: bool = True, planted: str = "") -> xr.Dataset:
    """Add the weight of the memorising predictor, its prediction by each theory, and the scores of held-out cells.

    Args:
        permuted: Whether the sizes of pools that theories know are permuted.
        evidence: Whether theories know the loss gap.
        planted: A theory that the mean weights follow exactly, with the numbers fitted to them.
    """
    dataset = dataset.assign(memorising_weight=memorising_weight(dataset))
    if not evidence:
        dataset = dataset.assign(loss_gap=xr.zeros_like(dataset["loss_gap"]))
    scores = [_scored(dataset.sel(setting=[name]), permuted, planted) for name in dataset.setting.values]
    return dataset.merge(xr.concat(scores, "setting").sel(test_set=dataset.test_set))


def memorising_weight(dataset: xr.Dataset) -> xr.DataArray:
    """The weight of the memorising predictor in the best mixture of both, from a network's distances to them."""
    distance = dataset["strategy_distance"]
    ahead = distance.sel(predictor=STRATEGIES[0], drop=True) - distance.sel(predictor=STRATEGIES[1], drop=True)
    return 0.5 * (1 - ahead / dataset["strategy_gap"])


def _scored(part: xr.Dataset, permuted: bool, planted: str) -> xr.Dataset:
    """Predictions and scores of all theories in one setting."""
    weight = part["memorising_weight"].isel(setting=0).sel(test_set=list(TEST_SETS))
    weight = weight.transpose("test_set", "tasks", "step", "seed")
    tasks, steps = (weight[axis].values.astype(float) for axis in ("tasks", "step"))
    gap, fixed = part["loss_gap"].isel(setting=0).mean("seed").transpose("tasks").values, fixed_values(part)
    numbers = fixed["dim"] if part.setting.values[0] == "regression" else fixed["colours"] - 1

    def known(order: np.ndarray) -> Known:
        columns = np.broadcast_arrays(tasks[order][:, None], steps[None, :], gap[order][:, None])
        k, n, gaps = (column.ravel() for column in columns)
        return Known(k, n, gaps, int(numbers))

    straight = np.arange(len(tasks))
    order = np.array([i for i in ORDER if i < len(tasks)])
    late, odd = (mask.ravel() for mask in np.broadcast_arrays(steps > LATE, (straight % 2 == 1)[:, None]))
    samples = weight.values.reshape(len(weight.test_set), -1, weight.sizes["seed"])
    if planted:
        means = samples.mean(-1, keepdims=True)
        cells = known(straight)
        law = _held_out.probability(planted, cells, _held_out.fit(planted, cells, means[0, :, 0]))
        samples = samples - means + law[None, :, None]
    scores = _held_out.score(
        known(order if permuted else straight),
        samples,
        fitted=~late & ~odd,
        parts=[~late & odd, late],
        resamples=RESAMPLES,
    )
    axes = ("theory", "test_set", "part", "replicate")
    predicted = scores.predicted.reshape(-1, len(tasks), len(steps))
    return xr.Dataset(
        {
            "predicted_weight": (("theory", "tasks", "step"), predicted),
            "explained": (axes, scores.explained),
            "log_density": (axes, scores.log_density),
            "fitted_number": (("formula", "parameter"), scores.numbers),
        },
        coords={
            "theory": [*THEORIES, *NULLS],
            "test_set": weight.test_set,
            "part": list(PARTS),
            "tasks": weight.tasks,
            "step": weight.step,
            "formula": list(THEORIES),
            "parameter": [1, 2, 3],
        },
    ).expand_dims(setting=part.setting)


def check(dataset: xr.Dataset) -> list[Finding]:
    """The posterior explains most of the held-out cells, more than free energies do; a boundary scores higher."""
    pools, seeds = dataset.sizes["tasks"], dataset.sizes["seed"]

    def estimate(values: xr.DataArray) -> Estimate:
        """The mean over held-out parts; seeds of each pool are resampled by themselves."""
        values = values.mean("part")
        error = values.isel(replicate=slice(1, None)).std("replicate", ddof=1) * (seeds / max(seeds - 1, 1)) ** 0.5
        return Estimate(values.isel(replicate=0, drop=True), error, freedom=float(pools * (seeds - 1)))

    explained, density = (dataset[name].sel(test_set=TEST_SETS[0], drop=True) for name in ("explained", "log_density"))
    formula = explained.sel(theory=FORMULA, drop=True)
    worse = formula - explained.sel(theory="free energy", drop=True)
    better = density.sel(theory="boundary", drop=True) - density.sel(theory=FORMULA, drop=True)
    quantity = "fraction of the variance of held-out cells explained"
    return [
        *checks.above("explains", f"{quantity} by the posterior", estimate(formula), HALF),
        *checks.above("coefficients", f"{quantity} by the posterior, minus by free energies", estimate(worse), 0.0),
        *checks.above(
            "boundary", "log density of held-out cells by a boundary, minus by the posterior", estimate(better)
        ),
        *checks.complete("seeds", "more than one seed", seeds > 1),
    ]


def figure(dataset: xr.Dataset):
    """Draw the weight of the memorising predictor against steps for each pool, on the formula's curves."""
    part = dataset.assign(memorising_weight_line=dataset["predicted_weight"].sel(theory=FORMULA))
    settings = [name for name in WORDS if name in part.setting.values]
    rows = [
        Panel("memorising_weight", "memorising_weight_line", ylim=(-0.1, 1.1), at={"setting": name, "test_set": kind})
        for name in settings
        for kind in TEST_SETS
    ]
    keep = part[["memorising_weight", "memorising_weight_line"]]
    title = "weight of the memorising predictor; curves are fitted on pools of 2, 8, 32, 128 up to 400 steps"
    return panels(
        keep, rows, x="step", hue="tasks", xscale="log", columns=2, title=title, line_name="posterior over strategies"
    )


STEPS = (50, 100, 200, 400, 800, 1600)
POOLS = (2, 4, 8, 16, 32, 64, 128)
COMMON = {"predictor": STRATEGIES, "test_set": TEST_SETS, "step": STEPS, "tasks": POOLS}
claim = Claim(
    title="The odds of memorising, held out",
    sentence=(
        "For balls and urns, a posterior of loss and complexity explains most of the held-out odds of memorising; a "
        "power-law boundary with as many fitted numbers predicts them better."
    ),
    conditions=(
        "Eight colours, 32 draws, uniform Dirichlet; one layer, width 24, Adam at a constant rate, pools of 2 to 128."
        " Three numbers are fitted to pools of 2, 8, 32 and 128 up to step 400; scored are the other pools, and steps"
        " 800 and 1600. Programs are taken to have 4000 bits, which nobody measured; of none, the posterior's log "
        "density is 1.55, above the boundary's 1.48. Most is over half of the variance, better a higher log density. "
        "With a bound on learning coefficients in place of bits less is. Set after two other keys."
    ),
    sources=("Wurgaft25", "Raventos23"),
    axes=(
        Axis("theory", r"\mathcal{T}", "theory or null"),
        Axis("formula", r"\mathcal{T}", "theory with three numbers"),
        Axis("part", "P", "held-out part of the grid"),
        Axis("replicate", "b", "bootstrap sample of seeds, 0 all of them", least=0),
        Axis("parameter", "j", "fitted number", least=1),
    ),
    quantities=(
        Quantity("strategy_distance", r"\Delta", "squared distance of the network from a predictor"),
        Quantity("strategy_gap", r"\Delta_0", "squared distance of both predictors"),
        Quantity("loss_gap", r"\Delta L", "loss of the generalising predictor above the memorising one", "nats"),
        Quantity("memorising_weight", "p", "weight of the memorising predictor"),
        Quantity("predicted_weight", r"\hat p", "weight of the memorising predictor by a theory"),
        Quantity("explained", "R^2", "fraction of the variance of held-out cells explained"),
        Quantity("log_density", r"\ln f", "mean log density of held-out cells", "nats"),
        Quantity("fitted_number", r"\theta_j", "fitted number"),
    ),
    static=("setting", "tasks"),
    outputs=("test_set", "predictor", "step"),
    fixed={
        **{"dim": 2, "length": 8, "colours": 8, "balls": 32, "layers": 2, "width": 24, "rate": 5e-3, "warmup": 50},
        **{"prompts": 512, "longest": 128},
    },
    sizes={
        "smoke": COMMON
        | {"setting": ("urns",), "tasks": (2, 4), "step": (2, 4, 501), "seed": 2}
        | {"width": 8, "balls": 8, "colours": 3, "prompts": 128, "longest": 4},
        "small": COMMON | {"setting": ("urns",), "seed": Seeds(6, block=3)},
        "medium": COMMON | {"setting": ("urns", "regression"), "seed": Seeds(12, block=4)},
    },
    key=8,
    controls={
        "exchanged": Control("each predictor stands for the other", {"exchanged": True}, axes={"seed": (0, 1)}),
        "permuted": Control("theories know other sizes of the pools", theory={"permuted": True}),
        "planted": Control("mean weights follow the posterior exactly", theory={"planted": FORMULA}),
        "no_evidence": Control("theories know no gap of losses", theory={"evidence": False}),
    },
)
