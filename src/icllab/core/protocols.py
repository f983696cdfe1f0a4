"""The three contracts: a task asks, a predictor answers, a model answers and can be looked into.

Any task composes with any predictor and any diagnostic because these are all they know of each
other. A plain function ``predictor(prompt) -> prediction`` is a predictor too.
"""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, Literal, TypeAlias

import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.errors import expected, kind_of, require_integer, require_key
from icllab.core.prompt import Prompt
from icllab.core.views import brief, html_table, one_line

Predictor: TypeAlias = Callable[[Any], Array]
Edit: TypeAlias = Callable[[str, Array], Array]


class AbstractTask(eqx.Module):
    """A distribution of prompts and the loss that belongs to it."""

    @abc.abstractmethod
    def sample(self, *, key: PRNGKeyArray) -> Prompt:
        """One prompt."""

    def sample_many(self, count: int, *, key: PRNGKeyArray) -> Any:
        """Draw ``count`` independent prompts, stacked on a leading axis; a task may draw all numbers in one call."""
        require_integer("count", count, least=0)
        require_key(key)
        return jax.vmap(lambda k: self.sample(key=k))(jax.random.split(key, count))

    @abc.abstractmethod
    def loss(self, prediction: Array, prompt: Any) -> Float[Array, " position"]:
        """The loss at every position the predictor answered (all of them, or the last)."""


def _samples_and_judges(value: Any) -> bool:
    return not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in ("sample", "loss"))


def is_task(value: Any) -> bool:
    """Whether ``value`` has methods ``sample`` and ``loss``, and is no network, which is called itself."""
    return _samples_and_judges(value) and not callable(value)


def require_task(task: Any) -> None:
    """Raise unless ``task`` is an object with methods ``sample`` and ``loss``."""
    if not _samples_and_judges(task):
        raise expected("task", "a task, with methods sample and loss", kind_of(task))


class AbstractPredictor(eqx.Module):
    """A function of a prompt, causal in position.

    ``positions`` says which positions are answered: ``"every"``, or ``"last"`` (the position axis
    then has length 1). ``traceable``: may be jitted and vmapped. ``differentiable``: has useful
    gradients with respect to the prompt and its own leaves.
    """

    positions: ClassVar[Literal["every", "last"]] = "every"
    traceable: ClassVar[bool] = True
    differentiable: ClassVar[bool] = True

    @abc.abstractmethod
    def __call__(self, prompt: Any) -> Array:
        """The prediction, leading axis ``position``."""


class Trace(eqx.Module):
    """A prediction and the named activations it went through, in the order they were computed."""

    prediction: Array
    activations: dict[str, Array]

    def __repr__(self) -> str:
        shapes = {name: list(value.shape) for name, value in self.activations.items()}
        return one_line("Trace", {"prediction": list(self.prediction.shape)} | shapes)

    def _repr_html_(self) -> str:
        rows = [(name, brief(value)) for name, value in self.activations.items()]
        return html_table(f"Trace, prediction {brief(self.prediction)}", ("activation", "shape and range"), rows)


class AbstractModel(AbstractPredictor):
    """A predictor with an inside. ``model(prompt)`` is ``model.trace(prompt).prediction``."""

    @abc.abstractmethod
    def trace(self, prompt: Any, edit: Edit | None = None) -> Trace:
        """Run on ``prompt``; ``edit(name, value)`` may replace every named activation on its way."""

    def __call__(self, prompt: Any) -> Array:
        """The prediction of an unedited run."""
        return self.trace(prompt).prediction


def declared(predictor: Predictor, attribute: Literal["positions", "traceable", "differentiable"]) -> Any:
    """Value of a predictor's declaration; a plain function has the defaults."""
    return getattr(predictor, attribute, getattr(AbstractPredictor, attribute))
