"""Tokens of a task as the ids of a network, after a first token such as BOS."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from icllab.core.errors import expected, require_instance, require_integer, require_key
from icllab.core.prompt import TokenPrompt
from icllab.core.vocabularies import are_ids, in_vocabulary
from icllab.tasks.regression import answered, answered_mask
from icllab.tasks.sequences import AbstractTokens


def _as_tuple(ids: Any) -> tuple[int, ...] | None:
    array = None if ids is None else np.asarray(ids)
    if array is not None and (array.ndim != 1 or array.dtype.kind not in "iu"):
        raise expected("ids", "one integer for each token", f"{array.dtype} of shape {array.shape}")
    return None if array is None else tuple(array.tolist())


class TokenIds(AbstractTokens):
    """The sequences of a token task in the ids of a network; the loss is over all logits of the network.

    The first token is never a target. The position of the first token is scored: its target is the first token of the
    task. A prediction needs a logit for each id that is a target, and may have more if ``ids`` are given.

    Attributes:
        task: Task of sequences of tokens.
        ids: Id of each token of the task, all different; None: the tokens themselves (static).
        first: Id that comes before each sequence; None: nothing does (static).
    """

    task: Any
    ids: tuple[int, ...] | None = eqx.field(static=True, converter=_as_tuple, default=None)
    first: int | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        require_instance("task", self.task, AbstractTokens, "a task of tokens such as RepeatedTokens")
        if type(prompt := jax.eval_shape(self.task.sample, key=jax.random.key(0))) is not TokenPrompt:
            raise expected("task", "a task whose prompts are all tokens", type(prompt).__name__)
        if self.first is not None:
            require_integer("first", self.first, least=0)
        size = self.task.class_count
        if self.ids is not None and (len({*self.ids}) < size or len(self.ids) != size or min(self.ids) < 0):
            raise expected("ids", f"a different id >= 0 for each of {size} tokens", self.ids)

    @property
    def class_count(self) -> int:
        """The least number of logits: the largest id that is a target, plus 1."""
        return self.task.class_count if self.ids is None else max(self.ids) + 1

    @property
    def vocabulary(self) -> int:
        """The largest id, of the first token too, plus 1."""
        return max(self.class_count, -1 if self.first is None else self.first + 1)

    @property
    def tokens(self) -> int:
        """Number of tokens, the first included."""
        return self.task.tokens + (self.first is not None)  # pyright: ignore[reportAttributeAccessIssue]

    def sample(self, *, key: PRNGKeyArray) -> TokenPrompt:
        """One sequence."""
        require_key(key)
        prompt: Any = self.task.sample(key=key)
        tokens = prompt.tokens if self.ids is None else jnp.array(self.ids, prompt.tokens.dtype)[prompt.tokens]
        if self.first is None:
            return TokenPrompt(tokens, prompt.mask)
        mask = None if prompt.mask is None else jnp.pad(prompt.mask, (1, 0), constant_values=True)
        return TokenPrompt(jnp.pad(tokens, (1, 0), constant_values=self.first), mask)

    def require_prompts(self, prompts: TokenPrompt) -> None:
        """Raise if a token is not an id."""
        in_vocabulary("tokens", prompts.tokens, self.vocabulary)

    def _targets(self, prediction: Array, prompt: Any) -> tuple[Int[Array, " answered"], Bool[Array, " answered"]]:
        """The targets among the logits of the prediction."""
        if self.ids is None and prediction.shape[-1] > self.vocabulary:
            hint = "if the network has more ids than the task, ids= says which are those of the task"
            raise expected("prediction", f"logits of at most {self.vocabulary} tokens", prediction.shape[-1], hint)
        count = answered(prediction, prompt, max((self.class_count, *prediction.shape[1:2])))
        targets, mask = self.targets(prompt)[-count:], answered_mask(count, prompt)
        valid = are_ids(targets, self.class_count)
        return targets, valid if mask is None else valid & mask
