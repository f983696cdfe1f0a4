"""The names that one claim may use: the shared ones of :mod:`icllab.core.axes`, and its own."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from icllab.core.axes import AXES, QUANTITIES, Axis, Quantity, derived
from icllab.core.errors import expected, require_known, unknown


@dataclass(frozen=True)
class Vocabulary:
    """Axes and quantities by name.

    Attributes:
        axes: All that the claim may be indexed by.
        quantities: What it measures and predicts.
        own: The names that only this claim has.
    """

    axes: Mapping[str, Axis]
    quantities: Mapping[str, Quantity]
    own: tuple[str, ...]

    @classmethod
    def of(cls, axes: Iterable[Axis], quantities: Iterable[str | Quantity]) -> "Vocabulary":
        """The vocabulary of a claim; a name that nobody knows, or that means something else already, is refused."""
        own_axes = {row.name: row for row in axes}
        named: dict[str, Quantity] = {}
        for row in quantities:
            if isinstance(row, Quantity):
                named[row.name] = row
            else:
                found = derived(row, QUANTITIES)
                if found is None:
                    raise unknown("quantity", row, QUANTITIES, "(one of the claim's own: Quantity(name, symbol, ...))")
                named[row] = found
        own = (*own_axes, *(row.name for row in named.values() if QUANTITIES.get(row.name) is not row))
        for name in own:
            if name in own_axes and name in AXES:
                raise expected(name, "a name that is not a shared axis's already", name, "use that, or another name")
            if name in named and name in QUANTITIES and QUANTITIES[name] is not named[name]:
                raise expected(name, "a name that is not a shared quantity's already", name, "use that, or another")
        return cls({**AXES, **own_axes}, named, own)

    def axis(self, name: str) -> Axis:
        """The axis called ``name``; an unknown name is refused with the nearest known one."""
        require_known("axis", name, self.axes)
        return self.axes[name]

    def quantity(self, name: str) -> Quantity:
        """The quantity called ``name``, or derived from one by its suffix; an unknown name is refused."""
        return _found(name, self.quantities)

    def row(self, name: str) -> Quantity:
        """The axis or the quantity called ``name``, or derived from one: a line has its points along ``tau_line``."""
        return _found(name, {**self.quantities, **self.axes})

    def described(self) -> dict[str, tuple[str, str, str]]:
        """Symbol, meaning and unit of the claim's own names, as results carry them."""
        rows = {name: self.axes[name] if name in self.axes else self.quantities[name] for name in self.own}
        return {name: (row.symbol, row.meaning, row.unit) for name, row in rows.items()}


def _found(name: str, known: Mapping[str, Quantity]) -> Quantity:
    found = derived(name, known)
    if found is None:
        raise unknown("quantity of the claim", name, known)
    return found
