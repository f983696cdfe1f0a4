r"""Checks of an estimate at one temperature: a lower loss nearby, more data, and lower temperatures."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray
from scipy.optimize import minimize

from icllab.core.progress import part
from icllab.core.result_warnings import collected
from icllab.diagnostics.sampling.chains import require_bounded
from icllab.diagnostics.sampling.local_loss import LocalLoss
from icllab.diagnostics.sampling.local_posteriors import LocalPosterior
from icllab.diagnostics.sampling.posteriors import Vector
from icllab.diagnostics.sampling.sampled_losses import at_point, rows_of, sample_count
from icllab.diagnostics.sampling.samplers import ChainSampler
from icllab.diagnostics.sampling.sampling_warnings import errors_of_few
from icllab.diagnostics.singular.temperature_estimates import NONE, checked, estimate_at_temperature

EVALUATIONS = 100  # of a loss and its gradient, in a descent
BEARABLE = 10.0  # nominal seconds of a descent
PRECISION = 1e-4  # of nbeta times the loss, that a step of the descent gains at least
OUTSIDE = 1e12  # of nbeta times the loss, if that is not finite: the search turns back
SPLITS = 2  # of the data into two halves
SHORTEST = 8  # moves and draws of a shortened chain
FEWEST = 4  # chains for an error
TOLD = 0.02  # of an estimate, above which a descent or a shift is a warning
TOLD_RISE = 0.03  # of an estimate, above which a distance from the limit is a warning


class Lowest(NamedTuple):
    """The least loss of a descent."""

    level: float  # the loss at the point
    loss: float
    place: Vector
    rounding: float = 0.0  # of the loss


def lowest_near(local: LocalLoss, nbeta: float) -> Lowest:
    """Minimise by a quasi-Newton descent from the point; keep the point if a gradient is expensive."""
    centre = np.asarray(local.centre, np.float64)
    level = float(local.known.baseline.sum())
    best = Lowest(level, level, local.centre, local.rounding)

    if local.seconds * EVALUATIONS > BEARABLE:
        return best

    def value_and_slope(w: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best
        values = at_point(local.loss, jnp.asarray(w, local.centre.dtype), batch=local.block)
        loss, slope = float(values.baseline.sum()), np.asarray(values.slope, np.float64)
        if not (math.isfinite(loss) and np.isfinite(slope).all()):
            return OUTSIDE, np.zeros_like(w)
        if loss < best.loss:
            best = best._replace(loss=loss, place=jnp.asarray(w, local.centre.dtype))
        return nbeta * (loss - level), nbeta * slope

    options: Any = {"maxfun": EVALUATIONS, "ftol": PRECISION, "gtol": 0.0}
    minimize(value_and_slope, centre, jac=True, method="L-BFGS-B", options=options)
    require_bounded(level, best.loss - level)
    return best


def bias_sentence(bias: float) -> str:
    """Warning that a descent lowers the loss by ``bias`` over nbeta."""
    return (
        f"the point is no minimum of this loss: a descent from it lowers the loss by {bias:.2g}/nbeta, and what "
        "is measured from the point is too low by as much"
    )


def with_descent(estimate: xr.Dataset, lowest: Lowest, nbeta: float) -> xr.Dataset:
    """Add ``descent``, nbeta times what the descent lowers the loss by: the bias if w* is not a minimum."""
    bias = nbeta * (lowest.level - lowest.loss)
    sentences = list(estimate.attrs["warnings"])
    least = max(2 * float(estimate["mcse"]), TOLD * abs(float(estimate["estimate"])))
    if bias > least + 2 * nbeta * lowest.rounding:
        sentences.append(bias_sentence(bias))
    return checked(estimate.assign(descent=bias).assign_attrs(warnings=sentences), "minimum")


def rows_of_halves(count: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Rows of the halves of random splits: two disjoint ones of each split, in turn."""
    orders = [rng.permutation(count) for _ in range(SPLITS)]
    return [rows for order in orders for rows in (order[: count // 2], order[-(count // 2) :])]


def with_shift(
    estimate: xr.Dataset,
    local: LocalLoss,
    posterior: LocalPosterior,
    *,
    sampler: ChainSampler,
    key: PRNGKeyArray,
    complete: bool = True,
) -> xr.Dataset:
    r"""Add estimates of halves of the data, and the ``shift`` that data without end would have.

    The empirical loss is the population's with a perturbation whose variance is inverse to the number of data. If it
    shifts the estimate, at one :math:`n\beta` and one localization, in proportion to the variance, it shifts those of
    halves by as much again, and data without end have :math:`\hat\lambda - \overline{\hat\lambda}_{1/2}` more. The
    error counts the variance of halves, as that from data to data, and the shift itself, since it may be less than
    proportional. Unless ``complete``, chains are a quarter as long.

    The derivation is in docs/singular-learning.md, Finite data.
    """
    nbeta, data = float(estimate.attrs["nbeta"]), local.loss.data
    of_rows, *of_chains = jax.random.split(key, 1 + 2 * SPLITS)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(of_rows)))
    halves, errors = [], []
    if not complete:
        warm_up, draws = (max(count // 4, SHORTEST) for count in sampler.steps)
        sampler = replace(sampler, warm_up=warm_up, draws=draws)
    loss = posterior.part[0]
    for i, (rows, chain_key) in enumerate(zip(rows_of_halves(sample_count(data), rng), of_chains, strict=True)):
        half_data, centre = rows_of(data, rows), local.part(local.centre)
        lowest = lowest_near(LocalLoss.from_loss(loss, centre, half_data, block=local.block), nbeta)
        of_half = LocalPosterior(
            loss, local.part(lowest.place), half_data, estimate.attrs["n"], nbeta, local.localization
        )
        with part("half of the data", i, 2 * SPLITS), collected():
            half = estimate_at_temperature(of_half, sampler=sampler, key=chain_key, checks=NONE)
        halves.append(float(half["estimate"]))
        errors.append(float(half["mcse"]))
    value, mcse = float(estimate["estimate"]), float(estimate["mcse"])
    shift = value - float(np.mean(halves))
    of_halves = np.var(halves, ddof=1) + np.mean(np.square(errors)) / len(halves)
    error = float(np.sqrt(of_halves + shift**2 + mcse**2))
    sentences = list(estimate.attrs["warnings"])
    if max(abs(shift), error) > max(2 * mcse, TOLD * abs(value)):
        sentences.append(
            f"the estimate is of the empirical loss: halves of the data have {min(halves):.3g} to {max(halves):.3g}, "
            f"which puts that of data without end {shift:+.2g} ± {error:.1g} from this one"
        )
    numbers = {"half_estimate": ("half", np.array(halves)), "shift": shift, "shift_error": error}
    return checked(estimate.assign(numbers).assign_attrs(warnings=sentences), "data")


def with_rise(estimate: xr.Dataset) -> xr.Dataset:
    r"""Add ``rise``, the slope of the curve at this temperature, :math:`E[n\beta K] - \operatorname{Var}[n\beta K]`."""
    above = estimate.attrs["nbeta"] * (estimate["loss_trace"] - estimate["baseline"]).transpose("chain", "draw").values
    above = above[np.isfinite(above).all(1)]
    count = len(above)
    if count < FEWEST:
        return estimate

    def rise(chains: np.ndarray) -> float:
        return float(chains.mean() - chains.var())

    value = rise(above)
    without = np.array([rise(np.delete(above, i, axis=0)) for i in range(count)])
    error = float(np.sqrt((1 - 1 / count) * ((without - without.mean()) ** 2).sum()))
    sentences, limit = list(estimate.attrs["warnings"]), math.sqrt(abs(value))
    if abs(value) > errors_of_few(count) * error and limit > TOLD_RISE * abs(float(estimate["estimate"])):
        sentences.append(
            f"nbeta E[K] changes by {value:+.2g} an e-fold of nbeta: the learning coefficient may be {limit:.2g} "
            f"{'above' if value > 0 else 'below'} it"
        )
    return checked(estimate.assign(rise=value, rise_error=error).assign_attrs(warnings=sentences), "limit")
