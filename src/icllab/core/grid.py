"""A grid of coordinates: loops over static axes (shapes), batches over traced axes (numbers).

A *cell* is one combination of static coordinates, and one block of seeds where these are cut into blocks. What is
random in a cell depends on its static coordinates and the seed alone, never on the block or on the order in which cells
are computed: any number of processes may share a grid, and a grid may grow without changing what is already there.
"""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from icllab.core.domains import Domain
from icllab.core.errors import expected, require_integer

if TYPE_CHECKING:
    import jax

Value: TypeAlias = int | float | str
Coordinates: TypeAlias = dict[str, Value]
Named: TypeAlias = tuple[tuple[str, ...], Any]
"""Axes and array."""


def canonical(value: Any) -> Value:
    """One spelling per number: ``1.0`` and NumPy's ``1`` become the coordinate ``1``."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def spelled(coordinates: Mapping[str, Any]) -> str:
    """Coordinates as text, such as ``dim=40, tau=1.5``."""
    texts = {name: f"{v:g}" if isinstance(v, float) else str(v) for name, v in coordinates.items()}
    return ", ".join(f"{name}={value}" for name, value in texts.items())


def stable_hash(coordinates: Mapping[str, Any]) -> int:
    """Hash of 32 bits that depends on names and values only: not on order, process, platform or version."""
    text = json.dumps({k: canonical(v) for k, v in coordinates.items()}, sort_keys=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


MOST_SEEDS = 1_000_000
"""Largest number of independent repetitions, each of which is a coordinate."""
BLOCK = "block"
"""The coordinate of a cell that says which block of seeds it holds."""


def cell_key(key: "jax.Array", coordinates: Mapping[str, Any]) -> "jax.Array":
    """The random key of a cell: ``fold_in(key, stable_hash(coordinates))``, the same for all its blocks of seeds."""
    import jax

    return jax.random.fold_in(key, stable_hash({name: v for name, v in coordinates.items() if name != BLOCK}))


@dataclass(frozen=True)
class Seeds:
    """``count`` independent repetitions, numbered from ``first``; a cell holds ``block`` of them.

    None: from 0 on; in a claim's size, from the first on that no smaller size has.
    """

    count: int
    block: int
    first: int | None = None

    def __post_init__(self) -> None:
        Domain(int, least=1, most=MOST_SEEDS).require("seeds", self.count)
        require_integer("seeds of a block", self.block)
        if self.first is not None:
            require_integer("first seed", self.first, least=0)

    @property
    def values(self) -> tuple[int, ...]:
        """The seeds."""
        first = self.first or 0
        return tuple(range(first, first + self.count))


@dataclass(frozen=True)
class Grid:
    """Axis names and values: one cell per combination of ``static`` values, with all ``traced`` values inside.

    With ``block``, a cell holds the seeds from ``block * i`` to ``block * (i + 1) - 1`` for one i, its ``block``.
    """

    static: Mapping[str, tuple[Value, ...]]
    traced: Mapping[str, tuple[Value, ...]]
    block: int | None = None

    def __post_init__(self) -> None:
        for name, values in {**self.static, **self.traced}.items():
            if not values:
                raise expected(name, "at least one value", list(values))
            if len({canonical(v) for v in values}) != len(values):
                raise expected(name, "values that differ", list(values))
        for part in ("static", "traced"):
            axes = {name: tuple(map(canonical, values)) for name, values in getattr(self, part).items()}
            object.__setattr__(self, part, axes)

    def cells(self) -> Iterator[Coordinates]:
        """Every combination of the static axes, with the last axis fastest, and for each every block of seeds."""
        blocks = [{}] if self.block is None else [{BLOCK: i} for i in sorted({self._block(s) for s in self._seeds})]
        for values in itertools.product(*self.static.values()):
            for block in blocks:
                yield {**dict(zip(self.static, values, strict=True)), **block}

    def inside(self, cell: Coordinates) -> dict[str, tuple[Value, ...]]:
        """The traced axes within one cell."""
        if self.block is None:
            return dict(self.traced)
        seeds = tuple(seed for seed in self._seeds if self._block(seed) == cell[BLOCK])
        return {name: seeds if name == "seed" else values for name, values in self.traced.items()}

    def shape(self, cell: Coordinates) -> tuple[Value, ...]:
        """Coordinates of a cell along axes of integers or names; they set shapes and so compiled programs."""
        return tuple(
            cell[axis] for axis, values in self.static.items() if not any(isinstance(v, float) for v in values)
        )

    @property
    def _seeds(self) -> tuple[Value, ...]:
        return self.traced["seed"]

    def _block(self, seed: Value) -> int:
        return int(seed) // int(self.block or 1)

    def __len__(self) -> int:
        return sum(1 for _ in self.cells())


def tabulated(function: "Callable[..., Mapping[str, Any]]", /, **axes: Iterable[Any]) -> "dict[str, Named]":
    """Stack the results of ``function`` at every combination of the axes' values, one call after the other.

    ``tabulated(f, seed=(0, 1), rate=(0.1,))`` calls ``f(seed=0, rate=0.1)``, ``f(seed=1, rate=0.1)``. An answer is
    ``{quantity: number}`` or ``{quantity: (axes, array)}``; the result has the axes of the call before its own, as a
    claim's ``measure`` returns them.
    """
    import numpy as np

    values = {name: tuple(points) for name, points in axes.items()}
    rows = [function(**dict(zip(values, point, strict=True))) for point in itertools.product(*values.values())]
    shape = tuple(map(len, values.values()))
    columns: dict[str, Named] = {}
    for name, first in rows[0].items():
        inner_axes = first[0] if isinstance(first, tuple) else ()
        array = np.stack([np.asarray(row[name][1] if isinstance(row[name], tuple) else row[name]) for row in rows])
        columns[name] = ((*values, *inner_axes), array.reshape(*shape, *array.shape[1:]))
    return columns


def batched(function: "Callable[..., Any]", /, **axes: "jax.Array") -> Any:
    """Values of ``function`` over the product of the axes, in one vmapped call.

    ``batched(f, rho=r, ridge=l)`` returns the leaves of ``f(rho=..., ridge=...)`` with leading
    axes ``(len(r), len(l))``, in the order of the keywords.
    """
    import jax

    def over(names: list[str], fixed: dict[str, Any]) -> Any:
        if not names:
            return function(**fixed)
        return jax.vmap(lambda value: over(names[1:], {**fixed, names[0]: value}))(axes[names[0]])

    return over(list(axes), {})
