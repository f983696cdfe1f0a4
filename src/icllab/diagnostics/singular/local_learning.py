r"""What chains at one temperature say of the learning coefficient near a point, and what there is to say about that.

.. math:: \hat\lambda = n\beta\,\bigl(E[L] - L(w^*)\bigr), \qquad
          w \sim \exp\Bigl(-n\beta\,L(w) - \frac\gamma2\lVert w - w^*\rVert^2\Bigr)

It estimates :math:`\lambda - (m-1)/\log n\beta`, if :math:`w^*` is a minimum and :math:`n\beta` is large: see
:meth:`LearningCoefficient.at <icllab.theory.learning_coefficients.LearningCoefficient.at>`. At a finite
:math:`n\beta` it counts the directions that can be told at that resolution, which is something else where there are
many that cannot.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from icllab.core.domains import Domain
from icllab.core.errors import expected, require_key
from icllab.diagnostics.sampling.sampled_losses import sample_count
from icllab.diagnostics.sampling.samplers import ChainSampler, Sampler
from icllab.diagnostics.sampling.smc import SMC
from icllab.diagnostics.singular.coefficient_curves import stacked
from icllab.diagnostics.singular.local_estimates import estimates, estimator
from icllab.diagnostics.singular.run_losses import prompts_for, run_loss, wanted_steps
from icllab.training.runs import Run


def coefficient_at_temperature(
    loss: Callable[..., Any] | Run,
    at: Any = None,
    *,
    n: float | None = None,
    key: PRNGKeyArray,
    sampler: Sampler | str = "auto",
    data: Any = None,
    nbeta: float | Sequence[float] | np.ndarray | None = None,
    localization: float | None = None,
    sensitivity: bool = False,
    task: Any = None,
    positions: str | Sequence[int] | None = None,
    per_position: bool = False,
) -> xr.Dataset:
    r"""Estimate the local learning coefficient at temperatures that are given, or at :math:`n/\log n`.

    Nothing is extrapolated: see :func:`diagnostics.learning_coefficient
    <icllab.diagnostics.singular.asymptotic_coefficients.learning_coefficient>`.

    Half the chains start at :math:`w^*`, half at :math:`w^* + \sigma r\,\xi` with standard normal :math:`\xi` and
    :math:`r = \gamma^{-1/2}`: where they disagree, no number is to be had yet.

    A loss that returns a vector has terms; their sum is L. With ``data`` it is a function of parameters and a batch of
    samples, the mean over these.

    Args:
        loss: A function of parameters (and of samples, with ``data``), in nats per sample. Or a training run: the loss
            is its task's, the mean over positions.
        at: :math:`w^*`, any tree whose floating-point arrays are the parameters. Of a run, a step that it kept, or
            several, or None for its end.
        n: Number of samples in the data that :math:`n\beta` is made of. None: as many as ``data`` has; where data are
            drawn without end, a curve over four temperatures, since n is then a resolution.
        key: Key of the chains; of a run also of the prompts.
        sampler: How the posterior is sampled: ``HMC()``, ``MALA()``, ``NUTS()``, ``SGLD()`` of batches or, without
            chains, ``SMC()``, of :mod:`icllab.diagnostics.sampling`, each with its own tuning. ``"auto"``: HMC, unless
            a gradient of all the data is expensive, and then batches; the attribute ``reason`` says why.
        data: Samples: a tree of arrays with a leading axis. Of a run, its fixed prompts or how many to draw (None:
            4096).
        nbeta: Inverse temperature; at least four for a curve; None: :math:`n/\log n`.
        localization: :math:`\gamma`; None: one over the mean square of the parameters, or 1 where they are zero.
        sensitivity: Whether to estimate at a quarter and at four times the localization too.
        task: Task of a run, which owns the loss.
        positions: Positions of a run that count, as in :func:`icllab.fit <icllab.training.fitting.fit>`; None: every.
        per_position: Whether positions of a run are terms.

    Returns:
        Numbers: ``estimate`` and ``mcse``, of all chains that are finite; ``rhat`` and ``ess`` of the loss, and
        ``distance_rhat``; ``acceptance`` and ``step_size``; ``baseline``, :math:`L(w^*)` of all the data, and
        ``least_loss``, the least that was drawn; ``slope``, :math:`n\beta|\nabla L(w^*)|^2/h_{\max}`; ``start_gap``,
        dispersed starts less those at :math:`w^*`, ``drift``, the last third less the first, and without a test
        ``halved_gap``, half the step less the whole, each with an ``_error``; ``noise_bias``, what the noise of batches
        adds at most to the estimate of a quadratic, to first order in the step; ``distance``, the root of the mean
        :math:`|w-w^*|^2`; ``localization_share``, the localization's part of the largest curvature, or of all
        directions if that is less (:math:`\gamma E|w-w^*|^2` over the number of parameters): it is to be small;
        ``hessian_share``, what the Hessian alone explains of the estimate, above 1500 parameters by random probes.

        ``chain_estimate`` and ``chain_mcse`` over ``chain``, and ``loss_trace`` over ``chain`` and ``draw``. Of a loss
        with terms, ``term_estimate`` (they sum to the estimate), ``term_mcse`` and ``term_baseline`` over ``term``,
        and ``term_covariance`` of :math:`n\beta(L_t - L_t(w^*))` under the posterior, with its ``_mcse``, from the
        spread over chains. With ``sensitivity``, ``localization_estimate`` and ``localization_mcse`` over
        ``localization_factor``, and ``localization_gap``, the first less the last, with its ``_error``.

        Of a curve all of this over ``nbeta``, with ``growth_estimate``, :math:`d(\hat\lambda\log n)/d\log n`, and
        ``growth_error``; of a run over ``member``, and over ``step`` if several are asked for. The attributes have what
        was chosen and why, and ``warnings``, a list of sentences. SMC has its own numbers beside ``estimate``
        and ``mcse``: see :func:`annealed_coefficient <icllab.diagnostics.singular.free_energies.annealed_coefficient>`.

    Raises:
        InputError: A number is out of its range, an argument would have no effect, or the loss is no finite scalar or
            vector at :math:`w^*`, or of samples not the mean over them.
        EnvironmentFault: NUTS without blackjax.

    Source: [Hoogland24].
    Derived: docs/singular-learning.md, What an estimate estimates.
    """
    require_key(key)
    if sampler == "auto":
        chosen = None
    elif isinstance(sampler, ChainSampler | SMC):
        chosen = sampler
    else:
        raise expected("sampler", "'auto', HMC(), MALA(), SGLD(), NUTS() or SMC()", sampler)
    for name, value, least in (("n", n, 1.0), ("localization", localization, 0.0)):
        if value is not None:
            Domain(above=least).require(name, value)
    how: dict[str, Any] = {"nbeta": nbeta, "localization": localization}
    if not isinstance(loss, Run):
        for name, value in (("task", task), ("positions", positions), ("per_position", per_position or None)):
            if value is not None:
                raise expected(name, "a training run as the loss, whose it would be", value, "leave it out")
        found_by = estimator(chosen, loss, at, data, sensitivity=sensitivity, key=key)
        count = sample_count(data) if n is None and data is not None else n
        return estimates(found_by, loss, at, data, n=count, key=key, **how)
    of_prompts, key = jax.random.split(key)
    prompts = prompts_for(task, data, key=of_prompts)
    count = sample_count(prompts) if n is None and not (data is None or isinstance(data, int)) else n
    shape = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), prompts)
    wanted: dict[str, Any] = {"positions": "every" if positions is None else positions, "per_position": per_position}

    def member_at(member: int, step: int | None) -> tuple[Any, Any]:
        return run_loss(loss, step, member, task, prompt=shape, **wanted)

    steps, members = wanted_steps(loss, at), []
    found_by = estimator(chosen, *member_at(0, steps[0]), prompts, sensitivity=sensitivity, key=key)
    if per_position and not isinstance(found_by.sampler, ChainSampler):
        raise expected("per_position", f"False with {found_by.sampler.name}, which has no terms", True)
    for member in range(loss.size):
        own = jax.random.fold_in(key, member)
        found = [estimates(found_by, *member_at(member, step), prompts, n=count, key=own, **how) for step in steps]
        members.append(found[0] if at is None or isinstance(at, int | np.integer) else stacked(found, "step", steps))
    return stacked(members, "member", range(loss.size))
