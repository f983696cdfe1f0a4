r"""A prior beside the localization: a normal density with its own centre and width, in a box or not."""

import math
from numbers import Real
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from icllab.core.errors import expected

Vector = Float[Array, " parameter"]


class Prior(eqx.Module):
    r"""A density of the parameters, which multiplies the localization; each field is a number, or a tree like them.

    .. math:: \varphi(w) \propto \exp\Bigl(-\sum_i\frac{(w_i-c_i)^2}{2s_i^2}\Bigr)\,\prod_i1[l_i\le w_i\le u_i]

    Steps are reflected at the walls of the box; ``NUTS()`` refuses what is outside of it.

    Attributes:
        centre: :math:`c`.
        std: :math:`s > 0`; infinite: the density is uniform.
        lower: :math:`l`, infinite where there is no box.
        upper: :math:`u > l`, infinite where there is no box.
    """

    centre: Any = 0.0
    std: Any = math.inf
    lower: Any = -math.inf
    upper: Any = math.inf

    def energy(self, w: Vector) -> Float[Array, ""]:
        """Minus the logarithm of the density, up to a constant."""
        inside = jnp.all((w >= self.lower) & (w <= self.upper))
        return jnp.where(inside, jnp.sum(((w - self.centre) / self.std) ** 2) / 2, jnp.inf)

    def reflected(self, w: Vector) -> tuple[Vector, Vector]:
        """The point reflected into the box, and -1 for each coordinate that runs backwards after that, 1 for others."""
        width = self.upper - self.lower
        offset, closed = jnp.mod(w - self.lower, 2 * width), jnp.isfinite(width)
        back = closed & (offset > width)
        inside = self.lower + jnp.where(back, 2 * width - offset, offset)
        # What is rounded out of the box would be stuck there.
        return jnp.where(closed, jnp.clip(inside, self.lower, self.upper), w), jnp.where(back, -1, 1).astype(w.dtype)

    def of_vector(self, point: Vector, like: Any) -> "Prior":
        """The prior of parameters as one vector, of a tree ``like`` theirs.

        Raises:
            InputError: A field has another shape or is out of its range, or the point is outside of the box.
        """
        fields = {name: _flat(name, value, point, like) for name, value in vars(self).items()}
        (centre, std, lower, upper), at = fields.values(), np.asarray(point)
        hint = "Prior(std=1.0), or Prior(lower=-1.0, upper=1.0)"
        if not (np.isfinite(centre).all() and (std > 0).all() and (np.isfinite([std, lower, upper]).any())):
            raise expected("prior", "a finite centre, a positive std, and a finite std or a box", self, hint)
        if not ((lower <= at) & (at <= upper) & (lower < upper) & (np.isinf(lower) == np.isinf(upper))).all():
            raise expected("prior", "lower below upper, and the point between them", self, hint)
        return Prior(**{name: jnp.asarray(value, point.dtype) for name, value in fields.items()})


def _flat(name: str, value: Any, point: Vector, like: Any) -> np.ndarray:
    if isinstance(value, Real):
        return np.full(point.shape, float(value))
    params = eqx.filter(value, eqx.is_inexact_array)
    if [np.shape(leaf) for leaf in jax.tree.leaves(params)] != [leaf.shape for leaf in jax.tree.leaves(like)]:
        raise expected("prior", f"a {name} that is a number or a tree like the parameters", type(value).__name__)
    return np.asarray(ravel_pytree(params)[0], np.float64)
