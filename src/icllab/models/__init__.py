"""What is trained, or solved for: predictors with an inside that can be looked into and edited.

A model is written on one prompt (callers ``vmap``), answers causally, and names its activations; an
intervention wraps a model instead of changing it.
"""

from typing import TYPE_CHECKING

from icllab.core.lazy import attach

if TYPE_CHECKING:
    from icllab.models.interventions import Edited, edited
    from icllab.models.reduced import ReducedLinearAttention

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Edited": "interventions",
        "ReducedLinearAttention": "reduced",
        "edited": "interventions",
    },
    modules=("interventions", "reduced", "reduced_choice", "reduced_factors", "reduced_samples", "reduced_solvers"),
)
