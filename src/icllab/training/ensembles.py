"""Many predictors of one shape as one predictor whose arrays have a leading member axis."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from icllab.core.errors import InputError, expected, require_key
from icllab.core.protocols import declared
from icllab.core.views import brief, html_fields, one_line
from icllab.training.sweeps import product, seed_numbers, swept_values


@dataclass(frozen=True, repr=False)
class Ensemble:
    """Predictors that differ in their arrays only.

    Attributes:
        stacked: A predictor; every array in it has a leading axis, ``member``.
        coordinates: What tells members apart: ``seed`` and every swept name, one value for each member.
    """

    stacked: Any
    coordinates: Mapping[str, np.ndarray]

    @property
    def size(self) -> int:
        """How many members."""
        return len(self.coordinates["seed"])

    def __len__(self) -> int:
        return self.size

    def member(self, index: int) -> Any:
        """One member, as a predictor of its own."""
        if self.stacked is None:
            hint = "icl.load(store, predictor) with the predictor or ensemble that was given to icl.fit"
            raise expected("members", "a run opened with its predictor", "one opened without", hint)
        if not -self.size <= index < self.size:
            raise expected("member", f"an integer from 0 to {self.size - 1}", index)
        return jax.tree.map(lambda leaf: leaf[index] if eqx.is_array(leaf) else leaf, self.stacked)

    def crossed(self, axes: Mapping[str, np.ndarray]) -> "Ensemble":
        """Every member once for each combination of the values of ``axes``, which vary fastest."""
        for name in axes:
            if name in self.coordinates:
                raise expected("sweep", "each name once", name, "the ensemble sweeps it already")
        more = product(axes)
        times = len(next(iter(more.values()))) if more else 1
        coordinates = {name: np.repeat(values, times) for name, values in self.coordinates.items()}
        coordinates |= {name: np.tile(values, self.size) for name, values in more.items()}
        stacked = jax.tree.map(
            lambda leaf: jnp.repeat(leaf, times, axis=0) if eqx.is_array(leaf) and times > 1 else leaf, self.stacked
        )
        return Ensemble(stacked, coordinates)

    def __repr__(self) -> str:
        return one_line("Ensemble", self._summary())

    def _repr_html_(self) -> str:
        return html_fields("Ensemble", self._summary())

    def _summary(self) -> dict[str, str]:
        kind = "not opened" if self.stacked is None else getattr(self.stacked, "__name__", type(self.stacked).__name__)
        summary = {"predictor": kind, "members": str(self.size)}
        return summary | {name: brief(values) for name, values in self.coordinates.items()}


def ensemble(build: Callable[..., Any], *, seeds: int | Iterable[int], key: PRNGKeyArray, **fields: Any) -> Ensemble:
    """Build one member for every seed and every combination of the swept numbers.

    ``build(key=..., **fields)`` returns a predictor. A field given as a sequence of numbers is swept, any other is
    handed on as it is. Members are ordered with the seed slowest and the last swept field fastest. A member's key
    depends on its seed alone: members of one seed start from the same random numbers and are trained on the same
    ones, whatever is swept, and further members change none that are there.

    Args:
        build: Makes one predictor. It is compiled once, and swept numbers reach it as arrays.
        seeds: How many, or which.
        key: The ensemble's key; member ``s`` is built with ``fold_in(key, s)``.
        **fields: Fixed or swept keyword arguments of ``build``.

    Raises:
        InputError: A swept field gives members different shapes, or is used as a number known beforehand.
    """
    require_key(key)
    numbers = seed_numbers(seeds)
    swept = {
        name: swept_values(name, values)
        for name, values in fields.items()
        if isinstance(values, list | tuple | range | np.ndarray) and np.ndim(values) == 1
    }
    if "seed" in fields:
        raise expected("fields", "names other than 'seed'", "seed", "use seeds=")
    _require_builder(build, ("key", *fields))
    fixed = {name: value for name, value in fields.items() if name not in swept}
    coordinates = product({"seed": numbers, **swept})

    @eqx.filter_jit
    def built(key: PRNGKeyArray, values: dict[str, jax.Array]) -> Any:
        return build(key=key, **fixed, **values)

    members = []
    for i, seed in enumerate(coordinates["seed"]):
        values = {name: jnp.asarray(coordinates[name][i]) for name in swept}
        try:
            members.append(built(jax.random.fold_in(key, int(seed)), values))
        except (jax.errors.JAXTypeError, TypeError, InputError) as error:
            if not swept or not _needs_a_constant(error):
                raise
            hint = "a shape is fixed in one ensemble; make one ensemble for each"
            raise expected(" and ".join(swept), "swept numbers that are leaves", "a static field", hint) from error
    stacked = jax.tree.map(
        lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0], members[0], *members[1:]
    )
    return Ensemble(stacked, coordinates)


def _require_builder(build: Any, names: Iterable[str]) -> None:
    """Refuse what is not called with these keyword arguments: a predictor that is made already, for one."""
    expectation = f"a function of {', '.join(names)} that makes a predictor"
    came = getattr(build, "__name__", None) or type(build).__name__
    hint = "lambda *, key: models.Transformer(..., key=key) is one"
    if not callable(build):
        raise expected("build", expectation, came, hint)
    try:
        signature = inspect.signature(build)
    except ValueError:
        return  # of a function of C, which has none to be read
    try:
        signature.bind(**dict.fromkeys(names))
    except TypeError as error:
        raise expected("build", expectation, f"{came}, {error}", hint) from None


def _needs_a_constant(error: Exception) -> bool:
    """Whether a number that is traced was used where Python or a shape needs its value."""
    if isinstance(error, InputError):
        return any(word in str(error) for word in ("Tracer", "Traced"))
    words = ("concrete", "Tracer", "traced", "integer", "ShapedArray", "static", "Shapes must be")
    return isinstance(error, jax.errors.JAXTypeError) or any(word in str(error) for word in words)


def ensemble_of(predictor: Any) -> Ensemble:
    """An ensemble as it is, a single predictor as an ensemble of one, of seed 0; what cannot be trained is refused."""
    if not callable(predictor) and not isinstance(predictor, Ensemble):
        raise expected("predictor", "a function of a prompt, or an ensemble of them", type(predictor).__name__)
    if isinstance(predictor, type):
        raise expected("predictor", "a function of a prompt, or an ensemble of them", f"the class {predictor.__name__}")
    members = predictor if isinstance(predictor, Ensemble) else alone(predictor)
    for what in ("traceable", "differentiable"):
        if not declared(members.member(0), what):
            raise expected("predictor", f"one that is {what}", type(members.member(0)).__name__)
    return members


def alone(predictor: Any) -> Ensemble:
    """A single predictor as an ensemble of one, of seed 0."""
    stacked = jax.tree.map(lambda leaf: leaf[None] if eqx.is_array(leaf) else leaf, predictor)
    return Ensemble(stacked, {"seed": np.zeros(1, np.int64)})
