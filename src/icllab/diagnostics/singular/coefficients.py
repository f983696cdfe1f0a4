r"""The learning coefficient of a loss near a point: as the limit of a curve, and at one temperature.

.. math:: n\beta\,\bigl(E_{n\beta}[L] - L(w^*)\bigr) = \lambda - \frac{m-1}{\log n\beta} + \dots, \qquad
          w \sim \exp\Bigl(-n\beta\,L(w) - \frac\gamma2\lVert w - w^*\rVert^2\Bigr)

Here are the questions. Estimates at one temperature are in :mod:`~icllab.diagnostics.singular.temperature_estimates`,
curves over temperatures in :mod:`~icllab.diagnostics.singular.limits`, and the extrapolation of a curve in
:mod:`~icllab.diagnostics.singular.extrapolation`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import xarray as xr
from jaxtyping import PRNGKeyArray

from icllab.core.errors import expected, require_instance, require_key
from icllab.core.progress import keep, part, shows
from icllab.core.result_warnings import warn_at_once, warns
from icllab.diagnostics.sampling.local_loss import LocalLoss
from icllab.diagnostics.sampling.local_posteriors import LocalPosterior, of_posterior
from icllab.diagnostics.sampling.samplers import ChainSampler, Draws, Sampler
from icllab.diagnostics.sampling.sgld import SGLD
from icllab.diagnostics.sampling.smc import SMC
from icllab.diagnostics.singular.estimate_checks import (
    Lowest,
    bias_sentence,
    lowest_near,
    with_descent,
    with_rise,
    with_shift,
)
from icllab.diagnostics.singular.limits import (
    POPULATIONS,
    annealed_limit,
    chain_limit,
    limit_of_populations,
    populations_are_cheap,
    with_limit,
)
from icllab.diagnostics.singular.temperature_estimates import (
    CHECKS,
    Checks,
    chosen,
    estimate_at_temperature,
    estimate_from_draws,
    estimate_from_losses,
)
from icllab.models.pretrained.ignored_fields import names_ignored

LIMIT = "the learning coefficient, the limit of nbeta (E[L] - L(w*))"
AT_ONE = "nbeta (E[L] - L(w*)) at this nbeta"
SLOPE = "the slope of the free energy on log nbeta, up to this nbeta, with m = 1"
OF_DATA = ", with the empirical loss of the data for L"
ANNEALED = 1 << 20  # folded into the key of populations beside chains
HALVED = ANNEALED + 1  # folded into the key of halves of the data
SECONDS = 1e-3  # nominal ones of a gradient of all the data, above which halves are left out


@warns("learning coefficient")
@names_ignored
@shows("learning coefficient")
@of_posterior("coefficient_of_draws")
def learning_coefficient(
    posterior: LocalPosterior,
    *,
    key: PRNGKeyArray,
    sampler: Sampler | str = "auto",
    checks: Sequence[str] | None = None,
    progress: bool | None = None,
) -> xr.Dataset:
    r"""Estimate the local learning coefficient :math:`\lambda`, the limit of :math:`n\beta\,(E[L]-L(w^*))`.

    Populations are annealed to :math:`n\beta`, or, if a gradient is too expensive for them, chains run at six
    temperatures. The curve of :math:`n\beta\,E[K]` over the last two and a half decades is compared with exact ones,
    for :math:`\lambda` and its multiplicity m together. The error is that of the extrapolation. Chains at the last
    temperature run beside populations. K is the loss above the least of a quasi-Newton descent.

    Args:
        posterior: Loss near a point; its ``nbeta``, or :math:`n/\log n`, is the end of the curve.
        key: Key of the chains and populations.
        sampler: Sampler of chains, or ``SMC()`` for populations alone. ``"auto"``: chains of HMC, shorter if gradients
            are expensive, beside populations.
        checks: Names of the checks of the chains; by default those of :func:`coefficient_at_temperature`.
        progress: Whether what is done, the time left and the present estimate are shown; None: on a terminal and in a
            notebook.

    Returns:
        ``estimate`` and ``mcse``, the posterior mean and standard deviation of :math:`\lambda`, and ``interval``
        (``bound``), its middle 99 per cent, both wider by the error of the level. ``level`` is the end of the curve and
        ``left`` the way from there to the limit, each with an ``_error``. ``multiplicity_probability`` is over
        ``multiplicity``; ``regular_probability`` is that of a regular point, with half the rank of its Hessian.
        ``curve`` (``nbeta``), :math:`t\,E_t[K]`, with its ``_error``.

        From chains also what :func:`coefficient_at_temperature` returns, with ``mean_estimate`` and its ``_error`` for
        their estimate, which is too low by ``descent``. The attribute ``chain_warnings`` says what is wrong with chains
        beside populations. With ``SMC()`` also what
        :func:`free_energy <icllab.diagnostics.singular.free_energies.free_energy>` returns.

    Raises:
        InputError: The loss is not a finite scalar or vector at :math:`w^*`, or of samples not the mean over them;
            there is a prior; or a gradient is too expensive for a curve and no sampler is given.

    Source: [Watanabe09].
    Derived: docs/free-energies.md, The limit of a curve.
    """
    require_key(key)
    if posterior.prior is not None:
        hint = "coefficient_at_temperature(...) takes it"
        raise expected("prior", "None for a limit", posterior.prior, hint)
    if isinstance(sampler, SMC):
        _require_no_checks(checks)
        return _described(limit_of_populations(posterior, key=key, sampler=sampler), "limit", LIMIT, posterior)
    if sampler == "auto" and isinstance(chosen(posterior, sampler)[1], SGLD):
        cost = f"{1e3 * posterior.local_loss().seconds:.2g} nominal ms"
        hint = "coefficient_at_temperature(...) runs chains at one temperature; sampler=HMC() insists"
        raise expected("posterior", "a gradient that is cheap enough for a curve", cost, hint)
    run = _run_chains(posterior, key, sampler, Checks.parse(checks))
    estimate, local, lowest, last = run.estimate, run.local, run.lowest, posterior.temperature
    if lowest is None:
        lowest = lowest_near(local, last)
        estimate = with_descent(estimate, lowest, last)
    of_curve = jax.random.fold_in(key, ANNEALED)
    if populations_are_cheap(local):
        annealed = annealed_limit(local, last, lowest=lowest, key=of_curve, sampler=POPULATIONS)
        estimate = with_limit(estimate, annealed)
    else:
        estimate = chain_limit(estimate, local, last, lowest=lowest, key=of_curve, sampler=run.sampler)
    return _described(estimate, "limit", LIMIT, posterior)


@warns("learning coefficient")
@names_ignored
@shows("learning coefficient")
@of_posterior("coefficient_of_draws")
def coefficient_at_temperature(
    posterior: LocalPosterior,
    *,
    key: PRNGKeyArray,
    sampler: Sampler | str = "auto",
    checks: Sequence[str] | None = None,
    progress: bool | None = None,
) -> xr.Dataset:
    r"""Estimate :math:`n\beta\,(E[L]-L(w^*))` at the posterior's temperature, by chains.

    Half the chains start at :math:`w^*`, half at :math:`w^* + \sigma r\,\xi` with standard normal :math:`\xi` and
    :math:`r = \gamma^{-1/2}`: if they disagree, the estimate has not converged.

    Args:
        posterior: Loss near a point.
        key: Key of the chains.
        sampler: ``HMC()``, ``MALA()``, ``NUTS()``, of batches ``SGLD()``, ``RMSpropSGLD()`` or ``SGNHT()``, of
            :mod:`icllab.diagnostics.sampling`. ``"auto"``: HMC; if gradients are expensive, with fewer moves, or
            batches. The attribute ``reason`` says why. ``SMC()`` has no chains: the estimate is the slope of the free
            energy on :math:`\log n\beta` at m = 1, see
            :func:`~icllab.diagnostics.singular.free_energies.annealed_slope`.
        checks: Names of the checks: ``"minimum"``, a descent from :math:`w^*`; ``"hessian"``, its effective dimension;
            ``"step_size"``, of dynamics without a test, the same chains at half the step; ``"data"``, halves of the
            data; ``"limit"``, the slope of the curve at this temperature; the last two only if ``nbeta`` is the
            default. None: all that apply, shortened so that they take at most as long as the chains. Checks that are
            named are complete; ``()``: none. The attributes ``checks`` and ``unchecked`` name what was checked and
            what was not.
        progress: Whether what is done, the time left and the present estimate are shown; None: on a terminal and in a
            notebook.

    Returns:
        ``estimate`` and ``mcse``, of all chains that are finite; ``rhat`` and ``ess`` of the loss, and
        ``distance_rhat``; ``acceptance`` and ``step_size``; ``baseline``, :math:`L(w^*)` of all the data, and
        ``least_loss``, the least of all draws; ``slope``, :math:`n\beta|\nabla L(w^*)|^2/h_{\max}`, and with a
        prior ``prior_slope``, the square of its logarithm's gradient over the largest curvature; ``rounding``,
        :math:`n\beta` times the precision to which its type holds :math:`L(w^*)`; ``start_gap``,
        dispersed starts less those at :math:`w^*`, ``drift``, the last third less the first, and without a test
        ``halved_gap``, half the step less the whole, each with an ``_error``; ``noise_bias``, what the noise of batches
        adds at most to the estimate of a quadratic, to first order in the step; ``distance``, the root of the mean
        :math:`|w-w^*|^2`; ``localization_share``, the localization's part of the largest curvature, or of all
        directions if that is less (:math:`\gamma E|w-w^*|^2` over the number of parameters): it is to be small;
        ``localization_slope``, the derivative of the estimate on :math:`\log\gamma`, with its ``_error``;
        ``hessian_share``, half the effective dimension of the Hessian over the estimate, above 1500 parameters by
        random probes.

        ``chain_estimate`` and ``chain_mcse`` over ``chain``, and ``loss_trace`` over ``chain`` and ``draw``. For a loss
        with terms, ``term_estimate`` (they sum to the estimate), ``term_mcse`` and ``term_baseline`` over ``term``,
        and ``term_covariance`` of :math:`n\beta(L_t - L_t(w^*))` under the posterior, with its ``_mcse``, from the
        spread over chains.

        Of checks: ``descent``, :math:`n\beta` times what a descent lowers the loss by, the bias of the estimate if
        :math:`w^*` is not a minimum; ``rise`` with its ``_error``, the slope of :math:`n\beta\,E[K]` on
        :math:`\log n\beta`; ``half_estimate`` (``half``), from halves of the data, and ``shift`` with its ``_error``:
        how much more data without end would have. The attributes name the settings with reasons, and ``warnings`` is a
        list of sentences.

    Raises:
        InputError: The posterior has no temperature or several, or the loss is not a finite scalar or vector at
            :math:`w^*`, or of samples not the mean over them.
        EnvironmentFault: NUTS without blackjax.

    Source: [Hoogland24], [Watanabe09], of a part [Wang24].
    Derived: docs/singular-learning.md, What an estimate estimates.
    """
    require_key(key)
    if isinstance(sampler, SMC):
        _require_no_checks(checks)
        estimate = estimate_at_temperature(posterior, key=key, sampler=sampler)
        return _described(estimate, "at_temperature", SLOPE, posterior)
    run = _run_chains(posterior, key, sampler, Checks.parse(checks))
    estimate = run.estimate
    if "limit" in run.checks and not (run.batches or posterior.nbeta is not None or posterior.prior is not None):
        estimate = with_rise(estimate)
    return _described(estimate, "at_temperature", AT_ONE, posterior)


@warns("learning coefficient")
@names_ignored
@shows("learning coefficient")
def coefficient_of_draws(
    draws: Draws | xr.Dataset, *, checks: Sequence[str] | None = None, progress: bool | None = None
) -> xr.Dataset:
    """Estimate the coefficient at the temperature of draws, from these draws alone.

    Args:
        draws: Draws of chains, ``HMC().sample(posterior, key=key)`` or ``posterior_draws(posterior, key=key)``. Or a
            Dataset of another program's chains: ``sample_loss`` over (``chain``, ``draw``, ``sample``) and
            ``baseline`` (``sample``), the losses of these samples at the point, with the attribute ``nbeta``.
        checks: ``("hessian",)`` or ``()``; None: the first, shortened. A Dataset has none.
        progress: Whether what is done is shown; None: on a terminal and in a notebook.

    Returns:
        What :func:`coefficient_at_temperature` returns, without the checks that need more draws; of a Dataset without
        what needs the parameters.

    Raises:
        InputError: The Dataset lacks the losses.
    """
    if isinstance(draws, xr.Dataset):
        if checks:
            raise expected("checks", "None with a Dataset", checks, "the Hessian needs the function")
        return _described(estimate_from_losses(draws), "at_temperature", AT_ONE)
    require_instance("draws", draws, Draws, "draws of chains, as HMC().sample(posterior, key=key) returns them")
    return _described(estimate_from_draws(draws, checks=Checks.parse(checks)), "at_temperature", AT_ONE)


class _Chains(NamedTuple):
    """Estimate of chains at one temperature, with what a limit is made of beside it."""

    estimate: xr.Dataset
    local: LocalLoss  # at the localization of the chains
    lowest: Lowest | None  # None: there was no descent
    sampler: ChainSampler
    checks: Checks
    batches: bool  # whether the chains take batches


def _run_chains(posterior: LocalPosterior, key: PRNGKeyArray, sampler: Sampler | str, checks: Checks) -> _Chains:
    """Look for a lower loss near the point, run the chains, and run them again on halves of the data."""
    nbeta, lowest = posterior.temperature, None
    _, chains, _ = chosen(posterior, sampler)
    assert isinstance(chains, ChainSampler)
    local = posterior.local_loss()
    if "minimum" in checks and posterior.prior is None:
        with part("descent"):
            lowest = lowest_near(local, nbeta)
        bias = nbeta * (lowest.level - lowest.loss)
        # No coefficient of this many parameters is as large: checks of another kind are not worth their time.
        if bias > local.centre.size / 2 and not populations_are_cheap(local):
            warn_at_once(bias_sentence(bias))
            checks = Checks(tuple(name for name in checks.names if name not in ("data", "limit")), checks.complete)
    estimate = estimate_at_temperature(posterior, key=key, sampler=sampler, checks=checks)
    keep(estimate.assign_attrs(estimand="at_temperature", estimates=AT_ONE))
    local = replace(local, pull=float(estimate.attrs["localization"]))
    if lowest is not None:
        estimate = with_descent(estimate, lowest, nbeta)
    batches = "batch" in estimate.attrs
    alone = batches or posterior.nbeta is not None or posterior.prior is not None or posterior.data is None
    if "data" in checks and not alone and local.seconds <= SECONDS:
        options = {"key": jax.random.fold_in(key, HALVED), "complete": checks.complete}
        estimate = with_shift(estimate, local, posterior, sampler=chains, **options)
    return _Chains(estimate, local, lowest, chains, checks, batches)


def _described(
    estimate: xr.Dataset, estimand: str, estimates: str, posterior: LocalPosterior | None = None
) -> xr.Dataset:
    """An estimate that says what it estimates, and names the checks that were not made."""
    of_data = "" if posterior is None or posterior.data is None else OF_DATA
    made = str(estimate.attrs.get("checks", "")).split(", ")
    unchecked = ", ".join(name for name in CHECKS if name not in made)
    return estimate.assign_attrs(estimand=estimand, estimates=estimates + of_data, unchecked=unchecked)


def _require_no_checks(checks: Sequence[str] | None) -> None:
    """Raise if checks are named beside SMC, which makes none."""
    if checks is not None:
        raise expected("checks", "None with SMC", checks, "chains have checks")
