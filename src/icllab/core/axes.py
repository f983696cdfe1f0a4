r"""Names that several subpackages or claims share: one symbol, one meaning, one unit.

A dimension of a saved result is a key of :data:`AXES`, a measured variable one of :data:`QUANTITIES`; a claim declares
itself what it alone names. Standard errors, closed forms and lines are derived from a name by its suffix.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from icllab.core.errors import expected, unknown


@dataclass(frozen=True, slots=True)
class Quantity:
    """Something that is measured or predicted.

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
        """What stands at a figure's axis: meaning, symbol and unit."""
        return f"{self.meaning}, ${self.symbol}$" + (f" [{self.unit}]" if self.unit else "")


@dataclass(frozen=True, slots=True)
class Axis(Quantity):
    """Something that results are indexed by.

    Attributes:
        least: The smallest value (None: no such bound).
        above: What every value is larger than (None: no such bound).
    """

    least: float | None = None
    above: float | None = None

    def require(self, values: Iterable[Any]) -> None:
        """Refuse the first value that lies outside the axis's range (NaN lies outside every one)."""
        for value in values:
            if self.least is not None and not value >= self.least:
                raise expected(self.name, f"a number >= {self.least:g}", value)
            if self.above is not None and not value > self.above:
                raise expected(self.name, f"a number > {self.above:g}", value)


_DERIVED = {
    "_error": (r"\mathrm{{SE}}({})", "standard error of the {}"),
    "_interval": (r"\mathrm{{CI}}({})", "confidence interval of the {}"),
    "_theory": ("{}", "{}, closed form"),
    "_line": ("{}", "{}"),
}
"""Suffix -> symbol and meaning of what a name with it stands for; ``_line`` is what a figure draws."""


def derived(name: str, known: Mapping[str, Quantity]) -> Quantity | None:
    """``known[name]``, or what its suffixes make of a known name; None where there is neither.

    ``width_error`` is the standard error of ``width``, ``width_theory`` its closed form, ``width_line`` the line that a
    figure draws of it, ``width_interval`` its confidence interval. Suffixes nest.
    """
    if name in known:
        return known[name]
    for suffix, (symbol, meaning) in _DERIVED.items():
        base = derived(name.removesuffix(suffix), known) if name.endswith(suffix) else None
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
    Axis("tau_line", r"\tau", "pretraining contexts per parameter, where a theory line is drawn"),
    Axis("prompt_ratio", "n/d^2", "training prompts over dimension squared", above=0),
    Axis("prompt_ratio_line", "n/d^2", "training prompts over dimension squared, where a line is drawn"),
    Axis("epochs", "E", "training length", "epochs of d^2 prompts", above=0),
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
    Axis("layers", "b", "blocks of the network", least=1),
    Axis("step", "t", "training step", "updates", least=0),
    Axis("tasks", "k", "tasks in the training pool", least=1),
    Axis("parameters", "P", "parameters allowed", least=1),
    Axis("rate", r"\eta", "largest learning rate", above=0),
    Axis("rival", "r_k", "rival algorithm"),
    Axis("other_rival", "r_j", "other rival algorithm"),
    Axis("bound", "b", "end of an interval"),
    Axis("layer", "l", "layer of the network, 0 its embedding", least=0),
    Axis("algorithm_step", "k", "step of the algorithm, 0 before the first", least=0),
    Axis("slot", "s", "example or query"),
    Axis("row", "i", "row of a matrix", least=0),
    Axis("column", "j", "column of a matrix", least=0),
    Axis("interpolation", "t", "place between two networks' weights"),
    Axis("labels", "K", "kernel of the labels"),
    Axis("share", r"\epsilon", "largest share left unexplained of a rival that is named", above=0),
    Axis("input_scale", r"s_x", "scale of the inputs over that of training", above=0),
    Axis("task_scale", r"s_w", "scale of the task vectors over that of training", above=0),
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
    Axis("interaction", "u, v", "parts of query and key"),
    Axis("kept", "K", "interactions that are kept"),
    Axis("right_pair", "k", "pair of the right label", least=0),
    Axis("relative_time", "t/T", "time over that of the transition", least=0),
    Axis("loss_level", r"\mathcal{L}/\ln N", "loss over ln N", above=0),
    Axis("head", "h", "attention head"),
    Axis("classes", "K", "number of classes", least=1),
    Axis("intervention", "I", "intervention during training"),
    Axis("other_position", "i'", "position of another query", "examples seen", least=0),
    Axis("source", "q", "source of the tokens"),
    Axis("ngram", "n", "tokens of an n-gram", least=1),
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
    Quantity("icl_limit", r"e_{\mathrm{ICL}}", "error on fresh tasks, limit of long contexts and many of them"),
    Quantity("icl_line", r"e_{\mathrm{ICL}}", "error on fresh tasks, closed form on the line's grid"),
    Quantity("icl_zero", r"e^0_{\mathrm{ICL}}", "error of answering 0 on fresh tasks"),
    Quantity("idg_zero", r"e^0_{\mathrm{IDG}}", "error of answering 0 on pretraining tasks"),
    Quantity("icl_dmmse", r"e_{\mathrm{ICL}}", "error of dMMSE on fresh tasks"),
    Quantity("idg_dmmse", r"e_{\mathrm{IDG}}", "error of dMMSE on pretraining tasks"),
    Quantity("icl_ridge", r"e_{\mathrm{ICL}}", "error of ridge on fresh tasks"),
    Quantity("idg_ridge", r"e_{\mathrm{IDG}}", "error of ridge on pretraining tasks"),
    Quantity("icl_relative", r"e_{\mathrm{ICL}}/e^0_{\mathrm{ICL}}", "error on fresh tasks over that of answering 0"),
    Quantity(
        "idg_relative", r"e_{\mathrm{IDG}}/e^0_{\mathrm{IDG}}", "error on pretraining tasks over that of answering 0"
    ),
    Quantity("error_ratio", "r", "error on pretraining tasks over fresh ones"),
    Quantity("ratio_line", "r", "error on pretraining tasks over fresh ones, closed form on the line's grid"),
    Quantity("training_relative", r"e_{\mathrm{train}}/e^0_{\mathrm{train}}", "training error"),
    Quantity("log_icl_error", r"\ln e_{\mathrm{ICL}}", "log error, fresh tasks"),
    Quantity("log_icl_line", r"\ln e_{\mathrm{ICL}}", "log error, fresh tasks, a curve through the means"),
    Quantity("idg_line", r"e_{\mathrm{IDG}}", "error on pretraining tasks, closed form on the line's grid"),
    Quantity("transfer_error", r"e(\tilde C)", "error on tasks of another covariance"),
    Quantity("transfer_theory", r"e(\tilde C)", "error on tasks of another covariance, closed form"),
    Quantity("transfer_line", r"e(\tilde C)", "error on tasks of another covariance, closed form on the line's grid"),
    Quantity("gamma_diagonal", r"u^\top\Gamma u", "fitted matrix along an eigenvector"),
    Quantity("gamma_line", r"u^\top\bar\Gamma u", "mean of the fitted matrix along an eigenvector, closed form"),
    Quantity("fitted_ridge", r"\hat\nu", "ridge that fits the fitted matrix best"),
    Quantity("fitted_ridge_theory", r"\nu", "context noise plus effective ridge"),
    Quantity("off_diagonal", r"V_{\mathrm{off}}", "squared size of the fitted matrix off its diagonal, per dimension"),
    Quantity("diagonal_misfit", r"V_{\mathrm{diag}}", "squared misfit of the diagonal, times the dimension"),
    Quantity("last_column", r"V_{d+1}", "squared size of the last column of the fitted matrix"),
    Quantity("noise_theory", "V", "predicted squared noise of the fitted matrix, per dimension"),
    Quantity("last_column_theory", r"V_{d+1}", "squared size of the last column, closed form"),
    Quantity("gamma_distance", r"\|\Gamma-\Gamma^*\|/\|\Gamma^*\|", "relative distance from the exact matrix"),
    Quantity("gamma_norm", r"\|\Gamma\|/\|\Gamma^*\|", "norm over that of the exact matrix"),
    Quantity("training_error", r"e_{\mathrm{train}}", "squared error on the training contexts over the mean square"),
    Quantity("gap", "g", "excess on fresh tasks"),
    Quantity("gap_theory", "g", "excess on fresh tasks, closed form"),
    Quantity("gap_line", "g", "excess on fresh tasks, closed form on the line's grid"),
    Quantity("gap_limit", "g", "excess on fresh tasks, limit of long contexts and many of them"),
    Quantity("dmmse_gap", r"g_{\mathrm{dMMSE}}", "excess of dMMSE"),
    Quantity("prompts", "n", "number of pretraining contexts"),
    Quantity("converged", r"\checkmark", "whether the solver reached its tolerance"),
    Quantity("loss", r"L^{(\ell)}", "mean loss at a position"),
    Quantity("standard_error", r"\mathrm{SE}", "standard error of the mean"),
    Quantity("loss_sum", r"L", "sum of the losses of all positions"),
    Quantity("loss_sum_error", r"\mathrm{SE}(L)", "standard error of the sum of losses"),
    Quantity("loss_mean", r"\bar L", "mean of the losses of all positions"),
    Quantity("loss_mean_error", r"\mathrm{SE}(\bar L)", "standard error of the mean of losses"),
    Quantity("difference", r"\Delta L^{(\ell)}", "loss above that of the reference, at a position"),
    Quantity("difference_error", r"\mathrm{SE}(\Delta L^{(\ell)})", "standard error of a difference of losses"),
    Quantity("difference_mean", r"\Delta\bar L", "mean loss above that of the reference"),
    Quantity("difference_mean_error", r"\mathrm{SE}(\Delta\bar L)", "standard error of a difference of mean losses"),
    Quantity("loss_drop", r"L^{(e)}-L^{(l)}", "loss at an early position above that at a late one"),
    Quantity("loss_drop_error", r"\mathrm{SE}(L^{(e)}-L^{(l)})", "standard error of the drop in loss"),
    Quantity("closer", r"P_<", "how often the answer with context is the closer one"),
    Quantity("closer_error", r"\mathrm{SE}(P_<)", "standard error of how often it is closer"),
    Quantity("gain", r"G", "loss without context above that with it"),
    Quantity("gain_error", r"\mathrm{SE}(G)", "standard error of the gain"),
    Quantity("table_error", r"e", "squared error over the target's variance"),
    Quantity("table_excess", r"\Delta e", "squared error above that of the transformer"),
    Quantity("log_table_error", r"\ln e", "log squared error over the target's variance"),
    Quantity("peak_theory", r"\ell^*", "examples at the peak, as predicted"),
    Quantity("training_loss", "L_t", "loss on the step's own prompts, at a position"),
    Quantity("held_out_loss", "L_t", "loss on held-out prompts, at a position"),
    Quantity("held_out_error", r"\mathrm{SE}(L_t)", "standard error of the held-out loss"),
    Quantity("fresh_distance", r"\Delta", "squared distance on fresh tasks"),
    Quantity("pool_distance", r"\Delta", "squared distance on tasks of the pool"),
    Quantity("fresh_scale", r"\Delta_0", "squared distance of dMMSE from ridge on fresh tasks"),
    Quantity("pool_scale", r"\Delta_0", "squared distance of dMMSE from ridge on tasks of the pool"),
    Quantity("fresh_place", "p", "place on fresh tasks"),
    Quantity("pool_place", "p", "place on tasks of the pool"),
    Quantity("halfway_line", "p", "place halfway from ridge to dMMSE"),
    Quantity("excess", r"\Delta", "error above that of ridge"),
    Quantity("excess_line", r"\Delta", "error of least squares above that of ridge"),
    Quantity("parameter_count", "P_T", "parameters of a network"),
    Quantity("limit_distance", r"E(\hat y - \hat y_\infty)^2", "squared distance from the limit of depth"),
    Quantity("limit_scale", r"E\hat y_\infty^2", "mean square of the limit of depth"),
    Quantity(
        "limit_bayes",
        r"E(\hat y_\infty - \hat y^*)^2",
        "squared distance of the limit of depth from the posterior mean",
    ),
    Quantity("limit_line", r"E(\hat y_\infty - \hat y^*)^2", "squared distance of a limit from the posterior mean"),
    Quantity("bayes_distance", r"E(\hat y - \hat y^*)^2", "squared distance from the posterior mean"),
    Quantity("function_error", "e", "squared error"),
    Quantity("function_excess", "e - e^*", "error above Bayes"),
    Quantity("function_line", "e - e^*", "error above Bayes, mean over seeds"),
    Quantity("temperature", "T", "temperature of the weights"),
    Quantity("identity_distance", r"\Delta_I", "largest distance of B'C from a multiple of the identity"),
    Quantity("function_bayes", "e^*", "squared error of the posterior mean"),
    Quantity("status", "s_m", "what became of a member"),
    Quantity("ended", r"t_{\mathrm{end}}", "updates a member made", "updates"),
    Quantity("prediction", r"\delta_k", "share of the answers left unexplained"),
    Quantity("prediction_interval", r"\delta_k", "interval of the share of the answers left unexplained"),
    Quantity("sensitivity", r"\gamma_k", "share of the slopes left unexplained"),
    Quantity("sensitivity_interval", r"\gamma_k", "interval of the share of the slopes left unexplained"),
    Quantity("unexplained", "u_k", "share left unexplained"),
    Quantity("unexplained_line", "u_k", "share left unexplained below which a rival is named"),
    Quantity("unexplained_interval", "u_k", "interval of the share left unexplained"),
    Quantity("behind", r"u_k - u_{k^*}", "share left unexplained above that of the leader"),
    Quantity("behind_interval", r"u_k - u_{k^*}", "interval of the share above that of the leader"),
    Quantity("mutual", "m_{jk}", "share between two rivals"),
    Quantity("rank", r"\mathrm{rank}", "rank by the share left unexplained"),
    Quantity("accepted", r"\checkmark", "whether a rival explains enough"),
    Quantity("among", r"\checkmark", "whether the verdict means a rival"),
    Quantity("verdict", "v", "which rival the network is"),
    Quantity("mean_difference", r"E|f - r_k|", "mean difference of answers"),
    Quantity("cosine", r"\cos(g_f, g_k)", "mean cosine of slopes"),
    Quantity("slope_difference", r"E|g_f - g_k|", "mean distance of slopes"),
    Quantity("weight_distance", r"\Delta_W", "relative distance of weights in one gauge"),
    Quantity("free_numbers", r"p_k", "numbers fitted to the network"),
    Quantity("fitted", r"\hat\theta_k", "fitted numbers of a rival"),
    Quantity("trivial", r"1 - E(f-t)^2/Ef^2", "share of the answers that trivial alternatives explain"),
    Quantity("heaviest", r"h_{10}", "share of a mean that its ten largest terms carry"),
    Quantity("warning", "!", "what a reader should know"),
    Quantity("r_squared", "R^2", "share of the label slots explained"),
    Quantity("r_squared_error", r"\mathrm{SE}(R^2)", "standard error of the share explained"),
    Quantity("slots_left", "1 - R^2", "share of the slots that the layer's step leaves"),
    Quantity("test_loss", "L", "error on fresh prompts"),
    Quantity("loss_ratio", "r", "loss over that of a reference on the same prompts"),
    Quantity("loss_ratio_error", r"\mathrm{SE}(r)", "paired standard error of a ratio of losses"),
    Quantity("exact_ratio", "r_A", "exact loss of a matrix over that of the closed form"),
    Quantity("other_entries", "v", "size of the entries that no step has"),
    Quantity("preconditioner", "A", "entries of a preconditioner"),
    Quantity("contraction", "B", "entries of a contraction"),
    Quantity("preconditioner_diagonal", r"u^\top A u", "learned matrix along an eigenvector"),
    Quantity("preconditioner_line", r"u^\top A^* u", "best matrix along an eigenvector"),
    Quantity("matrix_distance", r"\|A-A^*\|/\|A^*\|", "relative distance from the closed form"),
    Quantity("step_distance", r"\mathrm{dist}(A)", "distance of a matrix from a multiple of the identity"),
    Quantity("preconditioner_distance", r"\mathrm{dist}(A)", "A from its family"),
    Quantity("contraction_distance", r"\mathrm{dist}(B)", "B from its family"),
    Quantity("random_distance", r"\mathrm{dist}", "distance of random matrices from the family"),
    Quantity("step_size", "a_l", "step size of a layer"),
    Quantity("tied_ratio", "r_1", "loss over that of steps of one size on the same prompts"),
    Quantity("tied_ratio_error", r"\mathrm{SE}(r_1)", "paired standard error of the ratio to steps of one size"),
    Quantity("free_ratio", "r_f", "loss over that of the best steps on the same prompts"),
    Quantity("free_ratio_error", r"\mathrm{SE}(r_f)", "paired standard error of the ratio to the best steps"),
    Quantity("plus_ratio", "r_+", "loss over that of GD++ with the best numbers on the same prompts"),
    Quantity("plus_ratio_error", r"\mathrm{SE}(r_+)", "paired standard error of the ratio to GD++"),
    Quantity("chosen_loss", "L", "error on the prompts that networks are chosen by"),
    Quantity("reached", "p", "share of the networks that reach GD++"),
    Quantity("exact_loss", "L", "error, exact"),
    Quantity("free_line", "L", "error of the best steps of gradient descent, exact"),
    Quantity("tied_line", "L", "error of the best steps of one size, exact"),
    Quantity("plus_line", "L", "error of the best GD++ found, exact"),
    Quantity("plus_tied_line", "L", "error of the best GD++ of one step found, exact"),
    Quantity("accuracy", "A", "share of right answers"),
    Quantity("chance_loss", r"\ln N", "cross-entropy of naming any label of the context", "nats"),
    Quantity("label_loss", r"\mathcal{L}", "cross-entropy of the label", "nats"),
    Quantity("context_label_accuracy", r"\mathrm{CLA}", "share of answers that are labels of the context"),
    Quantity("item_label_attention", r"\mathrm{ILA}_1", "attention from a label to its item, layer 1"),
    Quantity("target_attention", r"\mathrm{TILA}_2", "attention from the query to the right label, layer 2"),
    Quantity("label_attention", r"\mathrm{TLA}_2", "attention from the query to all labels, layer 2"),
    Quantity("origin_gradient", r"\nabla\mathcal{L}", "slope of the loss at the origin"),
    Quantity("flow_gradient", r"\nabla\mathcal{L}", "slope of the loss at the origin, closed form"),
    Quantity("crossing_time", "t_x", "time at which the loss falls through a level"),
    Quantity("landscape_number", "w", "number over its last"),
    Quantity("other_attention", "z'", "attention from the query to another label"),
    Quantity("half_time", "t_w", "step at which a number is half-way"),
    Quantity("stated_loss", r"\mathcal{L}", "cross-entropy of the label", "nats"),
    Quantity("stated_misfit", r"\Delta\mathcal{L}", "misfit of the loss that the landscape states", "nats"),
    Quantity("misfit", r"\Delta\mathcal{L}", "misfit of the fitted flow", "nats"),
    Quantity("fitted_rate", r"\rho", "fitted rate", "per 1000 steps"),
    Quantity("fitted_start", "w_0", "fitted start"),
    Quantity("profile", r"\Delta\mathcal{L}", "misfit with one rate held", "nats"),
    Quantity("score_contrast", r"\Delta s", "contrast of the scores"),
    Quantity("first_pattern", "a_{ij}", "attention in the first layer"),
    Quantity("second_pattern", "a_j", "attention of the query in the second layer"),
    Quantity("contrast_share", r"\Delta s/\Delta s_{\mathrm{all}}", "share of a contrast"),
    Quantity("accuracy_line", "1/N", "accuracy of naming any label of the context"),
    Quantity("overlap", r"\bar\zeta", "mean overlap of readers and labels"),
    Quantity("overlap_spread", r"\sigma_\zeta", "spread of the overlaps"),
    Quantity("overlap_error", r"\mathrm{SE}(\zeta)", "standard error of one overlap"),
    Quantity("flow_time", "t_x", "time at which the loss falls through a level, flow"),
    Quantity("strength_curve", "w", "strength"),
    Quantity("strength_line", "w", "strength, flow"),
    Quantity("label_loss_line", r"\mathcal{L}", "cross-entropy of the label, flow", "nats"),
    Quantity("transitioned", r"\checkmark", "whether a member made its transition"),
    Quantity("transition_time", "T", "time of the transition"),
    Quantity("transition_width", r"\Delta T", "time from 10 to 90 % of the transition"),
    Quantity("relative_width", r"\Delta T/T", "width of the transition over its time"),
    Quantity("observed_time", r"\min(T, C)", "time of the transition, or of the end without one"),
    Quantity("time_resolution", r"\delta t", "distance of the records around the transition"),
    Quantity("plateau_level", "p", "level of the plateau"),
    Quantity("end_level", "e", "level at the end"),
    Quantity("plateau_mean", r"\bar p", "mean level of the plateau"),
    Quantity("plateau_interval", r"\bar p", "interval of the mean level of the plateau"),
    Quantity("survival", "S", "share of the members without a transition so far"),
    Quantity("survival_interval", "S", "interval of the share without a transition"),
    Quantity("at_risk", "n", "members left"),
    Quantity("median_time", r"T_{1/2}", "median time of the transition"),
    Quantity("median_time_interval", r"T_{1/2}", "interval of the median time"),
    Quantity("restricted_mean", r"\int S", "mean time before the transition, up to an end"),
    Quantity("restricted_mean_error", r"\mathrm{SE}(\int S)", "standard error of the restricted mean"),
    Quantity("log_rank", "Z", "log-rank statistic"),
    Quantity("p_value", "p", "p-value, normal"),
    Quantity("exact_p_value", "p", "p-value, exact"),
    Quantity("restricted_difference", r"\Delta\int S", "difference of restricted means"),
    Quantity("restricted_difference_error", r"\mathrm{SE}(\Delta\int S)", "standard error of that difference"),
    Quantity("log_ratio", r"\ln r", "log ratio of restricted means"),
    Quantity("log_ratio_error", r"\mathrm{SE}(\ln r)", "standard error of that log ratio"),
    Quantity("previous_token_score", r"s_{\mathrm{prev}}", "attention to the previous token"),
    Quantity("previous_token_score_error", r"\mathrm{SE}(s_{\mathrm{prev}})", "standard error of that score"),
    Quantity("prefix_matching_score", r"s_{\mathrm{match}}", "attention to what followed the same token"),
    Quantity("prefix_matching_score_error", r"\mathrm{SE}(s_{\mathrm{match}})", "standard error of that score"),
    Quantity("induction_score", r"s_{\mathrm{ind}}", "attention to the right tokens above an even one"),
    Quantity("induction_score_error", r"\mathrm{SE}(s_{\mathrm{ind}})", "standard error of that score"),
    Quantity("context_label_mass", r"P_{\mathrm{CL}}", "probability of the labels of the context"),
    Quantity("context_advantage", r"A_{\mathrm{IC}} - A_{\mathrm{IW}}", "accuracy in context less by heart"),
    Quantity("lesser_accuracy", r"\min A", "lesser of the accuracies in context and by heart"),
    Quantity("chance_accuracy", "1/L", "accuracy of a guess"),
    Quantity("blind_accuracy", "1/L", "accuracy without attention"),
    Quantity("recogniser_accuracy", "A", "accuracy of one who knows the relations, measured"),
    Quantity("recogniser_theory", "A", "accuracy of one who knows the relations, closed form"),
    Quantity("learned_share", r"\lambda", "learned share"),
    Quantity("recognised_share", r"\rho", "recognised share"),
    Quantity("contribution", "c_l", "contribution of a length to the learning coefficient"),
    Quantity("contribution_mcse", r"\mathrm{SE}(c_l)", "Monte Carlo standard error of a contribution"),
    Quantity("contribution_covariance", r"\mathrm{Cov}_{ll'}", "covariance of two contributions under the posterior"),
    Quantity(
        "contribution_covariance_mcse", r"\mathrm{SE}(\mathrm{Cov}_{ll'})", "Monte Carlo error of that covariance"
    ),
    Quantity("length_samples", "n_l", "samples of a length"),
    Quantity("step_gain", "G_l", "gain of a step along the gradient of one length", "nats"),
    Quantity("divergence_error", r"\mathrm{SE}(K^{(l)})", "standard error of a divergence", "nats"),
    Quantity("divergence_sum", "K", "divergence of a window", "nats"),
    Quantity("divergence_sum_error", r"\mathrm{SE}(K)", "standard error of the divergence of a window", "nats"),
    Quantity("divergence_mean", r"\bar K", "mean divergence of a prefix", "nats"),
    Quantity("divergence_mean_error", r"\mathrm{SE}(\bar K)", "standard error of the mean divergence", "nats"),
    Quantity("divergence", r"K^{(l)}", "divergence from the truth", "nats"),
    Quantity("entropy", r"H^{(l)}", "entropy of the next token", "nats"),
    Quantity("ngram_distance", r"K_n", "divergence of the network from an n-gram predictor", "nats"),
    Quantity("ngram_loss", "L_n", "cross-entropy of an n-gram predictor", "nats"),
    Quantity("corpus_bytes", r"|T|", "bytes of the corpus"),
    Quantity("corpus_digest", r"\mathrm{SHA}", "first 13 hexadecimal digits of the corpus's digest, as a number"),
    Quantity("slot_residual", r"|\hat s_l - s_k|", "distance from the label slots, relative to the labels"),
    Quantity("learning_coefficient", r"\hat\lambda", "learning coefficient"),
    Quantity("learning_coefficient_error", r"\mathrm{SE}(\hat\lambda)", "standard error of the learning coefficient"),
    Quantity("learning_coefficient_theory", r"\lambda - (m-1)/\log n\beta", "learning coefficient, closed form"),
    Quantity("additivity_gap", r"\hat\lambda - \sum_c\hat\lambda_c", "coefficient less its terms'"),
    Quantity("additivity_gap_error", r"\mathrm{SE}", "standard error of that gap"),
    Quantity("additivity_gap_theory", r"\lambda - \sum_c\lambda_c", "coefficient less its terms', exact"),
    Quantity("contribution", r"n\beta E[L_c - L_c^*]", "contribution of a term"),
    Quantity("contribution_error", r"\mathrm{SE}", "standard error of a contribution"),
    Quantity("contribution_theory", r"n\beta E[L_c - L_c^*]", "contribution of a term, exact"),
    Quantity("term_covariance", r"\mathrm{Cov}(n\beta L_1, n\beta L_2)", "covariance of two terms"),
    Quantity("term_covariance_error", r"\mathrm{SE}", "standard error of a covariance of terms"),
    Quantity("term_covariance_theory", r"\mathrm{Cov}(n\beta L_1, n\beta L_2)", "covariance of two terms, exact"),
    Quantity("loss_mismatch", r"\delta L", "distance of two ways to one loss, relative"),
    Quantity("sampler_rhat", r"\hat R", "R-hat of the loss"),
    Quantity("sampler_warnings", "W", "warnings of the estimate"),
    Quantity("free_energy", "F", "free energy", "nats"),
    Quantity("annealing_warnings", "W", "warnings of the annealing"),
    Quantity("sample_mean", r"\bar y", "mean of the samples"),
    Quantity("phase_free_energy", "F_n(W_a)", "free energy of a phase", "nats"),
    Quantity("phase_free_energy_error", r"\mathrm{SE}", "standard error of a free energy", "nats"),
    Quantity("phase_free_energy_theory", "F_n(W_a)", "free energy of a phase, integral", "nats"),
    Quantity("phase_gap_theory", r"\Delta F_n", "difference of free energies, expansion", "nats"),
    Quantity("coefficient_gap", r"\Delta\lambda", "difference of learning coefficients"),
    Quantity("multiplicity_gap", r"\Delta m", "difference of multiplicities"),
    Quantity("phase_place", r"E[x \mid W_a]", "mean of x in a half"),
    Quantity("phase_place_error", r"\mathrm{SE}", "standard error of a mean of x"),
    Quantity("phase_place_theory", r"E[x \mid W_a]", "mean of x in a half, integral"),
    Quantity("phase_jump", "J", "change of the mean of x at equal shares"),
    Quantity("tilt_theory", "q^*", "tilt of equal shares, exact"),
    Quantity("phase_weight", "p_a", "share of the posterior"),
    Quantity("coefficient_theory", r"\lambda", "learning coefficient, exact"),
    Quantity("multiplicity_theory", "m", "multiplicity, exact"),
    Quantity("polygon_loss", "L", "loss"),
    Quantity("polygon_loss_theory", "L", "loss, closed form"),
    Quantity("polygon_slope", r"|\nabla L|", "largest slope of the loss"),
    Quantity("hessian_half_rank", r"\frac{1}{2}\mathrm{rank}H", "half the rank of the Hessian"),
    Quantity("descent_loss", "L", "loss"),
    Quantity("descent_coefficient", r"\hat\lambda", "learning coefficient on the way"),
    Quantity("descent_coefficient_error", r"\mathrm{SE}(\hat\lambda)", "standard error of that coefficient"),
    Quantity("descent_warnings", "W", "warnings of that estimate"),
    Quantity("posterior_share", "p", "share of the posterior"),
    Quantity("posterior_share_error", r"\mathrm{SE}(p)", "standard error of that share"),
)


def axis(name: str) -> Axis:
    """The axis called ``name``; an unknown name is refused with the nearest known one."""
    if name not in AXES:
        raise unknown("axis", name, AXES)
    return AXES[name]


def quantity(name: str) -> Quantity:
    """The quantity called ``name``, or derived from one by its suffix; an unknown name is refused."""
    found = derived(name, QUANTITIES)
    if found is None:
        raise unknown("quantity", name, QUANTITIES)
    return found


def require_axes(names: Iterable[str]) -> None:
    """Refuse any dimension that is not in the axis table."""
    for name in names:
        axis(name)
