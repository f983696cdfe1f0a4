r"""Linear attention in the parametrisation of the theory papers: one matrix for values, one for scores.

.. math:: Z_l = Z_{l-1} + \frac{1}{n} P_l Z_{l-1} M \big( Z_{l-1}^\top Q_l Z_{l-1} \big),
          \qquad \hat y = \pm [Z_L]_{d+1,\,n+1}

The columns of :math:`Z_0` are the examples :math:`(x_i; y_i)` and the query :math:`(x_{n+1}; 0)`; the mask M
removes the query from the keys. ``P`` is the product of output and value weights, ``Q`` of key and query weights.
"""

from collections.abc import Callable
from numbers import Real
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.errors import expected, require_flag, require_integer, require_key, unknown
from icllab.core.prompt import RegressionPrompt
from icllab.core.protocols import AbstractModel, Edit, Trace
from icllab.models.interventions.recording import Recorder
from icllab.models.linear.gram import gram_prediction
from icllab.models.networks.dense import product, require_spread
from icllab.models.networks.embedding import Joined

# The query masked as a key, examples that see each other, the answer read with a minus: Ahn et al., von Oswald et al.
MASKED: dict[str, Any] = {"sign": -1, "causal": False, "query_is_key": False}
_LU: dict[str, Any] = {"sign": 1, "causal": False, "query_is_key": True, "normalised": True}


class StackedAttention(AbstractModel):
    """Base class of linear and generalised attention; all fields except the arrays are keywords.

    Attributes:
        sign: Sign with which the answer is read, +1 [Lu24] or -1 [Ahn23].
        answers: ``"every"`` position or the ``"last"`` only.
        normalised: Whether sums are divided by the number n of examples seen (at least 1).
    """

    sign: int = eqx.field(static=True, kw_only=True)
    answers: str = eqx.field(static=True, kw_only=True)
    normalised: bool = eqx.field(static=True, kw_only=True)

    def __check_init__(self) -> None:
        if isinstance(self.sign, bool) or self.sign not in (-1, 1):
            raise expected("sign", "1 or -1", self.sign)
        require_flag("normalised", self.normalised)
        if self.answers not in ("every", "last"):
            raise unknown("answers", self.answers, ("every", "last"))

    def _require_shape(self, name: str, requirement: str, fits: Callable[[tuple[int, ...]], bool]) -> None:
        """Raise if a field is an array of another shape or a plain value; placeholders in a tree pass."""
        value = getattr(self, name)
        if value is None or isinstance(value, list | tuple | str | Real):
            raise expected(name, requirement, type(value).__name__)
        if isinstance(value, jax.Array | np.ndarray) and not fits(value.shape):
            raise expected(name, requirement, value.shape)

    @property
    def positions(self) -> Literal["every", "last"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The value of ``answers``."""
        return "every" if self.answers == "every" else "last"


class LinearAttention(StackedAttention):
    r"""L layers of linear attention on joined tokens, without any other parameter.

    Activations: ``tokens`` (rows are tokens: :math:`Z_0^\top`), then for each layer ``layer0.scores``
    (:math:`Z^\top Q Z`, row: key, column: query, before the mask and 1/n), ``layer0.update`` and ``layer0`` (the new
    tokens), last ``prediction``. Where every position is answered with ``causal=False`` and more than one layer,
    every activation but the prediction has a leading axis ``position``: the examples of each prefix become
    something else. In the Gram form, :mod:`icllab.models.linear.gram`, the activations are its own.

    Fields beside those of :class:`StackedAttention`:

    Attributes:
        p: P of each layer.
        q: Q of each layer.
        causal: Whether an example sees itself and earlier examples only, or all of its prefix.
        query_is_key: Whether the query also sees itself, as a token with label 0.
        form: ``"tokens"``, or ``"gram"``: the same predictor to rounding, at a cost for a layer that does not grow with
            the prompt. Then examples see all of their prefix, unless there is one layer.

    Source: [Ahn23], [vonOswald23], [Lu24].
    """

    p: Float[Array, "layer token token"]
    q: Float[Array, "layer token token"]
    causal: bool = eqx.field(static=True, kw_only=True)
    query_is_key: bool = eqx.field(static=True, kw_only=True)
    form: str = eqx.field(static=True, kw_only=True, default="tokens")

    def __check_init__(self) -> None:
        self._require_shape("p", "an array [layer, dim + 1, dim + 1]", lambda shape: len(shape) == 3)
        self._require_shape("q", "an array of the shape of p", lambda shape: shape == np.shape(self.p))
        require_flag("causal", self.causal)
        require_flag("query_is_key", self.query_is_key)
        if self.form not in ("tokens", "gram"):
            raise unknown("form", self.form, ("tokens", "gram"))
        if self.form == "gram" and self.causal and self.p.shape[0] > 1:
            raise expected("form", "'tokens' if examples see only earlier examples", self.form, "or causal=False")

    @classmethod
    def init(cls, *, dim: int, layers: int, std: float, key: PRNGKeyArray, **fields: Any) -> "LinearAttention":
        """Draw all entries of P and Q with standard deviation ``std`` (normal); other fields as given."""
        require_integer("dim", dim)
        require_integer("layers", layers)
        require_spread("std", std, default=False)
        require_key(key)
        return cls(*(std * jax.random.normal(key, (2, layers, dim + 1, dim + 1))), **fields)

    @classmethod
    def ahn(
        cls, *, dim: int, layers: int, std: float, answers: str = "last", form: str = "tokens", key: PRNGKeyArray
    ) -> "LinearAttention":
        """The conventions of Ahn et al.: factor 1/n, query masked as a key, answer read with a minus sign.

        Source: [Ahn23].
        """
        fields = {**MASKED, "normalised": True, "answers": answers, "form": form}
        return cls.init(dim=dim, layers=layers, std=std, key=key, **fields)

    @classmethod
    def lu(cls, *, dim: int, std: float, answers: str = "last", key: PRNGKeyArray) -> "LinearAttention":
        """The single layer of Lu, Letey et al.: factor 1/ℓ, query among the keys; their V is P, their K'Q is Q.

        Source: [Lu24].
        """
        return cls.init(dim=dim, layers=1, std=std, key=key, answers=answers, **_LU)

    @classmethod
    def from_gamma(cls, gamma: Float[Array, "dim feature"], *, answers: str = "every") -> "LinearAttention":
        """The layer with :math:`v_{21} = 0`, :math:`v_{22} = 1` that predicts as the reduced model Γ does.

        Derived: docs/models.md, From the layer to a matrix.
        """
        shape = np.shape(gamma)
        if not isinstance(gamma, jax.Array | np.ndarray) or len(shape) != 2 or shape[1] != shape[0] + 1:
            raise expected("gamma", "an array of shape (dim, dim + 1)", shape)
        dim = gamma.shape[0]
        p = jnp.zeros((dim + 1, dim + 1), gamma.dtype).at[dim, dim].set(1)
        q = jnp.zeros_like(p).at[:dim, :dim].set(dim * gamma[:, :dim].T).at[dim, :dim].set(gamma[:, dim])
        return cls(p[None], q[None], answers=answers, **_LU)

    @property
    def layers(self) -> int:
        """Number of layers."""
        return self.p.shape[0]

    @property
    def dim(self) -> int:
        """Input dimension d."""
        return self.p.shape[1] - 1

    def gamma(self) -> Float[Array, "dim feature"]:
        r"""The matrix Γ to which one layer with :math:`v_{21} = 0` reduces. Not traceable.

        .. math:: \Gamma = \pm v_{22} \Big[ \tfrac1d Q_{11}^\top \;\; q_{21} \Big],
                  \qquad \hat y = x^\top \Gamma h

        with the last row :math:`(v_{21}^\top, v_{22})` of P and the first d columns
        :math:`(Q_{11}; q_{21}^\top)` of Q.

        Raises:
            InputError: There are more layers than one, sums are not normalised, or :math:`v_{21} \ne 0`: then
                the prediction has terms that no Γ has.

        Derived: docs/models.md, From the layer to a matrix.
        """
        d = self.dim
        if self.layers != 1:
            raise expected("layers", "1 layer, to be reduced to a matrix", self.layers)
        if not self.normalised:
            raise expected("normalised", "True, as in the features of the reduced model", False)
        if np.any(np.asarray(self.p[0, d, :d]) != 0):
            largest = float(jnp.max(jnp.abs(self.p[0, d, :d])))
            hint = "inputs in the value add terms that Γ cannot express"
            raise expected("p", "a last row (0, v22)", f"|v21| up to {largest:.3g}", hint)
        q = self.q[0, :, :d]
        return self.sign * self.p[0, d, d] * jnp.concatenate([q[:d].T / d, q[d][:, None]], axis=1)

    def trace(self, prompt: RegressionPrompt, edit: Edit | None = None) -> Trace:
        """Predict, and record the named activations."""
        record = Recorder(edit)
        if self.form == "gram":
            fields = {"query_is_key": self.query_is_key, "normalised": self.normalised}
            label = gram_prediction(self.p, self.q, prompt, record, every=self.answers == "every", **fields)
            return Trace(record("prediction", self.sign * label), record.activations)
        z, weight, read = token_sums(self, prompt)
        z = record("tokens", z)
        for i in range(self.layers):
            scores = record(f"layer{i}.scores", product(z, self.q[i]) @ jnp.swapaxes(z, -1, -2))
            sums = (weight * jnp.swapaxes(scores, -1, -2)) @ z
            z = record(f"layer{i}", z + record(f"layer{i}.update", product(sums, self.p[i].T)))
        return Trace(record("prediction", self.sign * z[read]), record.activations)


def token_sums(model: Any, prompt: RegressionPrompt) -> tuple[Array, Array, Any]:
    """The tokens of a prompt, the weight of every key for every query, and the index of the answers.

    ``model`` says ``answers``, ``causal``, ``query_is_key``, ``normalised`` and ``layers``.
    """
    if model.answers == "every" and not model.causal and model.layers > 1:
        z, read = prefix_tokens(prompt), (slice(None), -1, -1)
        visible, count = _prefixes(prompt, model.query_is_key)
        count = count.astype(z.dtype)
    else:
        # In one layer nobody reads what becomes of the examples, so the causal layout serves for all.
        causal = model.causal or model.answers == "every"
        arrangement = Joined(answers=model.answers, causal=causal, query_is_key=model.query_is_key)
        layout = arrangement.layout(prompt.positions)
        z, visible = arrangement.tokens(prompt), jnp.asarray(layout.visible)
        count, read = jnp.asarray(layout.examples, z.dtype), (layout.read, -1)
    share = 1 / jnp.maximum(count, 1) if model.normalised else jnp.ones_like(count)
    return z, jnp.where(visible, share[..., None], 0), read


def prefix_tokens(prompt: RegressionPrompt) -> Float[Array, "position token feature"]:
    """Every prefix as a separate prompt: all examples, including later ones, with its query as the last token."""
    examples = jnp.concatenate([prompt.x[:-1], prompt.y[:-1, None]], axis=1)
    contexts = jnp.broadcast_to(examples, (prompt.positions, *examples.shape))
    return jnp.concatenate([contexts, jnp.pad(prompt.x, ((0, 0), (0, 1)))[:, None]], axis=1)


def _prefixes(prompt: RegressionPrompt, query_is_key: bool) -> tuple[Array, Array]:
    """Visibility in every prefix, whose examples see each other, and the number of examples that each token sees."""
    token = jnp.arange(prompt.positions)
    is_query = token == prompt.length
    before = token[None] < token[:, None]  # [position, example]
    self_attention = is_query[:, None] & is_query[None] & query_is_key
    visible = (before | is_query[None])[:, :, None] & before[:, None, :] | self_attention[None]
    return visible, jnp.broadcast_to(token[:, None], before.shape)
