"""Names that several subpackages or claims share, with one symbol, one meaning and one unit each.

A dimension of a saved result is a key of :data:`AXES`, a measured variable one of :data:`QUANTITIES`; a claim declares
itself what it alone names. Standard errors, closed forms and lines are derived from a name by its suffix.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from icllab.core.domains import Domain


@dataclass(frozen=True, slots=True)
class Quantity:
    """A measured or predicted quantity.

    Attributes:
        name: As in results and on the command line.
        symbol: LaTeX without dollars.
        meaning: A few words for a figure's label.
        unit: Empty for pure numbers.
    """

    name: str
    symbol: str
    meaning: str
    unit: str = ""

    @property
    def label(self) -> str:
        """Label of a figure's axis: meaning, symbol and unit."""
        return f"{self.meaning}, ${self.symbol}$" + (f" [{self.unit}]" if self.unit else "")


@dataclass(frozen=True, slots=True)
class Axis(Quantity):
    """An axis that indexes results.

    Attributes:
        least: Smallest value; None without this bound.
        above: Open lower end of the values; None without this bound.
    """

    least: float | None = None
    above: float | None = None

    def require(self, values: Iterable[Any]) -> None:
        """Raise unless all values lie in the axis's domain; an axis without bounds also accepts names."""
        if self.least is None and self.above is None:
            return
        domain = Domain(least=self.least, above=self.above, infinite=True)
        for value in values:
            domain.require(self.name, value)


_DERIVED = {
    "_error": (r"\mathrm{{SE}}({})", "standard error of the {}"),
    "_mcse": (r"\mathrm{{SE}}({})", "Monte Carlo standard error of the {}"),
    "_interval": (r"\mathrm{{CI}}({})", "confidence interval of the {}"),
    "_theory": ("{}", "{}, closed form"),
    "_line": ("{}", "{}"),
}
"""Suffix -> symbol and meaning of what a name with it stands for; ``_line`` is what a figure draws."""


def derived(name: str, quantities: Mapping[str, Quantity]) -> Quantity | None:
    """Quantity of ``name`` in the table, or derived from a name in it by suffixes; None if there is neither.

    ``width_error`` is the standard error of ``width``, ``width_mcse`` that of a Markov chain, ``width_interval`` its
    confidence interval, ``width_theory`` its closed form, ``width_line`` the line that a figure draws. Suffixes nest.
    """
    if name in quantities:
        return quantities[name]
    for suffix, (symbol, meaning) in _DERIVED.items():
        base = derived(name.removesuffix(suffix), quantities) if name.endswith(suffix) else None
        if base is not None:
            return Quantity(name, symbol.format(base.symbol), meaning.format(base.meaning), base.unit)
    return None


_Row = TypeVar("_Row", bound=Quantity)


def _table(*rows: _Row) -> dict[str, _Row]:
    return {row.name: row for row in rows}


AXES = _table(
    Axis("dim", "d", "token dimension", least=1),
    Axis("length", r"\ell", "context length", "examples", least=0),
    Axis("key_width", "k", "width of keys and queries", least=1),
    Axis("task_rank", "r", "dimensions that the tasks span", least=1),
    Axis("draws", "D", "draws of each chain", least=1),
    Axis("arrangement", r"\mathcal{A}", "how terms of a loss share weights"),
    Axis("nbeta", r"n\beta", "inverse temperature times samples", above=0),
    Axis("chain", "c", "Markov chain", least=0),
    Axis("draw", "t", "draw of a chain", least=0),
    Axis("term", "c", "term of a loss", least=0),
    Axis("other_term", "c'", "term of a loss", least=0),
    Axis("localization_factor", r"c_\gamma", "factor on the localization", above=0),
    Axis("model", r"\mathcal{M}", "model whose coefficient is known"),
    Axis("products", "d", "products of two weights", least=1),
    Axis("samples", "n", "samples", least=1),
    Axis("phase", "a", "phase"),
    Axis("output", "j", "output of the model", least=0),
    Axis("tilt", "q", "tilt of the wells"),
    Axis("split", "p", "split of the wells"),
    Axis("position", "i", "position of the query", "examples seen", least=0),
    Axis("tau", r"\tau", "pretraining contexts per parameter", above=0),
    Axis("epochs", "E", "training length", "epochs of d^2 prompts", above=0),
    Axis("alpha", r"\alpha", "context length over dimension", above=0),
    Axis("test_alpha", r"\tilde\alpha", "context length of the test over dimension", above=0),
    Axis("kappa", r"\kappa", "pretraining tasks over dimension", above=0),
    Axis("rho", r"\rho", "label-noise variance", least=0),
    Axis("ridge", r"\lambda", "ridge", least=0),
    Axis("seed", "s", "independent repetition", least=0),
    Axis("setting", "S", "set of parameters"),
    Axis("exponent", "p", "exponent of the power law of task covariances"),
    Axis("eigenvalue", "r", "eigenvalue"),
    Axis("predictor", "T", "predictor"),
    Axis("training", r"\mathcal{A}", "way of training"),
    Axis("member", "m", "member of an ensemble", least=0),
    Axis("width", "w", "width of the residual stream", least=1),
    Axis("layers", "b", "blocks of the network", least=1),
    Axis("step", "t", "training step", "updates", least=0),
    Axis("tasks", "k", "tasks in the training pool", least=1),
    Axis("parameters", "P", "parameters allowed", least=1),
    Axis("rate", r"\eta", "largest learning rate", above=0),
    Axis("candidate", "r_k", "candidate algorithm"),
    Axis("other_candidate", "r_j", "other candidate algorithm"),
    Axis("bound", "b", "end of an interval"),
    Axis("layer", "l", "layer of the network, 0 its embedding", least=0),
    Axis("algorithm_step", "k", "step of the algorithm, 0 before the first", least=0),
    Axis("slot", "s", "example or query"),
    Axis("row", "i", "row of a matrix", least=0),
    Axis("column", "j", "column of a matrix", least=0),
    Axis("interpolation", "t", "place between two networks' weights"),
    Axis("labels", "K", "kernel of the labels"),
    Axis("tolerance", r"\epsilon", "largest fraction unexplained of a candidate that is named", above=0),
    Axis("input_scale", r"s_x", "scale of the inputs over that of training", above=0),
    Axis("test_set", "T", "test set"),
    Axis("label_count", "L", "number of labels", least=1),
    Axis("attention", r"\mathcal{A}", "kind of attention"),
    Axis("time", "t", "time", least=0),
    Axis("pairs", "N", "pairs in the context", least=1),
    Axis("strength", "w", "strength of a part of the head"),
    Axis("start", "w_0", "strengths at the start"),
    Axis("number", "w", "number of the landscape"),
    Axis("form", "F", "form of the flow"),
    Axis("factor", "f", "held rate over that of the best fit", above=0),
    Axis("reading", "R", "what the landscape is given"),
    Axis("contrast", "C", "what is told from what"),
    Axis("kept", "K", "interactions that are kept"),
    Axis("attention_head", "h", "attention head"),
    Axis("classes", "K", "number of classes", least=1),
    Axis("intervention", "I", "intervention during training"),
    Axis("other_position", "i'", "position of another query", "examples seen", least=0),
    Axis("source", "q", "source of the tokens"),
    Axis("relations", "M", "relations of items to labels in training", least=1),
    Axis("mode", "i", "eigenvalue, from the largest", least=0),
    Axis("probe", "z", "random vector", least=0),
    Axis("node", "j", "node of a quadrature", least=0),
    Axis("polygon", "k", "corners, and features with a constant (+)"),
    Axis("corners", "k", "corners of the polygon"),
    Axis("checkpoint", "t", "training step of a checkpoint", "updates", least=0),
)

QUANTITIES = _table(
    Quantity("icl_error", r"e_{\mathrm{ICL}}", "error on fresh tasks"),
    Quantity("idg_error", r"e_{\mathrm{IDG}}", "error on pretraining tasks"),
    Quantity("icl_theory", r"e_{\mathrm{ICL}}", "error on fresh tasks, closed form"),
    Quantity("idg_theory", r"e_{\mathrm{IDG}}", "error on pretraining tasks, closed form"),
    Quantity("icl_line", r"e_{\mathrm{ICL}}", "error on fresh tasks, closed form on the line's grid"),
    Quantity("icl_dmmse", r"e_{\mathrm{ICL}}", "error of dMMSE on fresh tasks"),
    Quantity("idg_dmmse", r"e_{\mathrm{IDG}}", "error of dMMSE on pretraining tasks"),
    Quantity("icl_ridge", r"e_{\mathrm{ICL}}", "error of ridge on fresh tasks"),
    Quantity("idg_ridge", r"e_{\mathrm{IDG}}", "error of ridge on pretraining tasks"),
    Quantity("idg_line", r"e_{\mathrm{IDG}}", "error on pretraining tasks, closed form on the line's grid"),
    Quantity("last_column", r"V_{d+1}", "squared size of the last column of the fitted matrix"),
    Quantity("training_error", r"e_{\mathrm{train}}", "training error over the mean square"),
    Quantity("gap", "g", "excess on fresh tasks"),
    Quantity("prompts", "n", "number of pretraining contexts"),
    Quantity("converged", r"\checkmark", "whether the solver reached its tolerance"),
    Quantity("loss", r"L^{(\ell)}", "mean loss at a position"),
    Quantity("targets", "n_i", "prompts that have a target at a position"),
    Quantity("standard_error", r"\mathrm{SE}", "standard error of the mean"),
    Quantity("loss_sum", r"L", "sum of the losses of all positions"),
    Quantity("loss_mean", r"\bar L", "mean of the losses of all positions"),
    Quantity("difference", r"\Delta L^{(\ell)}", "loss above that of the reference, at a position"),
    Quantity("difference_mean", r"\Delta\bar L", "mean loss above that of the reference"),
    Quantity("early_minus_late", r"L^{(e)}-L^{(l)}", "loss at an early position minus that at a late one"),
    Quantity("win_rate", r"P_<", "how often the answer with context has the smaller loss"),
    Quantity("context_benefit", "G", "loss without context minus that with it"),
    Quantity("table_error", r"e", "squared error over the target's variance"),
    Quantity("training_loss", "L_t", "loss on the step's own prompts, at a position"),
    Quantity("held_out_loss", "L_t", "loss on held-out prompts, at a position"),
    Quantity("held_out_error", r"\mathrm{SE}(L_t)", "standard error of the held-out loss"),
    Quantity("fresh_distance", r"\Delta", "squared distance on fresh tasks"),
    Quantity("excess", r"\Delta", "error above that of ridge"),
    Quantity("parameter_count", "P_T", "parameters of a network"),
    Quantity("function_error", "e", "squared error"),
    Quantity("temperature", "T", "temperature of the weights"),
    Quantity("identity_distance", r"\Delta_I", "largest distance of B'C from a multiple of the identity"),
    Quantity("function_bayes", "e^*", "squared error of the posterior mean"),
    Quantity("status", "s_m", "what became of a member"),
    Quantity("ended", r"t_{\mathrm{end}}", "updates a member made", "updates"),
    Quantity("prediction_discrepancy", r"\delta_k", "fraction of the variance of answers unexplained"),
    Quantity("input_gradient_discrepancy", r"\gamma_k", "fraction of the variance of input gradients unexplained"),
    Quantity("fraction_unexplained", "u_k", "fraction of variance unexplained"),
    Quantity("gap_to_best", r"u_k - u_{k^*}", "fraction unexplained above that of the best candidate"),
    Quantity("mutual", "m_{jk}", "fraction unexplained between two candidates"),
    Quantity("candidate_rank", r"\mathrm{rank}", "rank by the fraction unexplained"),
    Quantity("accepted", r"\checkmark", "whether a candidate explains enough"),
    Quantity("among", r"\checkmark", "whether the verdict means a candidate"),
    Quantity("verdict", "v", "which candidate the network is"),
    Quantity("mean_difference", r"E|f - r_k|", "mean difference of answers"),
    Quantity("cosine", r"\cos(g_f, g_k)", "mean cosine of input gradients"),
    Quantity("gradient_difference", r"E|g_f - g_k|", "mean distance of input gradients"),
    Quantity("weight_distance", r"\Delta_W", "relative distance of weights in one gauge"),
    Quantity("fitted_parameters", r"p_k", "number of parameters fitted to the network"),
    Quantity("fitted_values", r"\hat\theta_k", "fitted parameters of a candidate"),
    Quantity("baseline_explained", r"1 - E(f-t)^2/Ef^2", "fraction of the answers that baselines explain"),
    Quantity("heaviest", r"h_{10}", "share of a mean that its ten largest terms carry"),
    Quantity("warning", "!", "what a reader should know"),
    Quantity("r_squared", "R^2", "share of the label slots explained"),
    Quantity("test_loss", "L", "error on fresh prompts"),
    Quantity("loss_ratio", "r", "loss over that of a reference on the same prompts"),
    Quantity("preconditioner", "A", "entries of a preconditioner"),
    Quantity("contraction", "B", "entries of a contraction"),
    Quantity("step_size", "a_l", "step size of a layer"),
    Quantity("reached", "p", "fraction of networks that reach GD++"),
    Quantity("exact_loss", "L", "error, exact"),
    Quantity("free_line", "L", "error of the best steps of gradient descent, exact"),
    Quantity("tied_line", "L", "error of the best steps of one size, exact"),
    Quantity("accuracy", "A", "accuracy"),
    Quantity("chance_loss", r"\ln N", "cross-entropy of naming any label of the context", "nats"),
    Quantity("label_loss", r"\mathcal{L}", "cross-entropy of the label", "nats"),
    Quantity("context_label_accuracy", r"\mathrm{CLA}", "share of answers that are labels of the context"),
    Quantity("item_label_attention", r"\mathrm{ILA}_1", "attention from a label to its item, layer 1"),
    Quantity("target_attention", r"\mathrm{TILA}_2", "attention from the query to the right label, layer 2"),
    Quantity("label_attention", r"\mathrm{TLA}_2", "attention from the query to all labels, layer 2"),
    Quantity("half_time", "t_w", "step at which a number is half-way"),
    Quantity("misfit", r"\Delta\mathcal{L}", "misfit of the fitted flow", "nats"),
    Quantity("profile", r"\Delta\mathcal{L}", "misfit with one rate held", "nats"),
    Quantity("accuracy_line", "1/N", "accuracy of naming any label of the context"),
    Quantity("label_loss_line", r"\mathcal{L}", "cross-entropy of the label, flow", "nats"),
    Quantity("crossed", r"\checkmark", "whether a member crosses the level"),
    Quantity("transitioned", r"\checkmark", "whether a member crosses the level, in claims"),
    Quantity("transition_time", "T", "time of the transition"),
    Quantity("transition_width", r"\Delta T", "time from 10 to 90 % of the transition"),
    Quantity("relative_width", r"\Delta T/T", "width of the transition over its time"),
    Quantity("observed_time", r"\min(T, C)", "transition time, censored at the end of training"),
    Quantity("time_resolution", r"\delta t", "distance of the records around the transition"),
    Quantity("plateau_level", "p", "level of the plateau"),
    Quantity("end_level", "e", "level at the end"),
    Quantity("concavity", "A", "mean distance from the chord before the transition, on the plateau's side"),
    Quantity("abrupt", "a", "transition that waits before it comes"),
    Quantity("plateau_mean", r"\bar p", "mean level of the plateau"),
    Quantity("plateau_interval", r"\bar p", "interval of the mean level of the plateau"),
    Quantity("survival", "S", "share of the members without a transition so far"),
    Quantity("at_risk", "n", "members left"),
    Quantity("median_time", r"T_{1/2}", "median time of the transition"),
    Quantity("restricted_mean", r"\int S", "mean time before the transition, up to an end"),
    Quantity("log_rank", "Z", "log-rank statistic"),
    Quantity("p_value", "p", "p-value, normal"),
    Quantity("exact_p_value", "p", "p-value, exact"),
    Quantity("restricted_difference", r"\Delta\int S", "difference of restricted means"),
    Quantity("log_ratio", r"\ln r", "log ratio of restricted means"),
    Quantity("previous_token_score", r"s_{\mathrm{prev}}", "attention to the previous token"),
    Quantity("diagonal_induction_score", r"s_{\mathrm{diag}}", "attention one period less one back"),
    Quantity("duplicate_token_score", r"s_{\mathrm{dup}}", "attention to the same token"),
    Quantity("prefix_matching_score", r"s_{\mathrm{match}}", "attention to what followed the same token"),
    Quantity("induction_score", r"s_{\mathrm{ind}}", "attention to the right tokens above an even one"),
    Quantity("context_label_mass", r"P_{\mathrm{CL}}", "probability of the labels of the context"),
    Quantity("contribution_covariance", r"\mathrm{Cov}_{ll'}", "covariance of two contributions under the posterior"),
    Quantity("length_samples", "n_l", "samples of a length"),
    Quantity("step_gain", "G_l", "gain of a step along the gradient of one length", "nats"),
    Quantity("gradient_share", "s_l", "share of the squared gradient, by projection of that of one length"),
    Quantity("gradient_square", r"|g|^2", "square of the gradient"),
    Quantity("divergence_sum", "K", "divergence of a window", "nats"),
    Quantity("divergence_mean", r"\bar K", "mean divergence of a prefix", "nats"),
    Quantity("divergence", r"K^{(l)}", "divergence from the truth", "nats"),
    Quantity("entropy", r"H^{(l)}", "entropy of the next token", "nats"),
    Quantity("slot_residual", r"|\hat s_l - s_k|", "distance from the label slots, relative to the labels"),
    Quantity("learning_coefficient", r"\hat\lambda", "learning coefficient"),
    Quantity("learning_coefficient_theory", r"\lambda - (m-1)/\log n\beta", "learning coefficient, closed form"),
    Quantity("contribution", r"n\beta E[L_c - L_c^*]", "contribution of a term"),
    Quantity("term_covariance", r"\mathrm{Cov}(n\beta L_1, n\beta L_2)", "covariance of two terms"),
    Quantity("sampler_warnings", "W", "warnings of the estimate"),
    Quantity("free_energy", "F", "free energy", "nats"),
    Quantity("annealing_warnings", "W", "warnings of the annealing"),
    Quantity("phase_free_energy", "F_n(W_a)", "free energy of a phase", "nats"),
    Quantity("phase_free_energy_theory", "F_n(W_a)", "free energy of a phase, integral", "nats"),
)
