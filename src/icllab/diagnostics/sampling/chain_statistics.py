r"""Statistics of chains: the estimate of a learning coefficient, its error, and measures of convergence."""

import math
from typing import Any

import numpy as np

from icllab.diagnostics.sampling import convergence
from icllab.diagnostics.sampling.chains import Chains

NUMBERS = ("estimate", "mcse", "rhat", "ess", "distance_rhat", "acceptance", "least_loss", "distance")
DIFFERENCES = ("start_gap", "drift", "localization_slope")


def statistics(
    chains: Chains, baseline: np.ndarray, nbeta: float, far: np.ndarray, localization: float = 0.0
) -> dict[str, Any]:
    """Compute the variables of a dataset that need no other runs.

    ``baseline`` has the terms of the loss at the point; ``far`` is true for chains that start away from it.
    """
    terms, distance = np.asarray(chains.terms, np.float64), np.asarray(chains.distance, np.float64)
    above = nbeta * terms.sum(2)
    sound = np.isfinite(above).all(1) & np.isfinite(distance).all(1)
    level = float(baseline.sum())
    missing = (math.nan, math.nan)
    by_chain = [convergence.mean_and_mcse(above[[i]]) if ok else missing for i, ok in enumerate(sound)]
    rows: dict[str, Any] = {
        "baseline": level,
        "step_size": float(chains.step_size),
        "chain_estimate": ("chain", np.array([mean for mean, _ in by_chain])),
        "chain_mcse": ("chain", np.array([error for _, error in by_chain])),
        "loss_trace": (("chain", "draw"), level + above / nbeta),
    }
    if sound.any():
        rows |= _of_sound(above[sound], distance[sound], far[sound], localization)
        rows["least_loss"] = level + float(above[sound].min()) / nbeta
        rows["acceptance"] = float(np.asarray(chains.acceptance)[sound].mean())
    else:
        names = (*NUMBERS, *DIFFERENCES, *(f"{name}_error" for name in DIFFERENCES))
        rows |= dict.fromkeys(names, math.nan)
    if terms.shape[2] > 1:
        rows |= _of_terms(nbeta * terms[sound], baseline)
    return rows


def _of_sound(above: np.ndarray, distance: np.ndarray, far: np.ndarray, localization: float) -> dict[str, float]:
    mean, error = convergence.mean_and_mcse(above)
    third = max(above.shape[1] // 3, convergence.FEWEST)
    gap, gap_error = difference(above[far], above[~far])
    slope, slope_error = localization_slope(above, localization * distance / 2)
    drift, drift_error = difference(above[:, -third:], above[:, :third])
    return {
        "estimate": mean,
        "mcse": error,
        "rhat": convergence.rhat(above),
        "ess": convergence.effective_draws(above),
        "distance_rhat": convergence.rhat(distance),
        "start_gap": gap,
        "start_gap_error": gap_error,
        "drift": drift,
        "drift_error": drift_error,
        "distance": float(np.sqrt(distance.mean())),
        "localization_slope": slope,
        "localization_slope_error": slope_error,
    }


def localization_slope(above: np.ndarray, potential: np.ndarray) -> tuple[float, float]:
    r"""The derivative of the estimate on the logarithm of the localization, with its error over chains.

    .. math:: \frac{dE[n\beta K]}{d\log\gamma} = -\operatorname{Cov}\Bigl(n\beta K, \frac\gamma2|w-w^*|^2\Bigr)

    of draws ``above`` and ``potential``, [chain, draw], under :math:`e^{-n\beta K-\gamma|w-w^*|^2/2}`. The error is the
    jackknife's; of one chain it is NaN.
    """

    def slope(rows: np.ndarray) -> float:
        a, p = above[rows], potential[rows]
        return -float(((a - a.mean()) * (p - p.mean())).mean())

    rows = np.arange(len(above))
    without = np.array([slope(np.delete(rows, i)) for i in rows]) if len(rows) > 1 else np.full(1, math.nan)
    return slope(rows), math.sqrt((len(rows) - 1) * without.var())


def _of_terms(above: np.ndarray, baseline: np.ndarray) -> dict[str, Any]:
    """Estimates of the terms of the loss, [chain, draw, term], and their covariance."""
    count = above.shape[2]
    rows = [convergence.mean_and_mcse(above[:, :, i]) if len(above) else (math.nan, math.nan) for i in range(count)]
    deviations = above - above.mean((0, 1)) if len(above) else above
    of_chains = np.einsum("cdi,cdj->cij", deviations, deviations) / max(above.shape[1], 1)
    enough = len(of_chains) > 1
    covariance = of_chains.mean(0) if enough else np.full((count, count), math.nan)
    spread = of_chains.std(0, ddof=1) / math.sqrt(len(of_chains)) if enough else covariance
    return {
        "term_baseline": ("term", baseline),
        "term_estimate": ("term", np.array([mean for mean, _ in rows])),
        "term_mcse": ("term", np.array([error for _, error in rows])),
        "term_covariance": (("term", "other_term"), covariance),
        "term_covariance_mcse": (("term", "other_term"), spread),
    }


def difference(draws: np.ndarray, reference: np.ndarray) -> tuple[float, float]:
    """The difference of two means and its error; NaN if one is empty."""
    if not len(draws) or not len(reference):
        return math.nan, math.nan
    (a, of_a), (b, of_b) = convergence.mean_and_mcse(draws), convergence.mean_and_mcse(reference)
    return a - b, math.hypot(of_a, of_b)
