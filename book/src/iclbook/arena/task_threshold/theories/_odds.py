"""Predictions of the weight of memorising from log odds: three numbers and a scale, fitted by likelihood."""

import numpy as np
from scipy.optimize import minimize

from iclbook.claims.asymptotics._held_out import THEORIES, Known, probability
from icllab.arena import Prediction, log_likelihood

COLOURS = 8


def fit_odds(name, train):
    """Fit three numbers of the log odds and the scale of the weight's logarithm; the best of several starts."""

    def loss(x):
        return -log_likelihood(train, predict_odds(name, {"odds": x[:3], "scale": np.exp(x[3])}, train))

    starts = [np.array([*start, -1.0]) for start in THEORIES[name].starts]
    fits = [minimize(loss, start, method="Nelder-Mead", options={"maxiter": 4000, "xatol": 1e-6}) for start in starts]
    best = min(fits, key=lambda result: result.fun).x
    return {"odds": best[:3], "scale": np.exp(best[3])}


def predict_odds(name, numbers, conditions):
    """The weight from the log odds, with a log-normal distribution."""
    known = Known(conditions["tasks"].values, conditions["steps"].values, conditions["gap"].values, COLOURS - 1)
    odds = np.clip(np.asarray(numbers["odds"], float), -20.0, 20.0)
    weight = np.maximum(probability(name, known, odds), 1e-6)
    return Prediction(np.log(weight), np.maximum(numbers["scale"], 1e-3))
