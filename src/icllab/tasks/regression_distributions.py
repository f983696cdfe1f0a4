r"""The distributions a linear regression is made of: of inputs :math:`x` and of task vectors :math:`w`.

A covariance is given once, in the shape that says what it is: a scalar (isotropic), a vector
(diagonal) or a symmetric matrix. All of them are leaves: they can be swept and differentiated.
"""

import abc
from functools import partial
from typing import Any, TypeAlias, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.covariances import require_covariance
from icllab.core.domains import NON_NEGATIVE
from icllab.core.errors import require_instance, require_integer, require_key
from icllab.tasks.regression import real

Covariance: TypeAlias = Float[Array, ""] | Float[Array, " dim"] | Float[Array, "dim dim"]
AnyArray = TypeVar("AnyArray", Array, np.ndarray)


def matrix(covariance: AnyArray, dim: int) -> AnyArray:
    """The covariance written out as a matrix ``[dim, dim]``; one that is NumPy's stays on the host, in its own type."""
    if covariance.ndim == 2:
        return covariance
    return covariance.reshape(-1, 1) * np.eye(dim, dtype=covariance.dtype)


def root_times(covariance: Covariance, vector: Float[Array, " dim"]) -> Float[Array, " dim"]:
    r""":math:`\Sigma^{1/2} v` with the symmetric root; O(dim) unless the covariance is a full matrix."""
    if covariance.ndim == 2:
        values, vectors = jnp.linalg.eigh(covariance)
        return vectors @ (jnp.sqrt(jnp.clip(values, 0)) * (vectors.T @ vector))
    return jnp.sqrt(covariance) * vector


class AbstractVectors(eqx.Module):
    """A distribution of vectors."""

    @abc.abstractmethod
    def sample(self, dim: int, *, key: PRNGKeyArray) -> Float[Array, " dim"]:
        """One vector."""


class Gaussian(AbstractVectors):
    """Centred normal vectors of a ``covariance``."""

    covariance: Covariance = eqx.field(converter=partial(real, "covariance"))

    def __check_init__(self) -> None:
        if isinstance(self.covariance, jax.Array) and not isinstance(self.covariance, Tracer):
            require_covariance("covariance", np.asarray(self.covariance))

    def sample(self, dim: int, *, key: PRNGKeyArray) -> Float[Array, " dim"]:
        """``root_times(covariance, g)`` with standard normal ``g``."""
        return root_times(self.covariance, jax.random.normal(key, (dim,), self.covariance.dtype))


class AbstractInputs(AbstractVectors):
    """A centred distribution of inputs."""

    def sample_many(self, count: int, dim: int, *, key: PRNGKeyArray) -> Float[Array, "count dim"]:
        """Draw ``count`` independent inputs."""
        return jax.vmap(lambda k: self.sample(dim, key=k))(jax.random.split(key, count))

    @abc.abstractmethod
    def second_moment(self, dim: int) -> Float[Array, "dim dim"]:
        r""":math:`E\,x x^\top`."""


def require_inputs(value: Any) -> None:
    """Raise unless ``value`` is a distribution of inputs."""
    require_instance("inputs", value, AbstractInputs, "a distribution of inputs such as GaussianInputs(1.0)")


class GaussianInputs(Gaussian, AbstractInputs):
    r""":math:`x \sim N(0, \Sigma)`; Lu, Letey et al. have :math:`\Sigma = I/d`, most others :math:`I`."""

    def second_moment(self, dim: int) -> Float[Array, "dim dim"]:
        """The covariance itself."""
        return matrix(self.covariance, dim)


class UniformInputs(AbstractInputs):
    r"""Independent entries, uniform on :math:`(-r, r)` with ``half_width`` r; von Oswald et al. have r = 1."""

    half_width: Float[Array, ""] = eqx.field(converter=partial(real, "half_width"))

    def __check_init__(self) -> None:
        NON_NEGATIVE.require_leaf("half_width", self.half_width)

    def sample(self, dim: int, *, key: PRNGKeyArray) -> Float[Array, " dim"]:
        """Entries drawn independently."""
        return self.half_width * jax.random.uniform(key, (dim,), self.half_width.dtype, -1.0, 1.0)

    def second_moment(self, dim: int) -> Float[Array, "dim dim"]:
        r""":math:`(r^2/3)\, I`."""
        return self.half_width**2 / 3 * jnp.eye(dim)


class SphereInputs(AbstractInputs):
    r"""Uniform on the sphere of a ``radius`` r, as Cheng et al. have it with r = 1."""

    radius: Float[Array, ""] = eqx.field(converter=partial(real, "radius"))

    def __check_init__(self) -> None:
        NON_NEGATIVE.require_leaf("radius", self.radius)

    def sample(self, dim: int, *, key: PRNGKeyArray) -> Float[Array, " dim"]:
        """A standard normal vector, scaled to the radius."""
        g = jax.random.normal(key, (dim,), self.radius.dtype)
        return self.radius * (g / jnp.linalg.norm(g))

    def second_moment(self, dim: int) -> Float[Array, "dim dim"]:
        r""":math:`(r^2/d)\, I`."""
        return self.radius**2 / dim * jnp.eye(dim)


class AbstractWeights(AbstractVectors):
    """A distribution of task vectors."""


class GaussianWeights(Gaussian, AbstractWeights):
    r""":math:`w \sim N(0, C)`: infinitely many tasks, isotropic for :math:`C = 1`, or any covariance."""


class WeightPool(AbstractWeights):
    r"""A finite pool :math:`w_1, \dots, w_k`, drawn from uniformly; ``distribution`` is what the pool came from.

    Tasks of the pool are what pretraining has seen (in-distribution generalisation, IDG); fresh draws
    of ``distribution`` are what it has not (in-context learning, ICL).
    """

    weights: Float[Array, "task dim"]
    distribution: GaussianWeights

    @classmethod
    @eqx.filter_jit
    def init(cls, distribution: GaussianWeights, size: int, dim: int, *, key: PRNGKeyArray) -> "WeightPool":
        """A pool of ``size`` independent draws of ``distribution``."""
        require_integer("size", size)
        require_integer("dim", dim)
        require_key(key)
        draws = jax.vmap(lambda k: distribution.sample(dim, key=k))(jax.random.split(key, size))
        return cls(draws, distribution)

    def sample(self, dim: int, *, key: PRNGKeyArray) -> Float[Array, " dim"]:
        """A member of the pool, uniformly: 32 random bits modulo its size, even to within size / 2^32."""
        return self.weights[jax.random.bits(key, (), "uint32") % jnp.uint32(self.weights.shape[0])]
