r"""Multi-head attention; every convention on which papers disagree is a field.

.. math:: o_i = \sum_h \Big[ \frac{1}{n_i} \sum_{j \in S_i} a\big(K(q_i, k_j)\big)\, v_j \Big] W_O^{(h)},
          \qquad q = x W_Q^{(h)},\; k = x W_K^{(h)},\; v = x W_V^{(h)}

The *similarity* ``K`` is the inner product times ``scale``, or any function of a query and a key. The *weighting*
``a`` is linear, ReLU, exponential, any elementwise function, or a softmax over the keys that are seen. The
*normalisation* :math:`n_i` is 1 or the number of examples that token i sees. Which keys a token sees,
:math:`S_i`, is the layout's business.

Translation: our :math:`W_K^{} W_Q^\top` is what theory papers merge into one matrix, :math:`K^\top Q` (columns
are tokens there, rows here), and our :math:`W_V W_O` is their value or projection matrix P, transposed.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from icllab.core.domains import POSITIVE, Domain
from icllab.core.errors import expected, require_flag, require_instance, require_integer, require_key, unknown
from icllab.core.kernels import ELEMENTWISE, SOFTMAX, require_kernel
from icllab.models.interventions.recording import Record
from icllab.models.networks.dense import product, require_spread
from icllab.models.networks.embedding import Layout
from icllab.models.networks.norms import Norm, RMSNorm

Weighting: TypeAlias = str | Callable[[Array], Array]
Similarity: TypeAlias = Callable[[Array, Array], Array]

NAMES = {"normalisation": ("none", "examples"), "qk_norm": ("none", "head", "all")}
PAIRS = ("halves", "adjacent")


@dataclass(frozen=True)
class Rotary:
    r"""The rotation of queries and keys by their position (RoPE).

    .. math:: \theta_c = \text{base}^{-2c/\text{dim}} / f_c, \qquad c = 0, \dots, \text{dim}/2 - 1

    Attributes:
        base: Base of the angles' frequencies.
        dim: Number of coordinates that are turned, the first of a head; None: all of them.
        pairs: ``"halves"``: pair c is (c, c + dim/2), as in GPT-NeoX and Llama of transformers. ``"adjacent"``: pair c
            is (2c, 2c + 1), as in the paper and in GPT-J.
        factors: :math:`f_c`, by which a context is stretched: one number for all pairs, or a tuple of one for each.

    Source: [Su24].
    """

    base: float = 10_000.0
    dim: int | None = None
    pairs: str = "halves"
    factors: float | tuple[float, ...] = 1.0

    def __post_init__(self) -> None:
        factors = self.factors if isinstance(self.factors, tuple) else (self.factors,)
        for name, value in (("base", self.base), *(("factors", factor) for factor in factors)):
            POSITIVE.require_scalar(name, value)
        if self.dim is not None:
            require_integer("dim", self.dim, least=2)
        if self.pairs not in PAIRS:
            raise unknown("pairs", self.pairs, PAIRS)

    def angles(self, place: np.ndarray, size: int) -> np.ndarray:
        """The angles [place, pair] of heads of dimension ``size``."""
        half = (size if self.dim is None else self.dim) // 2
        rates = self.base ** (-np.arange(half) / half)
        return np.asarray(place)[:, None] * (rates if self.factors == 1 else rates / np.asarray(self.factors))

    def require_head(self, size: int) -> None:
        """Raise unless the rotated coordinates are pairs within a head of dimension ``size``."""
        turned = size if self.dim is None else self.dim
        if turned % 2 or turned > size:
            raise expected("dim", f"an even number of rotated coordinates, at most {size} of a head", turned)
        if isinstance(self.factors, tuple) and len(self.factors) != turned // 2:
            raise expected("factors", f"one for each of {turned // 2} pairs", len(self.factors))


class Biases(NamedTuple):
    """Biases of queries, keys and values [head, dim], and of the output [width]; None for no bias."""

    query: Float[Array, "head dim"]
    key: Float[Array, "kv_head dim"]
    value: Float[Array, "kv_head dim"]
    output: Float[Array, " width"] | None


def _head_dim(width: int, heads: int, kv_heads: int, dim: int | None) -> int:
    """Dimension of a head: ``dim``, or the width over the number of heads; raise unless sizes divide each other."""
    require_integer("width", width)
    require_integer("heads", heads)
    if dim is None and width % heads:
        raise expected("heads", f"a divisor of the width {width}", heads, "or give the head's dimension, dim=")
    dim = width // heads if dim is None else dim
    require_integer("dim", dim)
    require_integer("kv_heads", kv_heads)
    if heads % kv_heads:
        raise expected("kv_heads", f"a divisor of the {heads} heads", kv_heads)
    return dim


class Attention(eqx.Module):
    r"""Attention of the tokens of a layout over each other.

    Weights are drawn from :math:`N(0, \sigma^2)`; :math:`\sigma^2` is one over the number of inputs unless ``std``
    is given. Biases start at zero. With ``kv_heads`` < ``heads``, consecutive heads share keys and values in groups of
    ``heads / kv_heads`` [Ainslie23].

    Attributes:
        query: :math:`W_Q`.
        key: :math:`W_K`, for each head of keys and values.
        value: :math:`W_V`, likewise.
        output: :math:`W_O`.
        weighting: A name of :data:`~icllab.core.kernels.NAMES` or an elementwise function of the scores.
        similarity: A function ``(query, key) -> score`` of two vectors, or None for ``scale`` times their product.
        scale: Factor of the inner product; most often one over the root of the head's dimension, or 1.
        normalisation: ``"none"``, or ``"examples"`` for one over the number of complete examples seen (at least 1).
        rotary: The rotation of queries and keys by their place, or None.
        window: A token sees only this many of the last tokens, itself among them; None: all that the layout allows.
        score_cap: c, of scores :math:`c \tanh(s / c)`; None: the scores s themselves.
        biases: Biases of queries, keys, values [head, dim] and of the output [width]; None: there are none.
        qk_norms: Norms of queries and of keys before they are rotated, of each head or of all heads as one; or None.

    Source: the rotation of queries and keys [Su24], shared keys and values [Ainslie23].
    """

    query: Float[Array, "width head dim"]
    key: Float[Array, "width kv_head dim"]
    value: Float[Array, "width kv_head dim"]
    output: Float[Array, "head dim width"]
    weighting: Weighting = eqx.field(static=True)
    similarity: Similarity | None = eqx.field(static=True)
    scale: float = eqx.field(static=True)
    normalisation: str = eqx.field(static=True)
    rotary: Rotary | None = eqx.field(static=True)
    window: int | None = eqx.field(static=True)
    score_cap: float | None = eqx.field(static=True)
    biases: Biases | None
    qk_norms: tuple[Norm, Norm] | None

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        dim: int | None = None,
        weighting: Weighting = "softmax",
        similarity: Similarity | None = None,
        scale: float | None = None,
        normalisation: str = "none",
        rotary: Rotary | None = None,
        window: int | None = None,
        score_cap: float | None = None,
        qk_norm: str = "none",
        norm: Callable[[int], Norm] = RMSNorm,
        bias: bool | str = False,
        kv_heads: int | None = None,
        std: float | None = None,
        output_std: float | None = None,
        key: PRNGKeyArray,
    ):
        kv_heads = heads if kv_heads is None else kv_heads
        dim = _head_dim(width, heads, kv_heads, dim)
        require_kernel("weighting", weighting)
        if similarity is not None and not callable(similarity):
            raise expected("similarity", "a function of a query and a key, or None for their product", similarity)
        for name, value in (("normalisation", normalisation), ("qk_norm", qk_norm)):
            if value not in NAMES[name]:
                raise unknown(name, value, NAMES[name])
        if rotary is not None:
            require_instance("rotary", rotary, Rotary, "Rotary(), or None")
            rotary.require_head(dim)
        if window is not None:
            require_integer("window", window)
        if score_cap is not None:
            POSITIVE.require_scalar("score_cap", score_cap)
        if not (isinstance(bias, str) and bias == "qkv"):
            require_flag("bias", bias)
        if scale is not None:
            Domain(text="a finite number, or None for 1 / sqrt(dim)").require_scalar("scale", scale)
        require_spread("std", std)
        require_spread("output_std", output_std)
        require_key(key)
        of_q, of_k, of_v, of_o = jax.random.split(key, 4)
        spread = float(width**-0.5) if std is None else std
        of_output = float((heads * dim) ** -0.5) if output_std is None else output_std
        self.query = spread * jax.random.normal(of_q, (width, heads, dim))
        self.key = spread * jax.random.normal(of_k, (width, kv_heads, dim))
        self.value = spread * jax.random.normal(of_v, (width, kv_heads, dim))
        self.output = of_output * jax.random.normal(of_o, (heads, dim, width))
        self.weighting = weighting
        self.similarity = similarity
        self.scale = dim**-0.5 if scale is None else scale
        self.normalisation = normalisation
        self.rotary = rotary
        self.window, self.score_cap = window, score_cap
        of_qkv = (jnp.zeros((count, dim)) for count in (heads, kv_heads, kv_heads))
        self.biases = Biases(*of_qkv, output=None if bias == "qkv" else jnp.zeros(width)) if bias else None
        counts = (1, 1) if qk_norm == "head" else (heads, kv_heads)
        self.qk_norms = None if qk_norm == "none" else (norm(counts[0] * dim), norm(counts[1] * dim))

    @property
    def group(self) -> int:
        """Number of heads that share keys and values: head h has those of ``h // group``."""
        return self.query.shape[1] // self.key.shape[1]

    def __call__(
        self,
        x: Float[Array, "token width"],
        layout: Layout,
        record: Record = lambda _, value: value,
        rows: slice | None = None,
    ) -> Float[Array, "row width"]:
        """Weighted sums for every token (or only for ``rows``) over the tokens that it sees.

        ``record`` sees ``queries``, ``keys`` and ``values`` [token, head, dim], ``scores`` (capped, before the mask)
        and ``pattern`` [head, token, key], ``heads`` [token, head, dim]; the sum over heads is the result. With
        ``rotary`` queries and keys are the turned ones, and ``unrotated_queries``, ``unrotated_keys`` come before them.
        Keys and values have a row for each head of their own; scores and patterns, for each head of queries.
        """
        width, heads, dim = self.query.shape
        visible, count = layout.visible, layout.examples
        keys = x[: layout.keys]
        counts = heads, self.key.shape[1], self.key.shape[1]
        weights = zip((self.query, self.key, self.value), counts, strict=True)
        parts = [w.reshape(width, of * dim) for w, of in weights]
        if rows is None and layout.keys == len(visible):
            ends = counts[0] * dim, (counts[0] + counts[1]) * dim
            q, k, v = jnp.split(product(x, jnp.concatenate(parts, axis=1)), ends, axis=1)
            places = layout.place
        else:
            rows = slice(None) if rows is None else rows
            q = product(x[rows], parts[0])
            k, v = jnp.split(product(keys, jnp.concatenate(parts[1:], axis=1)), 2, axis=1)
            visible, count, places = visible[rows], count[rows], layout.place[rows]
        visible = visible[:, : layout.keys]
        if self.window is not None:
            visible = visible & (places[:, None] - layout.key_places < self.window)
        turned = None
        if self.rotary is not None:
            at = places, layout.place[: layout.keys]
            turned = tuple(functools.partial(rotated, place=place, rotary=self.rotary) for place in at)
        q, k, v = self._prepared((q, k, v), turned, record)
        if self.group > 1:
            k, v = (jnp.repeat(part, self.group, axis=1) for part in (k, v))
        scores = record("scores", self._capped(self._scores(q, k)))
        pattern = record("pattern", self._pattern(scores, visible, count))
        return self._added(record("heads", jnp.einsum("hij,jhd->ihd", pattern, v)))

    def step(
        self,
        x: Float[Array, "1 width"],
        cache: tuple[Float[Array, "kv_head slot dim"], Float[Array, "kv_head slot dim"]],
        slot: Int[Array, ""],
        distance: Int[Array, " slot"],
        turn: tuple[Array, Array] | None,
        record: Record,
    ) -> tuple[Float[Array, "1 width"], tuple[Array, Array]]:
        """The result for one more token, from kept keys and values, and these with its own in ``slot``.

        ``distance``: how many places each slot lies before the token; negative for an empty slot. ``turn``: cosines and
        sines of its rotation. ``record`` sees all but scores and pattern. The weighting is a softmax of products.
        """
        (width, heads, dim), weights = self.query.shape, (self.query, self.key, self.value)
        parts = tuple(product(x, w.reshape(width, -1)) for w in weights)
        rotary = self.rotary
        turned = None if rotary is None or turn is None else (functools.partial(_turned, turn=turn, rotary=rotary),) * 2
        q, *new = self._prepared(parts, turned, record)
        rows = (part.swapaxes(0, 1).astype(kept.dtype) for part, kept in zip(new, cache, strict=True))
        keys, values = (
            jax.lax.dynamic_update_slice_in_dim(kept, row, slot, 1) for kept, row in zip(cache, rows, strict=True)
        )
        scores = jnp.einsum("kgd,ktd->kgt", (q * self.scale).reshape(len(keys), -1, dim), keys)
        visible = (distance >= 0) & (distance < (self.window or np.iinfo(np.int32).max))
        pattern = masked_softmax(self._capped(scores), jnp.broadcast_to(visible, scores.shape))
        out = jnp.einsum("kgt,ktd->kgd", pattern, values).reshape(1, heads, dim)
        return self._added(record("heads", out)), (keys, values)

    def _prepared(
        self, parts: tuple[Array, ...], turned: tuple[Callable[[Array], Array], ...] | None, record: Record
    ) -> tuple[Array, Array, Array]:
        """Queries, keys and values with biases, norms and rotation."""
        dim = self.query.shape[2]
        q, k, v = (part.reshape(len(part), part.shape[1] // dim, dim) for part in parts)
        if self.biases is not None:
            q, k, v = (part + bias[None] for part, bias in zip((q, k, v), self.biases[:3], strict=True))
        if self.qk_norms is not None:
            normed = zip(self.qk_norms, (q, k), strict=True)
            q, k = (norm(part.reshape(-1, len(norm.scale))).reshape(part.shape) for norm, part in normed)
        if turned is not None:
            q, k = record("unrotated_queries", q), record("unrotated_keys", k)
            q, k = turned[0](q), turned[1](k)
        return record("queries", q), record("keys", k), record("values", v)

    def _capped(self, scores: Array) -> Array:
        return scores if self.score_cap is None else self.score_cap * jnp.tanh(scores / self.score_cap)

    def _added(self, values: Array) -> Array:
        """Sum of head outputs [token, head, dim] through the output's weights."""
        heads, dim, width = self.output.shape
        y = product(values.reshape(-1, heads * dim), self.output.reshape(heads * dim, width))
        return y if self.biases is None or (bias := self.biases.output) is None else y + bias[None]

    def _scores(self, q: Array, k: Array) -> Array:
        if self.similarity is None:
            return jnp.einsum("ihd,jhd->hij", q * self.scale, k)
        over_keys = jax.vmap(self.similarity, in_axes=(None, 0))
        over_queries = jax.vmap(over_keys, in_axes=(0, None))
        return jax.vmap(over_queries, in_axes=1)(q, k)

    def _pattern(self, scores: Array, visible: np.ndarray, count: np.ndarray) -> Array:
        mask = jnp.broadcast_to(jnp.asarray(visible), scores.shape)
        if self.weighting == SOFTMAX:
            pattern = masked_softmax(scores, mask)
            pattern = pattern if visible.any(axis=1).all() else jnp.where(mask, pattern, 0)
        else:
            weighting = ELEMENTWISE[self.weighting] if isinstance(self.weighting, str) else self.weighting
            # The mask comes first too: what is not seen may not overflow into the gradient.
            pattern = jnp.where(mask, weighting(jnp.where(mask, scores, 0)), 0)
        if self.normalisation == "examples":
            share = jnp.asarray(1 / np.maximum(count, 1), scores.dtype)
            pattern = pattern * jnp.broadcast_to(share[:, None], scores.shape)
        return pattern


@jax.custom_jvp
def masked_softmax(scores: Float[Array, "*rows key"], visible: Bool[Array, "*rows key"]) -> Float[Array, "*rows key"]:
    r"""Softmax over the visible keys, exactly zero on the others; uniform if no key is visible.

    Its derivative is written out, since what autodiff makes of exponentials and their sum passes over the scores
    more often. It needs no mask of its own: p is zero on what is not seen.

    .. math:: dp = p \odot (ds - \langle p, ds \rangle)
    """
    return jax.nn.softmax(jnp.where(visible, scores, float(np.finfo(scores.dtype).min)), axis=-1)


@masked_softmax.defjvp
def _(primals: tuple[Array, Array], tangents: tuple[Array, Any]) -> tuple[Array, Array]:
    pattern, change = masked_softmax(*primals), tangents[0]
    return pattern, pattern * (change - jnp.sum(pattern * change, axis=-1, keepdims=True))


def rotated(x: Float[Array, "token head dim"], place: np.ndarray, rotary: Rotary) -> Float[Array, "token head dim"]:
    r"""Each pair c of coordinates rotated by the angle :math:`\theta_c i` at position i, paired as in ``rotary``.

    The product of a query and a key then depends on their places only through the difference.

    Source: [Su24].
    """
    angles = rotary.angles(place, x.shape[-1])[:, None]
    return _turned(x, (jnp.asarray(np.cos(angles), x.dtype), jnp.asarray(np.sin(angles), x.dtype)), rotary)


def _turned(x: Array, turn: tuple[Array, Array], rotary: Rotary) -> Array:
    """The coordinates with their pairs turned by angles of these cosines and sines."""
    half = turn[0].shape[-1]
    size = 2 * half
    cos, sin = (jnp.broadcast_to(part, (*x.shape[:-1], half)) for part in turn)
    if rotary.pairs == "halves":
        a, b = x[..., :half], x[..., half:size]
        turned = jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)
    else:
        a, b = x[..., 0:size:2], x[..., 1:size:2]
        turned = jnp.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(*x.shape[:-1], size)
    return turned if size == x.shape[-1] else jnp.concatenate([turned, x[..., size:]], axis=-1)
