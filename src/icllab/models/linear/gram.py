r"""Linear attention through the second moment of its tokens; the cost per layer does not grow with the prompt.

What a token collects is linear in it: with :math:`G = \frac1nZMZ^\top`, of the examples alone,

.. math::
    z \leftarrow (I + P_lG_{l-1}Q_l)\,z = T_lz, \qquad G_l = T_lG_{l-1}T_l^\top, \qquad G_0 = \tfrac1nZ_0MZ_0^\top,

so that after :math:`G_0` no example is needed any more.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from icllab.core.prompt import RegressionPrompt
from icllab.models.interventions.recording import Recorder

Matrices = Float[Array, "answered token token"]
Layers = Float[Array, "layer token token"]
Vectors = Float[Array, "answered token"]

_FEW = 3  # layers up to which no matrix but the first is made


def gram_prediction(
    p: Layers,
    q: Layers,
    prompt: RegressionPrompt,
    record: Recorder,
    *,
    every: bool,
    query_is_key: bool,
    normalised: bool,
) -> Float[Array, " answered"]:
    r"""The label slot of the query after all layers, if each example sees all of its prefix.

    .. math:: \hat y = [T_L\cdots T_1z_q]_{d+1}, \qquad T_lv = v + P_lG_{l-1}Q_lv, \qquad
              G_lv = T_l\,G_{l-1}\,T_l^\top v

    O(n d^2) once, for :math:`G_0`; every position has its own. For few layers everything is a product of
    :math:`G_0` with a vector, :math:`(3^L - 1)/2` of them: less than one product of matrices, above all where it is
    differentiated. For more, matrices are written out, O(d^3) for a layer.

    ``record`` sees ``gram`` (:math:`G_0`) and ``query``, then ``layer0.query`` and so on; of four layers and more also
    ``layer0.map`` (:math:`T_1`) and ``layer0.gram`` (:math:`G_1`) of every layer but the last. A query that is a key
    adds its own term :math:`\frac1nP_lz_qz_q^\top Q_lz_q` and changes no example.

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
    shallow, last = len(p) <= _FEW, len(p) - 1
    for i in range(len(p)):
        next_gram = gram
        if shallow:
            after = _through(i, gram, p, q, z)
        elif i == last:
            after = z + _applied(gram, z @ q[i].T) @ p[i].T
        else:
            change = record(f"layer{i}.map", _map(gram, p[i], q[i]))
            after, next_gram = _applied(change, z), change @ gram @ jnp.swapaxes(change, 1, 2)
        if query_is_key:
            score = share * jnp.einsum("ia,ab,ib->i", z, q[i], z)
            after = after + score[:, None] * (z @ p[i].T)
        z = record(f"layer{i}.query", after)
        if not shallow and i < last:
            gram = record(f"layer{i}.gram", next_gram)
    return z[:, -1]


def _applied(matrices: Matrices, vectors: Vectors) -> Vectors:
    return jnp.einsum("iab,ib->ia", matrices, vectors)


def _map(gram: Matrices, p: Float[Array, "token token"], q: Float[Array, "token token"]) -> Matrices:
    into, out, identity = (jnp.broadcast_to(m, gram.shape) for m in (p, q, jnp.eye(len(p), dtype=gram.dtype)))
    return identity + into @ gram @ out


def _through(layer: int, first: Matrices, p: Layers, q: Layers, v: Vectors) -> Vectors:
    """Tokens after layer ``layer``, counted from 0, from the Gram matrix before the first layer."""
    return v + _gram_times(layer, first, p, q, v @ q[layer].T) @ p[layer].T


def _gram_times(layer: int, first: Matrices, p: Layers, q: Layers, v: Vectors) -> Vectors:
    """Vectors multiplied by the Gram matrix at the input of a layer."""
    if layer == 0:
        return _applied(first, v)
    images = v + _gram_times(layer - 1, first, p, q, v @ p[layer - 1]) @ q[layer - 1]
    return _through(layer - 1, first, p, q, _gram_times(layer - 1, first, p, q, images))
