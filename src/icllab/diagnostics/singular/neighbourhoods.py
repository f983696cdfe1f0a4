"""A loss at a point, and what is known of it there before anything is drawn."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from icllab.core.errors import expected
from icllab.diagnostics.curvature.spectra import DENSE, effective_dimension
from icllab.diagnostics.sampling.posteriors import Posterior, Vector, steepest
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
from icllab.diagnostics.sampling.sampling_warnings import MOST_PULL

PROBES, PRODUCTS = 4, 32  # of a quadrature of the Hessian where it is too large to be written out
FOR_CURVATURE = 1024  # samples of the data whose mean Hessian is looked at
HALVINGS = 40  # of a start's distance from the point, where the loss is not finite


@dataclass(frozen=True)
class Neighbourhood:
    """A loss at a point."""

    loss: VectorLoss
    centre: Vector  # w*
    known: AtPoint  # losses and gradient of all the data there
    block: int = BLOCK  # samples of the data that are evaluated at once
    pull: float | None = None  # the localization that is asked for

    @classmethod
    def of(cls, loss: Any, at: Any, data: Any, *, block: int, pull: float | None = None) -> "Neighbourhood":
        """From a loss of any tree; refused where it is not finite."""
        flat, centre = vector_loss(loss, at, data)
        known = at_point(flat, centre, batch=block)
        if not bool(jnp.isfinite(known.terms).all()):
            raise expected("loss", "a finite number at the point given", float(known.baseline.sum()))
        return cls(flat, centre, known, block, pull)

    @property
    def localization(self) -> float:
        """What was asked for, or one over the mean square of the parameters, or 1 where they are zero."""
        square = float(jnp.mean(self.centre**2))
        return self.pull if self.pull is not None else (1 / square if square > 0 else 1.0)

    @cached_property
    def curved(self) -> VectorLoss:
        """The loss of all data or of some, whose curvature is looked at."""
        samples = 0 if self.loss.data is None else len(self.known.terms)
        if samples <= FOR_CURVATURE:
            return self.loss
        rows = np.random.default_rng(0).choice(samples, FOR_CURVATURE, replace=False)
        return eqx.tree_at(lambda one: one.data, self.loss, rows_of(self.loss.data, rows))

    @cached_property
    def seconds(self) -> float:
        """Nominal seconds of the whole loss and its gradient."""
        return gradient_seconds(self.loss, self.centre, batch=self.block)

    @cached_property
    def noise(self) -> float:
        """Trace of the covariance of the gradient of a batch."""
        return batch_noise(self.loss, self.centre, batch=self.block)

    def posterior(self, nbeta: float, gamma: float, *, curved: bool = False) -> Posterior:
        """What is sampled; ``curved``: what its curvature is found of."""
        dtype = self.centre.dtype
        loss = self.curved if curved else self.loss
        return Posterior(loss, self.centre, jnp.asarray(nbeta, dtype), jnp.asarray(gamma, dtype))

    def starts(self, gamma: float, far: np.ndarray, key: PRNGKeyArray, *, dispersion: float, inside: bool) -> Array:
        r"""Starts of chains: the point, or, of those that are ``far``, away from it by :math:`\sigma\gamma^{-1/2}\xi`.

        With ``inside`` a start is moved towards the point by halves until the loss is finite there.
        """
        # On the host: nothing of it needs to be compiled.
        centre = np.asarray(self.centre)
        away = np.random.default_rng(np.asarray(jax.random.key_data(key))).normal(size=(len(far), centre.size))
        apart = far[:, None] * dispersion * gamma**-0.5 * away
        for i in np.flatnonzero(far) if inside else ():
            # What starts outside has no way in: the loss is flat there. The programs are those of the point itself.
            for _ in range(HALVINGS):
                if self._is_finite(centre + apart[i]):
                    break
                apart[i] /= 2
            else:
                apart[i] = 0
        return jnp.asarray(centre[None] + apart, self.centre.dtype)

    def _is_finite(self, w: np.ndarray) -> bool:
        """Whether the loss and its gradient are, of all the data."""
        found = at_point(self.loss, jnp.asarray(w, self.centre.dtype), batch=self.block)
        return bool(jnp.isfinite(found.terms).all() & jnp.isfinite(found.slope).all())

    def narrowness(self, seen: Posterior, places: Array, largest: float, key: PRNGKeyArray) -> float:
        """The localization's part of the largest curvature: that found already, or where the chains are."""
        gamma = float(seen.localization)
        if gamma > MOST_PULL * largest:
            # A singular loss may be flat at the point and steep beside it.
            found = [float(largest_curvature(seen, place, key)) for place in places]
            largest = max(largest, *(one for one in found if math.isfinite(one)), gamma)
        return gamma / largest

    def hessian_share(self, nbeta: float, gamma: float, estimate: float, key: PRNGKeyArray) -> float:
        """What the Hessian alone explains of an estimate: half the effective dimension at this resolution."""
        if not estimate > 0:
            return math.nan
        resolution, how = gamma / nbeta, {"probes": PROBES, "order": PRODUCTS, "dense": DENSE}
        return effective_dimension(self.curved, self.centre, resolution=resolution, key=key, **how).value / 2 / estimate


@eqx.filter_jit
def largest_curvature(posterior: Posterior, where: Vector, key: PRNGKeyArray) -> Array:
    """The largest curvature of the potential at a point, by power iteration."""
    return steepest(posterior, where=where, key=key)
