"""A fixed set of prompts as a task: the only prompts that a network trained on it has seen."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Float, Key, PRNGKeyArray

from icllab.core.domains import Domain
from icllab.core.errors import require_integer, require_key
from icllab.core.prompt import Prompt
from icllab.core.protocols import AbstractTask, require_prompts, require_task
from icllab.core.rounding import require_representable
from icllab.tasks.regression import number


class FixedPrompts(AbstractTask):
    r"""Prompts drawn uniformly, with replacement, from the first n of a set; another task gives the loss.

    .. math:: \text{prompt} = P_I, \qquad I \text{ uniform on } \{1, \dots, n\}

    The number n is a leaf. So members of an ensemble that are trained on sets of different sizes are one compiled
    program, and their sets are nested: a larger one holds every smaller one. The expected loss on this task is the
    mean training loss.

    Attributes:
        task: What the prompts were drawn from; it owns the loss.
        prompts: The set, one prompt of any kind whose arrays are stacked on a leading axis.
        size: n, a whole number from 1 to the number of prompts in the set.
    """

    task: AbstractTask
    prompts: Any
    size: Float[Array, ""] = eqx.field(converter=partial(number, "size"))

    def __check_init__(self) -> None:
        require_representable("prompts", self.prompts)
        requirement = f"a whole number from 1 to {self.count}, the prompts of the set"
        Domain(int, least=1, most=self.count, text=requirement).require_leaf("size", self.size)
        if not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(self.prompts)):
            self.require_prompts(self.prompts)

    @classmethod
    def from_task(cls, task: AbstractTask, count: int, *, key: PRNGKeyArray) -> "FixedPrompts":
        """A set of ``count`` prompts of ``task``, all in use."""
        require_task(task)
        require_integer("count", count)
        require_key(key)
        return cls(task, _stacked(task, jax.random.split(key, count)), count)

    @property
    def count(self) -> int:
        """Prompts in the whole set."""
        return jax.tree.leaves(self.prompts)[0].shape[0]

    @property
    def length(self) -> int:
        """Examples before the query of a prompt."""
        return self._prompt(jnp.zeros((), int)).length

    @property
    def accuracy(self) -> Any:
        """The accuracy of the task that the prompts were drawn from, if it is a classification."""
        return self.task.accuracy  # pyright: ignore[reportAttributeAccessIssue]

    def sample(self, *, key: PRNGKeyArray) -> Prompt:
        """One prompt of the set."""
        require_key(key)
        return self._prompt(jax.random.randint(key, (), 0, self.size.astype(int)))

    def loss(self, prediction: Array, prompt: Prompt) -> Float[Array, " position"]:
        """Loss of the task that the prompts were drawn from."""
        return self.task.loss(prediction, prompt)

    def require_prompts(self, prompts: Any) -> None:
        """Raise if the task that the prompts were drawn from cannot judge prompts."""
        require_prompts(self.task, prompts)

    def _prompt(self, index: Array) -> Prompt:
        # NaN, and no last prompt, of a size that was swept beyond the set.
        return jax.tree.map(lambda part: part.at[index].get(mode="fill") if eqx.is_array(part) else part, self.prompts)


@eqx.filter_jit
def _stacked(task: AbstractTask, keys: Key[Array, " prompt"]) -> Prompt:
    return jax.vmap(lambda key: task.sample(key=key))(keys)
