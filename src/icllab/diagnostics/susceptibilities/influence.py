r"""Influence of training samples on observables: covariances under the posterior, and the classical one by the Hessian.

.. math:: \mathrm{BIF}_i(\phi) = -\operatorname{Cov}(\ell_i, \phi), \qquad
          n\beta\operatorname{Cov}(\ell_i, \phi) \to g_i^\top H^{-1}g_\phi
"""

from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array

from icllab.core.errors import expected, kind_of
from icllab.core.result_warnings import warns
from icllab.diagnostics.curvature.spectra import DENSE
from icllab.diagnostics.sampling import convergence
from icllab.diagnostics.sampling.local_posteriors import LocalPosterior, of_posterior
from icllab.diagnostics.sampling.observables import at_centre, disagreements
from icllab.diagnostics.sampling.sampled_losses import VectorLoss
from icllab.diagnostics.sampling.samplers import Draws
from icllab.diagnostics.susceptibilities.quadrature import Nodes
from icllab.diagnostics.susceptibilities.tilts import Functions, Stack
from icllab.models.pretrained.ignored_fields import ignored_fields

AXES = ("sample", "observable")
NOISE = 2.0  # times the null, below which a covariance is not told from chance


class _LossesAndObservables(eqx.Module):
    """The losses of all samples, followed by the observables."""

    loss: Any
    data: Any
    observables: Stack

    def __call__(self, w: Any) -> Array:
        samples = jax.tree.map(lambda leaf: leaf[:, None], self.data)
        losses = jax.vmap(lambda sample: jnp.sum(self.loss(w, sample)))(samples)
        return jnp.concatenate([losses, self.observables(w)])


@warns("influence", "influence", "influence_error")
def influence(draws: Draws | Nodes | xr.Dataset, observables: Functions | None = None) -> xr.Dataset:
    r"""The Bayesian influence function of the samples of a loss.

    .. math:: \mathrm{BIF}_i(\phi) = -\operatorname{Cov}(\ell_i, \phi) = \frac{d\langle\phi\rangle}{d\beta_i}

    under :math:`\exp(-\sum_i\beta_i\ell_i - \frac\gamma2\lVert w-w^*\rVert^2)` at :math:`\beta_i = n\beta/n`: the
    response of a posterior mean to the weight of one sample. A posterior restricted to part of the weights, by
    ``weights=`` of ``LocalPosterior``, has the influence through that part.

    Args:
        draws: Draws of a loss on samples, ``HMC().sample(posterior, key=key)`` or ``Quadrature().sample(...)``. Or a
            Dataset of another program's chains: ``sample_loss`` over (``chain``, ``draw``, ``sample``) and
            ``observed`` over (``chain``, ``draw``, ``observable``), with the attributes
            ``nbeta`` and ``n``, the number of samples of the loss; without the latter those that are there.
        observables: Name -> number of parameters; None with a Dataset.

    Returns:
        ``influence`` and its ``_error`` (``sample``, ``observable``): of chains a Monte Carlo standard error, by
        quadrature the change from the grid of twice the spacing; ``correlation`` of
        :math:`\ell_i` and :math:`\phi`; ``leave_one_out``, the change of the
        posterior mean without the sample, to first order, :math:`-\beta\,\mathrm{BIF}_i`. Of chains also ``rhat`` of
        the loss of each sample (``sample``), and ``null``: the root mean square of the covariances of losses in one
        chain with the observable in another, which are zero but for chance. Attributes ``nbeta``, ``n``, ``beta`` and
        ``warnings``.

    Raises:
        InputError: The draws are of a loss without data, or an observable is not a number.

    Source: [Kreer25].
    """
    if isinstance(draws, xr.Dataset):
        losses, observed, names = _of_dataset(draws, observables)
        settings = {"nbeta": float(draws.attrs["nbeta"]), "n": int(draws.attrs.get("n", losses.shape[2]))}
        sentences = disagreements(np.concatenate([losses, observed], axis=2))
        means: Any = _mean_of_chains
    elif isinstance(draws, Draws | Nodes):
        if not observables:
            raise expected("observables", "at least one function of parameters, by name", observables)
        loss, count = draws.local.loss, draws.local.samples
        if count < 2:
            raise expected("data", "at least 2 samples", count)
        stack = _LossesAndObservables(cast(VectorLoss, loss).loss, loss.data, Stack(tuple(observables.values())))
        _, above = draws.values(stack)
        losses, observed, names = above[..., :count], above[..., count:], list(observables)
        settings, sentences, means = draws.settings | {"n": count}, draws.warnings(observed), draws.mean
    else:
        raise expected("draws", "draws of a sampler, or a Dataset", kind_of(draws))
    rows = _covariances(losses, observed, means)
    beta = settings["nbeta"] / settings["n"]
    rows["leave_one_out"] = (AXES, -beta * rows["influence"][1])
    if losses.ndim == 3:
        rows["rhat"] = ("sample", np.array([_rhat(losses[:, :, i]) for i in range(losses.shape[2])]))
        rows["null"] = (AXES, _null(losses, observed))
        pairs = zip(names, np.abs(rows["influence"][1]).max(0), rows["null"][1].max(0), strict=True)
        unseen = [name for name, largest, null in pairs if largest < NOISE * null]
        sentences = sentences + [f"no sample's influence on {name} stands out from chance" for name in unseen]
    attributes = settings | {"beta": beta, "warnings": sentences}
    return xr.Dataset(rows, coords={"observable": names}, attrs=attributes)


@of_posterior()
def hessian_influence(posterior: LocalPosterior, observables: Functions) -> xr.Dataset:
    r"""The classical influence function, in the units of :func:`influence`, which tends to it at a regular minimum.

    .. math:: -\frac1{n\beta}\,g_i^\top\Bigl(H + \frac\gamma{n\beta}\Bigr)^{-1}g_\phi

    with the gradients of the loss of a sample and of the observable, and the Hessian of the mean loss.

    Args:
        posterior: Loss of samples near a point, at one temperature, of at most 1500 parameters that move.
        observables: Name -> number of parameters.

    Returns:
        ``influence`` and ``leave_one_out``, :math:`-\beta` times it (``sample``, ``observable``); ``curvature``
        (``direction``), the eigenvalues of the Hessian, descending. Attribute ``warnings``: a negative curvature.

    Raises:
        InputError: The loss has no data, or there are more parameters.
    """
    nbeta = posterior.temperature
    local = posterior.local_loss().localized(nbeta)
    if local.samples < 2:
        raise expected("data", "at least 2 samples", local.samples)
    if local.centre.size > DENSE:
        hint = "influence(draws, ...) needs no Hessian"
        raise expected("posterior", f"at most {DENSE} parameters that move", local.centre.size, hint)
    if not observables:
        raise expected("observables", "at least one function of parameters, by name", observables)
    loss = local.loss
    flat, _ = at_centre(_LossesAndObservables(loss.loss, loss.data, Stack(tuple(observables.values()))), local)
    slopes = np.asarray(jax.jit(jax.jacrev(flat))(local.centre), np.float64)
    h, vectors = np.linalg.eigh(np.asarray(jax.jit(jax.hessian(_total(loss)))(local.centre), np.float64))
    resolution = local.localization / nbeta
    of_samples, of_observables = slopes[: local.samples] @ vectors, slopes[local.samples :] @ vectors
    values = -(of_samples / (h + resolution)) @ of_observables.T / nbeta
    negative = int(np.sum(h < -resolution))
    sentences = [f"the point is not a minimum: {negative} curvatures are negative"] if negative else []
    beta = nbeta / local.samples
    rows = {"influence": (AXES, values), "leave_one_out": (AXES, -beta * values), "curvature": ("direction", h[::-1])}
    settings = {"nbeta": nbeta, "localization": local.localization, "n": local.samples, "beta": beta}
    return xr.Dataset(
        rows,
        coords={"observable": list(observables)},
        attrs=settings | {"warnings": sentences} | ignored_fields(posterior.at),
    )


def _total(loss: VectorLoss) -> Any:
    return lambda w: jnp.sum(loss(w))


def _of_dataset(dataset: xr.Dataset, observables: Any) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Losses, observables and their names."""
    if observables is not None:
        raise expected("observables", "None with a Dataset, which has them", kind_of(observables))
    for name in ("sample_loss", "observed"):
        if name not in dataset:
            raise expected("draws", f"a Dataset with {name}", sorted(map(str, dataset.data_vars)))
    losses = dataset["sample_loss"].transpose("chain", "draw", "sample").values
    observed = dataset["observed"].transpose("chain", "draw", "observable").values
    return losses.astype(np.float64), observed.astype(np.float64), list(map(str, dataset["observable"].values))


def _covariances(losses: np.ndarray, observed: np.ndarray, means: Any) -> dict[str, Any]:
    """Influence with its error, and correlation, [sample, observable]."""
    a, b = centred = [
        np.stack([array[..., i] - means(array[..., i])[0] for i in range(array.shape[-1])], axis=-1)
        for array in (losses, observed)
    ]
    pairs = np.array([[means(a[..., i] * b[..., j]) for j in range(b.shape[-1])] for i in range(a.shape[-1])])
    spreads = [np.array([means(c[..., i] ** 2)[0] for i in range(c.shape[-1])]) ** 0.5 for c in centred]
    scale = np.outer(*spreads)
    correlation = np.divide(pairs[..., 0], scale, out=np.full(scale.shape, np.nan), where=scale > 0)
    return {
        "influence": (AXES, -pairs[..., 0]),
        "influence_error": (AXES, pairs[..., 1]),
        "correlation": (AXES, correlation),
    }


def _null(losses: np.ndarray, observed: np.ndarray) -> np.ndarray:
    """Root mean square, over shifts of chains, of the mean covariance of losses and observables of different chains."""
    chains = len(losses)
    a, b = losses - losses.mean((0, 1)), observed - observed.mean((0, 1))
    shifts = [np.einsum("cds,cdo->so", a, np.roll(b, k, axis=0)) / a[..., 0].size for k in range(1, chains)]
    return np.sqrt(np.mean(np.square(shifts), axis=0)) if shifts else np.full((a.shape[2], b.shape[2]), np.nan)


def _mean_of_chains(series: np.ndarray) -> tuple[float, float]:
    return convergence.mean_and_mcse(series) if np.ptp(series) > 0 else (float(series.mean()), 0.0)


def _rhat(series: np.ndarray) -> float:
    return convergence.rhat(series) if np.ptp(series) > 0 else 1.0
