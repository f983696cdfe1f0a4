r"""Posterior expectations of a few parameters by the trapezoidal rule, exact where the grid is fine enough."""

import math
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from icllab.core.domains import POSITIVE
from icllab.core.errors import expected
from icllab.diagnostics.curvature.spectra import hessian_spectrum
from icllab.diagnostics.sampling.sampled_losses import vector_loss
from icllab.diagnostics.susceptibilities.expectations import Nodes, Observables, observed_at

MOST = 40_000_000  # nodes
BLOCK = 2**16  # nodes that are evaluated at once
NEGLIGIBLE = 40.0  # nats below the heaviest node, from which on a node is left out
LOOSE = 0.01  # nats that every other node may change the free energy by
OUTER = 1e-6  # share of the posterior at the ends of the grid


@dataclass(frozen=True, kw_only=True)
class Quadrature:
    r"""The trapezoidal rule on a product grid, which converges exponentially for what is smooth and decays.

    Every parameter is :math:`w_i = w_i^* + s\sinh u_i` with equally spaced u, out to :math:`R\gamma^{-1/2}`: near the
    point the spacing is :math:`s\,\delta u`, far from it a share :math:`\delta u` of the distance, so that narrow arms
    of a singular loss along the axes are resolved as well as its middle. A loss that is not finite is outside the
    region. The stated error is the change from the grid of twice the spacing: the error of that grid, and far above
    that of the finer one wherever the rule converges.

    Attributes:
        points: Nodes of each parameter, one more than a multiple of four.
        reach: R, in standard deviations of the localization; more where the loss falls away from the point, which
            moves the posterior by up to :math:`n\beta|\nabla L|/\gamma`.
        scale: s, in units of parameters; None: the least standard deviation that the Hessian at the point gives the
            posterior.

    Raises:
        InputError: A number is out of its range; there are more than forty million nodes, or no finite loss.

    Derived: docs/routing.md, Three routes.
    """

    points: int = 161
    reach: float = 8.0
    scale: float | None = None

    def __post_init__(self) -> None:
        if self.points < 9 or self.points % 4 != 1:
            raise expected("points", "one more than a multiple of four, at least 9", self.points)
        POSITIVE.require("reach", self.reach)
        if self.scale is not None:
            POSITIVE.require("scale", self.scale)

    def expectations(
        self, loss: Any, observables: Observables, at: Any, *, nbeta: float, localization: float, key: PRNGKeyArray
    ) -> Nodes:
        """Values and weights at all nodes that count; nothing is drawn."""
        flat, centre = vector_loss(loss, at, None)
        seen, size = vector_loss(observables, at, None)[0], int(centre.size)
        if self.points**size > MOST:
            wanted = f"at most {MOST} nodes"
            came = f"{self.points} for each of {size} parameters"
            raise expected("points", wanted, came, "chains of HMC() have no such limit")
        here = observed_at(seen, centre)
        away, logs = self._line(loss, at, centre, nbeta, localization, key)
        where, dtype = np.asarray(centre), centre.dtype
        line = jnp.asarray(where[:, None] + away[None], dtype)
        index = np.arange(self.points**size)
        losses = _over(eqx.Partial(_total, flat), line, index, size)[:, 0]
        apart = np.asarray(line, np.float64) - where[:, None]
        parts = [localization / 2 * row**2 - logs for row in apart]
        potential = nbeta * losses.astype(np.float64) + _outer_sum(parts)
        potential = np.where(np.isfinite(potential), potential, np.inf)
        least = potential.min()
        if not math.isfinite(least):
            raise expected("loss", "a finite number at some node of the grid", "none")
        kept = np.flatnonzero(potential < least + NEGLIGIBLE)
        weights = np.exp(least - potential[kept])
        places = np.stack(np.unravel_index(kept, (self.points,) * size))
        coarse = np.where((places % 2 == 0).all(0), weights, 0.0)
        ends = ((places == 0) | (places == self.points - 1)).any(0)
        found = _over(seen, line, kept, size).astype(np.float64) - here
        if not np.isfinite(found).all():
            raise expected("observables", "finite numbers wherever the loss is", "numbers that are not")
        said = self._warnings(weights, coarse, ends, size)
        return Nodes(found, here, weights / weights.sum(), coarse / max(coarse.sum(), 1e-300), said)

    def _line(
        self, loss: Any, at: Any, centre: Array, nbeta: float, gamma: float, key: PRNGKeyArray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Distances from the point along one parameter, and the logarithms of their weights."""
        steepest = 0.0
        if self.scale is None:
            steepest = max(float(hessian_spectrum(loss, at, key=key)["eigenvalue"].max()), 0.0)
        scale = self.scale or (gamma + nbeta * steepest) ** -0.5
        u = np.linspace(-1, 1, self.points) * math.asinh(self.reach * gamma**-0.5 / scale)
        return scale * np.sinh(u), np.log(np.cosh(u))

    def _warnings(self, weights: np.ndarray, coarse: np.ndarray, ends: np.ndarray, size: int) -> list[str]:
        gap = math.log(max(2**size * coarse.sum(), 1e-300) / weights.sum())
        outer = float(weights[ends].sum() / weights.sum())
        seen = {
            f"the grid is too coarse: every other node changes the free energy by {abs(gap):.2g} nats: take more "
            "points or another scale": abs(gap) > LOOSE,
            f"the grid ends too early: {outer:.1g} of the posterior is at its ends: take a larger reach": outer > OUTER,
        }
        return [sentence for sentence, wrong in seen.items() if wrong]


def _outer_sum(parts: list[np.ndarray]) -> np.ndarray:
    """Sums of one entry of each, in the order of a product."""
    total = np.zeros(1)
    for row in parts:
        total = (total[:, None] + row[None]).ravel()
    return total


def _over(function: Any, line: Array, index: np.ndarray, size: int) -> np.ndarray:
    """A function of the parameters at nodes by their numbers, [node, number]."""
    count, points = len(index), line.shape[1]
    rows = []
    for start in range(0, count, BLOCK):
        some = index[start : start + BLOCK]
        places = np.stack(np.unravel_index(some, (points,) * size))
        padded = np.pad(places, ((0, 0), (0, min(BLOCK, _power(count)) - len(some))), mode="edge")
        rows.append(np.asarray(_evaluated(function, line, jnp.asarray(padded)))[: len(some)])
    return np.concatenate(rows)


def _power(count: int) -> int:
    """The least power of two that is no smaller."""
    return 1 << max(count - 1, 1).bit_length()


def _total(loss: Any, w: Array) -> Array:
    """The sum of a loss's terms, as a vector of one."""
    return jnp.sum(loss(w), keepdims=True).reshape(1)


@eqx.filter_jit
def _evaluated(function: Any, line: Array, places: Array) -> Array:
    w = jnp.take_along_axis(line, places, axis=1)
    return jax.vmap(function, in_axes=1)(w)
