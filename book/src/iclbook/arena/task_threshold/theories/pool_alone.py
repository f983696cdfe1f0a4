"""The posterior over two strategies with a prior of the pool's bits alone.

Source: after [Wurgaft25]. Three numbers are fitted; a program has no bits.
"""

from iclbook.arena.task_threshold.theories._odds import fit_odds, predict_odds


def fit(train):
    """The numbers of the log odds, and the scale."""
    return fit_odds("pool alone", train)


def predict(numbers, conditions):
    """The weight that they give."""
    return predict_odds("pool alone", numbers, conditions)
