"""The Fisher matrix of a network's answers to one program, and its effective dimension."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from icllab.core.prompt import TokenPrompt
from icllab.tasks import StringPrograms


def effective_dimension(network: Any, task: StringPrograms, prompts: TokenPrompt, *, resolution: float) -> float:
    r""":math:`\sum_i h_i / (h_i + \rho)` over the eigenvalues of :func:`fisher_eigenvalues`."""
    h = np.clip(np.asarray(fisher_eigenvalues(network, task, prompts), float), 0, None)
    return float(np.sum(h / (h + resolution)))


@eqx.filter_jit
def fisher_eigenvalues(network: Any, task: StringPrograms, prompts: TokenPrompt) -> Float[Array, " mode"]:
    r"""Eigenvalues of F, padded with zeros to the number of answer logits, on stacked prompts of the longest strings.

    .. math:: F = \frac1m\sum_{i=1}^m J_i^\top\bigl(\operatorname{diag} p_i - p_ip_i^\top\bigr)J_i

    for the probabilities :math:`p_i` of a symbol of an answer and the derivative :math:`J_i` of its logits. With
    :math:`B_i = \operatorname{diag}(\sqrt{p_i})\,(1 - \mathbf 1p_i^\top)J_i` the middle is :math:`B_i^\top B_i`, so
    that :math:`BB^\top`, which is smaller, has the eigenvalues.
    """
    params, static = eqx.partition(network, eqx.is_inexact_array)
    weights, whole = ravel_pytree(params)

    def rows(prompt: TokenPrompt) -> Array:
        (at,) = jnp.nonzero(task.answers(prompt), size=max(task.lengths))

        def logits(w: Array) -> Array:
            return eqx.combine(whole(w), static)(prompt)[at]

        derivative, p = jax.jacrev(logits)(weights), jax.nn.softmax(logits(weights), axis=1)
        mean = jnp.sum(p[:, :, None] * derivative, axis=1, keepdims=True)
        return (jnp.sqrt(p)[:, :, None] * (derivative - mean)).reshape(-1, weights.size)

    b = jax.lax.map(rows, prompts)
    b = b.reshape(-1, weights.size) / (b.shape[0] * max(task.lengths)) ** 0.5
    return jnp.linalg.eigvalsh(b @ b.T)
