r"""The learning coefficient of any loss near a point, with what there is to say about the estimate.

.. math:: \hat\lambda = n\beta\,\bigl(E[L] - L(w^*)\bigr), \qquad
          w \sim \exp\Bigl(-n\beta\,L(w) - \frac\gamma2\lVert w - w^*\rVert^2\Bigr)

It estimates :math:`\lambda - (m-1)/\log n\beta`, if :math:`w^*` is a minimum and :math:`n\beta` is large: see
:meth:`LearningCoefficient.at <icllab.theory.learning_coefficients.LearningCoefficient.at>`. At a finite
:math:`n\beta` it counts the directions that can be told at that resolution, which is something else where there are
many that cannot.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax.flatten_util import ravel_pytree
from jaxtyping import PRNGKeyArray

from icllab.core.errors import expected, unknown
from icllab.diagnostics import convergence
from icllab.diagnostics.langevin import Chains, sample
from icllab.diagnostics.posteriors import Posterior, steepest
from icllab.theory import quadratic_posterior

METHODS = ("hmc", "mala", "sgld")
MOST_EIGENVALUES = 1500  # parameters up to which the Hessian is written out
SGLD_SHARE = 0.1  # of the largest stable step's scale: a bias of at most 2.6 per cent on a quadratic
ERRORS = 3.0  # standard errors beyond which two numbers differ


def learning_coefficient(
    loss: Callable[[Any], Any],
    at: Any,
    *,
    n: float,
    key: PRNGKeyArray,
    method: str = "auto",
    nbeta: float | None = None,
    localization: float | None = None,
    step_size: float | None = None,
    chains: int = 8,
    warm_up: int | None = None,
    draws: int | None = None,
    dispersion: float = 0.3,
) -> xr.Dataset:
    r"""Estimate the local learning coefficient by sampling.

    Half the chains start at :math:`w^*`, half at :math:`w^* + \sigma r\,\xi` with standard normal :math:`\xi` and
    :math:`r = \gamma^{-1/2}`: where they disagree, no number is to be had yet.

    Args:
        loss: A function of parameters, the mean of all data in nats per sample.
        at: :math:`w^*`, any tree of arrays of one floating-point type.
        n: Samples in the data.
        key: Of the chains.
        method: ``"hmc"``, ``"mala"``, ``"sgld"`` (of the whole loss, without a test), or ``"auto"``: Hamiltonian Monte
            Carlo, which is the best of the three wherever the whole loss can be differentiated at every step.
        nbeta: Inverse temperature; None: :math:`n/\log n`.
        localization: :math:`\gamma`; None: one over the mean square of the parameters, or 1 where they are zero.
        step_size: :math:`\epsilon` of Langevin dynamics, from which the others start to adapt; None: from the largest
            curvature.
        chains: At least 4.
        warm_up: Steps that are left out; None: 500 of Hamiltonian Monte Carlo, 2000 of the others.
        draws: Steps that count, of each chain; None: twice as many.
        dispersion: :math:`\sigma`.

    Returns:
        Numbers: ``estimate`` and ``mcse``, of all chains that are finite; ``rhat`` and ``ess`` of the loss, and
        ``distance_rhat``; ``acceptance`` and ``step_size``; ``baseline``, :math:`L(w^*)`, and ``least_loss``, the least
        that was drawn; ``slope``, :math:`n\beta|\nabla L(w^*)|^2/h_{\max}`; ``start_gap``, dispersed starts less those
        at :math:`w^*`, ``drift``, the last third less the first, and of ``"sgld"`` ``halved_gap``, half the step less
        the whole, each with an ``_error``; ``distance``, the root of the mean :math:`|w-w^*|^2`; ``hessian_share``,
        what the Hessian alone explains of the estimate (NaN above 1500 parameters). ``chain_estimate`` over ``chain``,
        and ``loss_trace`` over ``chain`` and ``draw``. The attributes have what was chosen, and ``warnings``, a list
        of sentences.

    Raises:
        InputError: A number is out of its range, or the loss is no finite scalar at :math:`w^*`.

    Source: [Hoogland24].
    Derived: docs/singular-learning.md, What an estimate estimates.
    """
    if method not in ("auto", *METHODS):
        raise unknown("method", method, ("auto", *METHODS))
    method = "hmc" if method == "auto" else method
    for name, value, least in (("n", n, 1.0), ("nbeta", nbeta, 0.0), ("localization", localization, 0.0)):
        if value is not None and not (value > least and math.isfinite(value)):
            raise expected(name, f"a finite number > {least:g}", value)
    if chains < 4:
        raise expected("chains", "at least 4, two for each kind of start", chains)
    centre, unravel = ravel_pytree(at)
    flat = _Flat(loss, unravel)
    baseline, slope = jax.value_and_grad(flat)(centre)
    if not bool(jnp.isfinite(baseline)):
        raise expected("loss", "a finite number at the point given", float(baseline))
    beta = n / math.log(n) if nbeta is None else nbeta
    square = float(jnp.mean(centre**2))
    gamma = (1 / square if square > 0 else 1.0) if localization is None else localization
    posterior = Posterior(flat, centre, jnp.asarray(beta, centre.dtype), jnp.asarray(gamma, centre.dtype))
    of_steepest, of_starts, of_chains, of_halved = jax.random.split(key, 4)
    curvature = float(steepest(posterior, key=of_steepest))
    size = _first_step(method, curvature, gamma) if step_size is None else step_size
    size = size if method == "sgld" else math.sqrt(size)
    steps = {"warm_up": warm_up or (500 if method == "hmc" else 2000)}
    steps["draws"] = draws or 2 * steps["warm_up"]
    away = jax.random.normal(of_starts, (chains, centre.size), centre.dtype)
    far = jnp.arange(chains) >= chains // 2
    starts = centre[None] + jnp.where(far[:, None], dispersion * gamma**-0.5 * away, 0)

    def go(size: float, key: PRNGKeyArray, longer: int = 1) -> Chains:
        long = {name: longer * count for name, count in steps.items()}
        return sample(posterior, starts, method=method, step_size=jnp.asarray(size, centre.dtype), key=key, **long)

    found = go(size, of_chains)
    rows = _statistics(found, float(baseline), beta, np.asarray(far))
    rows["slope"] = beta**2 * float(jnp.sum(slope**2)) / max(curvature, gamma)
    rows["hessian_share"] = _hessian_share(flat, centre, beta, gamma, rows["estimate"])
    if method == "sgld":
        halved = _statistics(go(size / 2, of_halved, 2), float(baseline), beta, np.asarray(far))
        rows["halved_gap"] = halved["estimate"] - rows["estimate"]
        rows["halved_gap_error"] = math.hypot(halved["mcse"], rows["mcse"])
    dataset = xr.Dataset(
        {
            **rows,
            "chain_estimate": ("chain", beta * (np.asarray(found.loss, np.float64).mean(1) - float(baseline))),
            "loss_trace": (("chain", "draw"), np.asarray(found.loss)),
        },
        attrs={"method": method, "n": float(n), "nbeta": float(beta), "localization": float(gamma)}
        | {"parameters": int(centre.size), "dispersion": float(dispersion), **steps},
    )
    return dataset.assign_attrs(warnings=warnings(dataset))


def warnings(dataset: xr.Dataset) -> list[str]:
    """What is wrong with an estimate, a sentence for each; empty where nothing is seen.

    Args:
        dataset: As :func:`learning_coefficient` returns it.
    """
    value = {str(name): float(v) for name, v in dataset.data_vars.items() if not v.dims}
    gap, gap_error = value["start_gap"], value["start_gap_error"]
    drift, halved = value["drift"], value.get("halved_gap", 0.0)
    lost = int(np.isnan(dataset["chain_estimate"].values).sum())
    worst = float(np.nanmin(dataset["chain_estimate"].values)) if lost < dataset.sizes["chain"] else math.nan
    spread = 2 * value["mcse"] * math.sqrt(dataset.sizes["chain"])
    beyond = max(2 * value.get("halved_gap_error", math.inf), 0.03 * abs(value["estimate"]))
    lower = dataset.attrs["nbeta"] * (value["baseline"] - value["least_loss"])
    found = {
        f"{lost} chains ran to infinity and are left out: take a smaller step": lost > 0,
        "the point is no minimum: the gradient there is not zero at this resolution": value["slope"] > 1,
        f"the point is no minimum: a loss lower by {lower:.2g}/nbeta was drawn": lower > max(1.0, value["estimate"] / 2)
        or lower > 0 > worst + spread,
        "the estimate is negative: the point is no minimum at this resolution": value["estimate"] < -2 * value["mcse"],
        f"starts away from the point give an estimate {gap:+.2g} from those at it: run longer chains": abs(gap)
        > max(ERRORS * gap_error, 0.02 * abs(value["estimate"])),
        f"chains disagree: R-hat of the loss is {value['rhat']:.3f}, above 1.01": not value["rhat"] <= 1.01,
        f"few effective draws, {value['ess']:.0f}: four hundred are asked for": not value["ess"] >= 400,
        f"the loss still drifts, by {drift:+.2g} from the first third to the last": abs(drift)
        > max(ERRORS * value["drift_error"], 0.02 * abs(value["estimate"])),
        f"the step is too large: at half of it the estimate changes by {halved:+.2g}": abs(halved) > beyond,
    }
    return [sentence for sentence, wrong in found.items() if wrong]


class _Flat:
    """The loss as a function of one vector."""

    def __init__(self, loss: Callable[[Any], Any], unravel: Callable[[Any], Any]):
        self.loss, self.unravel = loss, unravel

    def __call__(self, w: Any) -> Any:
        return self.loss(self.unravel(w))


def _first_step(method: str, curvature: float, gamma: float) -> float:
    """In units of Langevin dynamics."""
    scale = 1 / max(curvature, gamma)
    return SGLD_SHARE * scale if method == "sgld" else scale


def _statistics(chains: Chains, baseline: float, beta: float, far: np.ndarray) -> dict[str, float]:
    loss, distance = np.asarray(chains.loss, np.float64), np.asarray(chains.distance, np.float64)
    sound = np.isfinite(loss).all(1) & np.isfinite(distance).all(1)
    if not sound.any():
        names = ("estimate", "mcse", "rhat", "ess", "distance_rhat", "acceptance", "start_gap", "start_gap_error")
        more = ("drift", "drift_error", "distance", "least_loss")
        rows = dict.fromkeys((*names, *more), math.nan)
        return rows | {"baseline": baseline, "step_size": float(chains.step_size)}
    above, distance, far = beta * (loss[sound] - baseline), distance[sound], far[sound]
    mean, error = convergence.mean_and_mcse(above)
    third = max(above.shape[1] // 3, convergence.FEWEST)
    gap, gap_error = _difference(above[far], above[~far])
    drift, drift_error = _difference(above[:, -third:], above[:, :third])
    return {
        "estimate": mean,
        "mcse": error,
        "rhat": convergence.rhat(above),
        "ess": convergence.effective_draws(above),
        "distance_rhat": convergence.rhat(distance),
        "acceptance": float(np.asarray(chains.acceptance)[sound].mean()),
        "step_size": float(chains.step_size),
        "baseline": baseline,
        "least_loss": float(loss[sound].min()),
        "start_gap": gap,
        "start_gap_error": gap_error,
        "drift": drift,
        "drift_error": drift_error,
        "distance": float(np.sqrt(distance.mean())),
    }


def _difference(one: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """Of two means, NaN where one is of nothing."""
    if not len(one) or not len(other):
        return math.nan, math.nan
    (a, of_a), (b, of_b) = convergence.mean_and_mcse(one), convergence.mean_and_mcse(other)
    return a - b, math.hypot(of_a, of_b)


def _hessian_share(flat: _Flat, centre: Any, beta: float, gamma: float, estimate: float) -> float:
    if centre.size > MOST_EIGENVALUES:
        return math.nan
    eigenvalues = np.linalg.eigvalsh(np.asarray(jax.jit(jax.hessian(flat))(centre), np.float64))
    alone = quadratic_posterior.learning_coefficient(np.clip(eigenvalues, 0, None), nbeta=beta, localization=gamma)
    return alone / estimate if estimate > 0 else math.nan
