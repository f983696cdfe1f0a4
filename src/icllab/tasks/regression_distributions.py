"""Distributions of inputs :math:`x` and of task vectors :math:`w` for linear regression.

A covariance is given once, in the shape that says what it is: a scalar (isotropic), a vector
(diagonal) or a symmetric matrix. All of them are leaves: they can be swept and differentiated.
"""

import abc
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int, PRNGKeyArray

from icllab.core.covariances import require_covariance
from icllab.core.domains import NON_NEGATIVE, Domain
from icllab.core.errors import expected, require_instance, require_integer, require_key, require_known
from icllab.core.views import module_repr
from icllab.tasks.regression import real

Covariance: TypeAlias = Float[Array, ""] | Float[Array, " dim"] | Float[Array, "dim dim"]
Shift: TypeAlias = Literal["orthogonal", "repeated", "random_orthant", "opposite_orthant"]
AnyArray = TypeVar("AnyArray", Array, np.ndarray)


def matrix(covariance: AnyArray, dim: int) -> AnyArray:
    """The covariance as a matrix ``[dim, dim]``; a NumPy array stays on the host and keeps its type."""
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

    __repr__ = module_repr

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


def require_dim(name: str, vectors: AbstractVectors, dim: int) -> None:
    """Raise if the covariance of a distribution, or of the inputs that it modifies, has another dimension."""
    shape = np.shape(getattr(getattr(vectors, "inputs", vectors), "covariance", 0.0))
    if any(size != dim for size in shape):
        raise expected(f"covariance of {name}", f"a covariance of {dim} dimensions", f"shape {shape}")


class GaussianInputs(Gaussian, AbstractInputs):
    r""":math:`x \sim N(0, \Sigma)`; Lu, Letey et al. use :math:`\Sigma = I/d`, most others :math:`I`."""

    @classmethod
    def rotated(cls, spectrum: Any, *, key: PRNGKeyArray) -> "GaussianInputs":
        """A covariance with random eigenvectors and eigenvalues proportional to ``spectrum``, which sum to d.

        Garg et al. have a half subspace, ``np.arange(d) < d // 2``, and a skewed one, ``1 / np.arange(1, d + 1) ** 2``.
        """
        values = NON_NEGATIVE.read("spectrum", np.asarray(spectrum, float))
        if values.ndim != 1 or not values.any():
            raise expected("spectrum", "eigenvalues [dim], not all 0", values.tolist())
        require_key(key)
        basis, _ = np.linalg.qr(np.asarray(jax.random.normal(key, 2 * values.shape), float))
        return cls(jnp.asarray((basis * (values * len(values) / values.sum())) @ basis.T, float))

    def second_moment(self, dim: int) -> Float[Array, "dim dim"]:
        """The covariance itself."""
        return matrix(self.covariance, dim)


class UniformInputs(AbstractInputs):
    """Independent entries, uniform on :math:`(-r, r)` with ``half_width`` r; von Oswald et al. use r = 1."""

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
    """Uniform on the sphere of ``radius`` r; Cheng et al. use r = 1."""

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


class ShiftedQuery(AbstractInputs):
    r"""Inputs of a prompt whose query, after n examples, has another distribution; for any task with ``inputs``.

    Position n alone is a test: before it query and examples are of one kind.

    Attributes:
        inputs: Distribution of the inputs.
        shift: ``"orthogonal"``: the query is its part orthogonal to the examples, at its own norm; 0 if they span all.
            ``"repeated"``: it is one of the examples, uniformly. ``"random_orthant"``: the examples are
            :math:`s \odot |x_i|` with random signs s; with ``"opposite_orthant"`` the query is :math:`-s \odot |x|`.
        examples: n, a leaf: one compiled program serves all; None: all positions of a prompt but the last.

    Source: [Garg22].
    """

    inputs: AbstractInputs
    shift: Shift = eqx.field(static=True)
    examples: Int[Array, ""] | None = eqx.field(converter=lambda n: n if n is None else jnp.asarray(n), default=None)

    def __check_init__(self) -> None:
        require_inputs(self.inputs)
        require_known("shift", self.shift, get_args(Shift))
        Domain(int, least=0).require_leaf("examples", self.examples)

    def sample(self, dim: int, *, key: PRNGKeyArray) -> Float[Array, " dim"]:
        """One input that is not shifted."""
        return self.inputs.sample(dim, key=key)

    def sample_many(self, count: int, dim: int, *, key: PRNGKeyArray) -> Float[Array, "count dim"]:
        """The inputs of one prompt; NaN if it is too short to have a query after n examples."""
        of_x, of_shift = jax.random.split(key)
        n = jnp.asarray(count - 1 if self.examples is None else self.examples).astype(int)
        Domain(int, least=0, most=count - 1).require_leaf("examples", n)
        x = jnp.where(n < count, self.inputs.sample_many(count, dim, key=of_x), jnp.nan)
        query, context = x[n], jnp.broadcast_to(jnp.arange(count)[:, None] < n, x.shape)
        if self.shift == "orthogonal":
            query = jnp.where(n < dim, _orthogonal(query, jnp.where(context, x, 0)), 0)
        elif self.shift == "repeated":
            query = jnp.where(n > 0, x[jax.random.randint(of_shift, (), 0, jnp.maximum(n, 1))], query)
        else:
            signs = jax.random.rademacher(of_shift, (dim,), x.dtype)
            x = jnp.where(context, signs[None] * jnp.abs(x), x)
            query = query if self.shift == "random_orthant" else -signs * jnp.abs(query)
        return x.at[n].set(query)

    def second_moment(self, dim: int) -> Any:
        """Raise, because examples and query have different second moments."""
        raise expected("inputs", "inputs of one distribution, with one second moment", type(self).__name__)


def _orthogonal(query: Float[Array, " dim"], rows: Float[Array, "row dim"]) -> Float[Array, " dim"]:
    """Project the query off the span of the rows and restore its norm; 0 if only rounding remains."""
    with jax.default_matmul_precision("float32"):
        inverse, rest = jnp.linalg.pinv(rows), query
        for _ in range(2):  # once leaves the rounding of the query itself
            rest = rest - inverse @ (rows @ rest)
    size, norm = jnp.linalg.norm(rest), jnp.linalg.norm(query)
    outside = size > 16 * jnp.finfo(rows.dtype).eps * norm
    return jnp.where(outside, rest * (norm / jnp.where(outside, size, 1)), 0)


class AbstractWeights(AbstractVectors):
    """A distribution of task vectors."""


class GaussianWeights(Gaussian, AbstractWeights):
    r""":math:`w \sim N(0, C)`: infinitely many tasks, isotropic for :math:`C = 1`, or any covariance."""


class SparseWeights(AbstractWeights):
    """Task vectors with ``nonzero`` (static) random coordinates that are centred normal; the others are 0.

    Attributes:
        variance: Variance of these; a leaf.
        candidates: Number of first coordinates that they are drawn from; None: all. A ``Curriculum`` sets it to its
            active dimensions.

    Source: [Garg22].
    """

    nonzero: int = eqx.field(static=True)
    variance: Float[Array, ""] = eqx.field(converter=partial(real, "variance"), default=1.0)
    candidates: Int[Array, ""] | None = None

    def __check_init__(self) -> None:
        require_integer("nonzero", self.nonzero)
        NON_NEGATIVE.require_leaf("variance", self.variance)

    def sample(self, dim: int, *, key: PRNGKeyArray) -> Float[Array, " dim"]:
        """Normal entries at the candidates whose random rank is below ``nonzero``."""
        of_place, of_value = jax.random.split(key)
        candidate = jnp.arange(dim, dtype=jnp.int32) < (dim if self.candidates is None else self.candidates)
        order = jnp.argsort(jnp.where(candidate, jax.random.uniform(of_place, (dim,)), jnp.inf))
        chosen = candidate & (order < self.nonzero)
        values = jax.random.normal(of_value, (dim,), self.variance.dtype)
        return jnp.where(chosen, jnp.sqrt(self.variance) * values, 0)


class WeightPool(AbstractWeights):
    r"""A finite pool :math:`w_1, \dots, w_k` with uniform draws; ``distribution`` is where the pool was drawn from.

    Tasks of the pool are what pretraining has seen (in-distribution generalisation, IDG); fresh draws
    of ``distribution`` are what it has not (in-context learning, ICL).
    """

    weights: Float[Array, "task dim"]
    distribution: GaussianWeights

    @classmethod
    @eqx.filter_jit
    def init(cls, distribution: GaussianWeights, size: int, dim: int, *, key: PRNGKeyArray) -> "WeightPool":
        """A pool of ``size`` independent draws of ``distribution``."""
        require_instance("distribution", distribution, AbstractVectors, "one such as GaussianWeights(1.0)")
        require_integer("size", size)
        require_integer("dim", dim)
        require_key(key)
        draws = jax.vmap(lambda k: distribution.sample(dim, key=k))(jax.random.split(key, size))
        return cls(draws, distribution)

    def sample(self, dim: int, *, key: PRNGKeyArray) -> Float[Array, " dim"]:
        """Draw a member of the pool uniformly: 32 random bits modulo its size, even to within size / 2^32."""
        return self.weights[jax.random.bits(key, (), "uint32") % jnp.uint32(self.weights.shape[0])]
