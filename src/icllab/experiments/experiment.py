"""A claim as data: what is said, on which axes, at which sizes, how it is measured and checked."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from icllab.core.axes import AXES
from icllab.core.errors import expected, unknown
from icllab.core.grid import Coordinates, Grid, Value, canonical

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    from icllab.experiments.checks import Finding

SIZES = ("smoke", "small", "medium", "full")
Measure: TypeAlias = Callable[..., Mapping[str, tuple[tuple[str, ...], Any]]]


@dataclass(frozen=True)
class World:
    """A way in which the claim would be wrong: another simulation or another formula.

    The check must say ``fails`` in each of them; a test runs them all.
    """

    meaning: str
    measure: Measure | None = None
    theory: "Callable[[xr.Dataset], xr.Dataset] | None" = None


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One claim.

    Attributes:
        claim: The finding, as a sentence that can be false.
        sources: Keys of ``references.bib``.
        static: The axes that are shapes: looped, one saved cell per combination. All other axes are
            inside each cell.
        sizes: size -> axis -> values; ``"seed": 8`` means seeds 0 to 7.
        fixed: The numbers that are not axes.
        measure: ``measure(point, *, key)`` computes one cell: ``point`` has every fixed value, static
            coordinate and traced axis (a tuple) as an attribute; it returns
            ``{quantity: (traced axes, values)}``.
        theory: Adds predictions, and the lines a figure draws, to the assembled Dataset. Without JAX.
        check: A pure function of the Dataset, returning its findings.
        figure: A pure function of the Dataset, returning a figure.
        precision: The floating-point type under which ``measure`` runs.
        key: Seed of the root key.
        shows: The smallest size that can show the effect; at smaller ones the verdict may be ``undecided``.
        worlds: Wrong worlds by name.
        name: ``room/finding``, set by the registry from the file's place.
    """

    claim: str
    sources: tuple[str, ...]
    static: tuple[str, ...]
    sizes: Mapping[str, Mapping[str, Sequence[Value] | int]]
    fixed: Mapping[str, Value]
    measure: Measure
    check: "Callable[[xr.Dataset], Sequence[Finding]]"
    figure: "Callable[[xr.Dataset], Figure]"
    theory: "Callable[[xr.Dataset], xr.Dataset] | None" = None
    precision: Literal["float32", "float64"] = "float32"
    key: int = 0
    shows: str = "small"
    worlds: Mapping[str, World] = field(default_factory=dict)
    name: str = ""

    def __post_init__(self) -> None:
        if self.shows not in SIZES:
            raise unknown("size", self.shows, SIZES)
        for size, axes in self.sizes.items():
            if size not in SIZES:
                raise unknown("size", size, SIZES)
            for name in self.static:
                if name not in axes:
                    raise expected(f"size {size!r}", f"values of the static axis {name!r}", list(axes))
            self._admit({name: values for name, values in axes.items() if not isinstance(values, int)})
        self._admit({name: (value,) for name, value in self.fixed.items()})

    def _admit(self, values: Mapping[str, Sequence[Any]]) -> None:
        """Refuse what is no number or name, and numbers outside the range of the axis they belong to."""
        for name, some in values.items():
            for value in some:
                if isinstance(value, bool) or not isinstance(value, int | float | str):
                    raise expected(name, "numbers or names", value)
            if name in AXES:
                AXES[name].require(some)

    def grid(self, size: str, chosen: Mapping[str, Sequence[Any]] | None = None, seeds: int | None = None) -> Grid:
        """The cells of a size, with some axes' values replaced by ``chosen`` and the number of seeds by ``seeds``."""
        if size not in self.sizes:
            raise unknown(f"size of {self.name}", size, self.sizes)
        axes = {
            name: tuple(range(values)) if isinstance(values, int) else tuple(values)
            for name, values in self.sizes[size].items()
        }
        for name, values in (chosen or {}).items():
            if name in axes:
                # Written as 1 or 1.5, the values of an axis are of one kind: a number if any has a fraction.
                example = next((v for v in axes[name] if isinstance(v, float)), axes[name][0])
                axes[name] = tuple(like(name, example, value) for value in values)
            elif name not in self.fixed:
                raise unknown(f"axis of {self.name}", name, [*axes, *self.fixed])
        if seeds is not None:
            if seeds < 1:
                raise expected("seeds", "an integer of at least 1", seeds)
            axes["seed"] = tuple(range(seeds))
        self._admit({name: values for name, values in axes.items() if name in (chosen or {})})
        return Grid(
            static={name: axes[name] for name in self.static},
            traced={name: values for name, values in axes.items() if name not in self.static},
        )

    def with_fixed(self, chosen: Mapping[str, Sequence[Any]] | None) -> "Experiment":
        """The experiment with those of ``chosen`` that are fixed values replaced: another configuration."""
        new: dict[str, Value] = {}
        for name, values in (chosen or {}).items():
            if name in self.fixed:
                if len(values) != 1:
                    raise expected(name, "one value, since it is fixed in this claim", list(values))
                new[name] = like(name, self.fixed[name], values[0])
        return dataclasses.replace(self, fixed={**self.fixed, **new})

    def in_world(self, world: str | None) -> "Experiment":
        """The experiment in one of its wrong worlds."""
        if world is None:
            return self
        if world not in self.worlds:
            raise unknown(f"world of {self.name}", world, self.worlds)
        other = self.worlds[world]
        return dataclasses.replace(self, measure=other.measure or self.measure, theory=other.theory or self.theory)

    def point(self, cell: Coordinates, traced: Mapping[str, tuple[Value, ...]]) -> SimpleNamespace:
        """What ``measure`` sees of a cell."""
        return SimpleNamespace(**self.fixed, **cell, **traced)


def like(name: str, example: Value, value: Any) -> Value:
    """``value`` read as the kind of number (or name) that ``example`` is; text is parsed."""
    kind = {int: "an integer", float: "a number", str: "a name"}[type(example)]
    if isinstance(value, bool):
        raise expected(name, kind, value)
    try:
        if isinstance(example, str):
            number: Any = str(value)
        else:
            number = canonical(float(value)) if not isinstance(value, int) else value
    except (TypeError, ValueError):
        raise expected(name, kind, value) from None
    # A number axis takes integers too; an integer axis takes no fractions.
    if isinstance(number, float) and (math.isnan(number) or isinstance(example, int)):
        raise expected(name, kind, value)
    return number
