"""Which weights a context may move: parts of a model, as ``fit(trainable=...)`` takes them."""

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


def chosen(model: Any, where: Where | None, name: str = "subspace") -> Any:
    """The model with True for every floating-point array that is chosen and False else; None chooses all.

    Raises:
        InputError: The model has no such parts, or they hold no weights; or it cannot be differentiated.
    """
    for what in ("traceable", "differentiable"):
        if not declared(model, what):
            raise expected("model", f"one that is {what}", type(model).__name__)
    mask = every = jax.tree.map(eqx.is_inexact_array, model)
    if where is not None:
        none = jax.tree.map(lambda _: False, model)
        try:
            mask = eqx.tree_at(where, none, where(every))
        except (AttributeError, IndexError, TypeError, ValueError) as error:
            first = (str(error).splitlines() or [""])[0]
            raise expected(name, "parts of the model, as in equinox.tree_at", first) from error
    if not any(leaf.size for leaf in jax.tree.leaves(eqx.filter(model, mask))):
        raise expected(name, "parts of the model with floating-point arrays", "none")
    return mask


def parameters(model: Any) -> Any:
    """All floating-point arrays of a model, None in the place of what else it is."""
    return eqx.filter(model, eqx.is_inexact_array)


def with_parameters(model: Any, params: Any) -> Any:
    """The model with other floating-point arrays; None keeps what is there."""
    return eqx.combine(params, model)


def norm(tree: Any) -> float:
    """The Euclidean norm of all numbers of a tree, in float64."""
    return float(np.sqrt(sum(np.sum(np.asarray(leaf, np.float64) ** 2) for leaf in jax.tree.leaves(tree))))


def inner(left: Any, right: Any) -> float:
    """The inner product of two trees of one structure, in float64."""
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return float(sum(np.sum(np.asarray(a, np.float64) * np.asarray(b, np.float64)) for a, b in pairs))


def difference(left: Any, right: Any) -> Any:
    """One tree less another."""
    return jax.tree.map(lambda a, b: a - b, left, right)


def random_direction(params: Any, key: PRNGKeyArray) -> Any:
    """Normal numbers of the root mean square of every array; of the whole where an array is zero."""
    rng, leaves = _generator(key), jax.tree.leaves(params)
    whole = norm(params) / sum(leaf.size for leaf in leaves) ** 0.5

    def one(leaf: Array) -> Array:
        size = norm(leaf) / max(leaf.size, 1) ** 0.5
        return jnp.asarray((size or whole) * rng.normal(size=leaf.shape), leaf.dtype)

    return jax.tree.map(one, params)


def permuted(params: Any, key: PRNGKeyArray) -> Any:
    """The entries of every array in a random order: the same numbers without their structure."""
    rng = _generator(key)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.permutation(np.ravel(leaf)).reshape(leaf.shape)), params)


def _generator(key: PRNGKeyArray) -> np.random.Generator:
    """NumPy's: programs that draw in shapes of their own take longer to compile than to run."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel().tolist())
