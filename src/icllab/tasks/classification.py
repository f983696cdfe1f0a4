"""Tasks whose answer is one of finitely many classes, or a sign: cross-entropy and accuracy."""

import abc
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from icllab.core.errors import expected, kind_of, require_key
from icllab.core.prompt import RegressionPrompt, scored_positions
from icllab.core.protocols import AbstractTask
from icllab.core.vocabularies import are_ids, in_vocabulary
from icllab.tasks.curriculum import Curriculum
from icllab.tasks.regression import AbstractRegression, answered, answered_mask


class AbstractClassification(AbstractTask):
    """A task with a right answer at every position; predictions are logits."""

    @property
    @abc.abstractmethod
    def class_count(self) -> int:
        """Number of classes; a prediction has a logit for each."""

    @abc.abstractmethod
    def targets(self, prompt: Any) -> Int[Array, " position"]:
        """The right answer at every position."""

    def loss(self, prediction: Array, prompt: Any) -> Float[Array, " answered"]:
        r"""Cross-entropy in nats at the positions answered (every, or the last).

        .. math:: -\ln \frac{e^{f_t}}{\sum_c e^{f_c}}

        for logits f and the right answer t. NaN where the prompt is masked, and where t is no class.

        Raises:
            InputError: There are not as many logits as classes, or answers at another number of positions.
        """
        targets, valid = self._targets(prediction, prompt)
        mask = answered_mask(len(targets), prompt)
        if mask is not None:  # first too: no gradient of what is masked
            prediction = jnp.where(jnp.broadcast_to(mask[:, None], prediction.shape), prediction, 0)
        # A sum over all classes, since the gradient of a look-up is slow to scatter.
        right = jnp.where(targets[:, None] == jnp.arange(prediction.shape[1], dtype=targets.dtype)[None], prediction, 0)
        return jnp.where(valid, logsumexp(prediction, axis=1) - jnp.sum(right, axis=1), jnp.nan)

    def accuracy(self, prediction: Array, prompt: Any) -> Float[Array, " answered"]:
        """1 if the right answer has the largest logit (the first of equal ones), else 0.

        NaN where the largest is not finite, as of logits that are NaN, and where :meth:`loss` is. Errors are those of
        :meth:`loss`.
        """
        targets, valid = self._targets(prediction, prompt)
        right = (jnp.argmax(prediction, axis=1).astype(targets.dtype) == targets).astype(prediction.dtype)
        return jnp.where(valid & jnp.isfinite(jnp.max(prediction, axis=1)), right, jnp.nan)

    def _targets(self, prediction: Array, prompt: Any) -> tuple[Int[Array, " answered"], Bool[Array, " answered"]]:
        """The class of each target, and whether it is a valid class at a position that is not masked."""
        if prediction.ndim == 2 and prediction.shape[1] != self.class_count:
            raise expected("prediction", f"{self.class_count} classes", prediction.shape[1])
        count = answered(prediction, prompt, self.class_count)
        targets, mask = self.targets(prompt)[-count:], answered_mask(count, prompt)
        valid = are_ids(targets, self.class_count)
        return targets, valid if mask is None else valid & mask

    def require_prompts(self, prompts: Any) -> None:
        """Raise if a right answer in stacked prompts is not a class."""
        targets, mask = jax.vmap(self.targets)(prompts), scored_positions(prompts)
        in_vocabulary("target", targets if mask is None else jnp.where(mask, targets, 0), self.class_count)


class SignLabels(AbstractTask):
    r"""The prompts of a regression with the signs of their labels, -1 or 1; a prediction f is a logit.

    .. math:: \mathrm{loss} = \ln(1 + e^f) - \tfrac{1 + y}{2} f = \ln\bigl(1 + e^{-yf}\bigr), \qquad
              \mathrm{accuracy} = [\mathrm{sign}\, f = y]

    Linear classification of Garg et al. is ``SignLabels(LinearRegression.convention("garg", dim=20, length=40))``;
    ``task`` may be any regression, or a ``Curriculum`` of one.

    Source: [Garg22].
    """

    task: AbstractRegression | Curriculum

    def __check_init__(self) -> None:
        if not isinstance(self.task, AbstractRegression | Curriculum):
            raise expected("task", "a regression such as LinearRegression, or a Curriculum", kind_of(self.task))

    @property
    def length(self) -> int:
        """Examples before the query."""
        return self.task.length  # pyright: ignore[reportAttributeAccessIssue]

    def at_step(self, step: Int[Array, ""]) -> "SignLabels":
        """The task at a step of training."""
        return dataclasses.replace(self, task=self.task.at_step(step))

    def sample(self, *, key: PRNGKeyArray) -> RegressionPrompt:
        """One prompt."""
        require_key(key)
        prompt: Any = self.task.sample(key=key)
        return dataclasses.replace(prompt, y=jnp.sign(prompt.y))

    def loss(self, prediction: Array, prompt: RegressionPrompt) -> Float[Array, " answered"]:
        """Logistic loss in nats at the positions answered (every, or the last); NaN where the prompt is masked."""
        count = answered(prediction, prompt)
        mask, right = answered_mask(count, prompt), (1 + prompt.y[-count:]) / 2
        logits = prediction if mask is None else jnp.where(mask, prediction, 0)  # no gradient of what is masked
        losses = jax.nn.softplus(logits) - right * logits
        return losses if mask is None else jnp.where(mask, losses, jnp.nan)

    def accuracy(self, prediction: Array, prompt: RegressionPrompt) -> Float[Array, " answered"]:
        """1 if prediction and label have the same sign, else 0; NaN where the loss is NaN."""
        right = (jnp.sign(prediction) == prompt.y[-answered(prediction, prompt) :]).astype(prediction.dtype)
        return jnp.where(jnp.isnan(self.loss(prediction, prompt)), jnp.nan, right)
