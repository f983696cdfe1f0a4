"""A race of two learning curves; memorising takes a time proportional to the pool.

Source: the picture of [Nguyen25]; the formula is ours. Three numbers are fitted.
"""

from iclbook.arena.task_threshold.theories._odds import fit_odds, predict_odds


def fit(train):
    """Fit the numbers of the log odds, and the scale."""
    return fit_odds("race", train)


def predict(numbers, conditions):
    """The weight from the log odds."""
    return predict_odds("race", numbers, conditions)
