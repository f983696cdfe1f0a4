"""Tasks: distributions of prompts, each with its own loss.

A task samples one prompt (callers ``vmap``) and owns the loss; every convention a paper hides in
its scaling is a field here, so a closed form and a simulation can be seen to speak of the same distribution.
"""

from typing import TYPE_CHECKING

from icllab.core.lazy import attach

if TYPE_CHECKING:
    from icllab.tasks.classification import SignLabels
    from icllab.tasks.curriculum import Curriculum
    from icllab.tasks.few_shot import FewShot
    from icllab.tasks.fixed_prompts import FixedPrompts
    from icllab.tasks.function_regression import FunctionRegression
    from icllab.tasks.hierarchical_regression import HierarchicalRegression
    from icllab.tasks.higher_order_chain import HigherOrderChain
    from icllab.tasks.integrated_regression import CovariancePrompt, IntegratedRegression
    from icllab.tasks.item_bursts import ItemBursts
    from icllab.tasks.item_label import ItemLabel, PromptMixture
    from icllab.tasks.label_relations import LabelRelations
    from icllab.tasks.linear_regression import LinearRegression
    from icllab.tasks.markov_pool import MarkovPool
    from icllab.tasks.mixture import Mixture
    from icllab.tasks.parsing import grammar, parse
    from icllab.tasks.periodic_strings import PeriodicStrings
    from icllab.tasks.random_functions import NetworkRegression, RandomFunctionRegression, TreeRegression
    from icllab.tasks.regression_distributions import (
        GaussianInputs,
        GaussianWeights,
        ShiftedQuery,
        SparseWeights,
        SphereInputs,
        UniformInputs,
        WeightPool,
    )
    from icllab.tasks.scaling import Standardised
    from icllab.tasks.sequences import InContextCopying, MarkovChain, RepeatedTokens
    from icllab.tasks.string_programs import StringPrograms
    from icllab.tasks.table import Table
    from icllab.tasks.text import Text
    from icllab.tasks.token_ids import TokenIds

__all__ = [
    "FewShot",
    "FunctionRegression",
    "ItemLabel",
    "LinearRegression",
    "MarkovChain",
    "RepeatedTokens",
    "Table",
    "Text",
    "WeightPool",
    "parse",
]
__getattr__, __dir__ = attach(__name__)
