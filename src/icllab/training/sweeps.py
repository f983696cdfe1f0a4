"""Swept numbers, which differ between members: their names, their product, and the leaves that they replace."""

import inspect
import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from icllab.core.errors import expected, unknown
from icllab.training.optimizers import Optimizer

PLACES = ("optimizer", "predictor", "task")
MODES = ("auto", "map", "vmap")


@dataclass(frozen=True)
class Sweep:
    """The numbers that differ between members, and the mode in which members run.

    Attributes:
        values: Name -> values, as ``sweep`` of :func:`icllab.fit <icllab.training.fitting.fit>`. Empty: an ensemble's
            members stay as they are.
        mode: ``"map"``: members one after the other; ``"vmap"``: side by side; ``"auto"``: one after the other on a
            processor, side by side on other devices.
    """

    values: Mapping[str, Sequence[float] | np.ndarray] = field(default_factory=dict)
    mode: str = "auto"

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise expected("mode", "'auto', 'map' or 'vmap'", self.mode)
        if not isinstance(self.values, Mapping):
            raise expected("sweep", "names and their values, or a Sweep", type(self.values).__name__)
        for name, values in self.values.items():
            place, _, path = name.partition(".")
            if place not in PLACES or not path:
                raise expected("sweep", "names like 'optimizer.rate' or 'task.noise_variance'", name)
            swept_values(name, values)
        object.__setattr__(self, "values", dict(self.values))

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The values of each name in JAX's float type."""
        return {name: swept_values(name, values) for name, values in self.values.items()}


def seed_numbers(seeds: int | Iterable[int]) -> tuple[int, ...]:
    """Different seeds: ``8`` means 0 to 7, a sequence is used unchanged. A seed is one member's random stream."""
    expectation = "at least one, different integers from 0 to 2^31 - 1"
    try:
        if isinstance(seeds, bool | str | bytes):
            raise TypeError
        numbers = tuple(range(seeds)) if isinstance(seeds, int) else tuple(operator.index(seed) for seed in seeds)
    except TypeError:
        raise expected("seeds", expectation, seeds, "seeds=2 means 0 and 1") from None
    if not numbers or len(set(numbers)) != len(numbers) or min(numbers) < 0 or max(numbers) >= 2**31:
        raise expected("seeds", expectation, seeds)
    return numbers


def swept_values(name: str, values: Any) -> np.ndarray:
    """The values of one swept number as an array in JAX's float type."""
    array = np.asarray(values)
    if array.ndim != 1 or not array.size or array.dtype.kind not in "iuf" or not np.all(np.isfinite(array)):
        raise expected(name, "a sequence of finite numbers to sweep", values)
    return array.astype(jnp.zeros(()).dtype)


def product(axes: Mapping[str, Sequence[Any] | np.ndarray]) -> dict[str, np.ndarray]:
    """Every combination, with the last axis fastest: the value of each combination by name."""
    combinations = list(itertools.product(*axes.values()))
    return {
        name: np.asarray([combination[i] for combination in combinations], np.asarray(values).dtype)
        for i, (name, values) in enumerate(axes.items())
    }


def require_places(names: Iterable[str], *, task: Any, predictor: Any, optimizer: Any) -> None:
    """Raise unless every swept name refers to a number, or to a keyword of the optimiser's factory."""
    for name in names:
        place, _, path = name.partition(".")
        if place == "optimizer":
            _require_keyword(name, path, optimizer)
            continue
        leaf = attribute({"task": task, "predictor": predictor}[place], path, name)
        if not eqx.is_inexact_array(leaf) or leaf.ndim != 0:
            kind = f"{leaf.dtype}{list(leaf.shape)}" if eqx.is_array(leaf) else type(leaf).__name__
            raise expected(name, "a number that is a leaf", kind, "a shape or an array cannot be swept in one ensemble")


def require_effect(
    names: Iterable[str], *, task: Any, predictor: Any, prompt: Any, key: PRNGKeyArray, draws: bool
) -> None:
    """Raise if a swept number of the task affects neither its loss nor, if the run ``draws`` prompts, the prompts."""
    for name in names:
        if name.startswith("task.") and not _has_effect(name, task, predictor, prompt, key, draws):
            if draws:
                raise expected(name, "a number that prompts or loss depend on", "a number without effect")
            hint = "with data=16 every seed draws 16 prompts from its own task"
            raise expected(
                name, "a number that the loss of given prompts depends on", "a number that only draws them", hint
            )


def _has_effect(name: str, task: Any, predictor: Any, prompt: Any, key: PRNGKeyArray, draws: bool) -> bool:
    """True if loss or prompts depend on the number; ``vmap`` shows this without computing them."""

    def results(values: jax.Array, prompt: Any, prediction: jax.Array, key: PRNGKeyArray) -> Any:
        def result(value: jax.Array) -> Any:
            member_task = replaced(task, "task", {name: value})
            prompts = eqx.filter(member_task.sample(key=key), eqx.is_array) if draws else None
            return member_task.loss(prediction, prompt), prompts

        return jax.vmap(result, out_axes=None)(values)

    prediction = eqx.filter_eval_shape(predictor, prompt)
    try:
        eqx.filter_eval_shape(results, jax.ShapeDtypeStruct((2,), jnp.zeros(()).dtype), prompt, prediction, key)
    except Exception:
        return True  # vmap refuses out_axes=None for results with an axis; what it cannot trace passes
    return False


def require_optimizer(optimizer: Any, names: Iterable[str]) -> None:
    """Raise unless ``optimizer`` is an optimiser, or a factory with swept keyword arguments."""
    if any(name.startswith("optimizer.") for name in names):
        return  # a factory: `require_places` has checked it
    if not all(callable(getattr(optimizer, name, None)) for name in ("init", "update")):
        hint = "call it, or sweep its arguments" if callable(optimizer) else "optax has them"
        raise expected("optimizer", "an optax optimiser, or a factory with swept arguments", optimizer, hint)


def _require_keyword(name: str, keyword: str, optimizer: Any) -> None:
    if hasattr(optimizer, "update") or not callable(optimizer):
        hint = "give the factory: optimizer=optax.adam with 'optimizer.learning_rate', or lambda rate: optax.sgd(rate)"
        raise expected(name, "a factory of optimisers", type(optimizer).__name__, hint)
    parameters = inspect.signature(optimizer).parameters
    if keyword not in parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        raise unknown("keyword of the optimizer", keyword, parameters)


def attribute(tree: Any, path: str, name: str) -> Any:
    """The attribute at a dotted path; raise with the nearest name if there is none."""
    for part in path.split("."):
        if not hasattr(tree, part):
            raise unknown(f"part of {name!r}:", part, getattr(tree, "__dataclass_fields__", {}))
        tree = getattr(tree, part)
    return tree


def replaced(tree: Any, place: str, numbers: Mapping[str, jax.Array]) -> Any:
    """Replace the leaves of ``tree`` that the swept numbers of ``place`` name."""
    for name, value in numbers.items():
        if name.startswith(f"{place}."):
            leaf = operator.attrgetter(name.partition(".")[2])
            tree = eqx.tree_at(leaf, tree, value.astype(leaf(tree).dtype))
    return tree


def swept_optimizer(optimizer: Any, numbers: Mapping[str, jax.Array]) -> Any:
    """The optimiser itself, or the optimiser that its factory makes from a member's numbers."""
    optimizer = optimizer.value if isinstance(optimizer, Optimizer) else optimizer
    keywords = {name.partition(".")[2]: value for name, value in numbers.items() if name.startswith("optimizer.")}
    return optimizer(**keywords) if keywords else optimizer
