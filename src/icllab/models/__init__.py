"""What is trained, or solved for: predictors with an inside that can be looked into and edited.

A model is written on one prompt (callers ``vmap``), answers causally, and names its activations; an
intervention wraps a model instead of changing it.
"""

from typing import TYPE_CHECKING

from icllab.core.lazy import attach

if TYPE_CHECKING:
    from icllab.models.attention import Attention
    from icllab.models.controls import DeepSets, PromptPerceptron, Recurrent
    from icllab.models.embedding import Embedding, Interleaved, Joined
    from icllab.models.generalised_attention import GeneralisedAttention
    from icllab.models.interventions import Edited, edited
    from icllab.models.linear_attention import LinearAttention
    from icllab.models.parameters import parameter_count, width_for
    from icllab.models.reduced import ReducedLinearAttention
    from icllab.models.transformer import Transformer

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Attention": "attention",
        "DeepSets": "controls",
        "Edited": "interventions",
        "Embedding": "embedding",
        "GeneralisedAttention": "generalised_attention",
        "Interleaved": "embedding",
        "Joined": "embedding",
        "LinearAttention": "linear_attention",
        "PromptPerceptron": "controls",
        "Recurrent": "controls",
        "ReducedLinearAttention": "reduced",
        "Transformer": "transformer",
        "edited": "interventions",
        "parameter_count": "parameters",
        "width_for": "parameters",
    },
    modules=(
        "attention",
        "controls",
        "dense",
        "embedding",
        "generalised_attention",
        "gram",
        "interventions",
        "linear_attention",
        "parameters",
        "recording",
        "reduced",
        "reduced_choice",
        "reduced_factors",
        "reduced_samples",
        "reduced_solvers",
        "row_tokens",
        "transformer",
    ),
)
