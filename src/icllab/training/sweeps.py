"""Which numbers differ between members: names, their product, and where a number goes."""

import inspect
import itertools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from icllab.core.errors import expected, unknown

PLACES = ("optimizer", "predictor", "task")
MODES = ("auto", "map", "vmap")


@dataclass(frozen=True)
class Sweep:
    """What members differ in, and how they are run.

    Attributes:
        values: Name -> values, as ``sweep`` of :func:`icllab.fit <icllab.training.fitting.fit>`. Empty: an ensemble's
            members as they are.
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
        """The values of each name in JAX's own float type."""
        return {name: swept_values(name, values) for name, values in self.values.items()}


def seed_numbers(seeds: int | Iterable[int]) -> tuple[int, ...]:
    """``8`` means 0 to 7; a sequence is taken as it is. Each is one member's random stream, and comes once."""
    expectation = "at least one, different integers from 0 to 2^31 - 1"
    try:
        if isinstance(seeds, bool | str | bytes):
            raise TypeError
        several = tuple(range(seeds)) if isinstance(seeds, int) else tuple(operator.index(seed) for seed in seeds)
    except TypeError:
        raise expected("seeds", expectation, seeds, "seeds=2 is 0 and 1") from None
    if not several or len(set(several)) != len(several) or min(several) < 0 or max(several) >= 2**31:
        raise expected("seeds", expectation, seeds)
    return several


def swept_values(name: str, values: Any) -> np.ndarray:
    """The values of one swept number as an array in JAX's own float type."""
    found = np.asarray(values)
    if found.ndim != 1 or not found.size or found.dtype.kind not in "iuf" or not np.all(np.isfinite(found)):
        raise expected(name, "a sequence of finite numbers to sweep", values)
    return found.astype(jnp.zeros(()).dtype)


def product(axes: Mapping[str, Sequence[Any] | np.ndarray]) -> dict[str, np.ndarray]:
    """Every combination, the last axis fastest: name -> value of each combination."""
    combinations = list(itertools.product(*axes.values()))
    return {
        name: np.asarray([one[i] for one in combinations], np.asarray(values).dtype)
        for i, (name, values) in enumerate(axes.items())
    }


def require_places(names: Iterable[str], *, task: Any, predictor: Any, optimizer: Any) -> None:
    """Refuse a swept name that leads nowhere, or to something that is not a number."""
    for name in names:
        place, _, path = name.partition(".")
        if place == "optimizer":
            _require_keyword(name, path, optimizer)
            continue
        leaf = attribute({"task": task, "predictor": predictor}[place], path, name)
        if not eqx.is_inexact_array(leaf) or leaf.ndim != 0:
            came = f"{leaf.dtype}{list(leaf.shape)}" if eqx.is_array(leaf) else type(leaf).__name__
            raise expected(name, "a number that is a leaf", came, "a shape or an array is not swept in one ensemble")


def require_effect(
    names: Iterable[str], *, task: Any, predictor: Any, prompt: Any, key: PRNGKeyArray, drawn: bool
) -> None:
    """Refuse swept numbers of the task that change neither its loss nor, where some are ``drawn``, its prompts."""
    for name in names:
        if name.startswith("task.") and not _has_effect(name, task, predictor, prompt, key, drawn):
            if drawn:
                raise expected(name, "a number that prompts or loss depend on", "one without effect")
            hint = "data=16 has every seed draw so many from its own task"
            raise expected(name, "a number that the loss of given prompts depends on", "one that only draws them", hint)


def _has_effect(name: str, task: Any, predictor: Any, prompt: Any, key: PRNGKeyArray, drawn: bool) -> bool:
    """Whether a result differs along an axis of values of the number, as ``vmap`` sees it without computing any."""

    def results(values: jax.Array, prompt: Any, prediction: jax.Array, key: PRNGKeyArray) -> Any:
        def one(value: jax.Array) -> Any:
            own = replaced(task, "task", {name: value})
            made = eqx.filter(own.sample(key=key), eqx.is_array) if drawn else None
            return own.loss(prediction, prompt), made

        return jax.vmap(one, out_axes=None)(values)

    prediction = eqx.filter_eval_shape(predictor, prompt)
    try:
        eqx.filter_eval_shape(results, jax.ShapeDtypeStruct((2,), jnp.zeros(()).dtype), prompt, prediction, key)
    except Exception:
        return True  # vmap refuses to take as one what differs; what it cannot follow is not refused
    return False


def require_optimizer(optimizer: Any, names: Iterable[str]) -> None:
    """Refuse what is no optimiser and is not made one by what is swept."""
    if any(name.startswith("optimizer.") for name in names):
        return  # a factory: `require_places` has seen it
    if not all(callable(getattr(optimizer, name, None)) for name in ("init", "update")):
        hint = "call it, or sweep its arguments" if callable(optimizer) else "optax has them"
        raise expected("optimizer", "an optax optimiser, or a factory that is swept", optimizer, hint)


def _require_keyword(name: str, keyword: str, optimizer: Any) -> None:
    if hasattr(optimizer, "update") or not callable(optimizer):
        hint = "give the factory: optimizer=optax.adam with 'optimizer.learning_rate', or lambda rate: optax.sgd(rate)"
        raise expected(name, "a factory of optimisers", type(optimizer).__name__, hint)
    parameters = inspect.signature(optimizer).parameters
    if keyword not in parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        raise unknown("keyword of the optimizer", keyword, parameters)


def attribute(tree: Any, path: str, name: str) -> Any:
    """What stands at a dotted path of attributes; an unknown one is refused with the nearest."""
    for part in path.split("."):
        if not hasattr(tree, part):
            raise unknown(f"part of {name!r}:", part, getattr(tree, "__dataclass_fields__", {}))
        tree = getattr(tree, part)
    return tree


def replaced(tree: Any, place: str, numbers: Mapping[str, jax.Array]) -> Any:
    """``tree`` with the swept numbers that belong to ``place`` put in."""
    for name, value in numbers.items():
        if name.startswith(f"{place}."):
            where = _getter(name.partition(".")[2])
            tree = eqx.tree_at(where, tree, value.astype(where(tree).dtype))
    return tree


def _getter(path: str) -> Callable[[Any], Any]:
    def get(tree: Any) -> Any:
        for part in path.split("."):
            tree = getattr(tree, part)
        return tree

    return get


def swept_optimizer(optimizer: Any, numbers: Mapping[str, jax.Array]) -> Any:
    """The optimiser itself, or what its factory makes of one member's numbers."""
    keywords = {name.partition(".")[2]: value for name, value in numbers.items() if name.startswith("optimizer.")}
    return optimizer(**keywords) if keywords else optimizer
