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
    Axis("test_alpha", r"\tilde\alpha", "context length of the test over dimension", above=0),
    Axis("alpha_line", r"\alpha", "context length over dimension, where a theory line is drawn"),
    Axis("kappa", r"\kappa", "pretraining tasks over dimension", above=0),
    Axis("kappa_line", r"\kappa", "pretraining tasks over dimension, where a theory line is drawn"),
    Axis("rho", r"\rho", "label-noise variance", least=0),
    Axis("ridge", r"\lambda", "ridge", least=0),
    Axis("seed", "s", "independent repetition", least=0),
    Axis("setting", "S", "set of parameters"),
    Axis("exponent", "p", "exponent of the power law of task covariances"),
    Axis("exponent_line", "p", "exponent of the power law, where a theory line is drawn"),
    Axis("test_covariance", r"\tilde C", "covariance of the test tasks"),
    Axis("eigenvalue", "r", "eigenvalue"),
    Axis("eigenvalue_line", "r", "eigenvalue, where a theory line is drawn"),
    Axis("predictor", "T", "predictor"),
    Axis("training", r"\mathcal{A}", "way of training"),
    Axis("member", "m", "member of an ensemble", least=0),
    Axis("width", "w", "width of the residual stream", least=1),
    Axis("step", "t", "training step", "updates", least=0),
)

QUANTITIES = _table(
    Axis("icl_error", r"e_{\mathrm{ICL}}", "error on fresh tasks"),
    Axis("idg_error", r"e_{\mathrm{IDG}}", "error on pretraining tasks"),
    Axis("icl_theory", r"e_{\mathrm{ICL}}", "error on fresh tasks, closed form"),
    Axis("idg_theory", r"e_{\mathrm{IDG}}", "error on pretraining tasks, closed form"),
    Axis("icl_limit", r"e_{\mathrm{ICL}}", "error on fresh tasks, limit of long contexts and many of them"),
    Axis("icl_line", r"e_{\mathrm{ICL}}", "error on fresh tasks, closed form on the line's grid"),
    Axis("idg_line", r"e_{\mathrm{IDG}}", "error on pretraining tasks, closed form on the line's grid"),
    Axis("transfer_error", r"e(\tilde C)", "error on tasks of another covariance"),
    Axis("transfer_theory", r"e(\tilde C)", "error on tasks of another covariance, closed form"),
    Axis("transfer_line", r"e(\tilde C)", "error on tasks of another covariance, closed form on the line's grid"),
    Axis("gamma_diagonal", r"u^\top\Gamma u", "fitted matrix along an eigenvector"),
    Axis("gamma_line", r"u^\top\bar\Gamma u", "mean of the fitted matrix along an eigenvector, closed form"),
    Axis("fitted_ridge", r"\hat\nu", "ridge that fits the fitted matrix best"),
    Axis("fitted_ridge_theory", r"\nu", "context noise plus effective ridge"),
    Axis("off_diagonal", r"V_{\mathrm{off}}", "squared size of the fitted matrix off its diagonal, per dimension"),
    Axis("diagonal_misfit", r"V_{\mathrm{diag}}", "squared misfit of the diagonal, times the dimension"),
    Axis("last_column", r"V_{d+1}", "squared size of the last column of the fitted matrix"),
    Axis("noise_theory", "V", "predicted squared noise of the fitted matrix, per dimension"),
    Axis("last_column_theory", r"V_{d+1}", "squared size of the last column, closed form"),
    Axis("gamma_distance", r"\|\Gamma-\Gamma^*\|/\|\Gamma^*\|", "relative distance from the exact matrix"),
    Axis("gamma_norm", r"\|\Gamma\|/\|\Gamma^*\|", "norm over that of the exact matrix"),
    Axis("training_error", r"e_{\mathrm{train}}", "squared error on the training contexts over the mean square"),
    Axis("gap", "g", "excess on fresh tasks"),
    Axis("gap_theory", "g", "excess on fresh tasks, closed form"),
    Axis("gap_line", "g", "excess on fresh tasks, closed form on the line's grid"),
    Axis("gap_limit", "g", "excess on fresh tasks, limit of long contexts and many of them"),
    Axis("dmmse_gap", r"g_{\mathrm{dMMSE}}", "excess of dMMSE"),
    Axis("prompts", "n", "number of pretraining contexts"),
    Axis("converged", r"\checkmark", "whether the solver reached its tolerance"),
    Axis("loss", r"L^{(\ell)}", "mean loss at a position"),
    Axis("standard_error", r"\mathrm{SE}", "standard error of the mean"),
    Axis("loss_sum", r"L", "sum of the losses of all positions"),
    Axis("loss_sum_error", r"\mathrm{SE}(L)", "standard error of the sum of losses"),
    Axis("loss_mean", r"\bar L", "mean of the losses of all positions"),
    Axis("loss_mean_error", r"\mathrm{SE}(\bar L)", "standard error of the mean of losses"),
    Axis("difference", r"\Delta L^{(\ell)}", "loss above that of the reference, at a position"),
    Axis("difference_error", r"\mathrm{SE}(\Delta L^{(\ell)})", "standard error of a difference of losses"),
    Axis("difference_mean", r"\Delta\bar L", "mean loss above that of the reference"),
    Axis("difference_mean_error", r"\mathrm{SE}(\Delta\bar L)", "standard error of a difference of mean losses"),
    Axis("loss_drop", r"L^{(e)}-L^{(l)}", "loss at an early position above that at a late one"),
    Axis("loss_drop_error", r"\mathrm{SE}(L^{(e)}-L^{(l)})", "standard error of the drop in loss"),
    Axis("closer", r"P_<", "how often the answer with context is the closer one"),
    Axis("closer_error", r"\mathrm{SE}(P_<)", "standard error of how often it is closer"),
    Axis("gain", r"G", "loss without context above that with it"),
    Axis("gain_error", r"\mathrm{SE}(G)", "standard error of the gain"),
    Axis("table_error", r"e", "squared error over the target's variance"),
    Axis("log_table_error", r"\ln e", "log squared error over the target's variance"),
    Axis("peak_theory", r"\ell^*", "examples at the peak, as predicted"),
    Axis("training_loss", "L_t", "loss on the step's own prompts, at a position"),
    Axis("held_out_loss", "L_t", "loss on held-out prompts, at a position"),
    Axis("held_out_error", r"\mathrm{SE}(L_t)", "standard error of the held-out loss"),
    Axis("status", "s_m", "what became of a member"),
    Axis("ended", r"t_{\mathrm{end}}", "updates a member made", "updates"),
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
