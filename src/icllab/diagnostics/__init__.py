"""Questions put to any predictor: measurements that know a task and a predictor, and nothing else."""

from typing import TYPE_CHECKING

from icllab.core.lazy import attach

if TYPE_CHECKING:
    from icllab.diagnostics.heavy_tails import heaviest_share
    from icllab.diagnostics.identification import identify, identify_over
    from icllab.diagnostics.layer_probe import probe_layers
    from icllab.diagnostics.lengths import per_length
    from icllab.diagnostics.scores import icl_scores
    from icllab.diagnostics.weights import interpolate, weight_distance

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "heaviest_share": "heavy_tails",
        "icl_scores": "scores",
        "identify": "identification",
        "identify_over": "identification",
        "interpolate": "weights",
        "per_length": "lengths",
        "probe_layers": "layer_probe",
        "weight_distance": "weights",
    },
    modules=(
        "answers",
        "heavy_tails",
        "identification",
        "layer_probe",
        "lengths",
        "responses",
        "rival_fitting",
        "scores",
        "verdicts",
        "weights",
    ),
)
