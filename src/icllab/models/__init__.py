"""What is trained, or solved for: predictors with an inside that can be looked into and edited.

A model is written on one prompt (callers ``vmap``), answers causally, and names its activations; an
intervention wraps a model instead of changing it.
"""

from typing import TYPE_CHECKING

from icllab.core.lazy import attach

if TYPE_CHECKING:
    from icllab.models.attention import Attention
    from icllab.models.clamps import (
        ablated,
        copy_clamped,
        grafted,
        match_clamped,
        previous_token_clamped,
    )
    from icllab.models.classifier import Classifier
    from icllab.models.controls import DeepSets, PromptPerceptron, Recurrent
    from icllab.models.embedding import Embedding, Interleaved, Joined, Tokens
    from icllab.models.generalised_attention import GeneralisedAttention
    from icllab.models.interventions import Edited, EditedBy, edited, edited_by
    from icllab.models.item_label_network import ItemLabelNetwork
    from icllab.models.linear_attention import LinearAttention
    from icllab.models.minimal_head import MinimalHead
    from icllab.models.parameters import parameter_count, width_for
    from icllab.models.reduced import ReducedLinearAttention
    from icllab.models.transformer import Transformer

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Attention": "attention",
        "Classifier": "classifier",
        "DeepSets": "controls",
        "Edited": "interventions",
        "EditedBy": "interventions",
        "Embedding": "embedding",
        "GeneralisedAttention": "generalised_attention",
        "Interleaved": "embedding",
        "ItemLabelNetwork": "item_label_network",
        "Joined": "embedding",
        "LinearAttention": "linear_attention",
        "MinimalHead": "minimal_head",
        "PromptPerceptron": "controls",
        "Recurrent": "controls",
        "ReducedLinearAttention": "reduced",
        "Tokens": "embedding",
        "Transformer": "transformer",
        "ablated": "clamps",
        "copy_clamped": "clamps",
        "edited": "interventions",
        "edited_by": "interventions",
        "grafted": "clamps",
        "match_clamped": "clamps",
        "parameter_count": "parameters",
        "previous_token_clamped": "clamps",
        "width_for": "parameters",
    },
    modules=(
        "attention",
        "clamps",
        "classifier",
        "controls",
        "dense",
        "embedding",
        "generalised_attention",
        "gram",
        "interventions",
        "item_label_network",
        "linear_attention",
        "minimal_head",
        "parameters",
        "placed_rows",
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
