"""A posterior over two strategies whose prior penalises the bits of the pool and of a program.

Source: [Wurgaft25]. Three numbers are fitted; a program has 4000 bits.
"""

from iclbook.arena.task_threshold.theories._odds import fit_odds, predict_odds


def fit(train):
    """Fit the numbers of the log odds, and the scale."""
    return fit_odds("posterior", train)


def predict(numbers, conditions):
    """The weight from the log odds."""
    return predict_odds("posterior", numbers, conditions)
