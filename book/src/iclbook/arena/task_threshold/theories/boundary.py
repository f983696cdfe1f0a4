"""A threshold in steps that is a power of the number of urns, with a width.

Derived: docs/memorising-generalising.md, A boundary and a race. Three numbers are fitted.
"""

from iclbook.arena.task_threshold.theories._odds import fit_odds, predict_odds


def fit(train):
    """Fit the numbers of the log odds, and the scale."""
    return fit_odds("boundary", train)


def predict(numbers, conditions):
    """The weight from the log odds."""
    return predict_odds("boundary", numbers, conditions)
