r"""The learning coefficient of any loss near a point, as the limit of a curve where that is cheap.

.. math:: n\beta\,\bigl(E_{n\beta}[L] - L(w^*)\bigr) = \lambda - \frac{m-1}{\log n\beta} + \dots, \qquad
          w \sim \exp\Bigl(-n\beta\,L(w) - \frac\gamma2\lVert w - w^*\rVert^2\Bigr)

A temperature that is given has the left side: that is
:mod:`icllab.diagnostics.singular.local_learning`. Where none is given it is :math:`\lambda` that is asked for.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from icllab.core.errors import expected, require_key, require_number
from icllab.diagnostics.sampling.hmc import HMC
from icllab.diagnostics.sampling.local_loss import MOST_PULL, LocalLoss
from icllab.diagnostics.sampling.sampled_losses import BLOCK, sample_count
from icllab.diagnostics.sampling.samplers import ChainSampler, Sampler
from icllab.diagnostics.sampling.sampling_warnings import too_narrow
from icllab.diagnostics.sampling.smc import SMC
from icllab.diagnostics.singular import local_learning
from icllab.diagnostics.singular.coefficient_curves import inverse_temperatures
from icllab.diagnostics.singular.curve_limits import (
    POPULATIONS,
    annealed_limit,
    populations_are_cheap,
    with_limit,
    with_rise,
)
from icllab.diagnostics.singular.finite_data import SECONDS, with_shift
from icllab.diagnostics.singular.least_losses import lowest_near, with_descent
from icllab.diagnostics.singular.local_estimates import PLACES, estimator
from icllab.training.runs import Run

LIMIT = "the learning coefficient, the limit of nbeta (E[L] - L(w*))"
ANNEALED = 1 << 20  # folded into the key of populations beside chains
HALVED = ANNEALED + 1  # into that of halves of the data
OF_DATA = ", with the empirical loss of the data for L"
AT_ONE = "nbeta (E[L] - L(w*)) at this nbeta"


def learning_coefficient(
    loss: Callable[..., Any] | Run,
    at: Any = None,
    *,
    n: float | None = None,
    key: PRNGKeyArray,
    estimand: str | None = None,
    sampler: Sampler | str = "auto",
    data: Any = None,
    nbeta: float | Sequence[float] | np.ndarray | None = None,
    localization: float | None = None,
    sensitivity: bool = False,
    task: Any = None,
    positions: str | Sequence[int] | None = None,
    per_position: bool = False,
) -> xr.Dataset:
    r"""Estimate the local learning coefficient by sampling.

    The estimand ``"limit"`` is :math:`\lambda`: populations are annealed to :math:`n/\log n`, and the curve of
    :math:`n\beta\,E[K]` over the last two and a half decades is extrapolated, for :math:`\lambda` and m together. Its
    error is that of the extrapolation. Chains at the last temperature are run beside them. The estimand
    ``"at_temperature"`` is :math:`n\beta\,(E[L]-L(w^*))` at one temperature, of chains. The attribute ``estimand`` says
    which of the two the estimate is of, ``estimates`` says so in words.

    Half the chains start at :math:`w^*`, half at :math:`w^* + \sigma r\,\xi` with standard normal :math:`\xi` and
    :math:`r = \gamma^{-1/2}`: if they disagree, the estimate has not converged.

    A loss that returns a vector has terms; their sum is L. With ``data`` it is a function of parameters and a batch of
    samples, the mean over these. All estimates are of the loss that is given: of data, of the empirical loss at that
    point, and not of the population's.

    Args:
        loss: A function of parameters (and of samples, with ``data``), in nats per sample. Or a training run: the loss
            is its task's, the mean over positions, at one temperature.
        at: :math:`w^*`, any tree whose floating-point arrays are the parameters. Of a run, a step that it kept, or
            several, or None for its end.
        n: Number of samples in the data that :math:`n\beta` is made of. None: as many as ``data`` has; where data are
            drawn without end, a curve over four temperatures, since n is then a resolution.
        key: Key of everything that is drawn; of a run also of the prompts.
        estimand: ``"limit"`` or ``"at_temperature"``. None: the limit, unless ``nbeta`` or a sampler of chains is
            given, the loss is a run or sampled in batches, or an annealing takes nominally more than a minute by the
            operations of a gradient. These are counted; no clock decides.
        sampler: How the posterior is sampled: ``HMC()``, ``MALA()``, ``NUTS()``, ``SGLD()`` of batches, at one
            temperature, or, annealed and without chains, ``SMC()``, of :mod:`icllab.diagnostics.sampling`.
            ``"auto"``: HMC, and for a limit ``SMC()`` beside it; of expensive gradients, batches. The attribute
            ``reason`` says why.
        data: Samples: a tree of arrays with a leading axis. Of a run, its fixed prompts or how many to draw (None:
            4096).
        nbeta: Inverse temperature; at least four for a curve; None: :math:`n/\log n`. Of ``SMC()`` the largest.
        localization: :math:`\gamma`; None: one over the mean square of the parameters, or 1 where they are zero.
        sensitivity: Whether chains are to estimate at a quarter and at four times the localization too.
        task: Task of a run, which owns the loss.
        positions: Positions of a run that count, as in :func:`icllab.fit <icllab.training.fitting.fit>`; None: every.
        per_position: Whether positions of a run are terms.

    Returns:
        What chains say, as of :func:`coefficient_at_temperature
        <icllab.diagnostics.singular.local_learning.coefficient_at_temperature>`, and ``descent``, :math:`n\beta` times
        what a quasi-Newton descent from the point lowers the loss by: an estimate is too low by as much.

        Of a limit, ``estimate`` and ``mcse`` are the posterior mean and standard deviation of :math:`\lambda`, and
        ``interval`` (``bound``) is its middle 95 per cent; ``level`` is the end of the curve and ``left`` what it has
        to go from there, each with an ``_error``; ``multiplicity_probability`` is over ``multiplicity``; ``curve``,
        :math:`t\,E_t[K]` of the populations, with its ``_error``, is over ``nbeta``. K is the loss above the least that
        the descent has found. ``mean_estimate`` with its ``_error`` is the number of the chains. Of ``SMC()`` all that
        :func:`free_energy <icllab.diagnostics.singular.free_energies.free_energy>` returns is there too.

        Of chains alone without a given temperature, and without batches, ``rise`` with its ``_error`` is the slope of
        :math:`n\beta\,E[K]` on :math:`\log n\beta`. Of ``data``, where a gradient costs little, ``half_estimate``
        (``half``) are what chains have of halves of them, and ``shift`` with its ``_error`` is how much more they would
        have of data without end.

    Raises:
        InputError: A number is out of its range, an argument would have no effect, or the loss is no finite scalar or
            vector at :math:`w^*`, or of samples not the mean over them.
        EnvironmentFault: NUTS without blackjax.

    Source: [Hoogland24], [Watanabe09].
    Derived: docs/free-energies.md, The limit of a curve.
    """
    require_key(key)
    _require_estimand(estimand, loss, sampler, nbeta)
    how: dict[str, Any] = {"n": n, "data": data, "nbeta": nbeta, "localization": localization, "task": task}
    how |= {"sensitivity": sensitivity, "positions": positions, "per_position": per_position}
    if isinstance(sampler, SMC) and not isinstance(loss, Run):
        return _annealed(loss, at, key=key, sampler=sampler, **how)
    found = local_learning.coefficient_at_temperature(loss, at, key=key, sampler=sampler, **how)
    if isinstance(loss, Run) or "nbeta" in found.dims:
        return found.assign_attrs(estimand="at_temperature", estimates=AT_ONE)
    here, last = LocalLoss.from_loss(loss, at, data, block=BLOCK, pull=localization), float(found.attrs["nbeta"])
    lowest = lowest_near(here, last)
    of_what = "" if data is None else OF_DATA
    found = found.assign_attrs(estimand="at_temperature", estimates=AT_ONE + of_what)
    found = with_descent(found, lowest, last)
    if nbeta is not None:
        return found
    if "batch" in found.attrs and estimand != "limit":
        return found  # whose variance is that of batches too
    chains = HMC() if sampler == "auto" else sampler
    if data is not None and here.seconds <= SECONDS and isinstance(chains, ChainSampler):
        found = with_shift(found, here, loss, sampler=chains, key=jax.random.fold_in(key, HALVED))
    if estimand is None:
        estimand = "limit" if sampler == "auto" and populations_are_cheap(here) else "at_temperature"
    if estimand == "at_temperature":
        return with_rise(found)
    own = jax.random.fold_in(key, ANNEALED)
    annealed = annealed_limit(here, last, least=lowest.loss, key=own, sampler=POPULATIONS)
    return with_limit(found, annealed).assign_attrs(estimand="limit", estimates=LIMIT + of_what)


def _require_estimand(estimand: str | None, loss: Any, sampler: Any, nbeta: Any) -> None:
    """Raise unless the estimand is one of the two, and the other arguments can have it."""
    if estimand not in (None, "limit", "at_temperature"):
        raise expected("estimand", "'limit' or 'at_temperature'", estimand)
    if estimand == "limit" and isinstance(loss, Run):
        raise expected("estimand", "'at_temperature' of a run", estimand, "a loss as a function has a limit")
    if estimand == "limit" and nbeta is not None and not isinstance(sampler, SMC):
        raise expected("estimand", "'at_temperature' where nbeta is given", estimand, "leave nbeta out")
    if estimand == "at_temperature" and isinstance(sampler, SMC):
        raise expected("estimand", "'limit' with SMC(), which anneals", estimand, "HMC() estimates at a temperature")


def _annealed(
    loss: Any,
    at: Any,
    *,
    key: PRNGKeyArray,
    sampler: SMC,
    data: Any,
    n: float | None,
    nbeta: Any,
    localization: float | None,
    sensitivity: bool,
    **of_runs: Any,
) -> xr.Dataset:
    """By populations alone."""
    for name, value, above in (("n", n, 1.0), ("localization", localization, 0.0)):
        if value is not None:
            require_number(name, value, f"a finite number > {above:g}", lambda x, above=above: above < x < math.inf)
    for name, value in of_runs.items():
        if value:
            raise expected(name, "a training run as the loss, whose it would be", value, "leave it out")
    found_by = estimator(sampler, loss, at, data, sensitivity=sensitivity, key=key)
    count = sample_count(data) if n is None and data is not None else n
    values, is_curve = inverse_temperatures(count, nbeta)
    if is_curve:
        raise expected("nbeta", "one number with SMC", values, "free_energy has a grid of its own")
    here = LocalLoss.from_loss(loss, at, data, block=sampler.block, pull=localization)
    lowest = lowest_near(here, values[0])
    found = annealed_limit(here, values[0], least=lowest.loss, key=key, sampler=sampler)
    seen, far = here.posterior(values[0], here.localization, curved=True), np.arange(PLACES) > 0
    places = here.starts(here.localization, far, key, dispersion=1.0, inside=True)
    share = here.narrowness(seen, places, 0.0, key)
    said = [*found.attrs["warnings"], *([too_narrow(share)] if share > MOST_PULL else [])]
    chosen = {"sampler": sampler.name, "settings": repr(sampler), "reason": found_by.reason, "nbeta": values[0]}
    chosen |= {"estimand": "limit", "estimates": LIMIT + ("" if data is None else OF_DATA), "warnings": said}
    chosen |= {} if count is None else {"n": float(count)}
    return with_descent(found.assign(localization_share=share).assign_attrs(chosen), lowest, values[0])
