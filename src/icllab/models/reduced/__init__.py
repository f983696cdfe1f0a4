"""Linear attention reduced to one matrix and solved exactly: ``fit``, its samples and its solvers."""

from typing import TYPE_CHECKING

from icllab.core.lazy import attach

if TYPE_CHECKING:
    from icllab.models.reduced.fitting import ReducedLinearAttention, SolveReport, fit, fit_features, prompts_at
    from icllab.models.reduced.samples import Samples, sample

__all__ = ["ReducedLinearAttention", "fit"]
__getattr__, __dir__ = attach(__name__)
