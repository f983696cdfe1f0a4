"""Subspaces of weights, given as parts of a model like ``fit(trainable=...)``."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from icllab.core.errors import expected
from icllab.core.protocols import declared

Where = Callable[[Any], Any]


def parameter_mask(model: Any, where: Where | None, name: str = "subspace") -> Any:
    """Mask of a model: True for the floating-point arrays of the parts, else False; None selects all.

    Raises:
        InputError: The model lacks the parts, they hold no weights, or the model is not differentiable.
    """
    for property in ("traceable", "differentiable"):
        if not declared(model, property):
            raise expected("model", f"a {property} model", type(model).__name__)
    mask = full_mask = jax.tree.map(eqx.is_inexact_array, model)
    if where is not None:
        empty_mask = jax.tree.map(lambda _: False, model)
        try:
            mask = eqx.tree_at(where, empty_mask, where(full_mask))
        except (AttributeError, IndexError, TypeError, ValueError) as error:
            first = (str(error).splitlines() or [""])[0]
            raise expected(name, "parts of the model, as in equinox.tree_at", first) from error
    if not any(leaf.size for leaf in jax.tree.leaves(eqx.filter(model, mask))):
        raise expected(name, "parts of the model with floating-point arrays", "none")
    return mask


def parameters(model: Any) -> Any:
    """All floating-point arrays of a model; None in place of other leaves."""
    return eqx.filter(model, eqx.is_inexact_array)


def with_parameters(model: Any, params: Any) -> Any:
    """Replace floating-point arrays of a model; None keeps an array."""
    return eqx.combine(params, model)


def norm(tree: Any) -> float:
    """Euclidean norm of a tree, in float64."""
    return float(np.sqrt(sum(np.sum(np.asarray(leaf, np.float64) ** 2) for leaf in jax.tree.leaves(tree))))


def subtract(left: Any, right: Any) -> Any:
    """Left tree minus right tree."""
    return jax.tree.map(lambda a, b: a - b, left, right)


def random_direction(params: Any, key: PRNGKeyArray) -> Any:
    """Normal numbers with the root mean square of every array; of the whole tree if an array is zero."""
    rng, leaves = _generator(key), jax.tree.leaves(params)
    whole = norm(params) / sum(leaf.size for leaf in leaves) ** 0.5

    def random_array(leaf: Array) -> Array:
        size = norm(leaf) / max(leaf.size, 1) ** 0.5
        return jnp.asarray((size or whole) * rng.normal(size=leaf.shape), leaf.dtype)

    return jax.tree.map(random_array, params)


def permute(params: Any, key: PRNGKeyArray) -> Any:
    """Permute the entries of every array."""
    rng = _generator(key)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.permutation(np.ravel(leaf)).reshape(leaf.shape)), params)


def _generator(key: PRNGKeyArray) -> np.random.Generator:
    """A generator of NumPy, which compiles no program for each shape."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel().tolist())
