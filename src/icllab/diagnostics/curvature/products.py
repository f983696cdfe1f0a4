r"""Symmetric matrices over all parameters of a loss, given by their products with vectors."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from icllab.diagnostics.sampling.posteriors import Vector, hessian_product
from icllab.diagnostics.sampling.sampled_losses import VectorLoss, sample_count, vector_loss


class Curvature(eqx.Module):
    """A symmetric matrix over all parameters as one vector."""

    loss: Callable[..., Any]
    at: Any
    data: Any = None
    batch: int | None = eqx.field(static=True, default=None)

    @abstractmethod
    def __call__(self, v: Vector) -> Vector:
        """The product with a vector."""

    @property
    def centre(self) -> Vector:
        """The parameters as one vector."""
        return vector_loss(self.loss, self.at, self.data)[1]

    def of_vector(self, function: Callable[..., Any]) -> VectorLoss:
        """Convert a function of the parameters to a function of the vector; other leaves stay constant."""
        return vector_loss(function, self.at, self.data)[0]

    def total(self, w: Vector, *data: Any) -> Any:
        """Loss at a vector, summed over terms."""
        loss = self.of_vector(self.loss)
        return jnp.sum(loss.of(w, *data) if data else loss(w))

    def averaged(self, function: Callable[..., Any]) -> Any:
        """Mean of a function over all samples, in batches."""
        if self.data is None:
            return function()
        count = sample_count(self.data)
        size = min(self.batch or count, count)
        blocks, remainder = divmod(count, size)
        head = jax.tree.map(lambda a: a[: blocks * size].reshape(blocks, size, *a.shape[1:]), self.data)
        if blocks == 1 and not remainder:
            return function(self.data)
        total = size * jnp.sum(jax.lax.map(function, head), axis=0)
        if remainder:
            total = total + remainder * function(jax.tree.map(lambda a: a[blocks * size :], self.data))
        return total / count


class Hessian(Curvature):
    r"""Products :math:`v\mapsto\nabla^2L\,v` of a loss, or of the mean of ``loss(parameters, batch)`` over data."""

    def __call__(self, v: Vector) -> Vector:
        """The product."""

        def product(*data: Any) -> Vector:
            return hessian_product(self.loss, jax.grad(lambda w: self.total(w, *data)), self.centre, v)

        return self.averaged(product)


class EmpiricalFisher(Curvature):
    r"""Products with :math:`\frac1n\sum_i g_ig_i^\top`, of the gradients of the samples' losses."""

    def __call__(self, v: Vector) -> Vector:
        """The product."""

        def product(data: Any) -> Vector:
            def losses(w: Vector) -> Array:
                return jax.vmap(lambda sample: self.total(w, jax.tree.map(lambda a: a[None], sample)))(data)

            tangents = jax.jvp(losses, (self.centre,), (v,))[1]
            return jax.vjp(losses, self.centre)[1](tangents / sample_count(data))[0]

        return self.averaged(product)


class GaussNewton(Curvature):
    r"""Products with :math:`E\,J^\top\nabla_z^2\ell\,J` of a loss of outputs z, :math:`J = \partial z/\partial w`."""

    outputs: Callable[..., Any] = eqx.field(kw_only=True)

    def __call__(self, v: Vector) -> Vector:
        """The product."""

        def product(data: Any) -> Vector:
            def outputs(w: Vector) -> Any:
                return self.of_vector(self.outputs).of(w, data)

            z, tangents = jax.jvp(outputs, (self.centre,), (v,))
            cotangents = jax.jvp(jax.grad(lambda z: jnp.sum(self.loss(z, data))), (z,), (tangents,))[1]
            return jax.vjp(outputs, self.centre)[1](cotangents)[0]

        return self.averaged(product)
