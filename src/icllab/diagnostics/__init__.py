"""Questions put to any predictor: measurements that know a task and a predictor, and nothing else."""

from typing import TYPE_CHECKING

from icllab.core.lazy import attach

if TYPE_CHECKING:
    from icllab.diagnostics.lengths import per_length
    from icllab.diagnostics.scores import icl_scores

__getattr__, __dir__, __all__ = attach(
    __name__, {"icl_scores": "scores", "per_length": "lengths"}, modules=("answers", "lengths", "scores")
)
