"""Closed forms and limits that need no network, in NumPy and SciPy, in float64.

A formula here shares no code with the simulations it is compared with: it imports neither tasks nor
models, and nothing that imports JAX. The two meet in claims and in ``tests/agreement``. Every
closed form takes numbers or arrays that broadcast, and refuses a value outside its range with
the parameter's name, the value and the range.
"""

from icllab.core.lazy import attach

__all__ = [
    "coopetition",
    "descent",
    "dmmse",
    "free_energy",
    "induction_landscape",
    "learning_coefficients",
    "linear_attention",
    "markov_pools",
    "memorisation_race",
    "preconditioners",
    "saddles",
    "strategy_odds",
    "superposition",
    "wishart",
]
__getattr__, __dir__ = attach(__name__)
