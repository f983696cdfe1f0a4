r"""An induction head reduced to three strengths: for the preceding token, for the match, and for labels.

.. math:: v_i = \sum_{j \le i} \operatorname{softmax}_{j \le i}\bigl(\beta_1 [j = i - 1]\bigr)\, x_j, \qquad
          w = \sum_j \operatorname{softmax}_j\bigl(\alpha \langle x_q, v_j \rangle
              + \beta_2 [j \text{ is a label}]\bigr)\, x_j

The x are contents; positions are known, and what a layer collects is kept apart from what was there. The pair
:math:`(x_q, w)` is classified.
"""

from functools import partial
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.domains import FINITE
from icllab.core.errors import require_integer
from icllab.core.prompt import ItemLabelPrompt
from icllab.core.protocols import AbstractModel, Edit, Trace
from icllab.core.vocabularies import in_vocabulary
from icllab.models.interventions.recording import Recorder
from icllab.models.networks.attention import masked_softmax
from icllab.models.networks.classifier import Classifier


def _strength(name: str, value: Any) -> Array:
    """A strength as an array; raise unless it is a number."""
    FINITE.require_scalar(name, value)
    return jnp.asarray(value, float)


class Reader(eqx.Module):
    r"""A classifier with one strength: the logit of a label is :math:`\xi` times the attention to its tokens."""

    xi: Float[Array, ""]
    labels: int = eqx.field(static=True)


class MinimalHead(AbstractModel):
    r"""The induction head with strengths :math:`\beta_1, \alpha, \beta_2` for its two layers of attention.

    With :meth:`reading` the classifier is one more strength :math:`\xi`. That is the landscape of
    :mod:`icllab.theory.induction_landscape` on real prompts: there contents are orthogonal, positions are all the
    middle one, and what attention without preference takes up of every token is left out.

    Activations: ``attention1`` [T, T], ``buffer``, the :math:`v_i` [T, D], ``scores2`` and ``attention2`` of the query
    [T], ``update2``, the w [D], ``hidden1``, ... of the classifier, and ``logits`` [1, L].

    Attributes:
        beta1: :math:`\beta_1`, attention to the token before.
        alpha: :math:`\alpha`, attention to what has collected what looks like the query.
        beta2: :math:`\beta_2`, attention to labels.
        classifier: Reads :math:`(x_q, w)`, or the attention itself.

    Source: [Reddy24].
    """

    beta1: Float[Array, ""] = eqx.field(converter=partial(_strength, "beta1"))
    alpha: Float[Array, ""] = eqx.field(converter=partial(_strength, "alpha"))
    beta2: Float[Array, ""] = eqx.field(converter=partial(_strength, "beta2"))
    classifier: Classifier | Reader

    @classmethod
    def init(
        cls,
        *,
        dim: int,
        labels: int,
        beta1: float | Array = 0.0,
        alpha: float | Array = 0.0,
        beta2: float | Array = 0.0,
        depth: int = 3,
        key: PRNGKeyArray,
    ) -> "MinimalHead":
        """Draw a head with a classifier of ``depth`` ReLU layers on the 2D entries of :math:`(x_q, w)`."""
        require_integer("dim", dim)
        return cls(beta1, alpha, beta2, Classifier(2 * dim, labels, depth=depth, key=key))

    @classmethod
    def reading(
        cls,
        *,
        labels: int,
        beta1: float | Array = 0.0,
        alpha: float | Array = 0.0,
        beta2: float | Array = 0.0,
        xi: float | Array = 0.0,
    ) -> "MinimalHead":
        r"""Use the logit :math:`\xi \sum_{j \text{ shows } l} a_j` for label l, where a is the query's attention."""
        require_integer("labels", labels)
        return cls(beta1, alpha, beta2, Reader(_strength("xi", xi), labels))

    @property
    def positions(self) -> Literal["every", "last"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """``"last"``: the query after the whole context."""
        return "last"

    def trace(self, prompt: ItemLabelPrompt, edit: Edit | None = None) -> Trace:
        """Predict, and record the named activations."""
        record = Recorder(edit)
        x = prompt.content()
        place = np.arange(len(x))
        visible = place[:, None] >= place
        before = self.beta1 * jnp.asarray(place[:, None] == place + 1, x.dtype)
        attention = record("attention1", masked_softmax(before, jnp.asarray(visible)))
        buffer = record("buffer", attention @ x)
        is_label = jnp.asarray(place % 2 == 1, x.dtype)
        scores = record("scores2", self.alpha * (buffer @ x[-1]) + self.beta2 * is_label)
        attention = record("attention2", jax.nn.softmax(scores))
        content = record("update2", attention @ x)
        if isinstance(self.classifier, Reader):
            logits = self.classifier.xi * label_mass(attention, prompt, self.classifier.labels)[None]
        else:
            logits = self.classifier(jnp.concatenate([x[-1], content]), record)
        return Trace(record("logits", logits), record.activations)


def label_mass(attention: Float[Array, " token"], prompt: ItemLabelPrompt, labels: int) -> Float[Array, " label"]:
    r"""The attention of the query to the tokens of each label, :math:`\sum_{j \text{ shows } l} a_j`.

    NaN where a label of the context is traced and none of them.
    """
    valid = in_vocabulary("labels", prompt.labels[:-1], labels)
    shows = prompt.labels[:-1, None] == jnp.arange(labels, dtype=prompt.labels.dtype)[None]
    return jnp.where(jnp.all(valid), attention[1::2] @ shows.astype(attention.dtype), jnp.nan)
