r"""The axis table: one name, one symbol, one meaning for everything a result is indexed by.

A dimension of a saved result is a key of :data:`AXES`; a measured variable is a key of
:data:`QUANTITIES`. Figures take their labels from here, and nowhere else.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from icllab.core.errors import unknown


@dataclass(frozen=True, slots=True)
class Axis:
    """A named axis or quantity: ``symbol`` is LaTeX without dollars, ``unit`` is empty for pure numbers."""

    name: str
    symbol: str
    meaning: str
    unit: str = ""

    @property
    def label(self) -> str:
        """What stands at a figure's axis: meaning, symbol and unit."""
        return f"{self.meaning}, ${self.symbol}$" + (f" [{self.unit}]" if self.unit else "")


def _table(*rows: Axis) -> dict[str, Axis]:
    return {row.name: row for row in rows}


AXES = _table(
    Axis("dim", "d", "token dimension"),
    Axis("length", r"\ell", "context length", "examples"),
    Axis("position", "i", "position of the query", "examples seen"),
    Axis("tau", r"\tau", "pretraining contexts per parameter"),
    Axis("tau_line", r"\tau", "pretraining contexts per parameter, where a theory line is drawn"),
    Axis("alpha", r"\alpha", "context length over dimension"),
    Axis("kappa", r"\kappa", "pretraining tasks over dimension"),
    Axis("rho", r"\rho", "label-noise variance"),
    Axis("ridge", r"\lambda", "ridge"),
    Axis("seed", "s", "independent repetition"),
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
