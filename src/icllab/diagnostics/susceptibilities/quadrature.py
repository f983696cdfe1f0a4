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
from icllab.core.errors import expected, require_key
from icllab.core.progress import move_to, shows, stage
from icllab.diagnostics.curvature.spectra import hessian_spectrum
from icllab.diagnostics.sampling.local_loss import LocalLoss
from icllab.diagnostics.sampling.local_posteriors import LocalPosterior, of_posterior
from icllab.diagnostics.sampling.observables import at_centre, posterior_settings
from icllab.diagnostics.sampling.sampling_warnings import rounded

MOST = 40_000_000  # nodes
BLOCK = 2**16  # nodes that are evaluated at once
NEGLIGIBLE = 40.0  # nats below the heaviest node, beyond which a node is left out
LOOSE = 0.01  # nats that every other node may change the free energy by
OUTER = 1e-6  # share of the posterior at the ends of the grid


@dataclass(frozen=True, kw_only=True)
class Quadrature:
    r"""The trapezoidal rule on a product grid, which converges exponentially for smooth posteriors that decay.

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
        if not isinstance(self.points, int) or self.points < 9 or self.points % 4 != 1:
            raise expected("points", "one more than a multiple of four, at least 9", self.points)
        POSITIVE.require("reach", self.reach)
        if self.scale is not None:
            POSITIVE.require("scale", self.scale)

    @shows("sampling")
    @of_posterior(position=1)
    def sample(self, posterior: LocalPosterior, *, key: PRNGKeyArray, progress: bool | None = None) -> "Nodes":
        """Weigh the nodes of the grid by a posterior at one temperature; ``key`` starts a power iteration."""
        require_key(key)
        if posterior.prior is not None:
            raise expected("prior", "None with Quadrature", posterior.prior, "leave it out")
        nbeta = posterior.temperature
        local = posterior.local_loss().localized(nbeta)
        localization = local.localization
        flat, centre, size = local.loss, local.centre, int(local.centre.size)
        if self.points**size > MOST:
            came = f"{self.points} for each of {size} parameters"
            raise expected("points", f"at most {MOST} nodes", came, "HMC() samples more parameters")
        offsets, logs = self._line(flat, centre, nbeta, localization, key)
        point = np.asarray(centre)
        line = jnp.asarray(point[:, None] + offsets[None], centre.dtype)
        losses = _over(eqx.Partial(_total, flat), line, np.arange(self.points**size), size)[:, 0]
        distances = np.asarray(line, np.float64) - point[:, None]
        parts = [localization / 2 * row**2 - logs for row in distances]
        potential = nbeta * losses.astype(np.float64) + _outer_sum(parts)
        potential = np.where(np.isfinite(potential), potential, np.inf)
        least = potential.min()
        if not math.isfinite(least):
            raise expected("loss", "a finite number at some node of the grid", "none")
        index = np.flatnonzero(potential < least + NEGLIGIBLE)
        weights = np.exp(least - potential[index])
        places = np.stack(np.unravel_index(index, (self.points,) * size))
        coarse = np.where((places % 2 == 0).all(0), weights, 0.0)
        ends = ((places == 0) | (places == self.points - 1)).any(0)
        sentences = self._warnings(weights, coarse, ends, size, nbeta * local.rounding)
        return Nodes(
            local=local,
            route=self,
            nbeta=float(nbeta),
            localization=float(localization),
            line=line,
            index=index,
            weights=weights / weights.sum(),
            coarse=coarse / max(coarse.sum(), 1e-300),
            sentences=sentences,
        )

    def _line(
        self, loss: Any, centre: Array, nbeta: float, gamma: float, key: PRNGKeyArray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Distances from the point along one parameter, and the logarithms of their weights."""
        steepest = 0.0
        if self.scale is None:
            steepest = max(float(hessian_spectrum(loss, centre, key=key, progress=False)["eigenvalue"].max()), 0.0)
        scale = self.scale or (gamma + nbeta * steepest) ** -0.5
        u = np.linspace(-1, 1, self.points) * math.asinh(self.reach * gamma**-0.5 / scale)
        return scale * np.sinh(u), np.log(np.cosh(u))

    def _warnings(
        self, weights: np.ndarray, coarse: np.ndarray, ends: np.ndarray, size: int, rounding: float
    ) -> list[str]:
        gap = math.log(max(2**size * coarse.sum(), 1e-300) / weights.sum())
        outer = float(weights[ends].sum() / weights.sum())
        faults = {
            rounded(rounding): rounding > LOOSE,
            f"the grid is too coarse: every other node changes the free energy by {abs(gap):.2g} nats: take more "
            "points or another scale": abs(gap) > LOOSE,
            f"the grid ends too early: {outer:.1g} of the posterior is at its ends: take a larger reach": outer > OUTER,
        }
        return [sentence for sentence, wrong in faults.items() if wrong]


@dataclass(frozen=True)
class Nodes:
    """The posterior as weights at the nodes of a grid: the draws of a quadrature.

    Attributes:
        local: The loss and its point.
        route: The quadrature.
        nbeta: Inverse temperature.
        localization: One over the variance of the prior around the point.
        line: Places of nodes along every parameter, [parameter, point].
        index: Numbers of the nodes that count, in the product grid.
        weights: Weights of these nodes, of sum 1.
        coarse: Weights in the grid of twice the spacing, of sum 1.
        sentences: Warnings of the grid.
    """

    local: LocalLoss
    route: Quadrature
    nbeta: float
    localization: float
    line: Array
    index: np.ndarray
    weights: np.ndarray
    coarse: np.ndarray
    sentences: list[str]

    def values(self, observables: Any) -> tuple[np.ndarray, np.ndarray]:
        """A vector function of the parameters at the point, and above that at every node, [node, observable].

        Raises:
            InputError: A value is not finite.
        """
        flat, at_point = at_centre(observables, self.local)
        above = _over(flat, self.line, self.index, len(self.line)).astype(np.float64) - at_point
        if not np.isfinite(above).all():
            raise expected("observables", "finite numbers wherever the loss is", "numbers that are not")
        return at_point, above

    def mean(self, series: np.ndarray) -> tuple[float, float]:
        """The sum over all nodes, and its distance from that over every other node in each direction."""
        return weighted_mean(series, self.weights, self.coarse)

    def warnings(self, values: np.ndarray) -> list[str]:
        """Warnings about the grid."""
        return self.sentences

    @property
    def settings(self) -> dict[str, Any]:
        """Attributes of a dataset that is computed from the nodes."""
        return posterior_settings(self.route, self.nbeta, self.localization)


def weighted_mean(series: np.ndarray, weights: np.ndarray, coarse: np.ndarray) -> tuple[float, float]:
    """The mean with the weights, and its distance from the mean with the coarse weights."""
    value = float(weights @ series)
    return value, abs(float(coarse @ series) - value)


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
    stage("quadrature", count, "nodes")
    for start in range(0, count, BLOCK):
        block = index[start : start + BLOCK]
        places = np.stack(np.unravel_index(block, (points,) * size))
        move_to(start)
        full = np.pad(places, ((0, 0), (0, min(BLOCK, _power(count)) - len(block))), mode="edge")
        rows.append(np.asarray(_evaluated(function, line, jnp.asarray(full)))[: len(block)])
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
