"""Questions put to any predictor: measurements that know a task and a predictor, and nothing else."""

from typing import TYPE_CHECKING

from icllab.core.lazy import attach

if TYPE_CHECKING:
    from icllab.diagnostics.breakpoints import change_points
    from icllab.diagnostics.curvature import effective_dimension, fisher_spectrum, hessian_spectrum
    from icllab.diagnostics.free_energies import annealed_coefficient, free_energy, free_energy_slope
    from icllab.diagnostics.heads import StatedHead, head_scores, item_label_measures, progress_measures
    from icllab.diagnostics.heavy_tails import heaviest_share
    from icllab.diagnostics.identification import identify, identify_over
    from icllab.diagnostics.layer_probe import probe_layers
    from icllab.diagnostics.learning_machines import LearningMachine
    from icllab.diagnostics.length_divergences import divergences
    from icllab.diagnostics.lengths import per_length
    from icllab.diagnostics.local_learning import learning_coefficient
    from icllab.diagnostics.phases import phase_weights, sampled_crossings
    from icllab.diagnostics.scores import icl_scores
    from icllab.diagnostics.survival import delay, kaplan_meier
    from icllab.diagnostics.transition_times import transitions
    from icllab.diagnostics.weights import interpolate, weight_distance

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "LearningMachine": "learning_machines",
        "StatedHead": "heads",
        "annealed_coefficient": "free_energies",
        "change_points": "breakpoints",
        "delay": "survival",
        "effective_dimension": "curvature",
        "fisher_spectrum": "curvature",
        "free_energy": "free_energies",
        "free_energy_slope": "free_energies",
        "divergences": "length_divergences",
        "head_scores": "heads",
        "heaviest_share": "heavy_tails",
        "hessian_spectrum": "curvature",
        "icl_scores": "scores",
        "identify": "identification",
        "identify_over": "identification",
        "interpolate": "weights",
        "item_label_measures": "heads",
        "kaplan_meier": "survival",
        "learning_coefficient": "local_learning",
        "per_length": "lengths",
        "phase_weights": "phases",
        "probe_layers": "layer_probe",
        "progress_measures": "heads",
        "sampled_crossings": "phases",
        "transitions": "transition_times",
        "weight_distance": "weights",
    },
    modules=(
        "annealing",
        "answers",
        "breakpoints",
        "chain_statistics",
        "coefficient_curves",
        "convergence",
        "free_energies",
        "curvature",
        "heads",
        "heavy_tails",
        "identification",
        "krylov",
        "langevin",
        "layer_probe",
        "learning_machines",
        "length_divergences",
        "lengths",
        "local_estimates",
        "local_learning",
        "phases",
        "no_u_turn",
        "posteriors",
        "responses",
        "rival_fitting",
        "run_losses",
        "sampled_losses",
        "sampler_choice",
        "sampling_warnings",
        "scores",
        "survival",
        "transition_times",
        "verdicts",
        "weights",
    ),
)
