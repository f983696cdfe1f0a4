"""Predictors that are algorithms of statistics: each answers a prompt.

Every one answers every position of a prompt from the examples before it, so that it stands beside a
network in any diagnostic, and "which algorithm is this network" is a distance between predictors.
"""

from typing import TYPE_CHECKING

from icllab.core.lazy import attach

if TYPE_CHECKING:
    from icllab.algorithms.bayes import DiscreteMMSE, GaussianPosterior, bayes_optimal
    from icllab.algorithms.descent import (
        GradientDescent,
        GradientDescentPlusPlus,
        NormalisedDescent,
        PreconditionedDescent,
    )
    from icllab.algorithms.estimators import FromSklearn, NearestNeighbours
    from icllab.algorithms.functional import (
        FunctionalDescent,
        GaussianProcess,
        KernelRichardson,
        KernelRidge,
        RepairedProcess,
        SoftmaxLimit,
    )
    from icllab.algorithms.label_maps import LabelMap
    from icllab.algorithms.least_squares import Lasso, LeastSquares, PrincipalComponentRegression, Ridge
    from icllab.algorithms.markov_pools import DirichletCounts, PoolPosterior, markov_strategies
    from icllab.algorithms.ngrams import NGram
    from icllab.algorithms.trained_network import TrainedNetwork

__all__ = [
    "DiscreteMMSE",
    "FromSklearn",
    "GaussianPosterior",
    "GradientDescent",
    "LeastSquares",
    "NGram",
    "Ridge",
    "bayes_optimal",
]
__getattr__, __dir__ = attach(__name__)
