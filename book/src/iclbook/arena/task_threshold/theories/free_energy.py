"""Free energies: the loss against learning coefficients of Kd/2 times ln N.

Derived: docs/memorising-generalising.md, Free energies. Three numbers are fitted.
"""

from iclbook.arena.task_threshold.theories._odds import fit_odds, predict_odds


def fit(train):
    """Fit the numbers of the log odds, and the scale."""
    return fit_odds("free energy", train)


def predict(numbers, conditions):
    """The weight from the log odds."""
    return predict_odds("free energy", numbers, conditions)
