r"""The axis table: one name, one symbol, one meaning for everything a result is indexed by.

A dimension of a saved result is a key of :data:`AXES`; a measured variable is a key of
:data:`QUANTITIES`. Figures take their labels from here, and nowhere else.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from icllab.core.errors import expected, unknown


@dataclass(frozen=True, slots=True)
class Axis:
    """A named axis or quantity.

    Attributes:
        name: As in results and on the command line.
        symbol: LaTeX without dollars.
        meaning: A few words for a figure's label.
        unit: Empty for pure numbers.
        least: No value is smaller (None: no such bound).
        above: Every value is larger (None: no such bound).
    """

    name: str
    symbol: str
    meaning: str
    unit: str = ""
    least: float | None = None
    above: float | None = None

    @property
    def label(self) -> str:
        """What stands at a figure's axis: meaning, symbol and unit."""
        return f"{self.meaning}, ${self.symbol}$" + (f" [{self.unit}]" if self.unit else "")

    def require(self, values: Iterable[Any]) -> None:
        """Refuse the first value that lies outside the axis's range (NaN lies outside every one)."""
        for value in values:
            if self.least is not None and not value >= self.least:
                raise expected(self.name, f"a number >= {self.least:g}", value)
            if self.above is not None and not value > self.above:
                raise expected(self.name, f"a number > {self.above:g}", value)


def _table(*rows: Axis) -> dict[str, Axis]:
    return {row.name: row for row in rows}


AXES = _table(
    Axis("dim", "d", "token dimension", least=1),
    Axis("length", r"\ell", "context length", "examples", least=0),
    Axis("position", "i", "position of the query", "examples seen", least=0),
    Axis("tau", r"\tau", "pretraining contexts per parameter", above=0),
    Axis("tau_line", r"\tau", "pretraining contexts per parameter, where a theory line is drawn"),
    Axis("alpha", r"\alpha", "context length over dimension", above=0),
    Axis("kappa", r"\kappa", "pretraining tasks over dimension", above=0),
    Axis("rho", r"\rho", "label-noise variance", least=0),
    Axis("ridge", r"\lambda", "ridge", least=0),
    Axis("seed", "s", "independent repetition", least=0),
    Axis("predictor", "T", "predictor"),
)

QUANTITIES = _table(
    Axis("icl_error", r"e_{\mathrm{ICL}}", "error on fresh tasks"),
    Axis("idg_error", r"e_{\mathrm{IDG}}", "error on pretraining tasks"),
    Axis("icl_theory", r"e_{\mathrm{ICL}}", "error on fresh tasks, closed form"),
    Axis("idg_theory", r"e_{\mathrm{IDG}}", "error on pretraining tasks, closed form"),
    Axis("icl_line", r"e_{\mathrm{ICL}}", "error on fresh tasks, closed form on the line's grid"),
    Axis("idg_line", r"e_{\mathrm{IDG}}", "error on pretraining tasks, closed form on the line's grid"),
    Axis("prompts", "n", "number of pretraining contexts"),
    Axis("converged", r"\checkmark", "whether the solver reached its tolerance"),
    Axis("loss", r"L^{(\ell)}", "mean loss at a position"),
    Axis("standard_error", r"\mathrm{SE}", "standard error of the mean"),
)


def axis(name: str) -> Axis:
    """The axis called ``name``; an unknown name is refused with the nearest known one."""
    if name not in AXES:
        raise unknown("axis", name, AXES)
    return AXES[name]


def quantity(name: str) -> Axis:
    """The measured quantity called ``name``."""
    if name not in QUANTITIES:
        raise unknown("quantity", name, QUANTITIES)
    return QUANTITIES[name]


def require_axes(names: Iterable[str]) -> None:
    """Refuse any dimension that is not in the axis table."""
    for name in names:
        axis(name)
