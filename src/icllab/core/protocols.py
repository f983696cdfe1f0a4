"""The three contracts: a task asks, a predictor answers, and a model answers and shows its activations.

Any task composes with any predictor and any diagnostic because these are all they know of each
other. A plain function ``predictor(prompt) -> prediction`` is a predictor too.
"""

import abc
import functools
from collections.abc import Callable
from numbers import Integral
from typing import Any, ClassVar, Literal, TypeAlias

import equinox as eqx
import jax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from icllab.core.errors import expected, kind_of, require_integer, require_key
from icllab.core.prompt import Prompt
from icllab.core.views import brief, html_table, module_repr, one_line

Predictor: TypeAlias = Callable[[Any], Array]
Edit: TypeAlias = Callable[[str, Array], Array]


class AbstractTask(eqx.Module):
    """A distribution of prompts and the loss that belongs to it.

    ``deterministic``: every key gives the same prompts. Of a task that does not declare it they are refused, since
    their standard errors would be 0.
    """

    deterministic: ClassVar[bool] = False

    __repr__ = module_repr

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
        """The loss at every position that the predictor answers (all positions, or the last)."""

    def at_step(self, step: Int[Array, ""]) -> "AbstractTask":
        """The task from which ``fit`` draws the prompts of a step; a curriculum changes it with the step."""
        del step
        return self

    def require_prompts(self, prompts: Any) -> None:
        """Raise if the task cannot judge these prompts, which are stacked on a leading axis and not traced."""
        del prompts


def require_randomness(task: Any, count: int | None = None) -> None:
    """Raise if prompts do not depend on the key, unless the task is declared ``deterministic``.

    The prompts of two keys are mapped, and not computed: JAX knows whether they have the keys' axis. With a ``count``
    they are those of ``sample_many``.
    """
    if getattr(task, "deterministic", False):
        return

    def sample(key: PRNGKeyArray) -> Any:
        prompts = task.sample(key=key) if count is None else task.sample_many(count, key=key)
        return eqx.filter(prompts, eqx.is_array)

    try:
        jax.eval_shape(jax.vmap(sample, out_axes=None), jax.random.split(jax.random.key(0)))
    except Exception:  # prompts have the axis, or the task is wrong in a way that its first use tells
        return
    hint = "draw from the key in sample, or declare deterministic = True"
    raise expected("task", "prompts that depend on the key", f"the same prompt of {kind_of(task)} for every key", hint)


def position_losses(task: Any, prediction: Array, prompt: Any) -> Float[Array, " position"]:
    """``task.loss``; raise unless it has one number for each position of the prediction, to prevent broadcasting."""
    losses = task.loss(prediction, prompt)
    if jax.numpy.shape(losses) != prediction.shape[:1]:
        actual = list(jax.numpy.shape(losses))
        raise expected("task.loss", f"one number for each of {prediction.shape[0]} positions", actual)
    return losses


def require_prompts(task: Any, prompts: Any) -> None:
    """Raise if a task that can check prompts cannot judge these stacked prompts."""
    if hasattr(task, "require_prompts"):
        task.require_prompts(prompts)


def _samples_and_judges(value: Any) -> bool:
    return not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in ("sample", "loss"))


def is_task(value: Any) -> bool:
    """True if ``value`` has methods ``sample`` and ``loss`` and is not itself callable, as a network is."""
    return _samples_and_judges(value) and not callable(value)


def require_task(task: Any, name: str = "task") -> None:
    """Raise unless ``task`` has methods ``sample`` and ``loss``; ``name`` is the argument's name."""
    if not _samples_and_judges(task):
        raise expected(name, "a task, with methods sample and loss", kind_of(task))


class AbstractPredictor(eqx.Module):
    """A function of a prompt, causal in position.

    ``positions`` says which positions are answered: ``"every"``, or ``"last"`` (the position axis
    then has length 1). ``traceable``: may be jitted and vmapped. ``differentiable``: has useful
    gradients with respect to the prompt and its own leaves. ``batched``: takes prompts stacked on a leading axis, and
    stacks its answers.
    """

    positions: ClassVar[Literal["every", "last"]] = "every"
    traceable: ClassVar[bool] = True
    differentiable: ClassVar[bool] = True
    batched: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in ("__call__", "trace"):
            if name in cls.__dict__:
                setattr(cls, name, _of_one_prompt(cls.__dict__[name]))

    @abc.abstractmethod
    def __call__(self, prompt: Any) -> Array:
        """The prediction, with leading axis ``position``."""


def _of_one_prompt(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method that answers one prompt, so that other prompts raise an error of one line."""

    @functools.wraps(method)
    def answered(self: Any, prompt: Any, *arguments: Any, **options: Any) -> Any:
        if getattr(prompt, "stack_axes", 0) > 0 and not declared(self, "batched"):
            sizes = jax.tree.leaves(prompt)[0].shape[: prompt.stack_axes]
            actual = f"{kind_of(prompt)} stacked to {sizes}"
            raise expected("prompt", "one prompt", actual, "jax.vmap(predictor)(prompts) answers each")
        try:
            return method(self, prompt, *arguments, **options)
        except AttributeError as error:
            if error.obj is not prompt:
                raise
            requirement = f"a prompt with {error.name!r}, which {type(self).__name__} reads"
            raise expected("prompt", requirement, kind_of(prompt), _instead(prompt)) from error

    return answered


def _instead(prompt: Any) -> str:
    """Name the call for a text or for ids; for other values, the call that draws a prompt."""
    if isinstance(prompt, str):
        return "TokenPrompt.from_text(text, tokenizer) makes one, and pretrained.open(path) takes texts"
    first = prompt[0] if isinstance(prompt, list | tuple) and prompt else prompt
    if isinstance(first, Integral) or getattr(getattr(first, "dtype", None), "kind", "") in ("i", "u"):
        return "TokenPrompt.from_ids(ids) makes one, and model.logits(ids) takes ids"
    return "task.sample(key=key) draws one"


class Trace(eqx.Module):
    """A prediction and the named activations on the way to it, in the order of computation."""

    prediction: Array
    activations: dict[str, Array]

    def __repr__(self) -> str:
        shapes = {name: list(value.shape) for name, value in self.activations.items()}
        return one_line("Trace", {"prediction": list(self.prediction.shape)} | shapes)

    def _repr_html_(self) -> str:
        rows = [(name, brief(value)) for name, value in self.activations.items()]
        return html_table(f"Trace, prediction {brief(self.prediction)}", ("activation", "shape and range"), rows)


class AbstractModel(AbstractPredictor):
    """A predictor whose activations can be read. ``model(prompt)`` is ``model.trace(prompt).prediction``."""

    @abc.abstractmethod
    def trace(self, prompt: Any, edit: Edit | None = None) -> Trace:
        """Run on ``prompt``; ``edit(name, value)`` may replace each named activation."""

    def __call__(self, prompt: Any) -> Array:
        """The prediction without edits."""
        return self.trace(prompt).prediction


def declared(predictor: Predictor, attribute: Literal["positions", "traceable", "differentiable", "batched"]) -> Any:
    """Value that a predictor declares; a plain function has the defaults."""
    return getattr(predictor, attribute, getattr(AbstractPredictor, attribute))


def answer_single(predictor: Predictor, prompt: Any) -> Any:
    """Answer of any predictor to one prompt; a ``batched`` predictor gets a stack of one."""
    if not declared(predictor, "batched"):
        return predictor(prompt)
    return predictor(jax.tree.map(lambda leaf: leaf[None], prompt))[0]
