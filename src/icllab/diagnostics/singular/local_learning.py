r"""The learning coefficient of any loss near a point, with what there is to say about the estimate.

.. math:: \hat\lambda = n\beta\,\bigl(E[L] - L(w^*)\bigr), \qquad
          w \sim \exp\Bigl(-n\beta\,L(w) - \frac\gamma2\lVert w - w^*\rVert^2\Bigr)

It estimates :math:`\lambda - (m-1)/\log n\beta`, if :math:`w^*` is a minimum and :math:`n\beta` is large: see
:meth:`LearningCoefficient.at <icllab.theory.learning_coefficients.LearningCoefficient.at>`. At a finite
:math:`n\beta` it counts the directions that can be told at that resolution, which is something else where there are
many that cannot.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from icllab.core.errors import expected, require_integer, require_number, unknown
from icllab.diagnostics.sampling.convergence import FEWEST
from icllab.diagnostics.sampling.sampled_losses import sample_count
from icllab.diagnostics.singular.coefficient_curves import stacked
from icllab.diagnostics.singular.local_estimates import METHODS, Sampling, decided, estimates
from icllab.diagnostics.singular.run_losses import prompts_for, run_loss, wanted_steps
from icllab.training.runs import Run


def learning_coefficient(
    loss: Callable[..., Any] | Run,
    at: Any = None,
    *,
    n: float | None = None,
    key: PRNGKeyArray,
    method: str = "auto",
    data: Any = None,
    batch: int = 256,
    task: Any = None,
    nbeta: float | Sequence[float] | np.ndarray | None = None,
    localization: float | None = None,
    step_size: float | None = None,
    chains: int = 8,
    warm_up: int | None = None,
    draws: int | None = None,
    dispersion: float = 0.3,
    mode: str = "auto",
    control: bool = False,
    sensitivity: bool = False,
    positions: str | Sequence[int] = "every",
    per_position: bool = False,
) -> xr.Dataset:
    r"""Estimate the local learning coefficient by sampling.

    Half the chains start at :math:`w^*`, half at :math:`w^* + \sigma r\,\xi` with standard normal :math:`\xi` and
    :math:`r = \gamma^{-1/2}`: where they disagree, no number is to be had yet.

    A loss that returns a vector has terms; their sum is L. With ``data`` it is a function of parameters and a batch of
    samples, the mean over these. Langevin dynamics then take a batch a step, each chain its own, with replacement; what
    a draw counts is the loss of the batch less that of the *same* batch at :math:`w^*`.

    Args:
        loss: A function of parameters (and of samples, with ``data``), in nats per sample. Or a training run: the loss
            is its task's, the mean over positions.
        at: :math:`w^*`, any tree whose floating-point arrays are the parameters. Of a run, a step that it kept, or
            several, or None for its end.
        n: Samples in the data that :math:`n\beta` is made of. None: as many as ``data`` has; where data are drawn
            without end, a curve over four temperatures, since n is then a resolution.
        key: Of the chains; of a run also of the prompts.
        method: ``"hmc"``, ``"mala"``, ``"nuts"`` (blackjax, the extra ``[singular]``), ``"smc"`` (annealed, see
            :mod:`icllab.diagnostics.singular.free_energies`; it has no chains and takes no heed of the arguments
            that are about
            them, which the attribute ``ignored`` names), ``"sgld"`` (of batches if the data are larger than one,
            without a test), or ``"auto"``: Hamiltonian Monte Carlo, unless a gradient of all the data is dear.
        data: A tree of arrays with a leading axis of samples. Of a run, its fixed prompts or how many to draw (None:
            4096).
        batch: Samples of a batch.
        task: Of a run.
        nbeta: Inverse temperature; at least four for a curve; None: :math:`n/\log n`.
        localization: :math:`\gamma`; None: one over the mean square of the parameters, or 1 where they are zero.
        step_size: :math:`\epsilon` of Langevin dynamics, from which the others start to adapt; None: from the largest
            curvature, at the point and where chains start.
        chains: At least 4.
        warm_up: Steps that are left out, at least 1; None: 500 of Hamiltonian Monte Carlo, 2000 of Langevin dynamics.
        draws: Steps that count, of each chain, at least 8; None: twice as many.
        dispersion: :math:`\sigma`, at least 0. A start whose loss is not finite is moved towards the point by halves.
        mode: Gradients of the chains side by side (``"vmap"``), one after the other (``"map"``), or what a short
            timing says.
        control: Whether batches' gradients have their own at :math:`w^*` as a control variate, at twice the cost of a
            step.
        sensitivity: Whether to estimate at a quarter and at four times the localization too.
        positions: Of a run, those that count, as in :func:`icllab.fit <icllab.training.fitting.fit>`.
        per_position: Of a run, whether positions are terms.

    Returns:
        Numbers: ``estimate`` and ``mcse``, of all chains that are finite; ``rhat`` and ``ess`` of the loss, and
        ``distance_rhat``; ``acceptance`` and ``step_size``; ``baseline``, :math:`L(w^*)` of all the data, and
        ``least_loss``, the least that was drawn; ``slope``, :math:`n\beta|\nabla L(w^*)|^2/h_{\max}`; ``start_gap``,
        dispersed starts less those at :math:`w^*`, ``drift``, the last third less the first, and of ``"sgld"``
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
        was chosen and why, and ``warnings``, a list of sentences. ``"smc"`` has its own numbers beside ``estimate``
        and ``mcse``: see :func:`annealed_coefficient <icllab.diagnostics.singular.free_energies.annealed_coefficient>`.

    Raises:
        InputError: A number is out of its range, or the loss is no finite scalar or vector at :math:`w^*`, or of
            samples not the mean over them.
        EnvironmentFault: ``"nuts"`` without blackjax.

    Source: [Hoogland24].
    Derived: docs/singular-learning.md, What an estimate estimates.
    """
    if method not in ("auto", *METHODS):
        raise unknown("method", method, ("auto", *METHODS))
    positive = (("n", n, 1.0), ("localization", localization, 0.0), ("step_size", step_size, 0.0))
    for name, value, least in positive:
        if value is not None and not (value > least and math.isfinite(value)):
            raise expected(name, f"a finite number > {least:g}", value)
    require_integer("batch", batch)
    for name, steps, least in (("warm_up", warm_up, 1), ("draws", draws, FEWEST)):
        if steps is not None:
            require_integer(name, steps, least=least)
    require_number("dispersion", dispersion, "a finite number >= 0", lambda x: 0 <= x < math.inf)
    if chains < 4:
        raise expected("chains", "at least 4, two for each kind of start", chains)
    how = Sampling(
        method, batch, localization, step_size, chains, warm_up, draws, dispersion, mode, control, sensitivity
    )
    if not isinstance(loss, Run):
        if n is None and data is not None:
            n = sample_count(data)
        return estimates(decided(how, loss, at, data, key), loss, at, data, n, nbeta, key)
    of_prompts, key = jax.random.split(key)
    prompts = prompts_for(task, data, key=of_prompts)
    if n is None and not (data is None or isinstance(data, int)):
        n = sample_count(prompts)
    shape = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), prompts)

    def member_at(member: int, step: int | None) -> tuple[Any, Any]:
        return run_loss(loss, step, member, task, positions=positions, per_position=per_position, prompt=shape)

    steps, members = wanted_steps(loss, at), []
    how = decided(how, *member_at(0, steps[0]), prompts, key)
    for member in range(loss.size):
        own = jax.random.fold_in(key, member)
        found = [estimates(how, *member_at(member, step), prompts, n, nbeta, own) for step in steps]
        members.append(found[0] if at is None or isinstance(at, int | np.integer) else stacked(found, "step", steps))
    return stacked(members, "member", range(loss.size))
