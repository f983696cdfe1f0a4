r"""Posterior expectations of what is observed, by nodes of a quadrature or by draws of chains.

Both are of :math:`w \sim \exp\bigl(-n\beta L(w) - \frac\gamma2\lVert w-w^*\rVert^2\bigr)`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np

from icllab.core.errors import expected
from icllab.diagnostics.sampling.convergence import mean_and_mcse

Observables = Callable[[Any], Any]  # parameters -> a vector of numbers


@dataclass(frozen=True)
class Nodes:
    """What a quadrature knows: values and weights at its nodes; an error is what every other node changes."""

    values: np.ndarray  # [node, observable]
    at_point: np.ndarray
    weights: np.ndarray  # [node], of sum 1
    coarse: np.ndarray  # [node], weights of the grid of twice the spacing, of sum 1
    warnings: list[str] = field(default_factory=list)

    def mean(self, series: np.ndarray) -> tuple[float, float]:
        """The sum over all nodes, and how far that over every other node in each direction is from it."""
        value = float(self.weights @ series)
        return value, abs(float(self.coarse @ series) - value)


@dataclass(frozen=True)
class Draws:
    """What chains know: values at their draws; an error is a Monte Carlo standard error."""

    values: np.ndarray  # [chain, draw, observable]
    at_point: np.ndarray
    warnings: list[str] = field(default_factory=list)

    def mean(self, series: np.ndarray) -> tuple[float, float]:
        """The mean over draws, and its standard error from the effective number of draws."""
        return mean_and_mcse(series) if np.ptp(series) > 0 else (float(series.mean()), 0.0)


Expectations: TypeAlias = Nodes | Draws


def observed_at(observables: Observables, at: Any) -> np.ndarray:
    """What is observed at the point, refused where it is no finite vector."""
    found = jnp.asarray(observables(at))
    if found.ndim != 1 or not bool(jnp.isfinite(found).all()):
        raise expected("observables", "finite numbers at the point given", np.asarray(found).tolist())
    return np.asarray(found, np.float64)
