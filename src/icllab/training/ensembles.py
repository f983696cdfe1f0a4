"""Many predictors of one shape as one predictor whose arrays have a leading member axis."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import PRNGKeyArray

from icllab.core.errors import InputError, expected, require_key
from icllab.core.protocols import declared
from icllab.core.views import brief, html_fields, one_line
from icllab.training.sweeps import product, seed_numbers, swept_values


@dataclass(frozen=True, repr=False)
class Ensemble:
    """Predictors that differ only in their arrays.

    Attributes:
        stacked: A predictor; every array in it has a leading axis, ``member``.
        coordinates: ``seed`` and every swept name -> one value for each member.
    """

    stacked: Any
    coordinates: Mapping[str, np.ndarray]

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.coordinates["seed"])

    def __len__(self) -> int:
        return self.size

    def member(self, index: int) -> Any:
        """One member as a predictor."""
        if self.stacked is None:
            hint = "icl.load(store, predictor) with the predictor or ensemble that was given to icl.fit"
            raise expected("members", "a run opened with its predictor", "a run opened without it", hint)
        if not -self.size <= index < self.size:
            raise expected("member", f"an integer from 0 to {self.size - 1}", index)
        return jax.tree.map(lambda leaf: _indexed(leaf, index) if eqx.is_array(leaf) else leaf, self.stacked)

    def crossed(self, axes: Mapping[str, np.ndarray]) -> "Ensemble":
        """Repeat every member for each combination of the values of ``axes``, which vary fastest."""
        for name in axes:
            if name in self.coordinates:
                raise expected("sweep", "each name once", name, "the ensemble sweeps it already")
        combinations = product(axes)
        times = len(next(iter(combinations.values()))) if combinations else 1
        coordinates = {name: np.repeat(values, times) for name, values in self.coordinates.items()}
        coordinates |= {name: np.tile(values, self.size) for name, values in combinations.items()}
        predictors = jax.tree.map(
            lambda leaf: jnp.repeat(leaf, times, axis=0) if eqx.is_array(leaf) and times > 1 else leaf, self.stacked
        )
        return Ensemble(predictors, coordinates)

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

    ``build(key=..., **fields)`` returns a predictor. A field that is a sequence of numbers is swept; others are passed
    on unchanged. The seed varies slowest and the last swept field fastest. A member's key depends on its seed alone:
    members of one seed start from the same random numbers and are trained on the same ones, whatever is swept, and
    adding members changes no other.

    Args:
        build: A function that makes one predictor. It is compiled once, and swept numbers reach it as arrays.
        seeds: Their number, or the seeds.
        key: The ensemble's key; member ``s`` is built with ``fold_in(key, s)``.
        **fields: Keyword arguments of ``build``.

    Raises:
        InputError: A swept field gives members different shapes, or must be known before compilation.
    """
    require_key(key)
    numbers = seed_numbers(seeds)
    axes = {
        name: swept_values(name, values)
        for name, values in fields.items()
        if isinstance(values, list | tuple | range | np.ndarray) and np.ndim(values) == 1
    }
    if "seed" in fields:
        raise expected("fields", "names other than 'seed'", "seed", "use seeds=")
    _require_builder(build, ("key", *fields))
    constants = {name: value for name, value in fields.items() if name not in axes}
    coordinates = product({"seed": numbers, **axes})

    @eqx.filter_jit
    def build_member(key: PRNGKeyArray, values: dict[str, jax.Array]) -> Any:
        return build(key=key, **constants, **values)

    members = []
    for i, seed in enumerate(coordinates["seed"]):
        values = {name: jnp.asarray(coordinates[name][i]) for name in axes}
        try:
            members.append(build_member(jax.random.fold_in(key, int(seed)), values))
        except (jax.errors.JAXTypeError, TypeError, InputError) as error:
            if not axes or not _needs_a_constant(error):
                raise
            hint = "a shape is fixed in one ensemble; make one ensemble for each"
            raise expected(" and ".join(axes), "swept numbers that are leaves", "a static field", hint) from error
    predictors = jax.tree.map(
        lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0], members[0], *members[1:]
    )
    return Ensemble(predictors, coordinates)


def _require_builder(build: Any, names: Iterable[str]) -> None:
    """Raise unless ``build`` accepts these keyword arguments."""
    expectation = f"a function of {', '.join(names)} that makes a predictor"
    name = getattr(build, "__name__", None) or type(build).__name__
    hint = "lambda *, key: models.Transformer(..., key=key) is one"
    if not callable(build):
        raise expected("build", expectation, name, hint)
    try:
        signature = inspect.signature(build)
    except ValueError:
        return  # a C function without a signature
    try:
        signature.bind(**dict.fromkeys(names))
    except TypeError as error:
        raise expected("build", expectation, f"{name}, {error}", hint) from None


def _needs_a_constant(error: Exception) -> bool:
    """True if a traced number was used where its value is needed, such as in a shape."""
    if isinstance(error, InputError):
        return any(word in str(error) for word in ("Tracer", "Traced"))
    words = ("concrete", "Tracer", "traced", "integer", "ShapedArray", "static", "Shapes must be")
    return isinstance(error, jax.errors.JAXTypeError) or any(word in str(error) for word in words)


def ensemble_of(predictor: Any) -> Ensemble:
    """Convert a single predictor to an ensemble of one; raise unless it can be trained."""
    expectation = "a function of a prompt, or an ensemble of such functions"
    if isinstance(predictor, type):
        raise expected("predictor", expectation, f"the class {predictor.__name__}")
    if not callable(predictor) and not isinstance(predictor, Ensemble):
        raise expected("predictor", expectation, type(predictor).__name__)
    members = predictor if isinstance(predictor, Ensemble) else alone(predictor)
    for property_name in ("traceable", "differentiable"):
        if not declared(members.member(0), property_name):
            raise expected("predictor", f"a {property_name} predictor", type(members.member(0)).__name__)
    return members


def alone(predictor: Any) -> Ensemble:
    """A single predictor as an ensemble of one, with seed 0."""
    stacked = jax.tree.map(lambda leaf: _indexed(leaf, None) if eqx.is_array(leaf) else leaf, predictor)
    return Ensemble(stacked, {"seed": np.zeros(1, np.int64)})


def _indexed(leaf: Any, index: int | None) -> Any:
    """``leaf[index]``, by NumPy for arrays in host memory, because JAX compiles a program for every shape."""
    plain = isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer) and jax.default_backend() == "cpu"
    if not plain or leaf.committed or leaf.weak_type or jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return leaf[index]
    return jax.device_put(np.asarray(leaf)[index])
