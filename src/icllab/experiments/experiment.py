"""A claim as data: what is said, on which axes, at which sizes, how it is measured and checked."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

from icllab.core.axes import Axis, Quantity
from icllab.core.errors import expected, require_known, unknown
from icllab.core.grid import Coordinates, Grid, Named, Seeds, Value, canonical
from icllab.core.sources import Reference, parsed, references
from icllab.experiments.placement import Precision
from icllab.experiments.vocabulary import Vocabulary

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    from icllab.experiments.checks import Finding

SIZES = ("smoke", "small", "medium", "full")
WORDS = 30
"""Words of a claim at most; its conditions are a field of their own."""
Measure: TypeAlias = Callable[..., Mapping[str, Named]]
Theory: TypeAlias = Callable[["xr.Dataset"], "xr.Dataset"]


@dataclass(frozen=True)
class Control:
    """A negative control: a world in which the claim is false. The check must say ``fails`` in it.

    Attributes:
        meaning: What is otherwise, in a few words.
        measure: Keyword arguments that ``measure`` gets: another simulation.
        theory: Another formula in the place of the claim's ``theory``, or keyword arguments of that.
        axes: Values in the place of those of the size: as much as it takes to see the check fail.
        size: The smallest size at which the check fails.
    """

    meaning: str
    measure: Mapping[str, Any] = field(default_factory=dict)
    theory: Theory | Mapping[str, Any] | None = None
    axes: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    size: str = "smoke"

    def __post_init__(self) -> None:
        if not self.measure and self.theory is None:
            raise expected("control", "another measurement or another formula", self.meaning)
        require_known("size", self.size, SIZES)

    @property
    def simulated(self) -> bool:
        """Whether something else is measured, rather than the same compared with another formula."""
        return bool(self.measure)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One claim.

    Attributes:
        claim: The finding: one sentence of at most 30 words that can be false.
        conditions: Where it was found: sizes, seeds, optimiser.
        sources: Keys of ``references.bib`` or of ``references``.
        references: BibTeX of the sources that only this claim has.
        axes: The axes that only this claim has. That of a line (``width_line``) needs no row of its own.
        quantities: What is measured and predicted: names that are shared, and the rows of those that only this claim
            has. A standard error, a closed form or a line (``width_error``, ``width_theory``, ``width_line``) needs no
            row of its own.
        static: The axes that are shapes: looped, one saved cell per combination. All others are inside each cell.
        outputs: The axes that nothing is swept over: the coordinates of what is measured, such as steps of a curve.
        sizes: size -> axis -> values; ``"seed": 8`` means seeds 0 to 7, ``Seeds(8, block=2)`` the same in four cells.
            A size may have another value of a fixed number: a smaller batch at ``smoke``.
        fixed: The numbers that are not axes.
        theory: Adds predictions, and the lines a figure draws, to the assembled Dataset. Without JAX.
        check: A pure function of the Dataset, returning its findings.
        figure: A pure function of the Dataset, returning a figure. Where ``theory``, ``check`` or ``figure`` is None,
            it is the function of that name in the claim's file.
        controls: Negative controls by name.
        precision: The floating-point type under which ``measure`` runs.
        key: Seed of the root key.
        shows: The smallest size that can show the whole effect; at smaller ones the verdict is on what they have.
        measure: ``measure(point, *, key, ...)`` computes one cell: ``point`` has every fixed value, static coordinate
            and other axis (a tuple) as an attribute; it returns ``{quantity: (axes, values)}``. None: the function of
            this name in ``measure.py`` beside the claim.
        name: ``subject/finding``, set by the registry from the folder's place.
    """

    claim: str
    conditions: str = ""
    sources: tuple[str, ...]
    references: str = ""
    axes: tuple[Axis, ...] = ()
    quantities: tuple[str | Quantity, ...]
    static: tuple[str, ...]
    outputs: tuple[str, ...] = ()
    sizes: Mapping[str, Mapping[str, Sequence[Value] | Value | Seeds]]
    fixed: Mapping[str, Value] = field(default_factory=dict)
    theory: Theory | None = None
    check: "Callable[[xr.Dataset], Sequence[Finding]] | None" = None
    figure: "Callable[[xr.Dataset], Figure] | None" = None
    controls: Mapping[str, Control] = field(default_factory=dict)
    precision: Precision = "float32"
    key: int = 0
    shows: str = "small"
    measure: Measure | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if len(self.claim.split()) > WORDS:
            raise expected("claim", f"a sentence of at most {WORDS} words", len(self.claim.split()))
        require_known("size", self.shows, SIZES)
        vocabulary = self.vocabulary
        for name in self.outputs:
            vocabulary.axis(name)
        if both := set(self.outputs) & set(self.static):
            raise expected("outputs", "axes that are not swept", sorted(both))
        for size, axes in self.sizes.items():
            require_known("size", size, SIZES)
            for name in (*self.static, *self.outputs):
                if name not in axes:
                    raise expected(f"size {size!r}", f"values of the axis {name!r}", list(axes))
            for name, values in axes.items():
                if name in self.fixed:
                    self._admit(name, (values,), vocabulary.axes.get(name))
                else:
                    self._admit(name, values, vocabulary.axis(name))
        for name, value in self.fixed.items():
            self._admit(name, (value,), vocabulary.axes.get(name))
        for key in self.sources:
            self.reference(key)
        object.__setattr__(self, "controls", {name: self._resolved(one) for name, one in self.controls.items()})

    def _resolved(self, control: Control) -> Control:
        """With a formula where the control gives keyword arguments of the claim's."""
        if self.theory is None or not isinstance(control.theory, Mapping):
            return control
        return dataclasses.replace(control, theory=functools.partial(self.theory, **control.theory))

    @functools.cached_property
    def vocabulary(self) -> Vocabulary:
        """The names of the axes and quantities that the claim may use."""
        return Vocabulary.of(self.axes, self.quantities)

    def reference(self, key: str) -> Reference:
        """One of the claim's sources; an unknown key is refused."""
        known = {**references(), **parsed(self.references, "references")}
        require_known("source", key, known)
        return known[key]

    def _admit(self, name: str, values: Any, row: Axis | None) -> None:
        """Refuse what is no number or name, and numbers outside the range of the axis they belong to."""
        if isinstance(values, int | Seeds):
            if name != "seed":
                raise expected(name, "a sequence of values; only seeds may be counted", values)
            return
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int | float | str):
                raise expected(name, "numbers or names", value)
        if row is not None:
            row.require(values)

    def grid(self, size: str, chosen: Mapping[str, Sequence[Any]] | None = None, seeds: int | None = None) -> Grid:
        """The cells of a size, with some axes' values replaced by ``chosen`` and the number of seeds by ``seeds``."""
        require_known(f"size of {self.name}", size, self.sizes)
        axes = {name: _listed(values) for name, values in self.sizes[size].items() if name not in self.fixed}
        for name, values in (chosen or {}).items():
            if name in axes:
                # Written as 1 or 1.5, the values of an axis are of one kind: a number if any has a fraction.
                example = next((v for v in axes[name] if isinstance(v, float)), axes[name][0])
                axes[name] = tuple(like(name, example, value) for value in values)
                self._admit(name, axes[name], self.vocabulary.axis(name))
            elif name not in self.fixed:
                raise unknown(f"axis of {self.name}", name, [*axes, *self.fixed])
        if seeds is not None:
            axes["seed"] = _listed(Seeds(seeds, 1))
        return Grid(
            static={name: axes[name] for name in self.static},
            traced={name: values for name, values in axes.items() if name not in self.static},
            block=self.block(size),
        )

    def block(self, size: str) -> int | None:
        """Seeds of a cell at a size; None where a cell has all of them."""
        seeds = self.sizes[size].get("seed")
        return seeds.block if isinstance(seeds, Seeds) else None

    def at(self, size: str) -> "Experiment":
        """The experiment with the fixed numbers of a size."""
        axes = self.sizes.get(size, {})
        return self.with_fixed({name: (value,) for name, value in axes.items() if name in self.fixed})

    def with_fixed(self, chosen: Mapping[str, Sequence[Any]] | None) -> "Experiment":
        """The experiment with those of ``chosen`` that are fixed values replaced: another configuration."""
        new: dict[str, Value] = {}
        for name, values in (chosen or {}).items():
            if name in self.fixed:
                if len(values) != 1:
                    raise expected(name, "one value, since it is fixed in this claim", list(values))
                # Of the claim's own type: 16 in the place of 4.0 is 16.0, whose negative powers are no error.
                new[name] = type(self.fixed[name])(like(name, self.fixed[name], values[0]))
        return dataclasses.replace(self, fixed={**self.fixed, **new})

    def under(self, control: str | None) -> "Experiment":
        """The experiment under one of its negative controls."""
        if control is None:
            return self
        require_known(f"control of {self.name}", control, self.controls)
        other = self.controls[control]
        if isinstance(other.theory, Mapping):
            raise expected("control", "a claim with a theory to give other arguments to", other.meaning)
        assert self.measure is not None  # the registry has set it
        return dataclasses.replace(
            self,
            measure=functools.partial(self.measure, **other.measure) if other.simulated else self.measure,
            theory=other.theory or self.theory,
            sizes={size: {**axes, **other.axes} for size, axes in self.sizes.items()},
        )

    def point(self, cell: Coordinates, traced: Mapping[str, tuple[Value, ...]]) -> SimpleNamespace:
        """What ``measure`` sees of a cell."""
        return SimpleNamespace(**self.fixed, **{name: cell[name] for name in self.static}, **traced)


def _listed(values: Any) -> tuple[Value, ...]:
    if isinstance(values, Seeds):
        values = values.count
    return tuple(range(values)) if isinstance(values, int) else tuple(values)


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
