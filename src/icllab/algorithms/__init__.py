"""What a prompt could be answered with: the estimators of statistics, each a predictor.

Every one answers every position of a prompt from the examples before it, so that it stands beside a
network in any diagnostic, and "which algorithm is this network" is a distance between predictors.
"""

from icllab.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, {}, modules=())
