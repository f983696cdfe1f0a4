r"""Linear attention through the second moment of its tokens, at a cost per layer that does not grow with the prompt.

What a token collects is linear in it: with :math:`G = \frac1nZMZ^\top`, of the examples alone,

.. math::
    z \leftarrow (I + P_lG_{l-1}Q_l)\,z = T_lz, \qquad G_l = T_lG_{l-1}T_l^\top, \qquad G_0 = \tfrac1nZ_0MZ_0^\top,

so that after :math:`G_0` no example is needed any more.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from icllab.core.prompt import RegressionPrompt
from icllab.models.recording import Recorder


def gram_prediction(
    p: Float[Array, "layer token token"],
    q: Float[Array, "layer token token"],
    prompt: RegressionPrompt,
    record: Recorder,
    *,
    every: bool,
    query_is_key: bool,
    normalised: bool,
) -> Float[Array, " answered"]:
    r"""The label slot of the query after all layers, where examples see all of their prefix.

    .. math:: \hat y = [T_L\cdots T_1z_q]_{d+1}

    O(d^3) for a layer, and O(n d^2) once; for every position O(n d^3) for a layer. ``record`` sees ``gram``
    (:math:`G_0`) and ``query``, then for each layer ``layer0.map`` (:math:`T_1`), ``layer0.query``, and ``layer0.gram``
    (:math:`G_1`) if it is used. A query that is a key adds its own term :math:`\frac1nP_lz_qz_q^\top Q_lz_q` and
    changes no example.

    Derived: docs/constructions.md, The Gram form.
    """
    examples = jnp.concatenate([prompt.x[:-1], prompt.y[:-1, None]], axis=1)
    if every:
        sums = jnp.cumsum(examples[:, :, None] * examples[:, None, :], axis=0)
        sums = jnp.pad(sums, ((1, 0), (0, 0), (0, 0)))
        queries, count = jnp.pad(prompt.x, ((0, 0), (0, 1))), jnp.arange(prompt.positions)
    else:
        sums = (examples.T @ examples)[None]
        queries, count = jnp.pad(prompt.x[-1:], ((0, 0), (0, 1))), jnp.full(1, prompt.length)
    count = jnp.maximum(count, 1).astype(sums.dtype)
    share = 1 / count if normalised else jnp.ones_like(count)
    gram = record("gram", sums * share[:, None, None])
    z = record("query", queries)
    identity = jnp.broadcast_to(jnp.eye(gram.shape[-1], dtype=gram.dtype), gram.shape)
    for i in range(len(p)):
        into, out = (jnp.broadcast_to(matrix[i], gram.shape) for matrix in (p, q))
        change = record(f"layer{i}.map", identity + into @ gram @ out)
        after = jnp.einsum("iab,ib->ia", change, z)
        if query_is_key:
            score = share * jnp.einsum("ia,ab,ib->i", z, q[i], z)
            after = after + score[:, None] * (z @ p[i].T)
        z = record(f"layer{i}.query", after)
        if i < len(p) - 1:
            gram = record(f"layer{i}.gram", change @ gram @ jnp.swapaxes(change, 1, 2))
    return z[:, -1]
