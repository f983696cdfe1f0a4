r"""Predictions of a positive number v: a log-normal distribution for each cell, with a probability of infinity.

.. math:: P(v > x) = q + (1 - q)\,\Phi\Bigl(\frac{m - \ln x}{s}\Bigr)

with location m, scale s, and the probability q that a time never ends. A censored measurement says that v is larger;
its likelihood is the survival function.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.stats import norm

from icllab.core.errors import expected

if TYPE_CHECKING:
    import xarray as xr

Columns = Mapping[str, npt.ArrayLike]
SCALE, LEAST_SCALE = "scale", 1e-3  # name of the fitted scale among the numbers, and its least value


class Prediction(NamedTuple):
    """A distribution for each cell.

    Attributes:
        location: m, median of the logarithm of what ends, [cell].
        scale: s, its standard deviation, positive, [cell] or a number.
        never: q, probability that the value is infinite, from 0 to below 1, [cell] or a number.
    """

    location: npt.ArrayLike
    scale: npt.ArrayLike
    never: npt.ArrayLike = 0.0

    def arrays(self, cells: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Location, scale and ``never``, each [cell, 1]; raises InputError unless they are a distribution."""
        try:
            m, s, q = (np.broadcast_to(np.asarray(part, float), cells)[:, None] for part in self)
        except (ValueError, TypeError) as error:
            raise expected("prediction", f"numbers for {cells} cells", str(error)) from error
        if not (np.isfinite(m).all() and np.isfinite(s).all() and (s > 0).all() and ((q >= 0) & (q < 1)).all()):
            raise expected("prediction", "finite locations, positive scales, never in [0, 1)", self)
        return m, s, q


def log_scores(prediction: Prediction, value: np.ndarray, censored: np.ndarray) -> np.ndarray:
    r"""Log density of :math:`\ln v` at each value, log survival where it is censored; nats, [cell, seed]."""
    m, s, q = prediction.arrays(len(value))
    z = (np.log(value) - m) / s
    with np.errstate(divide="ignore"):
        survival = np.logaddexp(np.log(q), np.log1p(-q) + norm.logsf(z))
    return np.where(censored, survival, np.log1p(-q) + norm.logpdf(z) - np.log(s))


def distribution(prediction: Prediction, value: np.ndarray) -> np.ndarray:
    """The probability of at most each value, [cell, seed]."""
    m, s, q = prediction.arrays(len(value))
    return (1 - q) * norm.cdf((np.log(value) - m) / s)


def distances(first: Prediction, second: Prediction, cells: int) -> np.ndarray:
    """Largest difference of the probabilities of at most any value, Kolmogorov's distance, [cell]."""
    parts, standard = [prediction.arrays(cells) for prediction in (first, second)], np.linspace(-5.0, 5.0, 201)
    at = np.concatenate([m + s * standard for m, s, _ in parts], axis=1)
    below = [(1 - q) * norm.cdf((at - m) / s) for m, s, q in parts]
    return np.abs(below[0] - below[1]).max(1)


def coverage(prediction: Prediction, value: np.ndarray, censored: np.ndarray, level: float) -> np.ndarray:
    r"""1 if a value lies in the central interval of a probability, else 0, [cell, seed].

    Of a censored value, the probability that it does, given that it is larger: the share of :math:`[F(v), 1]` within
    :math:`[\frac{1 - p}2, \frac{1 + p}2]`.
    """
    below = distribution(prediction, value)
    low, high = (1 - level) / 2, (1 + level) / 2
    with np.errstate(invalid="ignore"):
        share = np.clip(high - np.maximum(low, below), 0.0, None) / np.maximum(1 - below, np.finfo(float).tiny)
    return np.where(censored, share, (low <= below) & (below <= high))


def log_likelihood(train: "xr.Dataset", prediction: Prediction) -> float:
    """Log probability density of all measurements of a part, in nats: what fits maximise."""
    return float(log_scores(prediction, train["value"].values, train["censored"].values.astype(bool)).sum())


def fit_log_linear(
    train: "xr.Dataset", columns: Columns, offset: npt.ArrayLike = 0.0, *, constant: bool = True
) -> dict[str, float]:
    r"""Coefficients and scale that maximise the likelihood of the training part, censored values included.

    .. math:: \ln v\sim\mathcal N\Bigl(o + c_0 + \sum_jc_jx_j,\ s^2\Bigr)

    Args:
        train: Measurements as :meth:`Phenomenon.parts <icllab.arena.phenomenon.Phenomenon.parts>` has them.
        columns: Name -> :math:`x_j`, [cell].
        offset: o, the fixed part of the location, [cell] or a number.
        constant: Whether :math:`c_0` is fitted; it is zero otherwise.

    Returns:
        The coefficients by name, that of the constant as ``constant``, and ``scale``.
    """
    value = train["value"].values
    design = _design(columns, len(value), constant)
    fixed = np.broadcast_to(np.asarray(offset, float), len(value))

    def prediction(parameters: np.ndarray) -> Prediction:
        return Prediction(fixed + design @ parameters[:-1], np.exp(parameters[-1]))

    def loss(parameters: np.ndarray) -> float:
        return -log_likelihood(train, prediction(parameters))

    target = (np.log(value) - fixed[:, None]).mean(1)
    coefficients, *_ = np.linalg.lstsq(design, target, rcond=None)
    spread = max(float(np.std(np.log(value) - (fixed + design @ coefficients)[:, None])), LEAST_SCALE)
    best = minimize(loss, np.append(coefficients, np.log(spread)), method="BFGS", options={"maxiter": 2000}).x
    names = [*["constant"] * constant, *columns]
    return dict(zip(names, best.tolist(), strict=False)) | {SCALE: max(float(np.exp(best[-1])), LEAST_SCALE)}


def predict_log_linear(
    numbers: Mapping[str, float], columns: Columns, offset: npt.ArrayLike = 0.0, *, constant: bool = True
) -> Prediction:
    """The prediction of the numbers of :func:`fit_log_linear` for the columns, and the offset, of other cells."""
    cells = max([np.size(offset), *(np.size(column) for column in columns.values())])
    coefficients = np.array([numbers[name] for name in [*["constant"] * constant, *columns]])
    return Prediction(np.asarray(offset, float) + _design(columns, cells, constant) @ coefficients, numbers[SCALE])


def _design(columns: Columns, cells: int, constant: bool) -> np.ndarray:
    parts = [np.ones(cells)] * constant + [np.broadcast_to(np.asarray(x, float), cells) for x in columns.values()]
    return np.stack(parts, axis=1) if parts else np.zeros((cells, 0))
