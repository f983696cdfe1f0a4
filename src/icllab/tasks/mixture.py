r"""A mixture of tasks: each prompt comes from one of them."""

import dataclasses
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Float, Int, PRNGKeyArray

from icllab.core.domains import NON_NEGATIVE
from icllab.core.errors import expected, kind_of, require_instance, require_key
from icllab.core.protocols import AbstractTask
from icllab.tasks.regression import real


class Mixture(AbstractTask):
    r"""Prompts of several tasks, from task i with probability :math:`w_i / \sum_j w_j`; the first task gives the loss.

    Attributes:
        tasks: Tasks whose prompts have the same arrays, and answers the same number of classes.
        weights: :math:`w_i`.
    """

    tasks: tuple[AbstractTask, ...] = eqx.field(converter=tuple)
    weights: Float[Array, " task"] = eqx.field(converter=partial(real, "weights"))

    def __check_init__(self) -> None:
        for task in self.tasks:
            require_instance("tasks", task, AbstractTask, "tasks such as ItemLabel.init(...)")
        if self.weights.shape != (len(self.tasks),) or not self.tasks:
            raise expected("weights", f"one for each of {len(self.tasks)} tasks", f"shape {self.weights.shape}")
        NON_NEGATIVE.require_leaf("weights", self.weights, axes=1)
        if not isinstance(self.weights, Tracer) and not jnp.sum(self.weights) > 0:
            raise expected("weights", "a positive sum", self.weights.tolist())
        shapes = [jax.eval_shape(task.sample, key=jax.random.key(0)) for task in self.tasks]
        counts = [getattr(task, "class_count", None) for task in self.tasks]
        if len({repr(kind) for kind in zip(shapes, counts, strict=True)}) > 1:
            raise expected("tasks", "prompts of one shape and one number of classes", [kind_of(t) for t in self.tasks])

    @property
    def length(self) -> int:
        """Examples before the query of a prompt."""
        return self.tasks[0].length  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def accuracy(self) -> Any:
        """The accuracy of the first task, if the tasks are classifications."""
        return self.tasks[0].accuracy  # pyright: ignore[reportAttributeAccessIssue]

    def at_step(self, step: Int[Array, ""]) -> "Mixture":
        """The tasks at a step of training."""
        return dataclasses.replace(self, tasks=tuple(task.at_step(step) for task in self.tasks))

    def sample(self, *, key: PRNGKeyArray) -> Any:
        """One prompt of one of the tasks."""
        require_key(key)
        return jax.tree.map(lambda part: part[0], self.sample_many(1, key=key))

    def sample_many(self, count: int, *, key: PRNGKeyArray) -> Any:
        """Draw ``count`` prompts, stacked."""
        require_key(key)
        of_choice, *keys = jax.random.split(key, 1 + len(self.tasks))
        prompts = [task.sample_many(count, key=k) for task, k in zip(self.tasks, keys, strict=True)]
        choice = jax.random.categorical(of_choice, jnp.log(self.weights), shape=(count,))
        return jax.tree.map(lambda *parts: jnp.stack(parts)[choice, jnp.arange(count)], *prompts)

    def loss(self, prediction: Array, prompt: Any) -> Float[Array, " position"]:
        """The loss of the first task."""
        return self.tasks[0].loss(prediction, prompt)

    def require_prompts(self, prompts: Any) -> None:
        """Raise if the first task cannot judge prompts."""
        self.tasks[0].require_prompts(prompts)
