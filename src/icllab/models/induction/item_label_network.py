r"""Two layers of attention and a classifier, as in the study of abrupt learning.

.. math:: h_i = x_i + \sum_{j \le i} a_{ij}\, x_j W_V, \qquad
          a_{ij} = \operatorname{softmax}_{j \le i} \langle x_i W_Q,\, x_j W_K \rangle

for each layer, where x is what the layer is given: one head, no scaling, no layer norm, no biases, and no matrix after
the values. A token is its place as a unit vector beside its content. Of the last layer the query's row alone is read.
"""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.errors import expected, kind_of, require_integer, require_key, unknown
from icllab.core.prompt import ItemLabelPrompt
from icllab.core.protocols import AbstractModel, Edit, Trace
from icllab.models.induction.placed_rows import PlacedRows, Updated, WrittenOut
from icllab.models.interventions.recording import Recorder
from icllab.models.networks.attention import masked_softmax
from icllab.models.networks.classifier import Classifier
from icllab.models.networks.dense import product, require_spread
from icllab.tasks.item_bursts import ItemBursts
from icllab.tasks.item_label import ItemLabel

KINDS = ("softmax", "linear")
FORMS = ("plain", "reassociated")


class Head(eqx.Module):
    """The weights of one head, which multiply rows from the right: ``x @ weight``."""

    query: Float[Array, "width width"]
    key: Float[Array, "width width"]
    value: Float[Array, "width width"]


class ItemLabelNetwork(AbstractModel):
    r"""The attention-only network that answers item-label prompts at its last token.

    Queries, keys and values are drawn from :math:`N(0, 1/D)` with D the dimension of a token's content; the classifier
    has its own distribution. With ``attention="linear"`` the pattern of a layer is its scores, divided by the number
    of tokens that are seen.

    Activations, of two layers on T tokens of width d = P + D: ``tokens`` [T, d]; ``scores1``, before the mask, and
    ``attention1`` [T, T] (row: who looks, column: at whom); ``update1``, what the layer adds, and ``layer1`` [T, d];
    ``scores2`` and ``attention2`` [T], of the query token; ``update2`` and ``layer2`` [d]; ``hidden1``, ``hidden2``,
    ... [d]; ``logits`` [1, L]. With one layer there is only that of the query token, under the names that end in 1.

    The form ``"reassociated"`` is the same function, with one product by a :math:`d \times d` matrix for each token
    instead of five, and none with the positions:

    .. math:: \langle x_i W_Q, x_j W_K \rangle = x_i\, (W_Q^{} W_K^\top)\, x_j^\top, \qquad
              h_j w = x_j w + m_j (W_V w), \quad m_j = \sum_k a_{jk} x_k .

    Both name the same activations, and both can be edited in all of them.

    Attributes:
        layers: Query, key and value of each layer.
        classifier: Reads the last token.
        position_dim: P.
        attention: ``"softmax"`` or ``"linear"``, of each layer (static).
        form: ``"plain"`` or ``"reassociated"`` (static).

    Source: [Reddy24].
    Derived: docs/models.md, The item-label network in another order.
    """

    layers: tuple[Head, ...]
    classifier: Classifier
    position_dim: int = eqx.field(static=True)
    attention: tuple[str, ...] = eqx.field(static=True)
    form: str = eqx.field(static=True)

    def __init__(
        self,
        *,
        dim: int,
        position_dim: int,
        labels: int,
        layers: int = 2,
        depth: int = 3,
        attention: str | tuple[str, ...] = "softmax",
        form: str = "reassociated",
        std: float | None = None,
        key: PRNGKeyArray,
    ):
        """Draw the weights.

        Args:
            dim: D, of a token's content.
            position_dim: P.
            labels: L.
            layers: Number of layers of attention, 1 or 2.
            depth: ReLU layers of the classifier; 0: a linear read-out alone.
            attention: Kind of attention, of all layers or of each.
            form: How it is computed.
            std: Standard deviation of queries, keys and values; None: one over the root of D.
            key: Key of the weights.

        Raises:
            InputError: A name is unknown, or there are other than one or two layers.
        """
        require_integer("dim", dim)
        require_integer("position_dim", position_dim, least=0)
        if isinstance(layers, bool) or layers not in (1, 2):
            raise expected("layers", "1 or 2", layers)
        require_integer("layers", layers)
        if not isinstance(attention, str | list | tuple):
            raise expected("attention", f"one name, or {layers}, one for each layer", attention)
        kinds = (attention,) * layers if isinstance(attention, str) else tuple(attention)
        for kind in kinds:
            if kind not in KINDS:
                raise unknown("attention", kind, KINDS)
        if len(kinds) != layers:
            raise expected("attention", f"one name, or {layers}, one for each layer", list(kinds))
        if form not in FORMS:
            raise unknown("form", form, FORMS)
        require_spread("std", std)
        require_key(key)
        of_layers, of_classifier = jax.random.split(key)
        width = position_dim + dim
        spread = dim**-0.5 if std is None else std
        weights = spread * jax.random.normal(of_layers, (layers, 3, width, width))
        self.layers = tuple(Head(*weights[i]) for i in range(layers))
        self.classifier = Classifier(width, labels, depth=depth, key=of_classifier)
        self.position_dim = position_dim
        self.attention = kinds
        self.form = form

    @classmethod
    def from_task(
        cls,
        task: ItemLabel | ItemBursts,
        *,
        layers: int = 2,
        depth: int = 3,
        attention: str | tuple[str, ...] = "softmax",
        form: str = "reassociated",
        std: float | None = None,
        key: PRNGKeyArray,
    ) -> "ItemLabelNetwork":
        """Build a network of the sizes of a task; the other arguments are as for the constructor."""
        if not all(hasattr(task, name) for name in ("dim", "position_dim", "labels")):
            raise expected("task", "an item-label task", kind_of(task))
        sizes = {"dim": task.dim, "position_dim": task.position_dim, "labels": task.labels}
        return cls(**sizes, layers=layers, depth=depth, attention=attention, form=form, std=std, key=key)

    @property
    def positions(self) -> Literal["every", "last"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """``"last"``: the query after the whole context."""
        return "last"

    def trace(self, prompt: ItemLabelPrompt, edit: Edit | None = None) -> Trace:
        """Predict, and record the named activations."""
        if prompt.position_dim != self.position_dim:
            raise expected(
                "prompt",
                f"tokens with {self.position_dim} positions",
                prompt.position_dim,
                "build the network with from_task",
            )
        record = Recorder(edit)
        original = prompt.tokens()
        tokens = record("tokens", original)
        if self.form == "plain":
            last = self._plain(tokens, record)
        else:
            # What was edited may have no unit vectors any more, and is content throughout.
            rows = PlacedRows.from_prompt(prompt) if tokens is original else PlacedRows.all_content(tokens)
            last = self._reassociated(tokens, rows, record)
        return Trace(record("logits", self.classifier(last, record)), record.activations)

    def _plain(self, x: Float[Array, "token width"], record: Recorder) -> Float[Array, " width"]:
        """The query token after all layers, with products in the order of the formula."""
        if len(self.layers) == 2:
            head = self.layers[0]
            scores = product(x, head.query) @ product(x, head.key).T
            update = self._pattern(scores, 1, record) @ product(x, head.value)
            x = record("layer1", x + record("update1", update))
        head, number = self.layers[-1], len(self.layers)
        scores = product(x, head.key) @ product(x[-1:], head.query)[0]
        update = self._pattern(scores, number, record) @ product(x, head.value)
        return record(f"layer{number}", x[-1] + record(f"update{number}", update))

    def _reassociated(self, x: Float[Array, "token width"], tokens: PlacedRows, record: Recorder) -> Array:
        """The query token after all layers, with products in a cheaper order; ``tokens`` are ``x``."""
        last, number, stream = x[-1:], len(self.layers), tokens
        if number == 2:
            head = self.layers[0]
            scores = tokens.against(tokens.times(product(head.query, head.key.T)))
            sums = tokens.mixed(self._pattern(scores, 1, record))
            # The update of every token is computed only if somebody looks at it.
            update = sums.times(head.value)
            recorded_update = record("update1", update)
            layer = x + recorded_update
            after = record("layer1", layer)
            if recorded_update is update and after is layer:
                last = last + sums.last().times(head.value)
                stream = Updated(tokens, sums, head.value)
            else:
                last, stream = after[-1:], WrittenOut(after)
        head = self.layers[-1]
        scores = stream.against(product(last, product(head.query, head.key.T)))[0]
        total = stream.summed(self._pattern(scores, number, record)[None])
        update = record(f"update{number}", product(total, head.value)[0])
        return record(f"layer{number}", last[0] + update)

    def _pattern(self, scores: Float[Array, "*row token"], number: int, record: Recorder) -> Float[Array, "*row token"]:
        """Attention of every token to itself and the tokens before it, or of the query alone, which sees all."""
        scores = record(f"scores{number}", scores)
        visible = np.ones(scores.shape, bool)
        visible = np.tril(visible) if scores.ndim == 2 else visible
        if self.attention[number - 1] == "softmax":
            pattern = masked_softmax(scores, jnp.asarray(visible))
        else:
            pattern = scores * jnp.asarray(visible / visible.sum(axis=-1, keepdims=True), scores.dtype)
        return record(f"attention{number}", pattern)
