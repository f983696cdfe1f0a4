"""Warnings of estimates by sampling, as sentences."""

import math
from typing import Any

import numpy as np
import xarray as xr
from scipy.stats import chi2 as chi_squared
from scipy.stats import norm as normal
from scipy.stats import t as student

from icllab.core.statistics import mean_and_error
from icllab.diagnostics.sampling.local_loss import DECIDES, MOST_PULL

ERRORS = 3.0  # standard errors beyond which two numbers differ, of many repeats; of few as many more as is as rare
REFUSED = 0.3  # acceptance below which moves are said to be refused
MEMORY = 4.0  # how much larger the variance of populations may be for what moves leave correlated
LEAST_RESOLVED = 0.01  # that a rounding may change any estimate by
BESIDE = 0.1  # of the spread of what is observed, that a rounding may be: its variance is a third of that squared
LOCALIZED = "the localization decides"
NO_STATIONARY_POINT = "the point is no minimum: the gradient there is not zero at this resolution"
PRIOR_ELSEWHERE = "the prior moves the posterior away from the point, and what is measured is not local to it"
RARELY = 1e-3  # how often populations of independent particles would differ as much as is said


def too_narrow(share: float) -> str:
    """Warning that the localization is a large part of the largest curvature."""
    return f"{LOCALIZED}: it is {share:.2g} of the curvature where that is largest: give a smaller one"


def pulled(estimate: float, slope: float, error: float) -> list[str]:
    """A sentence if a default localization decides: the slope of the estimate on its logarithm is large."""
    decides = abs(slope) > max(ERRORS * error, DECIDES * abs(estimate))
    return [f"{LOCALIZED}: the estimate changes by {slope:+.2g} with a factor of e of it"] if decides else []


def no_minimum(lower: float) -> str:
    """Warning that a draw has a lower loss than the point."""
    return f"the point is no minimum: a loss lower by {lower:.2g}/nbeta was drawn"


def rounded(rounding: float) -> str:
    """Warning that rounding of the loss exceeds the resolution of the estimate."""
    return (
        f"the loss is so large beside its changes that its type rounds it by {rounding:.2g}/nbeta, more than this can "
        "resolve: leave constants out of it, or take float64"
    )


def resolved(error: float) -> float:
    """Largest rounding of nbeta times the loss that does not matter beside this standard error.

    It moves the loss at the point, from which all is measured. Near 1 it decides which moves are taken, and the error.
    """
    return min(max(2 * error, LEAST_RESOLVED) if error > 0 else LEAST_RESOLVED, 1.0)


def errors_of_few(repeats: int) -> float:
    """Quantile of Student's distribution with the tail probability of a normal one at three errors."""
    return float(student.isf(normal.sf(ERRORS), repeats - 1))


def point_warnings(dataset: xr.Dataset) -> list[str]:
    """Warnings about the point of an estimate by chains."""
    value = {str(name): float(v) for name, v in dataset.data_vars.items() if not v.dims}
    estimate, mcse = value["estimate"], value["mcse"]
    by_chain, errors = dataset["chain_estimate"].values, dataset["chain_mcse"].values
    negative = int(np.sum(by_chain < -2 * errors))
    # The loss of one batch is noise: only means of it are lower than another.
    in_batches = "batch" in dataset.attrs
    lower = 0.0 if in_batches else dataset.attrs["nbeta"] * (value["baseline"] - value["least_loss"])
    rounding = value.get("rounding", 0.0)
    faults = {
        NO_STATIONARY_POINT: value["slope"] > 1,
        PRIOR_ELSEWHERE: value.get("prior_slope", 0.0) > 1,
        rounded(rounding): rounding > resolved(mcse),
        no_minimum(lower): lower > max(1.0, estimate / 2) + 2 * rounding,
        "the estimate is negative: the point is no minimum at this resolution": estimate < -2 * mcse,
        f"{negative} chains have a negative estimate: the point is no minimum at this resolution": negative > 0
        and estimate >= -2 * mcse,
    }
    return [sentence for sentence, wrong in faults.items() if wrong]


def mixing_warnings(dataset: xr.Dataset) -> list[str]:
    """Warnings about the chains of an estimate and about its localization."""
    value = {str(name): float(v) for name, v in dataset.data_vars.items() if not v.dims}
    estimate = value["estimate"]
    gap, gap_error = value["start_gap"], value["start_gap_error"]
    drift, half_gap = value["drift"], value.get("halved_gap", 0.0)
    infinite = int(np.isnan(dataset["chain_estimate"].values).sum())
    beyond = max(ERRORS * value.get("halved_gap_error", math.inf), 0.03 * abs(estimate))
    noise = value.get("noise_bias", 0.0)
    share, level = value.get("localization_share", 0.0), dataset.attrs.get("noise_level", 1.0)
    faults = {
        f"{infinite} chains ran to infinity and are left out: take a smaller step": infinite > 0,
        f"starts away from the point give an estimate {gap:+.2g} from those at it: run longer chains": abs(gap)
        > max(ERRORS * gap_error, 0.02 * abs(estimate)),
        f"chains disagree: R-hat of the loss is {value['rhat']:.3f}, above 1.01": not value["rhat"] <= 1.01,
        f"few effective draws, {value['ess']:.0f}: four hundred are asked for": not value["ess"] >= 400,
        f"the loss still drifts, by {drift:+.2g} from the first third to the last": abs(drift)
        > max(ERRORS * value["drift_error"], 0.02 * abs(estimate)),
        f"the step is too large: at half of it the estimate changes by {half_gap:+.2g}": abs(half_gap) > beyond,
        too_narrow(share): share > MOST_PULL,
        f"the noise level is {level:.3g}: draws are of the potential over its square, not of the posterior": level != 1,
        f"the noise of the batches may add {noise:.2g} to the estimate: take larger ones, a smaller step or "
        "control_variate=True": noise > 0.03 * abs(estimate) and not dataset.attrs.get("control_variate", False),
    }
    return [sentence for sentence, wrong in faults.items() if wrong]


def chain_warnings(dataset: xr.Dataset) -> list[str]:
    """Warnings about an estimate by chains at one point and one temperature."""
    return [*point_warnings(dataset), *mixing_warnings(dataset)]


def annealing_warnings(dataset: xr.Dataset, forgotten: float) -> list[str]:
    """Warnings about the result of ``free_energy``.

    ``forgotten`` is the correlation of losses with those before the moves, below which moves are enough.
    """
    gap, gap_error = (float(dataset[name].isel(nbeta=-1)) for name in ("route_gap", "route_gap_error"))
    rungs = dataset.isel(rung=slice(1, None))
    count = rungs.sizes["rung"]
    stuck = int((rungs["correlation"] > forgotten).sum())
    worst = float(rungs["correlation"].max())
    rejections = int((rungs["acceptance"] < REFUSED).sum())
    repeats = dataset.sizes["repeat"]
    spread = mean_and_error(dataset["repeat_free_energy"].transpose("nbeta", "repeat").values)[1]
    ratio = float((spread / dataset["weight_error"].values).max())
    bound = math.sqrt(MEMORY * chi_squared.isf(RARELY, repeats - 1) / (repeats - 1))
    ancestors = int(dataset["ancestors"].min())
    rounding = float(dataset["rounding"][-1]) if "rounding" in dataset else 0.0
    faults = {
        rounded(rounding): rounding > resolved(float(spread[-1])),
        f"at {stuck} of {count} temperatures the moves leave losses as they were, with a correlation of up to "
        f"{worst:.2f}: allow more or longer ones": stuck > max(1, 0.05 * count),
        f"at {rejections} of {count} temperatures most of the moves are refused": rejections > max(1, 0.05 * count),
        f"the two routes differ by {gap:+.2g}: take more particles": abs(gap)
        > max(errors_of_few(repeats) * gap_error, 0.02),
        f"populations differ {ratio:.2g} times as much as their weights explain: a part of it may be lost": ratio
        > bound,
        f"all of a population descends from {ancestors} particles: take more": ancestors < 5,
    }
    return [sentence for sentence, wrong in faults.items() if wrong]


def rounding_warnings(kind: str, sizes: np.ndarray, spreads: np.ndarray, dtype: Any) -> list[str]:
    """A sentence if values of these sizes are rounded by more than a tenth of their spread under the posterior."""
    ratio = np.finfo(dtype).eps / 2 * sizes / np.where(spreads > 0, spreads, np.inf)
    if not ratio.size or ratio.max() <= BESIDE:
        return []
    return [
        f"{kind} are so large beside their spread that {np.dtype(dtype).name} rounds them by {ratio.max():.2g} of it: "
        "leave constants out of them, or take float64"
    ]
