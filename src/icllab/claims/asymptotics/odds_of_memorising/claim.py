r"""Three numbers for the odds of memorising over a whole grid of tasks K and steps N, scored where they were not fitted.

A network trained on a pool answers near the line from ridge G to the pool's posterior mean M. Its place on that line,

.. math:: p = \frac12\Bigl(1 - \frac{\Delta(T,M) - \Delta(T,G)}{\Delta(M,G)}\Bigr)
            = \frac{\langle T-G,\,M-G\rangle}{\lVert M-G\rVert^2},

is the weight of M in the best mixture. A theory gives its log odds by K and N. It is fitted on every other K and on
early N, on tasks of the pool, and scored on the other K, on late N, and with the same numbers on fresh tasks.
"""

import numpy as np
import xarray as xr

from icllab.claims.asymptotics import _held_out
from icllab.claims.asymptotics._held_out import NULLS, THEORIES, Known
from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks
from icllab.lab.estimates import Estimate
from icllab.lab.results import fixed_values

STRATEGIES = ("memorising", "generalising")
TEST_SETS = ("pool", "fresh")
LATE = 1000  # steps from which all cells are held out
PARTS = ("tasks", "steps")
RESAMPLES = 50  # bootstrap samples of seeds
NOISE = 0.25  # variance of labels
ORDER = (3, 0, 5, 1, 6, 2, 4)  # of the pools whose sizes are permuted


def theory(dataset: xr.Dataset, *, permuted: str = "", evidence: bool = True) -> xr.Dataset:
    """Add the weight of the memorising predictor, its prediction by each theory, and the scores of held-out cells.

    Args:
        permuted: ``"all"``, the sizes of pools that theories know are permuted; ``"fitted"``, those in the fit alone.
        evidence: Whether theories know the loss gap.
    """
    distance = dataset["strategy_distance"]
    ahead = distance.sel(predictor=STRATEGIES[0], drop=True) - distance.sel(predictor=STRATEGIES[1], drop=True)
    weight = (0.5 * (1 - ahead / dataset["strategy_gap"])).transpose("test_set", "tasks", "step", "seed")
    gap = dataset["strategy_gap"].sel(test_set=TEST_SETS[0], drop=True).mean("seed") / (2 * NOISE)
    tasks, steps = weight.tasks.values.astype(float), weight.step.values.astype(float)
    order = np.array([i for i in ORDER if i < len(tasks)])
    dim = int(fixed_values(dataset)["dim"])

    def known(order: np.ndarray) -> Known:
        gaps = gap.values[order] if evidence else np.zeros(len(tasks))
        columns = np.broadcast_arrays(tasks[order][:, None], steps[None, :], gaps[:, None])
        return Known(*(column.ravel() for column in columns), dim)

    straight = np.arange(len(tasks))
    late, odd = (mask.ravel() for mask in np.broadcast_arrays(steps > LATE, (straight % 2 == 1)[:, None]))
    scores = _held_out.score(
        known(order if permuted == "all" else straight),
        weight.values.reshape(len(weight.test_set), -1, weight.sizes["seed"]),
        fitted=~late & ~odd,
        parts=[~late & odd, late],
        labels=known(order if permuted else straight),
        resamples=RESAMPLES,
    )
    axes = ("theory", "test_set", "part", "resample")
    predicted = scores.predicted.reshape(-1, len(tasks), len(steps))
    return dataset.assign(
        memorising_weight=weight,
        memorising_weight_line=(("theory", "tasks", "step"), predicted),
        explained=(axes, scores.explained),
        log_density=(axes, scores.log_density),
        fitted_number=(("formula", "number"), scores.numbers),
    ).assign_coords(theory=[*THEORIES, *NULLS], part=list(PARTS), formula=list(THEORIES), number=[1, 2, 3])
