r"""Symmetric matrices over all parameters of a loss, each known by its products with vectors."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from icllab.diagnostics.sampling.posteriors import Vector
from icllab.diagnostics.sampling.sampled_losses import VectorLoss, sample_count, vector_loss


class Curvature(eqx.Module):
    """A symmetric matrix over all parameters as one vector, known by its products."""

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
        """A function of the parameters as one of that vector; what is no floating-point array stays as it is."""
        return vector_loss(function, self.at, self.data)[0]

    def total(self, w: Vector, *data: Any) -> Any:
        """The loss there, of all terms together."""
        loss = self.of_vector(self.loss)
        return jnp.sum(loss.of(w, *data) if data else loss(w))

    def averaged(self, function: Callable[..., Any]) -> Any:
        """The mean of a function over all samples, so many at a time."""
        if self.data is None:
            return function()
        count = sample_count(self.data)
        size = min(self.batch or count, count)
        blocks, left = divmod(count, size)
        head = jax.tree.map(lambda a: a[: blocks * size].reshape(blocks, size, *a.shape[1:]), self.data)
        if blocks == 1 and not left:
            return function(self.data)
        total = size * jnp.sum(jax.lax.map(function, head), axis=0)
        if left:
            total = total + left * function(jax.tree.map(lambda a: a[blocks * size :], self.data))
        return total / count


class Hessian(Curvature):
    r"""Products :math:`v\mapsto\nabla^2L\,v` of a loss, or of the mean of ``loss(parameters, batch)`` over data."""

    def __call__(self, v: Vector) -> Vector:
        """The product."""
        return self.averaged(lambda *data: jax.jvp(jax.grad(lambda w: self.total(w, *data)), (self.centre,), (v,))[1])


class EmpiricalFisher(Curvature):
    r"""Products with :math:`\frac1n\sum_i g_ig_i^\top`, of the gradients of the samples' losses."""

    def __call__(self, v: Vector) -> Vector:
        """The product."""

        def of(data: Any) -> Vector:
            def losses(w: Vector) -> Array:
                return jax.vmap(lambda one: self.total(w, jax.tree.map(lambda a: a[None], one)))(data)

            along = jax.jvp(losses, (self.centre,), (v,))[1]
            return jax.vjp(losses, self.centre)[1](along / sample_count(data))[0]

        return self.averaged(of)


class GaussNewton(Curvature):
    r"""Products with :math:`E\,J^\top\nabla_z^2\ell\,J` of a loss of outputs z, :math:`J = \partial z/\partial w`."""

    outputs: Callable[..., Any] = eqx.field(kw_only=True)

    def __call__(self, v: Vector) -> Vector:
        """The product."""

        def of(data: Any) -> Vector:
            def outputs(w: Vector) -> Any:
                return self.of_vector(self.outputs).of(w, data)

            z, along = jax.jvp(outputs, (self.centre,), (v,))
            bent = jax.jvp(jax.grad(lambda z: jnp.sum(self.loss(z, data))), (z,), (along,))[1]
            return jax.vjp(outputs, self.centre)[1](bent)[0]

        return self.averaged(of)
