"""A loss at a point: its losses, its gradient and its curvature there, before anything is sampled."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from icllab.core.errors import expected, require_instance
from icllab.diagnostics.curvature.products import Hessian
from icllab.diagnostics.curvature.spectra import DENSE, SpectrumSolver, curvatures, effective_dimension
from icllab.diagnostics.sampling.costs import nominal_seconds
from icllab.diagnostics.sampling.posteriors import Posterior, Vector, steepest
from icllab.diagnostics.sampling.priors import Prior
from icllab.diagnostics.sampling.sampled_losses import (
    BLOCK,
    AtPoint,
    VectorLoss,
    at_point,
    batch_noise,
    gradient_seconds,
    rows_of,
    vector_loss,
)

PROBES, PRODUCTS = 4, 32  # of a quadrature of a Hessian that is too large to be written out
FEWEST_PRODUCTS = 8  # of a probe
FOR_CURVATURE = 1024  # samples of the data whose mean Hessian is used
HALVINGS = 40  # of a start's distance from the point, if the loss is not finite there
MOST_PULL = 0.2  # largest share of the curvature that the localization may have
DECIDES = 0.03  # change of an estimate by a factor of e of the localization, over the estimate, that is too much
WEAKER = np.geomspace(1, 0.01, 17)  # times one over the mean square of the parameters: defaults that are tried


@dataclass(frozen=True)
class LocalLoss:
    """A loss at a point."""

    loss: VectorLoss
    centre: Vector  # w*
    known: AtPoint  # losses and gradient of all the data at w*
    block: int = BLOCK  # samples of the data that are evaluated at once
    pull: float | None = None  # localization; None: the default
    prior: Prior | None = None  # of vectors

    @classmethod
    def from_loss(
        cls, loss: Any, at: Any, data: Any, *, block: int = BLOCK, pull: float | None = None, prior: Any = None
    ) -> "LocalLoss":
        """Evaluate a loss of any tree of parameters at a point.

        Raises:
            InputError: The loss is not finite there.
        """
        flat, centre = vector_loss(loss, at, data)
        known = at_point(flat, centre, batch=block)
        if not bool(jnp.isfinite(known.terms).all()):
            raise expected("loss", "a finite number at the point given", float(known.baseline.sum()))
        if prior is not None:
            require_instance("prior", prior, Prior, "a Prior(...)")
            prior = prior.of_vector(centre, flat.unravel(centre))
        return cls(flat, centre, known, block, pull, prior)

    @property
    def localization(self) -> float:
        """The given one; otherwise one over the mean square of the parameters, or 1 if they are zero."""
        square = float(jnp.mean(self.centre**2))
        return self.pull if self.pull is not None else (1 / square if square > 0 else 1.0)

    def localized(self, nbeta: float) -> "LocalLoss":
        r"""The same loss, if no localization is given with the default one.

        Directions of the curvatures h have the estimate
        :math:`\hat\lambda(\gamma) = \frac12\sum_i n\beta h_i/(n\beta h_i+\gamma)`. The default is the largest of
        some :math:`\gamma`, from one over the mean square of the parameters to a hundredth of it, with

        .. math:: -\frac{d\log\hat\lambda}{d\log\gamma} \le 0.03,

        and if there is none, or the Hessian has no positive eigenvalue or is too large to be written out, the first.
        """
        if self.pull is not None or self.centre.size > DENSE:
            return replace(self, pull=self.localization)
        h = np.clip(curvatures(self.curved, self.centre, key=jax.random.key(0))[0], 0, None)
        tried = self.localization * WEAKER
        shares = nbeta * h / (nbeta * h + tried[:, None])
        slopes = (shares * (1 - shares)).sum(1)
        enough = np.flatnonzero((slopes <= DECIDES * shares.sum(1)) & (shares.sum(1) > 0))
        return replace(self, pull=float(tried[enough[0] if enough.size else 0]))

    @property
    def rounding(self) -> float:
        """Half a unit in the last place of the loss at the point: the precision to which its type holds it."""
        terms = self.known.terms
        size = np.abs(np.asarray(terms, np.float64)).sum(1).mean()
        return float(jnp.finfo(terms.dtype).eps / 2 * size)

    def gradient_share(self, nbeta: float, curvature: float) -> float:
        r""":math:`n\beta|\nabla L|^2/h` at the point: above 1 the gradient is not zero at this resolution."""
        return nbeta**2 * float(jnp.sum(self.known.slope**2)) / curvature

    def prior_share(self, curvature: float) -> float:
        r""":math:`|\nabla\log\varphi|^2/h` at the point: above 1 the prior moves the posterior away from it."""
        if self.prior is None:
            return 0.0
        return float(jnp.sum(((self.centre - self.prior.centre) / self.prior.std**2) ** 2)) / curvature

    @property
    def samples(self) -> int:
        """Number of samples; 0 for a loss without data."""
        return 0 if self.loss.data is None else len(self.known.terms)

    @cached_property
    def curved(self) -> VectorLoss:
        """The loss of all the data, or of some samples, that curvatures are computed with."""
        if self.samples <= FOR_CURVATURE:
            return self.loss
        rows = np.random.default_rng(0).choice(self.samples, FOR_CURVATURE, replace=False)
        return eqx.tree_at(lambda loss: loss.data, self.loss, rows_of(self.loss.data, rows))

    @cached_property
    def seconds(self) -> float:
        """Nominal seconds of the whole loss and its gradient."""
        return gradient_seconds(self.loss, self.centre, batch=self.block)

    @cached_property
    def noise(self) -> float:
        """Trace of the covariance of the gradient of a batch."""
        return batch_noise(self.loss, self.centre, batch=self.block)

    @property
    def tree_loss(self) -> Any:
        """The loss of all the data, as a function of the tree of parameters."""
        return self.loss.loss if self.loss.data is None else eqx.Partial(loss_of_data, self.loss.loss, self.loss.data)

    def tree(self, w: Vector) -> Any:
        """The tree of parameters at a vector."""
        return self.loss.parameters(w)

    def part(self, w: Vector) -> Any:
        """The tree of the weights that move, at a vector."""
        return eqx.combine(self.loss.unravel(w), self.loss.static)

    def posterior(self, nbeta: float, gamma: float, *, curved: bool = False) -> Posterior:
        """The target of a sampler; ``curved``: the posterior whose curvature is computed."""
        dtype = self.centre.dtype
        loss = self.curved if curved else self.loss
        numbers = (jnp.asarray(number, dtype) for number in (nbeta, gamma, self.known.baseline.sum()))
        return Posterior(loss, self.centre, *numbers, prior=self.prior)

    def starts(self, gamma: float, far: np.ndarray, key: PRNGKeyArray, *, dispersion: float, inside: bool) -> Array:
        r"""Starts of chains: the point, or, for those that are ``far``, :math:`\sigma\gamma^{-1/2}\xi` from it.

        With ``inside`` a start is moved towards the point by halves until the loss is finite there. What is outside of
        the prior's box is reflected into it.
        """
        # On the host: nothing of it needs to be compiled.
        centre = np.asarray(self.centre)
        normal = np.random.default_rng(np.asarray(jax.random.key_data(key))).normal(size=(len(far), centre.size))
        offsets = far[:, None] * dispersion * gamma**-0.5 * normal
        if self.prior is not None:
            offsets = (
                np.asarray(jax.vmap(self.prior.reflected)(jnp.asarray(centre + offsets, centre.dtype))[0]) - centre
            )
        for i in np.flatnonzero(far) if inside else ():
            # A chain outside has no way in: the loss is flat there. The programs are those of the point itself.
            for _ in range(HALVINGS):
                if self._is_finite(centre + offsets[i]):
                    break
                offsets[i] /= 2
            else:
                offsets[i] = 0
        return jnp.asarray(centre[None] + offsets, self.centre.dtype)

    def _is_finite(self, w: np.ndarray) -> bool:
        """True if the loss of all the data and its gradient are finite."""
        values = at_point(self.loss, jnp.asarray(w, self.centre.dtype), batch=self.block)
        return bool(jnp.isfinite(values.terms).all() & jnp.isfinite(values.slope).all())

    def narrowness(self, posterior: Posterior, places: Array, largest: float, key: PRNGKeyArray) -> float:
        """The localization over the largest curvature, at the point (``largest``) or at the places of chains."""
        gamma = float(posterior.localization)
        if gamma > MOST_PULL * largest:
            # A singular loss may be flat at the point and steep beside it.
            # From one start of the power iteration everywhere.
            curvatures = [float(largest_curvature(posterior, place, jax.random.clone(key))) for place in places]
            largest = max(largest, *filter(math.isfinite, curvatures), gamma)
        return gamma / largest

    @cached_property
    def product_seconds(self) -> float:
        """Nominal seconds of a product with the Hessian that curvatures are computed with."""
        return nominal_seconds(Hessian(self.curved, self.centre), self.centre)

    def hessian_share(
        self, nbeta: float, gamma: float, estimate: float, key: PRNGKeyArray, *, budget: float = math.inf
    ) -> float:
        """Half the effective dimension at this resolution, over an estimate of the coefficient.

        NaN if the estimate is not positive, or if the ``budget``, in nominal seconds, is not enough for a few products.
        """
        if not estimate > 0:
            return math.nan
        dense = DENSE if self.centre.size * self.product_seconds <= budget else 0
        probes, order = PROBES, PRODUCTS
        if self.centre.size > dense:
            products = min(budget / self.product_seconds, PROBES * PRODUCTS)
            probes = int(np.clip(products // FEWEST_PRODUCTS, 0, PROBES))
            if not probes:
                return math.nan
            order = int(products // probes)
        solver = SpectrumSolver(probes=probes, order=order, dense=dense)
        dimension = effective_dimension(self.curved, self.centre, resolution=gamma / nbeta, key=key, solver=solver)
        return dimension.value / 2 / estimate


@eqx.filter_jit
def largest_curvature(posterior: Posterior, where: Vector, key: PRNGKeyArray) -> Array:
    """The largest curvature of the potential at a point, by power iteration."""
    return steepest(posterior, where=where, key=key)


def loss_of_data(loss: Any, data: Any, w: Any) -> Any:
    """The loss of all the data; the parameters are the last argument, for a partial function."""
    return loss(w, data)
