"""A claim as data: its sentence, axes, sizes, measurement and check."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

from icllab.core.axes import AXES, QUANTITIES, Axis, Quantity, derived
from icllab.core.errors import expected, require_known, unknown
from icllab.core.grid import Coordinates, Grid, Named, Seeds, Value, canonical
from icllab.core.settings import DEFAULT, GENERATOR
from icllab.core.sources import Reference, parsed, references
from icllab.lab.placement import Precision

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    from icllab.lab.checks import Finding

SIZES = ("smoke", "small", "medium", "full")
"""``smoke`` is a regression test, whose numbers are compared with the record's; the others get a verdict."""
SCHEMA = 2
"""Of the files of results."""
WORDS = 30
"""Largest number of words of a claim's sentence; its conditions are a field of their own."""
KINDS = ("regression", "item labels", "tokens", "language model")
"""Kinds of networks that a claim may speak of: predictors of prompts of three kinds, and language models."""
Measure: TypeAlias = Callable[..., Mapping[str, Named]]
Theory: TypeAlias = Callable[["xr.Dataset"], "xr.Dataset"]


@dataclass(frozen=True)
class Control:
    """A negative control: a world in which the claim is false. The check must say ``fails`` in it.

    Attributes:
        meaning: What differs from the claim's world, in a few words.
        measure: Keyword arguments that ``measure`` gets: another simulation.
        theory: Another formula in the place of the claim's ``theory``, or keyword arguments of that; None: the claim's.
        axes: Values in the place of those of the size: as many as it takes to see the check fail.
    """

    meaning: str
    measure: Mapping[str, Any] = field(default_factory=dict)
    theory: Theory | Mapping[str, Any] | None = None
    axes: Mapping[str, Sequence[Value] | Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.measure and self.theory is None:
            raise expected("control", "another measurement or another formula", self.meaning)

    @property
    def simulated(self) -> bool:
        """True for another simulation, False for another formula."""
        return bool(self.measure)

    @property
    def measured(self) -> bool:
        """True if the control has its own data, False if it is judged on the data of the claim."""
        return self.simulated or bool(self.axes)


@dataclass(frozen=True)
class Subject:
    """The network that a claim speaks of, in whose place ``icl run CLAIM --network`` measures another.

    Attributes:
        kind: One of :data:`KINDS`.
        network: The claim's own network in a few words, which the record states.
        run: Whether it is a training run: ``measure`` then gets the networks by step, and ``step`` has their steps.
        axes: Values in the place of those of the size, if another network is measured.
        controls: The negative controls that are measured with another network.
        check: The check on results of another network; None: the claim's.
        figure: The figure of such results; None: the claim's.
    """

    kind: str
    network: str
    run: bool = False
    axes: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    controls: tuple[str, ...] = ()
    check: "Callable[[xr.Dataset], Sequence[Finding]] | None" = None
    figure: "Callable[[xr.Dataset], Figure] | None" = None

    def __post_init__(self) -> None:
        require_known("kind of a subject", self.kind, KINDS)

    @property
    def meaning(self) -> str:
        """The kind in words."""
        network = "a language model" if self.kind == KINDS[-1] else f"a predictor of {self.kind}"
        return f"a training run of {network}" if self.run else network


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A finding that can be false, with its measurement, theory, check, figure and negative controls.

    Attributes:
        sentence: The finding: one sentence of at most 30 words that can be false.
        title: What it is about, in a few plain words: its line in a list of 80 columns.
        conditions: Where it was found: sizes, seeds, optimiser.
        sources: Keys of ``references.bib`` or of ``references``.
        references: BibTeX of the sources that only this claim has.
        axes: The axes that only this claim has. That of a line (``width_line``) needs no row of its own.
        quantities: What is measured and predicted: shared names, and the rows of those that only this claim has. A
            standard error, a closed form or a line (``width_error``, ``width_theory``, ``width_line``) needs no row.
        static: The axes that are shapes: looped, one saved cell per combination. All others are inside each cell.
        outputs: The axes that nothing is swept over: the coordinates of what is measured, such as steps of a curve.
        sizes: size -> axis -> values; ``"seed": 8`` means eight seeds, ``Seeds(8, block=2)`` the same in four cells.
            They begin at 0, and at a larger size after those of the smaller ones but ``smoke``, so that none is
            repeated; ``Seeds(8, block=2, first=10)`` are seeds 10 to 17.
            A size may have another value of a fixed number: a smaller batch at ``smoke``.
        fixed: The numbers that are not axes.
        theory: Adds predictions, and the lines a figure draws, to the assembled Dataset. Without JAX. None, as
            for ``check`` and ``figure``: the function of this name in the claim's file.
        check: A pure function of the Dataset, returning its findings; or None.
        figure: A pure function of the Dataset, returning a figure; or None.
        reduce: A function of the measured Dataset that makes it small enough for a record along ``outputs``; None:
            the function of this name in the claim's file, if it has one.
        controls: Negative controls by name; a claim has at least one.
        subject: The network that the sentence calls "the network", or None; a user's may take its place.
        precision: The floating-point type under which ``measure`` runs.
        key: Seed of the root key.
        measure: ``measure(point, *, key, ...)`` computes one cell: ``point`` has every fixed value, static coordinate
            and other axis (a tuple) as an attribute; it returns ``{quantity: (axes, values)}``. A parameter
            ``scratch`` gets a directory of the cell's own, for checkpoints of a training that resumes; what is in that
            of a parameter ``checkpoints`` stays beside the results. If the claim has a ``subject``, the parameter
            ``network`` gets a user's network, and ``task`` its task; None: the claim's own. None: the function of this
            name in ``measure.py`` beside the claim.
        name: ``subject/finding``, set by the registry from the folder's place.
        version: The ``VERSION`` of ``measure.py``, set by the registry: another number than that of stored results
            says that they are stale.
    """

    sentence: str
    title: str = ""
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
    reduce: "Callable[[xr.Dataset], xr.Dataset] | None" = None
    controls: Mapping[str, Control] = field(default_factory=dict)
    subject: Subject | None = None
    precision: Precision = "float32"
    key: int = 0
    measure: Measure | None = None
    name: str = ""
    version: int = 1

    def __post_init__(self) -> None:
        if len(self.sentence.split()) > WORDS:
            raise expected("sentence", f"a sentence of at most {WORDS} words", len(self.sentence.split()))
        if not self.controls:
            raise expected(
                "controls",
                "at least one negative control: a world in which the claim is false",
                "none",
                'add controls={"shuffled": Control("labels are shuffled", measure={"shuffled": True})}, an argument of '
                "`measure` under which the check fails",
            )
        vocabulary = self.vocabulary
        for name in self.outputs:
            vocabulary.axis(name)
        if overlap := set(self.outputs) & set(self.static):
            raise expected("outputs", "axes that are not swept", sorted(overlap))
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
        for control in () if self.subject is None else self.subject.controls:
            require_known("control of the subject", control, self.controls)
        object.__setattr__(self, "controls", {name: self._resolved(c) for name, c in self.controls.items()})

    def _resolved(self, control: Control) -> Control:
        """The control, with a formula in the place of keyword arguments of the claim's theory."""
        if self.theory is None or not isinstance(control.theory, Mapping):
            return control
        return dataclasses.replace(control, theory=functools.partial(self.theory, **control.theory))

    @functools.cached_property
    def vocabulary(self) -> "Vocabulary":
        """The names of the axes and quantities that the claim may use."""
        return Vocabulary.from_claim(self.axes, self.quantities)

    def reference(self, key: str) -> Reference:
        """One of the claim's sources; an unknown key raises InputError."""
        entries = {**references(), **parsed(self.references, "references")}
        require_known("source", key, entries)
        return entries[key]

    def _admit(self, name: str, values: Any, row: Axis | None) -> None:
        """Raise unless values are numbers or names, within the domain of the axis they belong to."""
        if isinstance(values, int | Seeds):
            if name != "seed":
                raise expected(name, "a sequence of values; only seeds may be counted", values)
            return
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int | float | str):
                raise expected(name, "numbers or names", value)
        if row is not None:
            row.require(values)

    def grid(self, size: str, axes: Mapping[str, Sequence[Any]] | None = None, seeds: int | None = None) -> Grid:
        """The cells of a size, with the values of some ``axes`` and the number of seeds replaced."""
        require_known(f"size of {self.name}", size, self.sizes)
        values = {name: self._listed(size, v) for name, v in self.sizes[size].items() if name not in self.fixed}
        for name, replacement in (axes or {}).items():
            if name in values:
                # Written as 1 or 1.5, the values of an axis are of one kind: a number if any has a fraction.
                example = next((v for v in values[name] if isinstance(v, float)), values[name][0])
                values[name] = tuple(like(name, example, value) for value in replacement)
                self._admit(name, values[name], self.vocabulary.axis(name))
            elif name not in self.fixed:
                raise unknown(f"axis of {self.name}", name, [*values, *self.fixed])
        if seeds is not None:
            values["seed"] = self._listed(size, Seeds(seeds, 1))
        return Grid(
            static={name: values[name] for name in self.static},
            traced={name: v for name, v in values.items() if name not in self.static},
            block=self.block(size),
        )

    def block(self, size: str) -> int | None:
        """Seeds of a cell at a size; None where a cell has all of them."""
        seeds = self.sizes[size].get("seed")
        return seeds.block if isinstance(seeds, Seeds) else None

    def _listed(self, size: str, values: Any) -> tuple[Value, ...]:
        if not isinstance(values, int | Seeds):
            return tuple(values)
        count, first = (values.count, values.first) if isinstance(values, Seeds) else (values, None)
        return Seeds(count, 1, self._first_seed(size) if first is None else first).values

    def _first_seed(self, size: str) -> int:
        """First seed of a size: the start of a block, after the seeds of all smaller judged sizes."""
        seeds, smaller = self.sizes[size].get("seed"), SIZES[1 : max(SIZES.index(size), 1)]
        if isinstance(seeds, Seeds) and seeds.first is not None:
            return seeds.first
        grids = [self.grid(name) for name in smaller if "seed" in self.sizes.get(name, {})]
        end = max((int(seed) + 1 for grid in grids for seed in grid.traced["seed"]), default=0)
        block = self.block(size) or 1
        return -(-end // block) * block

    def at(self, size: str) -> "Claim":
        """The claim with the fixed numbers of a size."""
        axes = self.sizes.get(size, {})
        return self.with_fixed({name: (value,) for name, value in axes.items() if name in self.fixed})

    def with_fixed(self, axes: Mapping[str, Sequence[Any]] | None) -> "Claim":
        """The claim with other fixed values, taken from ``axes``: another configuration."""
        changes = {}
        for name, values in (axes or {}).items():
            if name in self.fixed:
                if len(values) != 1:
                    raise expected(name, "one value, since it is fixed in this claim", list(values))
                # Of the claim's own type: 16 in the place of 4.0 is 16.0, whose negative powers are no error.
                changes[name] = type(self.fixed[name])(like(name, self.fixed[name], values[0]))
        return dataclasses.replace(self, fixed={**self.fixed, **changes}) if changes else self

    def under(self, control: str | None) -> "Claim":
        """The claim under one of its negative controls."""
        if control is None:
            return self
        require_known(f"control of {self.name}", control, self.controls)
        world = self.controls[control]
        if isinstance(world.theory, Mapping):
            raise expected("control", "a claim with a theory to give other arguments to", world.meaning)
        assert self.measure is not None  # the registry has set it
        return dataclasses.replace(
            self,
            measure=functools.partial(self.measure, **world.measure) if world.simulated else self.measure,
            theory=world.theory or self.theory,
            sizes={size: {**axes, **world.axes} for size, axes in self.sizes.items()},
        )

    def of_network(self, steps: Sequence[int] = ()) -> "Claim":
        """The claim about a user's network, or about a training run with these steps."""
        subject = self.subject
        assert subject is not None  # whoever opened the network has seen it
        axes = {**subject.axes, **({"step": tuple(steps)} if subject.run else {})}
        return dataclasses.replace(
            self,
            check=subject.check or self.check,
            figure=subject.figure or self.figure,
            sizes={size: {**values, **axes} for size, values in self.sizes.items()},
        )

    def point(self, cell: Coordinates, block: Mapping[str, tuple[Value, ...]]) -> "Point":
        """The values of a cell as ``measure`` gets them."""
        return Point(**self.fixed, **{name: cell[name] for name in self.static}, **block)

    def configuration(self, size: str, control: str | None, matmul_precision: str = DEFAULT) -> dict[str, Any]:
        """The settings on which a cell depends besides its coordinates: a store holds cells of one configuration."""
        return {
            "claim": self.name,
            "version": self.version,
            "size": size,
            "control": control,
            "fixed": dict(self.fixed),
            "static": list(self.static),
            "outputs": list(self.outputs),
            "block": self.block(size),
            "precision": self.precision,
            "key": self.key,
            "generator": GENERATOR,
            "matmul_precision": matmul_precision,
            "schema": SCHEMA,
        }


class Point(SimpleNamespace):
    """Fixed values and coordinates as attributes; ``names_read`` has the names of the attributes read so far."""

    __slots__ = ("names_read",)

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.names_read: set[str] = set()

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name != "names_read":
            self.names_read.update(value if name == "__dict__" else [name])
        return value


def completed(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with the entries that versions 0.2 and 0.3 do not state."""
    return {"version": 1, "generator": GENERATOR, "matmul_precision": DEFAULT, **configuration}


@dataclass(frozen=True)
class Vocabulary:
    """The names that one claim may use: the shared ones of :mod:`icllab.core.axes`, and its own.

    Attributes:
        axes: Every axis that the claim may be indexed by, by name.
        quantities: What it measures and predicts, by name.
        private: The names that only this claim has.
    """

    axes: Mapping[str, Axis]
    quantities: Mapping[str, Quantity]
    private: tuple[str, ...]

    @classmethod
    def from_claim(cls, axes: Iterable[Axis], quantities: Iterable[str | Quantity]) -> "Vocabulary":
        """The vocabulary of a claim; a name that is unknown, or that has another meaning already, raises InputError."""
        private = {row.name: row for row in axes}
        rows: dict[str, Quantity] = {}
        for quantity in quantities:
            row = quantity if isinstance(quantity, Quantity) else derived(quantity, QUANTITIES)
            if row is None:
                hint = "(one of the claim's own: Quantity(name, symbol, ...))"
                raise unknown("quantity", str(quantity), QUANTITIES, hint)
            rows[row.name] = row
        names = (*private, *(row.name for row in rows.values() if QUANTITIES.get(row.name) is not row))
        for name in names:
            if name in private and name in AXES:
                raise expected(name, "a name that is not a shared axis's already", name, "use that, or another name")
            if name in rows and name in QUANTITIES and QUANTITIES[name] is not rows[name]:
                raise expected(name, "a name that is not a shared quantity's already", name, "use that, or another")
        return cls({**AXES, **private}, rows, names)

    def axis(self, name: str) -> Axis:
        """The axis called ``name``; an unknown name raises InputError with the nearest known one."""
        require_known("axis", name, self.axes)
        return self.axes[name]

    def quantity(self, name: str) -> Quantity:
        """The quantity called ``name``, or derived from one by its suffix; an unknown name raises InputError."""
        return _derived(name, self.quantities)

    def row(self, name: str) -> Quantity:
        """The axis or the quantity called ``name``, or derived from one: a line has its points along ``tau_line``."""
        return _derived(name, {**self.quantities, **self.axes})

    def described(self) -> dict[str, tuple[str, str, str]]:
        """Symbol, meaning and unit of the claim's own names, as results carry them."""
        rows = {name: self.axes[name] if name in self.axes else self.quantities[name] for name in self.private}
        return {name: (row.symbol, row.meaning, row.unit) for name, row in rows.items()}


def _derived(name: str, rows: Mapping[str, Quantity]) -> Quantity:
    row = derived(name, rows)
    if row is None:
        raise unknown("quantity of the claim", name, rows)
    return row


def like(name: str, example: Value, value: Any) -> Value:
    """Convert a value to the kind of number or name of ``example``; text is parsed."""
    kind = {int: "an integer", float: "a number", str: "a name"}[type(example)]
    if isinstance(value, bool):
        raise expected(name, kind, value)
    if isinstance(example, str):
        return str(value)
    try:
        number: Any = value if isinstance(value, int) else canonical(float(value))
    except (TypeError, ValueError):
        raise expected(name, kind, value) from None
    # A number axis takes integers too; an integer axis takes no fractions.
    if isinstance(number, float) and (math.isnan(number) or isinstance(example, int)):
        raise expected(name, kind, value)
    return number
