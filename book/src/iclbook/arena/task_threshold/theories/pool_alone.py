"""The posterior over two strategies whose prior depends only on the pool's bits.

Source: after [Wurgaft25]. Three numbers are fitted; a program has no bits.
"""

from iclbook.arena.task_threshold.theories._odds import fit_odds, predict_odds


def fit(train):
    """Fit the numbers of the log odds, and the scale."""
    return fit_odds("pool alone", train)


def predict(numbers, conditions):
    """The weight from the log odds."""
    return predict_odds("pool alone", numbers, conditions)
