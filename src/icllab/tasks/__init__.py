"""What is asked: laws of prompts, each with its own loss.

A task samples one prompt (callers ``vmap``) and owns the loss; every convention a paper hides in
its scaling is a field here, so a closed form and a simulation can be seen to speak of the same law.
"""

from typing import TYPE_CHECKING

from icllab.core.lazy import attach

if TYPE_CHECKING:
    from icllab.tasks.fixed_prompts import FixedPrompts
    from icllab.tasks.function_regression import FunctionRegression
    from icllab.tasks.hierarchical_regression import HierarchicalRegression
    from icllab.tasks.higher_order_chain import HigherOrderChain
    from icllab.tasks.integrated_regression import CovariancePrompt, IntegratedRegression
    from icllab.tasks.item_label import ItemLabel, PromptMixture
    from icllab.tasks.label_relations import LabelRelations
    from icllab.tasks.linear_regression import LinearRegression
    from icllab.tasks.regression_laws import (
        GaussianInputs,
        GaussianWeights,
        SphereInputs,
        UniformInputs,
        WeightPool,
    )
    from icllab.tasks.scaling import Standardised
    from icllab.tasks.sequences import InContextCopying, MarkovChain, RepeatedTokens
    from icllab.tasks.table import Table
    from icllab.tasks.text import Text

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "CovariancePrompt": "integrated_regression",
        "FixedPrompts": "fixed_prompts",
        "FunctionRegression": "function_regression",
        "GaussianInputs": "regression_laws",
        "GaussianWeights": "regression_laws",
        "HierarchicalRegression": "hierarchical_regression",
        "HigherOrderChain": "higher_order_chain",
        "InContextCopying": "sequences",
        "IntegratedRegression": "integrated_regression",
        "ItemLabel": "item_label",
        "LabelRelations": "label_relations",
        "LinearRegression": "linear_regression",
        "MarkovChain": "sequences",
        "PromptMixture": "item_label",
        "RepeatedTokens": "sequences",
        "SphereInputs": "regression_laws",
        "Standardised": "scaling",
        "Table": "table",
        "Text": "text",
        "UniformInputs": "regression_laws",
        "WeightPool": "regression_laws",
    },
    modules=(
        "attention_features",
        "classification",
        "fixed_prompts",
        "function_regression",
        "hierarchical_regression",
        "higher_order_chain",
        "integrated_regression",
        "item_label",
        "item_label_levels",
        "label_relations",
        "linear_regression",
        "regression_laws",
        "sample_covariances",
        "scaling",
        "sequences",
        "table",
        "table_files",
        "text",
        "text_files",
    ),
)
