r"""Optimal rates and contractions for steps of gradient descent or GD++ on sample covariances.

They are found by running the algorithms of :mod:`icllab.algorithms`, which share no code with the exact losses of
:mod:`icllab.theory.descent`. Steps that are multiples of the identity act along every eigenvector of a sample
covariance as in one dimension, where the covariance is the eigenvalue s and the task is 1. The residual is
:math:`1 - w_L`, and the error

.. math:: \frac1m\sum_{i=1}^m\sum_{j=1}^d\bigl(1 - w_L(s_{ij})\bigr)^2

over m covariances is a sum of squares, minimised by Levenberg and Marquardt's method from random starting points.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.optimize import least_squares

from icllab.algorithms import GradientDescentPlusPlus

_SETTINGS: Any = {"method": "lm", "xtol": 1e-5, "ftol": 1e-6, "gtol": 1e-6, "max_nfev": 200}


class Numbers(NamedTuple):
    """Rates (in descending order if their order does not matter), contractions, and the error on the covariances."""

    rates: np.ndarray
    contractions: np.ndarray
    loss: float


def sample_spectra(*, dim: int, length: int, draws: int, key: Any) -> Float[np.ndarray, "draw dim"]:
    """Eigenvalues of the sample covariances of ``length`` standard normal inputs."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    inputs = rng.normal(size=(draws, dim, length))
    return np.linalg.svd(inputs, compute_uv=False) ** 2 / length


def search_steps(spectra: Float[np.ndarray, "draw dim"], *, layers: int, kind: str, starts: int) -> Numbers:
    """The best of several searches. ``kind``: ``"one size"`` for all steps, ``"sizes"`` for each, or ``"GD++"``."""
    points, scale = jnp.asarray(spectra.reshape(-1), jnp.float32), len(spectra) ** -0.5

    def split(free: np.ndarray) -> np.ndarray:
        contractions = np.append(free[layers:], 0.0) if kind == "GD++" else np.zeros(layers)
        return np.stack([np.broadcast_to(free[:layers], layers), contractions])

    def residuals(free: np.ndarray) -> np.ndarray:
        return scale * np.asarray(_residual(jnp.asarray(split(free), jnp.float32), points), float)

    def jacobian(free: np.ndarray) -> np.ndarray:
        by_rate, by_contraction = np.asarray(_slopes(jnp.asarray(split(free), jnp.float32), points), float)
        columns = by_rate.sum(0, keepdims=True) if kind == "one size" else by_rate
        return scale * np.concatenate([columns, by_contraction[:-1]] if kind == "GD++" else [columns]).T

    rng, ends = np.random.default_rng(0), []
    for _ in range(starts):
        # Later steps of GD++ see smaller inputs, and are larger.
        rates = np.sort(rng.uniform(0.2, 1.0, layers) * rng.uniform(1.0, 4.0) ** np.arange(layers))
        first = {"one size": rates[:1], "sizes": rates, "GD++": np.append(rates, rng.uniform(0.2, 0.9, layers - 1))}
        solution = least_squares(residuals, first[kind], jacobian, **_SETTINGS)  # pyright: ignore[reportArgumentType]
        ends.append((2 * float(solution.cost), tuple(solution.x)))
    loss, best = min(ends)
    rates, contractions = split(np.array(best))
    return Numbers(rates if kind == "GD++" else -np.sort(-rates), contractions, loss)


def held_out_loss(numbers: Numbers, spectra: Float[np.ndarray, "draw dim"]) -> tuple[float, float]:
    """Error of steps on sample covariances, and its standard error."""
    parameters = jnp.asarray([numbers.rates, numbers.contractions], jnp.float32)
    points = jnp.asarray(spectra.reshape(-1), jnp.float32)
    terms = np.square(np.asarray(_residual(parameters, points), float)).reshape(spectra.shape).sum(1)
    return float(terms.mean()), float(terms.std(ddof=1) / np.sqrt(len(terms)))


@jax.jit
@functools.partial(jax.vmap, in_axes=(None, 0))
def _residual(numbers: Any, eigenvalue: Any) -> Any:
    """Residual of a task of size 1 along an eigenvector; ``numbers`` [2, layer]: rates and contractions."""
    shape = {"layers": numbers.shape[1], "dim": 1, "normalised": True, "half": True}
    algorithm = GradientDescentPlusPlus.scalar(*numbers, **shape)
    return 1 - algorithm.descend(eigenvalue[None, None], eigenvalue[None])[0]


_slopes = jax.jit(lambda numbers, points: jnp.moveaxis(jax.jacfwd(_residual)(numbers, points), 0, -1))
