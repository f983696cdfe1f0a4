r"""The learning coefficient of any loss near a point: as the limit of a curve, or at one temperature.

.. math:: n\beta\,\bigl(E_{n\beta}[L] - L(w^*)\bigr) = \lambda - \frac{m-1}{\log n\beta} + \dots, \qquad
          w \sim \exp\Bigl(-n\beta\,L(w) - \frac\gamma2\lVert w - w^*\rVert^2\Bigr)
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import jax
import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from icllab.core.errors import expected, require_instance, require_key
from icllab.core.progress import keep, part, shows
from icllab.core.protocols import is_task
from icllab.core.result_warnings import warn_at_once, warns
from icllab.diagnostics.sampling.draws import Draws, sample_chains
from icllab.diagnostics.sampling.hmc import HMC
from icllab.diagnostics.sampling.local_loss import LocalLoss
from icllab.diagnostics.sampling.priors import Prior
from icllab.diagnostics.sampling.sampled_losses import require_mean, sample_count, vector_loss
from icllab.diagnostics.sampling.samplers import ChainSampler, Sampler
from icllab.diagnostics.sampling.sgld import SGLD
from icllab.diagnostics.sampling.smc import SMC
from icllab.diagnostics.singular.coefficient_curves import inverse_temperatures
from icllab.diagnostics.singular.estimate_checks import (
    Lowest,
    bias_sentence,
    lowest_near,
    with_descent,
    with_rise,
    with_shift,
)
from icllab.diagnostics.singular.few_and_zero_shot import ZeroShot, context_coefficients
from icllab.diagnostics.singular.limits import (
    POPULATIONS,
    annealed_limit,
    chain_limit,
    limit_of_populations,
    populations_are_cheap,
    with_limit,
)
from icllab.diagnostics.singular.restricted import restricted_loss
from icllab.diagnostics.singular.run_losses import network_loss
from icllab.diagnostics.singular.temperature_estimates import (
    CHECKS,
    ChainEstimator,
    Checks,
    estimate_at_temperature,
    estimate_from_draws,
    estimator,
    require_no_run,
    require_numbers,
)
from icllab.models.pretrained.ignored_fields import names_ignored
from icllab.training.runs import Run

LIMIT = "the learning coefficient, the limit of nbeta (E[L] - L(w*))"
AT_ONE = "nbeta (E[L] - L(w*)) at this nbeta"
SLOPE = "the slope of the free energy on log nbeta, up to this nbeta, with m = 1"
OF_DATA = ", with the empirical loss of the data for L"
ANNEALED = 1 << 20  # folded into the key of populations beside chains
HALVED = ANNEALED + 1  # folded into the key of halves of the data
SECONDS = 1e-3  # nominal ones of a gradient of all the data, above which halves and the limit are left out


@warns("learning coefficient")
@names_ignored
@shows("learning coefficient")
def learning_coefficient(
    loss: Callable[..., Any] | Run | Draws,
    at: Any = None,
    *,
    n: float | None = None,
    key: PRNGKeyArray | None = None,
    estimand: str | None = None,
    sampler: Sampler | str = "auto",
    data: Any = None,
    nbeta: float | Sequence[float] | np.ndarray | None = None,
    localization: float | None = None,
    sensitivity: bool = False,
    weights: Any = None,
    prior: Prior | None = None,
    zero_shot: ZeroShot | None = None,
    task: Any = None,
    positions: str | Sequence[int] | None = None,
    per_position: bool = False,
    checks: Sequence[str] | None = None,
    progress: bool | None = None,
) -> xr.Dataset:
    r"""Estimate the local learning coefficient by sampling.

    The estimand ``"limit"`` is :math:`\lambda`: populations are annealed to :math:`n/\log n`, or, of a gradient that is
    too expensive for them, chains run at six temperatures, and the curve of :math:`n\beta\,E[K]` over the last two and
    a half decades is compared with exact ones, for :math:`\lambda` and m together. Its error is that of the
    extrapolation. Chains at the last temperature are run beside populations. The estimand
    ``"at_temperature"`` is :math:`n\beta\,(E[L]-L(w^*))` at given temperatures, of chains alone. The attribute
    ``estimand`` names the one that is estimated, ``estimates`` describes it.

    Half the chains start at :math:`w^*`, half at :math:`w^* + \sigma r\,\xi` with standard normal :math:`\xi` and
    :math:`r = \gamma^{-1/2}`: if they disagree, the estimate has not converged.

    A loss that returns a vector has terms; their sum is L. With ``data`` it is a function of parameters and a batch of
    samples, the mean over these; all estimates are of this empirical loss, and not of the population's.

    Args:
        loss: A function of parameters (and of samples, with ``data``), in nats per sample. Or a training run: the loss
            is its task's, the mean over positions, at given temperatures. Or a network before its task: the loss is the
            task's on a fixed sample, ``data``, and :math:`w^*` the network as it is. Or the draws of
            ``sampler.sample(...)``: the estimate is a function of them, and no other argument is valid.
        at: :math:`w^*`, any tree whose floating-point arrays are the parameters. For a run, a step that it kept, or
            several, or None for its end. Or the task of a network or a run.
        n: Number of samples that :math:`n\beta` is made of. None: as many as ``data`` has; if prompts are drawn
            without end, a curve over four temperatures, since n is then a resolution.
        key: Key of the chains and populations, and of the prompts of a run. None: the loss is draws.
        estimand: ``"limit"`` or ``"at_temperature"``. None: the limit, unless ``nbeta`` or a sampler of chains is
            given, the loss is a run or sampled in batches, or a gradient takes nominally more than three milliseconds
            by its operations, and then chains with what they tell of the limit. Operations are counted; no clock
            decides.
        sampler: ``HMC()``, ``MALA()``, ``NUTS()``, of batches ``SGLD()``, ``RMSpropSGLD()`` or ``SGNHT()``, or,
            annealed and without chains, ``SMC()``, of :mod:`icllab.diagnostics.sampling`. ``"auto"``: HMC, and for a
            limit ``SMC()`` beside it; if gradients are expensive, with fewer moves, or batches. The attribute
            ``reason`` says why.
        data: Samples: a tree of arrays with a leading axis. For a network or a run, its fixed prompts or the number to
            draw (None: 4096).
        nbeta: Inverse temperature; at least four for a curve; None: :math:`n/\log n`. With ``SMC()`` the largest.
        localization: :math:`\gamma`; None: one over the mean square of the parameters, or 1 if they are zero, and less
            where that decides; what it does to the estimate is then part of ``mcse``.
        sensitivity: Whether chains are to estimate at a quarter and at four times the localization too.
        weights: The weights that may move, as ``where`` of ``equinox.tree_at``, with the others held: of a model with
            layers ``lambda m: m.layers[0].query``. Or a tree like ``at`` of True, False or, for a part of an array,
            an array of booleans. The default localization is then that of these weights.
        prior: A normal density or a box beside the localization, for chains at a temperature; None: neither.
        zero_shot: The loss without the context, for the coefficients with a context and without: see
            :class:`~icllab.diagnostics.singular.few_and_zero_shot.ZeroShot`. ``loss`` is then the few-shot loss; an
            ``nbeta`` of at least 10 and a ``localization`` are needed.
        task: Task of a network or a run, which owns the loss; None: the loss is neither.
        positions: Positions that count, as in :func:`icllab.fit <icllab.training.fitting.fit>`; None: every.
        per_position: Whether positions are terms.
        checks: Names of the checks: ``"minimum"``, a descent from :math:`w^*`; ``"hessian"``, its effective dimension;
            ``"step_size"``, of dynamics without a test, the same chains at half the step; ``"data"``, halves of the
            data; ``"limit"``, temperatures around this one. None: all that apply, shortened so that they take at most
            as long as the chains (the limit apart, where it is the estimand). Checks that are named are complete,
            whatever they take; ``()`` is none. The attributes ``checks`` and ``unchecked`` name what was made and what
            was left out.
        progress: Whether what is done, the time left and the present estimate are shown; None: on a terminal and in a
            notebook.

    Returns:
        From chains: ``estimate`` and ``mcse``, of all chains that are finite; ``rhat`` and ``ess`` of the loss, and
        ``distance_rhat``; ``acceptance`` and ``step_size``; ``baseline``, :math:`L(w^*)` of all the data, and
        ``least_loss``, the least of all draws; ``slope``, :math:`n\beta|\nabla L(w^*)|^2/h_{\max}`; ``rounding``,
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
        spread over chains. With ``sensitivity``, ``localization_estimate`` and ``localization_mcse`` over
        ``localization_factor``, and ``localization_gap``, the first less the last, with its ``_error``.

        Of a curve all of this over ``nbeta``, with ``growth_estimate``, :math:`d(\hat\lambda\log n)/d\log n`, and
        ``growth_error``; of a run over ``member``, and over ``step`` if there are several. The attributes name the
        settings with reasons, and ``warnings`` is a list of sentences.

        With the estimand ``"limit"``, ``estimate`` and ``mcse`` are the posterior mean and standard deviation of
        :math:`\lambda`, and ``interval`` (``bound``) is its middle 99 per cent, both wider by the error of the level;
        ``level`` is the end of the curve and ``left`` the way from there to the limit, each with an ``_error``;
        ``multiplicity_probability`` is over ``multiplicity``; ``regular_probability`` is that of a point that was seen
        to be regular, with half the rank of its Hessian; ``curve``, :math:`t\,E_t[K]`, with its ``_error``, is over
        ``nbeta``. The attribute ``chain_warnings`` says what is wrong with chains beside populations. K is the loss
        above the least of a quasi-Newton descent, and ``descent`` is :math:`n\beta` times what that lowers the loss by:
        chains' ``mean_estimate``, with its ``_error``, is too low by as much. With ``SMC()`` all that
        :func:`free_energy <icllab.diagnostics.singular.free_energies.free_energy>` returns is there too.

        With the estimand None and chains at one temperature, ``descent`` is there too; without a given temperature and
        without batches also ``rise`` with its ``_error``, the slope of :math:`n\beta\,E[K]` on :math:`\log n\beta`,
        and, with ``data`` and a cheap gradient, ``half_estimate`` (``half``), from halves of the data, and ``shift``
        with its ``_error``: how much more data without end would have.

        With ``SMC()`` and the estimand ``"at_temperature"``, ``estimate`` and ``mcse`` are the slope of the free energy
        on :math:`\log n\beta` at m = 1: see
        :func:`~icllab.diagnostics.singular.free_energies.annealed_slope`.

    Raises:
        InputError: A number is out of its range, an argument would have no effect, or the loss is no finite scalar or
            vector at :math:`w^*`, or of samples not the mean over them.
        EnvironmentFault: NUTS without blackjax.

    Source: [Hoogland24], [Watanabe09], of a part [Wang24].
    Derived: docs/singular-learning.md, What an estimate estimates; docs/free-energies.md, The limit of a curve.
    """
    chosen = Checks.parse(checks)
    if isinstance(loss, Draws):
        options = (at, n, key, estimand, data, nbeta, localization, weights, prior, zero_shot, task, positions)
        if any(option is not None for option in options) or sampler != "auto" or sensitivity or per_position:
            raise expected("draws", "draws alone", "more arguments", "sampler.sample(...) takes them")
        estimate = estimate_from_draws(loss, checks=chosen)
        return _with_unchecked(estimate.assign_attrs(estimand="at_temperature", estimates=AT_ONE))
    require_key(key)
    assert key is not None
    _require_estimand(estimand, loss, sampler, nbeta)
    if prior is not None:
        if estimand == "limit" or isinstance(sampler, SMC) or zero_shot is not None:
            raise expected("prior", "None but for chains at a temperature", prior, "leave it out")
        estimand = "at_temperature"
    if is_task(at):
        if task is not None:
            raise expected("task", "one task", "two, beside that in the place of at", "leave one out")
        at, task = None, at
    if task is not None and not isinstance(loss, Run):
        if at is not None or zero_shot is not None:
            hint = "the point is the network as it is; zero_shot is that of a loss as a function"
            raise expected("task", "a network and its task alone", "at or zero_shot beside them", hint)
        keys = jax.random.split(key)
        of_prompts, key = keys[0], keys[1]
        loss, at, data = network_loss(
            loss, task, key=of_prompts, data=data, positions=positions, per_position=per_position
        )
        task, positions, per_position = None, None, False
    if zero_shot is not None:
        require_instance("zero_shot", zero_shot, ZeroShot, "a ZeroShot(loss, context_map)")
        _require_unused(
            "zero_shot",
            run=loss if isinstance(loss, Run) else None,
            n=n,
            data=data,
            weights=weights,
            task=task,
            positions=positions,
            checks=checks,
        )
        return context_coefficients(
            cast(Callable, loss),
            at,
            zero_shot=zero_shot,
            nbeta=nbeta,
            localization=localization,
            key=key,
            sampler=sampler,
        ).assign_attrs(estimand="limit", estimates=LIMIT)
    if weights is not None:
        if isinstance(loss, Run):
            raise expected("weights", "a loss as a function", "a run", "run.trajectory.at(step) has its weights")
        loss, at, prior = restricted_loss(loss, at, weights, data, prior)
    require_numbers(n, localization)
    of_loss = "" if data is None or isinstance(loss, Run) else OF_DATA
    if isinstance(sampler, SMC) and estimand != "at_temperature" and not isinstance(loss, Run):
        require_no_run(task, positions, per_position)
        _require_unused("a limit by SMC", checks=checks)
        return limit_of_populations(
            loss,
            at,
            key=key,
            sampler=sampler,
            data=data,
            n=n,
            nbeta=nbeta,
            localization=localization,
            sensitivity=sensitivity,
        ).assign_attrs(estimand="limit", estimates=LIMIT + of_loss)
    last = lowest = None
    if not (estimand == "at_temperature" or isinstance(loss, Run) or isinstance(prior, Prior)):
        require_no_run(task, positions, per_position)
        count = sample_count(data) if n is None and data is not None else n
        values, is_curve = inverse_temperatures(count, nbeta)
        last = None if is_curve or isinstance(sampler, SMC) else values[-1]
    if last is not None and "minimum" in chosen:
        require_mean(*vector_loss(loss, at, data))
        with part("descent"):
            local = LocalLoss.from_loss(loss, at, data)
            lowest = lowest_near(local, last)
        bias = last * (lowest.level - lowest.loss)
        # No coefficient of this many parameters is as large: checks of another kind are not worth their time.
        if bias > local.centre.size / 2 and not populations_are_cheap(local):
            warn_at_once(bias_sentence(bias))
            chosen = Checks(tuple(name for name in chosen.names if name not in ("data", "limit")), chosen.complete)
    estimate = estimate_at_temperature(
        loss,
        at,
        n=n,
        key=key,
        sampler=sampler,
        data=data,
        nbeta=nbeta,
        localization=localization,
        sensitivity=sensitivity,
        prior=prior,
        task=task,
        positions=positions,
        per_position=per_position,
        checks=chosen,
    )
    description = (SLOPE if isinstance(sampler, SMC) else AT_ONE) + of_loss
    estimate = estimate.assign_attrs(estimand="at_temperature", estimates=description)
    if last is not None:
        keep(estimate)
        estimate = _refined(
            estimate,
            loss,
            at,
            data,
            nbeta=nbeta,
            lowest=lowest,
            sampler=sampler,
            estimand=estimand,
            key=key,
            checks=chosen,
        )
    estimand = estimate.attrs["estimand"]
    estimates = LIMIT + of_loss if estimand == "limit" else description
    return _with_unchecked(estimate.assign_attrs(estimates=estimates))


def _refined(
    estimate: xr.Dataset,
    loss: Any,
    at: Any,
    data: Any,
    *,
    nbeta: Any,
    lowest: Lowest | None,
    sampler: Sampler | str,
    estimand: str | None,
    key: PRNGKeyArray,
    checks: Checks,
) -> xr.Dataset:
    """An estimate at one temperature with its checks, and the limit in its place where that is the estimand."""
    last, pull = float(estimate.attrs["nbeta"]), float(estimate.attrs["localization"])
    local = LocalLoss.from_loss(loss, at, data, pull=pull)
    if lowest is not None:
        estimate = with_descent(estimate, lowest, last)
    if nbeta is not None:
        return estimate
    if "batch" in estimate.attrs and estimand != "limit":
        return estimate  # its variance is that of batches too
    chains = estimator(None, loss, at, data).sampler if sampler == "auto" else sampler
    if sampler == "auto" and isinstance(chains, SGLD):  # a limit is asked for
        chains = HMC()
    if "data" in checks and data is not None and local.seconds <= SECONDS and isinstance(chains, ChainSampler):
        of_halves = jax.random.fold_in(key, HALVED)
        estimate = with_shift(estimate, local, loss, sampler=chains, key=of_halves, complete=checks.complete)
    if estimand != "limit":
        if "limit" not in checks:
            return estimate
        if not (sampler == "auto" and local.seconds <= SECONDS):
            return with_rise(estimate)
    of_curve = jax.random.fold_in(key, ANNEALED)
    lowest = lowest_near(local, last) if lowest is None else lowest
    estimate = estimate if "descent" in estimate else with_descent(estimate, lowest, last)
    if populations_are_cheap(local) or not isinstance(chains, ChainSampler):
        annealed = annealed_limit(local, last, lowest=lowest, key=of_curve, sampler=POPULATIONS)
        estimate = with_limit(estimate, annealed)
    else:
        estimate = chain_limit(estimate, local, last, lowest=lowest, key=of_curve, sampler=chains)
    return estimate.assign_attrs(estimand="limit")


def _with_unchecked(estimate: xr.Dataset) -> xr.Dataset:
    """An estimate whose attribute ``unchecked`` names the checks that were not made."""
    made = str(estimate.attrs.get("checks", "")).split(", ")
    return estimate.assign_attrs(unchecked=", ".join(name for name in CHECKS if name not in made))


@warns("posterior draws")
@shows("posterior draws")
def posterior_draws(
    loss: Callable[..., Any],
    at: Any = None,
    *,
    key: PRNGKeyArray,
    n: float | None = None,
    sampler: Sampler | str = "auto",
    data: Any = None,
    nbeta: float | None = None,
    localization: float | None = None,
    weights: Any = None,
    prior: Prior | None = None,
    observables: Mapping[str, Callable[[Any], Any]] | None = None,
    progress: bool | None = None,
) -> Draws:
    r"""Draw from the posterior near a point: the chains of :func:`learning_coefficient` with the same arguments.

    Args:
        loss: A function of parameters, of samples too with ``data``; or a network before its task.
        at: :math:`w^*`, or the task of the network; None: refused.
        key: Key of the chains, and of the prompts of a network.
        n: Number of samples that :math:`n\beta` is made of; None: as many as ``data`` has.
        sampler: A sampler of chains; ``"auto"``, the default: by the cost of a gradient.
        data: Samples, or prompts, or the number of these to draw; None: none, or 4096 prompts.
        nbeta: Inverse temperature; None: :math:`n/\log n`.
        localization: :math:`\gamma`; None: the default.
        weights: The weights that may move; None: all.
        prior: A density beside the localization; None: 1.
        observables: Name -> array of the parameters, which is kept of every draw in their place; None: they are kept.
        progress: Whether moves and the time left are shown; None: on a terminal and in a notebook.

    Returns:
        Draws: ``tree``, parameters with leading axes (chain, draw); ``losses``, :math:`L(w) - L(w^*)`; ``observed``;
        ``warnings()``, a list of sentences. Coefficients, susceptibilities and covariances are functions of them.

    Raises:
        InputError: As :func:`learning_coefficient`; or the sampler has no chains, or there are several temperatures.
    """
    require_key(key)
    require_numbers(n, localization)
    _require_estimand("at_temperature", loss, sampler, nbeta)
    if is_task(at):
        of_prompts, key = jax.random.split(key)
        loss, at, data = network_loss(loss, at, key=of_prompts, data=data)
    if weights is not None:
        loss, at, prior = restricted_loss(loss, at, weights, data, prior)
    estimate = estimator(sampler if isinstance(sampler, ChainSampler | SMC) else None, loss, at, data)
    (value, *others), _ = inverse_temperatures(sample_count(data) if n is None and data is not None else n, nbeta)
    if others or not isinstance(estimate, ChainEstimator):
        raise expected("draws", "n or nbeta, one temperature, and a sampler of chains", [nbeta, n, sampler])
    local = LocalLoss.from_loss(loss, at, data, block=estimate.sampler.block, pull=localization, prior=prior)
    return sample_chains(
        estimate.sampler,
        local.localized(value),
        value,
        key=jax.random.fold_in(key, 0),
        mode=(estimate.mode, estimate.mode_reason),
        parameters=True,
        observables=observables,
    )


def _require_estimand(estimand: str | None, loss: Any, sampler: Any, nbeta: Any) -> None:
    """Raise unless the estimand is one of the two, and the sampler and the temperature admit it."""
    if not (sampler == "auto" or isinstance(sampler, ChainSampler | SMC)):
        raise expected("sampler", "'auto', HMC(), MALA(), SGLD(), RMSpropSGLD(), SGNHT(), NUTS() or SMC()", sampler)
    if estimand not in (None, "limit", "at_temperature"):
        raise expected("estimand", "'limit' or 'at_temperature'", estimand)
    if estimand == "limit" and isinstance(loss, Run):
        raise expected("estimand", "'at_temperature' of a run", estimand, "a loss as a function has a limit")
    if estimand == "limit" and nbeta is not None and not isinstance(sampler, SMC):
        raise expected("estimand", "'at_temperature' where nbeta is given", estimand, "leave nbeta out")


def _require_unused(name: str, **arguments: Any) -> None:
    """Raise if an argument is given that has no effect beside ``name``."""
    for argument, value in arguments.items():
        if value is not None:
            raise expected(argument, f"None with {name}", type(value).__name__, "leave it out")
