"""Trained or exactly solved predictors, whose activations can be read and edited.

A model is written on one prompt (callers ``vmap``), answers causally, and names its activations; an
intervention wraps a model instead of changing it.
"""

from typing import TYPE_CHECKING

from icllab.core.lazy import attach

if TYPE_CHECKING:
    from icllab.models.activations import WithActivations
    from icllab.models.contexts.exact_family import FastWeights, GradientStep
    from icllab.models.contexts.frozen_entities import FrozenEntities
    from icllab.models.contexts.patches import best_patch, rank_one_patch
    from icllab.models.contexts.prefixes import Prefixed
    from icllab.models.induction.item_label_network import ItemLabelNetwork
    from icllab.models.induction.minimal_head import MinimalHead
    from icllab.models.interventions.clamps import (
        ablated,
        copy_clamped,
        match_clamped,
        previous_token_clamped,
        transplanted,
    )
    from icllab.models.interventions.edits import Edited, EditedBy, edited, edited_by
    from icllab.models.interventions.heads import head_outputs, path_patched
    from icllab.models.linear.generalised import GeneralisedAttention
    from icllab.models.linear.linear_attention import LinearAttention
    from icllab.models.linear.low_rank import LowRankAttention
    from icllab.models.linear.multi_head import MultiHeadLinearAttention
    from icllab.models.linear.scalar_attention import ScalarAttention
    from icllab.models.networks.attention import Attention, Rotary
    from icllab.models.networks.classifier import Classifier
    from icllab.models.networks.controls import DeepSets, PromptPerceptron, Recurrent
    from icllab.models.networks.embedding import Concatenated, Embedding, Interleaved, Joined, Tokens
    from icllab.models.networks.parameters import parameter_count, width_for
    from icllab.models.networks.transformer import BlockOptions, Transformer
    from icllab.models.pytorch import FromTorch
    from icllab.models.reduced.fitting import ReducedLinearAttention
    from icllab.models.torch_weights import from_torch

__all__ = [
    "FromTorch",
    "ItemLabelNetwork",
    "LinearAttention",
    "Transformer",
    "ablated",
    "edited",
    "from_torch",
    "pretrained",
    "reduced",
]
__getattr__, __dir__ = attach(__name__)
