"""The value of the nearest cells of the training part, each condition counted in its levels."""

import numpy as np

from icllab.arena import Prediction
from icllab.arena.nulls import condition_names


def fit(train):
    """Mean logarithms and conditions of the training cells, and the error with each left out as the scale.

    A censored value counts as the time until which it was watched.
    """
    table = {name: train[name].values for name in condition_names(train)} | {
        "mean": np.log(train["value"]).mean("seed")
    }
    away = distances(table, train) + np.diag(np.full(train.sizes["cell"], np.inf))
    errors = np.log(train["value"].values) - nearest(table, away)[:, None]
    return table | {"scale": np.sqrt(np.mean(errors**2))}


def predict(numbers, conditions):
    """The mean of the nearest cells."""
    return Prediction(nearest(numbers, distances(numbers, conditions)), numbers["scale"])


def distances(table, conditions):
    """Sums over conditions of differences in levels over the number of levels, [cell, training cell]."""
    away = np.zeros((conditions.sizes["cell"], len(table["mean"])))
    for name in condition_names(conditions):
        levels = np.unique(table[name])
        here, there = (np.interp(x, levels, np.arange(len(levels))) for x in (conditions[name].values, table[name]))
        away += np.abs(here[:, None] - there[None]) / max(len(levels) - 1, 1)
    return away


def nearest(table, away):
    """Means over the training cells at the least distance."""
    weights = np.isclose(away, away.min(1, keepdims=True))
    return weights @ np.asarray(table["mean"]) / weights.sum(1)
