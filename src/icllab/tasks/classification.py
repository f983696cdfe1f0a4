"""Tasks whose answer is one of finitely many: cross-entropy and accuracy."""

import abc
from typing import Any

import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int

from icllab.core.errors import expected
from icllab.core.protocols import AbstractTask
from icllab.tasks.regression import answered


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

        for logits f and the right answer t.

        Raises:
            InputError: There are not as many logits as classes, or answers at another number of positions.
        """
        # A sum over all classes, since the gradient of a look-up is slow to scatter.
        targets = self._asked(prediction, prompt)
        right = jnp.where(targets[:, None] == jnp.arange(prediction.shape[1], dtype=targets.dtype)[None], prediction, 0)
        return logsumexp(prediction, axis=1) - jnp.sum(right, axis=1)

    def accuracy(self, prediction: Array, prompt: Any) -> Float[Array, " answered"]:
        """1 where the largest logit (the first of equal ones) is that of the right answer, else 0.

        NaN where the largest is not finite, as of logits that are NaN. Errors are those of :meth:`loss`.
        """
        targets = self._asked(prediction, prompt)
        right = (jnp.argmax(prediction, axis=1).astype(targets.dtype) == targets).astype(prediction.dtype)
        return jnp.where(jnp.isfinite(jnp.max(prediction, axis=1)), right, jnp.nan)

    def _asked(self, prediction: Array, prompt: Any) -> Int[Array, " answered"]:
        if prediction.ndim == 2 and prediction.shape[1] != self.class_count:
            raise expected("prediction", f"{self.class_count} classes", prediction.shape[1])
        return self.targets(prompt)[-answered(prediction, prompt, self.class_count) :]
