"""A grid of coordinates: static axes (shapes) are looped, traced axes (numbers) are batched.

A *cell* is one combination of static coordinates. What is random in a cell depends on those
coordinates alone, never on the order in which cells are computed, so any number of processes may
share a grid, and a grid may grow without changing what is already there.
"""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from icllab.core.axes import require_axes
from icllab.core.errors import expected

if TYPE_CHECKING:
    import jax

Value: TypeAlias = int | float | str
Coordinates: TypeAlias = dict[str, Value]


def canonical(value: Any) -> Value:
    """One spelling per number: ``1.0`` and NumPy's ``1`` are the coordinate ``1``."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def stable_hash(coordinates: Mapping[str, Any]) -> int:
    """32 bits that depend on names and values only: not on order, process, platform or version."""
    text = json.dumps({k: canonical(v) for k, v in coordinates.items()}, sort_keys=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def cell_key(key: "jax.Array", coordinates: Mapping[str, Any]) -> "jax.Array":
    """The random key of a cell: ``fold_in(key, stable_hash(coordinates))``."""
    import jax

    return jax.random.fold_in(key, stable_hash(coordinates))


@dataclass(frozen=True)
class Grid:
    """Axis name -> values; one cell per combination of ``static``, all of ``traced`` inside each."""

    static: Mapping[str, tuple[Value, ...]]
    traced: Mapping[str, tuple[Value, ...]]

    def __post_init__(self) -> None:
        require_axes([*self.static, *self.traced])
        for name, values in {**self.static, **self.traced}.items():
            if not values:
                raise expected(name, "at least one value", list(values))
            if len({canonical(v) for v in values}) != len(values):
                raise expected(name, "values that differ", list(values))
        for part in ("static", "traced"):
            axes = {name: tuple(map(canonical, values)) for name, values in getattr(self, part).items()}
            object.__setattr__(self, part, axes)

    def cells(self) -> Iterator[Coordinates]:
        """Every combination of the static axes, the last axis running fastest."""
        for values in itertools.product(*self.static.values()):
            yield dict(zip(self.static, values, strict=True))

    def __len__(self) -> int:
        return sum(1 for _ in self.cells())


def batched(function: "Callable[..., Any]", /, **axes: "jax.Array") -> Any:
    """``function`` over the product of the given axes, in one vmapped call.

    ``batched(f, rho=r, ridge=l)`` returns the leaves of ``f(rho=..., ridge=...)`` with leading
    axes ``(len(r), len(l))``, in the order of the keywords.
    """
    import jax

    names = list(axes)

    def over(rest: list[str], fixed: dict[str, Any]) -> Any:
        if not rest:
            return function(**fixed)
        first, *others = rest
        return jax.vmap(lambda value: over(others, {**fixed, first: value}))(axes[first])

    return over(names, {})
