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
    Axis("relations", "M", "relations of items to labels in training", least=1),
)

QUANTITIES = _table(
    Axis("icl_error", r"e_{\mathrm{ICL}}", "error on fresh tasks"),
    Axis("idg_error", r"e_{\mathrm{IDG}}", "error on pretraining tasks"),
    Axis("icl_theory", r"e_{\mathrm{ICL}}", "error on fresh tasks, closed form"),
    Axis("idg_theory", r"e_{\mathrm{IDG}}", "error on pretraining tasks, closed form"),
    Axis("icl_limit", r"e_{\mathrm{ICL}}", "error on fresh tasks, limit of long contexts and many of them"),
    Axis("icl_line", r"e_{\mathrm{ICL}}", "error on fresh tasks, closed form on the line's grid"),
    Axis("icl_zero", r"e^0_{\mathrm{ICL}}", "error of answering 0 on fresh tasks"),
    Axis("idg_zero", r"e^0_{\mathrm{IDG}}", "error of answering 0 on pretraining tasks"),
    Axis("icl_dmmse", r"e_{\mathrm{ICL}}", "error of dMMSE on fresh tasks"),
    Axis("idg_dmmse", r"e_{\mathrm{IDG}}", "error of dMMSE on pretraining tasks"),
    Axis("icl_ridge", r"e_{\mathrm{ICL}}", "error of ridge on fresh tasks"),
    Axis("idg_ridge", r"e_{\mathrm{IDG}}", "error of ridge on pretraining tasks"),
    Axis("icl_relative", r"e_{\mathrm{ICL}}/e^0_{\mathrm{ICL}}", "error on fresh tasks over that of answering 0"),
    Axis("idg_relative", r"e_{\mathrm{IDG}}/e^0_{\mathrm{IDG}}", "error on pretraining tasks over that of answering 0"),
    Axis("error_ratio", "r", "error on pretraining tasks over fresh ones"),
    Axis("ratio_line", "r", "error on pretraining tasks over fresh ones, closed form on the line's grid"),
    Axis("training_relative", r"e_{\mathrm{train}}/e^0_{\mathrm{train}}", "training error"),
    Axis("log_icl_error", r"\ln e_{\mathrm{ICL}}", "log error, fresh tasks"),
    Axis("log_icl_line", r"\ln e_{\mathrm{ICL}}", "log error, fresh tasks, a curve through the means"),
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
    Axis("table_excess", r"\Delta e", "squared error above that of the transformer"),
    Axis("log_table_error", r"\ln e", "log squared error over the target's variance"),
    Axis("peak_theory", r"\ell^*", "examples at the peak, as predicted"),
    Axis("training_loss", "L_t", "loss on the step's own prompts, at a position"),
    Axis("held_out_loss", "L_t", "loss on held-out prompts, at a position"),
    Axis("held_out_error", r"\mathrm{SE}(L_t)", "standard error of the held-out loss"),
    Axis("fresh_distance", r"\Delta", "squared distance on fresh tasks"),
    Axis("pool_distance", r"\Delta", "squared distance on tasks of the pool"),
    Axis("fresh_scale", r"\Delta_0", "squared distance of dMMSE from ridge on fresh tasks"),
    Axis("pool_scale", r"\Delta_0", "squared distance of dMMSE from ridge on tasks of the pool"),
    Axis("fresh_place", "p", "place on fresh tasks"),
    Axis("pool_place", "p", "place on tasks of the pool"),
    Axis("halfway_line", "p", "place halfway from ridge to dMMSE"),
    Axis("excess", r"\Delta", "error above that of ridge"),
    Axis("excess_line", r"\Delta", "error of least squares above that of ridge"),
    Axis("parameter_count", "P_T", "parameters of a network"),
    Axis("limit_distance", r"E(\hat y - \hat y_\infty)^2", "squared distance from the limit of depth"),
    Axis("limit_scale", r"E\hat y_\infty^2", "mean square of the limit of depth"),
    Axis(
        "limit_bayes",
        r"E(\hat y_\infty - \hat y^*)^2",
        "squared distance of the limit of depth from the posterior mean",
    ),
    Axis("limit_line", r"E(\hat y_\infty - \hat y^*)^2", "squared distance of a limit from the posterior mean"),
    Axis("bayes_distance", r"E(\hat y - \hat y^*)^2", "squared distance from the posterior mean"),
    Axis("function_error", "e", "squared error"),
    Axis("function_excess", "e - e^*", "error above Bayes"),
    Axis("function_line", "e - e^*", "error above Bayes, mean over seeds"),
    Axis("temperature", "T", "temperature of the weights"),
    Axis("identity_distance", r"\Delta_I", "largest distance of B'C from a multiple of the identity"),
    Axis("function_bayes", "e^*", "squared error of the posterior mean"),
    Axis("status", "s_m", "what became of a member"),
    Axis("ended", r"t_{\mathrm{end}}", "updates a member made", "updates"),
    Axis("prediction", r"\delta_k", "share of the answers left unexplained"),
    Axis("prediction_interval", r"\delta_k", "interval of the share of the answers left unexplained"),
    Axis("sensitivity", r"\gamma_k", "share of the slopes left unexplained"),
    Axis("sensitivity_interval", r"\gamma_k", "interval of the share of the slopes left unexplained"),
    Axis("unexplained", "u_k", "share left unexplained"),
    Axis("unexplained_line", "u_k", "share left unexplained below which a rival is named"),
    Axis("unexplained_interval", "u_k", "interval of the share left unexplained"),
    Axis("behind", r"u_k - u_{k^*}", "share left unexplained above that of the leader"),
    Axis("behind_interval", r"u_k - u_{k^*}", "interval of the share above that of the leader"),
    Axis("mutual", "m_{jk}", "share between two rivals"),
    Axis("rank", r"\mathrm{rank}", "rank by the share left unexplained"),
    Axis("accepted", r"\checkmark", "whether a rival explains enough"),
    Axis("among", r"\checkmark", "whether the verdict means a rival"),
    Axis("verdict", "v", "which rival the network is"),
    Axis("mean_difference", r"E|f - r_k|", "mean difference of answers"),
    Axis("cosine", r"\cos(g_f, g_k)", "mean cosine of slopes"),
    Axis("slope_difference", r"E|g_f - g_k|", "mean distance of slopes"),
    Axis("weight_distance", r"\Delta_W", "relative distance of weights in one gauge"),
    Axis("free_numbers", r"p_k", "numbers fitted to the network"),
    Axis("fitted", r"\hat\theta_k", "fitted numbers of a rival"),
    Axis("trivial", r"1 - E(f-t)^2/Ef^2", "share of the answers that trivial alternatives explain"),
    Axis("heaviest", r"h_{10}", "share of a mean that its ten largest terms carry"),
    Axis("warning", "!", "what a reader should know"),
    Axis("r_squared", "R^2", "share of the label slots explained"),
    Axis("r_squared_error", r"\mathrm{SE}(R^2)", "standard error of the share explained"),
    Axis("slots_left", "1 - R^2", "share of the slots that the layer's step leaves"),
    Axis("test_loss", "L", "error on fresh prompts"),
    Axis("loss_ratio", "r", "loss over that of a reference on the same prompts"),
    Axis("loss_ratio_error", r"\mathrm{SE}(r)", "paired standard error of a ratio of losses"),
    Axis("exact_ratio", "r_A", "exact loss of a matrix over that of the closed form"),
    Axis("other_entries", "v", "size of the entries that no step has"),
    Axis("preconditioner", "A", "entries of a preconditioner"),
    Axis("contraction", "B", "entries of a contraction"),
    Axis("preconditioner_diagonal", r"u^\top A u", "learned matrix along an eigenvector"),
    Axis("preconditioner_line", r"u^\top A^* u", "best matrix along an eigenvector"),
    Axis("matrix_distance", r"\|A-A^*\|/\|A^*\|", "relative distance from the closed form"),
    Axis("step_distance", r"\mathrm{dist}(A)", "distance of a matrix from a multiple of the identity"),
    Axis("preconditioner_distance", r"\mathrm{dist}(A)", "A from its family"),
    Axis("contraction_distance", r"\mathrm{dist}(B)", "B from its family"),
    Axis("random_distance", r"\mathrm{dist}", "distance of random matrices from the family"),
    Axis("step_size", "a_l", "step size of a layer"),
    Axis("tied_ratio", "r_1", "loss over that of steps of one size on the same prompts"),
    Axis("tied_ratio_error", r"\mathrm{SE}(r_1)", "paired standard error of the ratio to steps of one size"),
    Axis("free_ratio", "r_f", "loss over that of the best steps on the same prompts"),
    Axis("free_ratio_error", r"\mathrm{SE}(r_f)", "paired standard error of the ratio to the best steps"),
    Axis("plus_ratio", "r_+", "loss over that of GD++ with the best numbers on the same prompts"),
    Axis("plus_ratio_error", r"\mathrm{SE}(r_+)", "paired standard error of the ratio to GD++"),
    Axis("chosen_loss", "L", "error on the prompts that networks are chosen by"),
    Axis("reached", "p", "share of the networks that reach GD++"),
    Axis("exact_loss", "L", "error, exact"),
    Axis("free_line", "L", "error of the best steps of gradient descent, exact"),
    Axis("tied_line", "L", "error of the best steps of one size, exact"),
    Axis("plus_line", "L", "error of the best GD++ found, exact"),
    Axis("plus_tied_line", "L", "error of the best GD++ of one step found, exact"),
    Axis("accuracy", "A", "share of right answers"),
    Axis("chance_loss", r"\ln N", "cross-entropy of naming any label of the context", "nats"),
    Axis("label_loss", r"\mathcal{L}", "cross-entropy of the label", "nats"),
    Axis("context_label_accuracy", r"\mathrm{CLA}", "share of answers that are labels of the context"),
    Axis("item_label_attention", r"\mathrm{ILA}_1", "attention from a label to its item, layer 1"),
    Axis("target_attention", r"\mathrm{TILA}_2", "attention from the query to the right label, layer 2"),
    Axis("label_attention", r"\mathrm{TLA}_2", "attention from the query to all labels, layer 2"),
    Axis("origin_gradient", r"\nabla\mathcal{L}", "slope of the loss at the origin"),
    Axis("flow_gradient", r"\nabla\mathcal{L}", "slope of the loss at the origin, closed form"),
    Axis("crossing_time", "t_x", "time at which the loss falls through a level"),
    Axis("landscape_number", "w", "number over its last"),
    Axis("other_attention", "z'", "attention from the query to another label"),
    Axis("half_time", "t_w", "step at which a number is half-way"),
    Axis("stated_loss", r"\mathcal{L}", "cross-entropy of the label", "nats"),
    Axis("stated_misfit", r"\Delta\mathcal{L}", "misfit of the loss that the landscape states", "nats"),
    Axis("misfit", r"\Delta\mathcal{L}", "misfit of the fitted flow", "nats"),
    Axis("fitted_rate", r"\rho", "fitted rate", "per 1000 steps"),
    Axis("fitted_start", "w_0", "fitted start"),
    Axis("profile", r"\Delta\mathcal{L}", "misfit with one rate held", "nats"),
    Axis("score_contrast", r"\Delta s", "contrast of the scores"),
    Axis("first_pattern", "a_{ij}", "attention in the first layer"),
    Axis("second_pattern", "a_j", "attention of the query in the second layer"),
    Axis("contrast_share", r"\Delta s/\Delta s_{\mathrm{all}}", "share of a contrast"),
    Axis("accuracy_line", "1/N", "accuracy of naming any label of the context"),
    Axis("overlap", r"\bar\zeta", "mean overlap of readers and labels"),
    Axis("overlap_spread", r"\sigma_\zeta", "spread of the overlaps"),
    Axis("overlap_error", r"\mathrm{SE}(\zeta)", "standard error of one overlap"),
    Axis("flow_time", "t_x", "time at which the loss falls through a level, flow"),
    Axis("strength_curve", "w", "strength"),
    Axis("strength_line", "w", "strength, flow"),
    Axis("label_loss_line", r"\mathcal{L}", "cross-entropy of the label, flow", "nats"),
    Axis("transitioned", r"\checkmark", "whether a member made its transition"),
    Axis("transition_time", "T", "time of the transition"),
    Axis("transition_width", r"\Delta T", "time from 10 to 90 % of the transition"),
    Axis("relative_width", r"\Delta T/T", "width of the transition over its time"),
    Axis("observed_time", r"\min(T, C)", "time of the transition, or of the end without one"),
    Axis("time_resolution", r"\delta t", "distance of the records around the transition"),
    Axis("plateau_level", "p", "level of the plateau"),
    Axis("end_level", "e", "level at the end"),
    Axis("plateau_mean", r"\bar p", "mean level of the plateau"),
    Axis("plateau_interval", r"\bar p", "interval of the mean level of the plateau"),
    Axis("survival", "S", "share of the members without a transition so far"),
    Axis("survival_interval", "S", "interval of the share without a transition"),
    Axis("at_risk", "n", "members left"),
    Axis("median_time", r"T_{1/2}", "median time of the transition"),
    Axis("median_time_interval", r"T_{1/2}", "interval of the median time"),
    Axis("restricted_mean", r"\int S", "mean time before the transition, up to an end"),
    Axis("restricted_mean_error", r"\mathrm{SE}(\int S)", "standard error of the restricted mean"),
    Axis("log_rank", "Z", "log-rank statistic"),
    Axis("p_value", "p", "p-value, normal"),
    Axis("exact_p_value", "p", "p-value, exact"),
    Axis("restricted_difference", r"\Delta\int S", "difference of restricted means"),
    Axis("restricted_difference_error", r"\mathrm{SE}(\Delta\int S)", "standard error of that difference"),
    Axis("log_ratio", r"\ln r", "log ratio of restricted means"),
    Axis("log_ratio_error", r"\mathrm{SE}(\ln r)", "standard error of that log ratio"),
    Axis("previous_token_score", r"s_{\mathrm{prev}}", "attention to the previous token"),
    Axis("previous_token_score_error", r"\mathrm{SE}(s_{\mathrm{prev}})", "standard error of that score"),
    Axis("prefix_matching_score", r"s_{\mathrm{match}}", "attention to what followed the same token"),
    Axis("prefix_matching_score_error", r"\mathrm{SE}(s_{\mathrm{match}})", "standard error of that score"),
    Axis("induction_score", r"s_{\mathrm{ind}}", "attention to the right tokens above an even one"),
    Axis("induction_score_error", r"\mathrm{SE}(s_{\mathrm{ind}})", "standard error of that score"),
    Axis("context_label_mass", r"P_{\mathrm{CL}}", "probability of the labels of the context"),
    Axis("context_advantage", r"A_{\mathrm{IC}} - A_{\mathrm{IW}}", "accuracy in context less by heart"),
    Axis("lesser_accuracy", r"\min A", "lesser of the accuracies in context and by heart"),
    Axis("chance_accuracy", "1/L", "accuracy of a guess"),
    Axis("blind_accuracy", "1/L", "accuracy without attention"),
    Axis("recogniser_accuracy", "A", "accuracy of one who knows the relations, measured"),
    Axis("recogniser_theory", "A", "accuracy of one who knows the relations, closed form"),
    Axis("learned_share", r"\lambda", "learned share"),
    Axis("recognised_share", r"\rho", "recognised share"),
    Axis("slot_residual", r"|\hat s_l - s_k|", "distance from the label slots, relative to the labels"),
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
