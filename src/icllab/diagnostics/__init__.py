"""Questions put to any predictor: measurements that know a task and a predictor, and nothing else."""

from typing import TYPE_CHECKING

from icllab.core.lazy import attach

if TYPE_CHECKING:
    from icllab.diagnostics.heads import StatedHead, head_scores, item_label_measures, progress_measures
    from icllab.diagnostics.heavy_tails import heaviest_share
    from icllab.diagnostics.identification import identify, identify_over
    from icllab.diagnostics.layer_probe import probe_layers
    from icllab.diagnostics.lengths import per_length
    from icllab.diagnostics.local_learning import learning_coefficient
    from icllab.diagnostics.scores import icl_scores
    from icllab.diagnostics.survival import delay, kaplan_meier
    from icllab.diagnostics.transition_times import transitions
    from icllab.diagnostics.weights import interpolate, weight_distance

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "StatedHead": "heads",
        "delay": "survival",
        "head_scores": "heads",
        "heaviest_share": "heavy_tails",
        "icl_scores": "scores",
        "identify": "identification",
        "identify_over": "identification",
        "interpolate": "weights",
        "item_label_measures": "heads",
        "kaplan_meier": "survival",
        "learning_coefficient": "local_learning",
        "per_length": "lengths",
        "probe_layers": "layer_probe",
        "progress_measures": "heads",
        "transitions": "transition_times",
        "weight_distance": "weights",
    },
    modules=(
        "answers",
        "convergence",
        "heads",
        "heavy_tails",
        "identification",
        "langevin",
        "layer_probe",
        "lengths",
        "local_learning",
        "posteriors",
        "responses",
        "rival_fitting",
        "scores",
        "survival",
        "transition_times",
        "verdicts",
        "weights",
    ),
)
