"""Networks whose population loss is exact: tanh units, a mixture, the induction landscape and polygons of features."""

import math

import numpy as np

from icllab.posteriors.answers import coefficient_answers, moment_answers
from icllab.posteriors.crossings import GRID, WARM, rotation
from icllab.posteriors.data import PARTIAL
from icllab.posteriors.integrals import losses_alone, on_grid, on_plane, residuals
from icllab.posteriors.populations import population_answers
from icllab.posteriors.problems import Draft, family
from icllab.theory import learning_coefficients as exact
from icllab.theory import superposition

TANH = "Source: [AoyagiNagata12]."
MIXTURE = "Source: [Yamazaki03]."
POLYGON = "Derived: docs/singular-training.md, Polygons of superposition."
LOG_2 = math.log(2)


def tanh_units(xp, w, arrays, rows, sizes):
    """Half the mean square of the answer of tanh units, in the mean over weighted inputs."""
    units = sizes[0]
    hidden = xp.tanh(w[units:][:, None] * arrays["x"][None])
    return arrays["scale"][0] * xp.sum(arrays["weight"] * (w[:units] @ hidden) ** 2) / 2


def mixture_divergence(xp, w, arrays, rows, sizes):
    """Divergence of two normal components of equal weight from one, in the mean over weighted inputs."""
    first, second = (w[i] * arrays["x"] - w[i] ** 2 / 2 for i in (0, 1))
    gap = xp.abs(first - second)
    logs = (first + second + gap) / 2 + xp.log1p(xp.exp(-gap)) - LOG_2
    return xp.sum(arrays["weight"] * (xp.exp(logs) - 1 - logs))


def induction(xp, w, arrays, rows, sizes):
    """The loss of the reduced induction head as a function of its three products of weights."""
    pairs, labels = sizes
    y = 1 / (1 + pairs * xp.exp(-w[0]))
    match = xp.exp(w[1] * y)
    total = match + 2 * pairs
    right, other = match / total, 1 / total
    gap = (pairs - 1) * xp.exp(-w[2] * (right - other)) + (labels - pairs) * xp.exp(-w[2] * right)
    return xp.log1p(gap)


def features(xp, w, arrays, rows, sizes):
    """The loss of features in the plane: a rectified linear answer to one feature of uniform strength at a time."""
    count = sizes[0]
    plane, bias = w[: 2 * count].reshape(2, count), w[2 * count :]
    g, zero = plane.T @ plane, plane.T @ plane * 0
    b, target = bias[:, None] + zero, arrays["identity"]
    cut = xp.clip(-b / xp.where(g == 0, 1 + zero, g), 0, 1)
    low = xp.where(g > 0, cut, zero)
    high = xp.where(g < 0, cut, xp.where((g == 0) & (b <= 0), zero, 1 + zero))
    cube, square, width = (high**3 - low**3) / 3, (high**2 - low**2) / 2, high - low
    terms = target / 3 - 2 * target * (g * cube + b * square) + g**2 * cube + 2 * g * b * square + b**2 * width
    return xp.sum(terms) / count


def _normal_inputs(points: int) -> dict[str, np.ndarray]:
    x, weight = np.polynomial.hermite_e.hermegauss(points)
    return {"x": x, "weight": weight / weight.sum()}


def _tanh(units):
    @family(f"tanh_{units}", "network", (1e4, 1.0), WARM, (1e4, 10.0))
    def _(rng, nbeta, gamma):
        arrays = _normal_inputs(12) | {"scale": np.array([10 ** rng.uniform(-0.5, 0.5)])}
        arrays["x"] = arrays["x"] * rng.uniform(0.7, 1.4)

        def answers():
            scale = float(arrays["scale"][0])
            root = np.append(np.sqrt(arrays["weight"]), 0.0)[None, :, None]
            x = np.append(arrays["x"], 0.0)

            def of_nodes(nodes):
                design = root * np.tanh(nodes[:, None, :] * x[None, :, None])
                zero = np.zeros((1, len(x)))
                return residuals(design, zero, centre=np.zeros(units), t=nbeta, gamma=gamma, scale=scale)

            width = (nbeta * scale) ** -0.5
            options = {"t": nbeta, "gamma": gamma, "scale": scale, "at_point": 0.0, "width": width, "points": 561}
            known = coefficient_answers(exact.tanh_network(units), TANH)
            return known | moment_answers(on_grid(of_nodes, np.zeros(units), **options), PARTIAL)

        return Draft(tanh_units, arrays, np.zeros(2 * units), answers, (units,))


_tanh(1)
_tanh(2)


@family("mixture_divergence", "network", (1e4, 1.0), WARM, (1e4, 10.0))
def _(rng, nbeta, gamma):
    arrays = _normal_inputs(30)
    factor = 10 ** rng.uniform(-0.5, 0.5)
    arrays["weight"] = arrays["weight"] * factor

    def answers():
        def loss(mean, apart):
            x, y, total = (mean + apart) / np.sqrt(2), (mean - apart) / np.sqrt(2), 0.0
            for node, weight in zip(arrays["x"], arrays["weight"], strict=True):
                logs = np.logaddexp(x * node - x**2 / 2, y * node - y**2 / 2) - np.log(2)
                total = total + weight * (np.exp(np.minimum(logs, 200)) - 1 - logs)
            return total

        known = coefficient_answers(exact.quasi_homogeneous((1 / 2, 1 / 4)), MIXTURE)
        return known | moment_answers(on_plane(loss, nbeta, gamma, (4097, 513)), GRID)

    return Draft(mixture_divergence, arrays, np.zeros(2), answers)


@family("induction_saddle", "network", (300.0, 20.0), (100.0, 20.0))
def _(rng, nbeta, gamma):
    pairs = int(rng.integers(3, 16))

    def answers():
        def of_nodes(nodes):
            losses = induction(np, nodes.T, {}, None, (pairs, pairs))
            return losses_alone(np.stack([losses, np.zeros_like(losses)], axis=1), t=nbeta, scale=1.0)

        options = {"t": nbeta, "gamma": gamma, "scale": 1.0, "at_point": float(np.log(pairs)), "width": 1.0}
        return moment_answers(on_grid(of_nodes, np.zeros(3), points=81, **options), GRID)

    return Draft(induction, {}, np.zeros(3), answers, (pairs, pairs))


def _polygon(vertices):
    name = f"superposition_{vertices}"

    @family(name, "network", (1e6, 1e3), (1e5, 1e3))
    def _(rng, nbeta, gamma):
        known = superposition.polygon(vertices, features=vertices)
        order, turn = rng.permutation(vertices), rotation(rng, 2)
        plane = (turn @ known.weights)[:, order]
        at = np.concatenate([plane.ravel(), known.bias[order]])

        def answers():
            return coefficient_answers(known.coefficient, POLYGON) | population_answers(name, nbeta, gamma)

        return Draft(features, {"identity": np.eye(vertices)}, at, answers, (vertices,))


_polygon(5)
_polygon(6)
