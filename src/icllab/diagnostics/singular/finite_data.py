"""How an estimate depends on there being only so many data: the same of halves of them."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from icllab.diagnostics.sampling.local_loss import LocalLoss
from icllab.diagnostics.sampling.sampled_losses import rows_of, sample_count
from icllab.diagnostics.sampling.samplers import ChainSampler
from icllab.diagnostics.singular.least_losses import lowest_near
from icllab.diagnostics.singular.local_learning import coefficient_at_temperature

SPLITS = 2  # of the data into two halves
SECONDS = 3e-3  # nominal ones of a gradient of all the data, above which halves are left out
TOLD = 0.02  # of an estimate, that a shift may be without a word


def rows_of_halves(count: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Rows of the halves of random splits, two that are disjoint after two others."""
    orders = [rng.permutation(count) for _ in range(SPLITS)]
    return [rows for order in orders for rows in (order[: count // 2], order[-(count // 2) :])]


def with_shift(
    found: xr.Dataset, here: LocalLoss, loss: Callable[..., Any], *, sampler: ChainSampler, key: PRNGKeyArray
) -> xr.Dataset:
    r"""An estimate of an empirical loss with those of halves of the data, and what they say of data without end.

    The empirical loss is the population's with a perturbation whose variance is inverse to the number of data. If it
    shifts the estimate, at one :math:`n\beta` and one localization, in proportion to the variance, it shifts those of
    halves by as much again, and data without end have :math:`\hat\lambda - \overline{\hat\lambda}_{1/2}` more. The
    error counts the variance of halves, as that from data to data, and the shift itself, since it may be less than
    proportional.

    The derivation is in docs/singular-learning.md, Finite data.
    """
    nbeta, data = float(found.attrs["nbeta"]), here.loss.data
    of_rows, *of_chains = jax.random.split(key, 1 + 2 * SPLITS)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(of_rows)))
    halves, errors = [], []
    for rows, own in zip(rows_of_halves(sample_count(data), rng), of_chains, strict=True):
        part = rows_of(data, rows)
        at = eqx.combine(here.loss.unravel(here.centre), here.loss.rest)
        lowest = lowest_near(LocalLoss.from_loss(loss, at, part, block=here.block), nbeta)
        at = eqx.combine(here.loss.unravel(lowest.place), here.loss.rest)
        how: dict[str, Any] = {"n": found.attrs["n"], "nbeta": nbeta, "localization": here.localization}
        one = coefficient_at_temperature(loss, at, data=part, sampler=sampler, key=own, **how)
        halves.append(float(one["estimate"]))
        errors.append(float(one["mcse"]))
    estimate, mean = float(found["estimate"]), float(np.mean(halves))
    shift, own_error = estimate - mean, float(found["mcse"])
    of_halves = np.var(halves, ddof=1) + np.mean(np.square(errors)) / len(halves)
    error = float(np.sqrt(of_halves + shift**2 + own_error**2))
    said = list(found.attrs["warnings"])
    if max(abs(shift), error) > max(2 * own_error, TOLD * abs(estimate)):
        said.append(
            f"the estimate is of the empirical loss: halves of the data have {min(halves):.3g} to {max(halves):.3g}, "
            f"which puts that of data without end {shift:+.2g} ± {error:.1g} from this one"
        )
    numbers = {"half_estimate": ("half", np.array(halves)), "shift": shift, "shift_error": error}
    return found.assign(numbers).assign_attrs(warnings=said)
