"""Losses on data: regressions and mixtures whose posterior is normal, or has at most two variables that are not."""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import minimize

from icllab.posteriors.answers import coefficient_answers, moment_answers
from icllab.posteriors.crossings import GAUSSIAN, GRID, WATANABE
from icllab.posteriors.integrals import Conditional, losses_alone, on_grid, residuals
from icllab.posteriors.problems import Draft, family
from icllab.theory import learning_coefficients as exact

SAMPLES = 40
SETTINGS = ((40.0, 1.0), (40 / np.log(40), 1.0), (1000.0, 1.0))
PARTIAL = "Derived: docs/posteriors.md, Losses that are quadratic in some weights."


def squares(xp, w, arrays, rows, sizes):
    """Half the squared error of linear regression, and a constant of each sample."""
    return (rows["y"] - rows["x"] @ w) ** 2 / 2 + rows["offset"]


def products(xp, w, arrays, rows, sizes):
    """Half the squared error of a slope that is a product of two weights."""
    return (rows["y"] - w[0] * w[1] * rows["x"]) ** 2 / 2


def tanh_unit(xp, w, arrays, rows, sizes):
    """Half the squared error of one tanh unit."""
    return (rows["y"] - w[0] * xp.tanh(w[1] * rows["x"])) ** 2 / 2


def poisson(xp, w, arrays, rows, sizes):
    """Minus the log-likelihood of counts with a log-linear mean, up to a constant."""
    logs = rows["x"] @ w
    return xp.exp(logs) - rows["y"] * logs


def logistic(xp, w, arrays, rows, sizes):
    """Minus the log-likelihood of signs."""
    margin = rows["y"] * (rows["x"] @ w)
    return (xp.abs(margin) - margin) / 2 + xp.log1p(xp.exp(-xp.abs(margin)))


def softmax_pair(xp, w, arrays, rows, sizes):
    """Minus the log-likelihood of two classes, each with weights; only their difference counts."""
    count = sizes[0]
    margin = rows["y"] * (rows["x"] @ (w[:count] - w[count:]))
    return (xp.abs(margin) - margin) / 2 + xp.log1p(xp.exp(-xp.abs(margin)))


def normal_scale(xp, w, arrays, rows, sizes):
    """Minus the log-likelihood of a normal distribution by its mean and the logarithm of its width."""
    return w[1] + (rows["y"] - w[0]) ** 2 * xp.exp(-2 * w[1]) / 2


def cauchy_location(xp, w, arrays, rows, sizes):
    """Minus the log-likelihood of a Cauchy distribution's location, up to a constant."""
    return xp.log1p((rows["y"] - w[0]) ** 2)


def two_means(xp, w, arrays, rows, sizes):
    """Minus the log-likelihood of two normal components of equal weight, up to a constant."""
    first, second = (rows["y"] - w[0]) ** 2 / 2, (rows["y"] - w[1]) ** 2 / 2
    gap = xp.abs(first - second)
    return (first + second - gap) / 2 - xp.log1p(xp.exp(-gap))


def least(formula: Any, rows: Any, start: np.ndarray) -> np.ndarray:
    """The minimum of the mean loss near a start."""
    with np.errstate(over="ignore"):
        minimum = minimize(lambda w: formula(np, w, {}, rows, ()).mean(), start, method="Nelder-Mead", tol=1e-6)
        return minimize(lambda w: formula(np, w, {}, rows, ()).mean(), minimum.x, tol=1e-9).x


def half_tilt(count: int) -> np.ndarray:
    """The tilt to the first half of the samples."""
    return np.where(np.arange(count) < count // 2, 1.0, -1.0) / count


def split(rows: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """All rows but the last, and the last, which is the query."""
    return {name: array[:-1] for name, array in rows.items()}, {name: array[-1:] for name, array in rows.items()}


def of_data(
    formula: Any,
    both: dict[str, np.ndarray],
    at: np.ndarray,
    of_nodes: Callable[[np.ndarray, dict[str, Any]], Conditional],
    coefficient: exact.LearningCoefficient | None,
    *,
    nbeta: float,
    gamma: float,
    basis: str,
    centre: np.ndarray | None = None,
    sizes: tuple[int, ...] = (),
    precision: float | None = None,
    points: int = 401,
) -> Draft:
    """A problem with data, the last row of ``both`` being the query.

    ``of_nodes`` takes variables on a grid around the ``centre`` and returns moments given them; ``precision`` is the
    localization of these variables. Without a ``coefficient`` the limit is infinite.
    """
    rows, query = split(both)
    count = len(rows["y"])
    tilt = half_tilt(count)

    def answers():
        known = {"t": nbeta, "gamma": gamma, "scale": 1 / count}
        middle = np.zeros(0) if centre is None else centre
        level = float(formula(np, at, {}, rows, sizes).mean())
        grid = known | {"gamma": precision or gamma, "at_point": level, "width": 0.5 * (nbeta + gamma) ** -0.5}
        moments = on_grid(lambda nodes: of_nodes(nodes, known), middle, points=points, **grid)
        of_limit = {} if coefficient is None else coefficient_answers(coefficient, WATANABE)
        return of_limit | moment_answers(moments, basis, nbeta=nbeta, tilt=tilt)

    return Draft(formula, {}, at, answers, sizes, rows, query, tilt)


def linear(rng, dim, nbeta, gamma, *, count=SAMPLES, at=None, weights=None, noise=0.5, offset=None, limit=True):
    """Linear regression, whose posterior is normal; without a ``limit`` if the point is not the minimum."""
    x = rng.normal(size=(count + 1, dim)) * (10 ** rng.uniform(-0.3, 0.3, dim))[None]
    x = x if weights is None else x * weights[:, None]
    truth = rng.normal(size=dim)
    y = x @ truth + noise * rng.normal(size=count + 1)
    both = {"x": x, "y": y, "offset": np.zeros(count + 1) if offset is None else offset}
    best = np.linalg.lstsq(x[:-1], y[:-1], rcond=None)[0]
    place = best if at is None else at(best, truth, x[:-1])

    def of_nodes(nodes, known):
        return residuals(x[None], y[None], centre=place, offsets=both["offset"][:-1], **known)

    coefficient = exact.regular(min(dim, count)) if limit else None
    return of_data(squares, both, place, of_nodes, coefficient, nbeta=nbeta, gamma=gamma, basis=GAUSSIAN)


@family("regression", "data", *SETTINGS)
def _(rng, nbeta, gamma):
    return linear(rng, 5, nbeta, gamma)


@family("wide_regression", "data", *SETTINGS)
def _(rng, nbeta, gamma):
    beside = rng.normal(size=30)

    def at(best, truth, x):
        return best + beside - np.linalg.pinv(x) @ (x @ beside)

    return linear(rng, 30, nbeta, gamma, count=20, at=at)


@family("product_regression", "data", *SETTINGS)
def _(rng, nbeta, gamma):
    x = rng.normal(size=SAMPLES + 1)
    both = {"x": x, "y": rng.uniform(0.3, 0.8) * x + 0.5 * rng.normal(size=SAMPLES + 1)}
    slope = float(both["x"][:-1] @ both["y"][:-1] / (x[:-1] ** 2).sum())
    at = np.sqrt(abs(slope)) * np.array([1.0, np.sign(slope)])

    def of_nodes(nodes, known):
        return residuals((nodes * x[None])[..., None], both["y"][None], centre=at[:1], **known)

    settings = {"nbeta": nbeta, "gamma": gamma, "basis": PARTIAL, "centre": at[1:], "points": 2001}
    return of_data(products, both, at, of_nodes, exact.regular(1), **settings)


@family("tanh_unit", "data", *SETTINGS)
def _(rng, nbeta, gamma):
    x = 1.5 * rng.normal(size=SAMPLES + 1)
    both = {"x": x, "y": rng.uniform(0.8, 1.4) * np.tanh(x * rng.uniform(0.7, 1.3)) + 0.3 * rng.normal(size=len(x))}
    at = least(tanh_unit, split(both)[0], np.ones(2))

    def of_nodes(nodes, known):
        return residuals(np.tanh(nodes * x[None])[..., None], both["y"][None], centre=at[:1], **known)

    settings = {"nbeta": nbeta, "gamma": gamma, "basis": PARTIAL, "centre": at[1:], "points": 2001}
    return of_data(tanh_unit, both, at, of_nodes, exact.regular(2), **settings)


def _alone(formula, both, at, coefficient, nbeta, gamma, **options):
    """A problem whose formula is evaluated on a grid of all variables, or of the first with the others zero."""
    columns = {name: row[:, None] if row.ndim == 1 else row for name, row in both.items()}

    def of_nodes(nodes, known):
        places = np.zeros((len(at), len(nodes)))
        places[: nodes.shape[1]] = nodes.T
        with np.errstate(over="ignore"):  # an infinite loss has no weight
            losses = formula(np, places, {}, columns, options.get("sizes", ())).T
        return losses_alone(losses, t=known["t"], scale=known["scale"])

    settings = {"nbeta": nbeta, "gamma": gamma, "basis": GRID, "centre": at} | options
    return of_data(formula, both, at, of_nodes, coefficient, **settings)


@family("poisson", "data", *SETTINGS)
def _(rng, nbeta, gamma):
    x = np.stack([np.ones(SAMPLES + 1), rng.normal(size=SAMPLES + 1)], axis=1)
    both = {"x": x, "y": rng.poisson(np.exp(x @ np.array([0.5, rng.uniform(0.3, 0.6)]))).astype(float)}
    at = least(poisson, split(both)[0], np.zeros(2))
    return _alone(poisson, both, at, exact.regular(2), nbeta, gamma)


def _signs(rng):
    x = rng.normal(size=(SAMPLES + 1, 2))
    truth = rng.uniform(0.8, 1.6, 2)
    return {"x": x, "y": np.where(rng.uniform(size=len(x)) < 1 / (1 + np.exp(-x @ truth)), 1.0, -1.0)}


@family("logistic", "data", *SETTINGS)
def _(rng, nbeta, gamma):
    both = _signs(rng)
    at = least(logistic, split(both)[0], np.zeros(2))
    return _alone(logistic, both, at, exact.regular(2), nbeta, gamma)


@family("softmax_pair", "data", *SETTINGS)
def _(rng, nbeta, gamma):
    both, beside = _signs(rng), rng.normal(size=2)
    best = least(logistic, split(both)[0], np.zeros(2))
    at = np.concatenate([beside + best / 2, beside - best / 2])
    # The difference of two normal weights has twice their variance.
    options = {"centre": best, "precision": gamma / 2, "sizes": (2,)}
    return _alone(softmax_pair, both, at, exact.regular(2), nbeta, gamma, **options)


@family("normal_scale", "data", *SETTINGS)
def _(rng, nbeta, gamma):
    y = rng.normal() + 10 ** rng.uniform(-0.2, 0.2) * rng.normal(size=SAMPLES + 1)
    at = np.array([y[:-1].mean(), np.log(y[:-1].std())])
    return _alone(normal_scale, {"y": y}, at, exact.regular(2), nbeta, gamma)


@family("cauchy_location", "data", *SETTINGS)
def _(rng, nbeta, gamma):
    y = rng.normal() + rng.standard_cauchy(SAMPLES + 1)
    at = least(cauchy_location, split({"y": y})[0], np.array([np.median(y[:-1])]))
    return _alone(cauchy_location, {"y": y}, at, exact.regular(1), nbeta, gamma, points=4001)


@family("two_means", "data", *SETTINGS)
def _(rng, nbeta, gamma):
    y = np.where(rng.uniform(size=SAMPLES + 1) < 0.5, -1.5, 1.5) + rng.normal(size=SAMPLES + 1)
    at = least(two_means, split({"y": y})[0], np.array([-1.5, 1.5]))
    return _alone(two_means, {"y": y}, at, exact.regular(2), nbeta, gamma, points=801)
