"""Losses that are sums of products of powers, in turned coordinates: regular, stiff, flat and singular points."""

import numpy as np

from icllab.posteriors.answers import coefficient_answers, moment_answers
from icllab.posteriors.integrals import independent, on_plane, product_of_norms, quadratic
from icllab.posteriors.problems import Draft, family
from icllab.theory import learning_coefficients as exact

COLD, WARM, NARROW = (7e4, 1.0), (1e3, 1.0), (1e5, 30.0)
MELLIN = "Derived: docs/posteriors.md, Products of norms."
GAUSSIAN = "Derived: docs/posteriors.md, Quadratic losses."
GRID = "Derived: docs/posteriors.md, Quadrature."
WATANABE = "Source: [Watanabe09]."


def monomials(xp, w, arrays, rows, sizes):
    """Sum over terms of a coefficient times a product of even powers, up to the sixth."""
    squares = (arrays["rotation"] @ (w - arrays["centre"])) ** 2
    powers = xp.stack([xp.ones_like(squares), squares, squares**2, squares**3])
    factors = xp.einsum("jik,ki->ji", arrays["powers"], powers)
    return xp.sum(arrays["scales"] * xp.prod(factors, 1))


def quadratics(xp, w, arrays, rows, sizes):
    """Half a sum of squares with curvatures, in turned coordinates."""
    return xp.sum(arrays["curvatures"] * (arrays["rotation"] @ (w - arrays["centre"])) ** 2) / 2


def norm_power(xp, w, arrays, rows, sizes):
    """A coefficient times the fourth power of the distance."""
    return arrays["scale"][0] * xp.sum((w - arrays["centre"]) ** 2) ** 2


def cusp(xp, w, arrays, rows, sizes):
    """The square of a cusp, in turned coordinates."""
    u = arrays["rotation"] @ (w - arrays["centre"])
    return arrays["scale"][0] * (u[0] ** 2 - u[1] ** 3) ** 2


def phases(xp, w, arrays, rows, sizes):
    """Two minima of equal loss: a quadratic one, and one of fourth order."""
    u = arrays["rotation"] @ (w - arrays["centre"])
    apart = xp.sum((u - arrays["other"]) ** 2)
    return arrays["scale"][0] * xp.sum(u**2) * apart**2


def rotation(rng: np.random.Generator, size: int) -> np.ndarray:
    """A random orthogonal matrix."""
    q, r = np.linalg.qr(rng.normal(size=(size, size)))
    return q * np.sign(np.diag(r))


def _turned(rng, size):
    return {"rotation": rotation(rng, size), "centre": rng.normal(size=size)}


def _of_curvatures(rng, curvatures, nbeta, gamma):
    arrays = _turned(rng, len(curvatures)) | {"curvatures": curvatures}
    rank = int((curvatures > 0).sum())

    def answers():
        known = coefficient_answers(exact.regular(rank), WATANABE)
        return known | moment_answers(quadratic(curvatures, nbeta, gamma), GAUSSIAN)

    return Draft(quadratics, arrays, arrays["centre"], answers)


@family("quadratic", "regular", COLD, WARM, NARROW)
def _(rng, nbeta, gamma):
    return _of_curvatures(rng, 10 ** rng.uniform(-1.5, 1.5, 10), nbeta, gamma)


@family("stiff", "regular", COLD, WARM, NARROW)
def _(rng, nbeta, gamma):
    inside = rng.uniform(-4, 4, 8)
    return _of_curvatures(rng, 10 ** np.concatenate([[-4.0, 4.0], inside]), nbeta, gamma)


@family("flat_direction", "regular", COLD, WARM, NARROW)
def _(rng, nbeta, gamma):
    return _of_curvatures(rng, np.concatenate([10 ** rng.uniform(-1, 1, 4), [0.0, 0.0]]), nbeta, gamma)


@family("power_law_spectrum", "regular", COLD, WARM, NARROW)
def _(rng, nbeta, gamma):
    order = rng.uniform(1.8, 2.4)
    return _of_curvatures(rng, 30.0 * np.arange(1, 101) ** -order, nbeta, gamma)


def _of_monomials(rng, terms, nbeta, gamma):
    size = sum(len(term) for term in terms)
    powers, first = np.zeros((len(terms), size, 4)), 0
    powers[:, :, 0] = 1
    for j, term in enumerate(terms):
        for power in term:
            powers[j, first] = np.eye(4)[power]
            first += 1
    scales = 10 ** rng.uniform(-0.5, 0.5, len(terms))
    arrays = _turned(rng, size) | {"powers": powers, "scales": scales}
    coefficient = exact.of_sum(*(exact.normal_crossing(term) for term in terms))

    def answers():
        parts = [
            product_of_norms(scale, [(1, power) for power in term], nbeta, gamma)
            for scale, term in zip(scales, terms, strict=True)
        ]
        return coefficient_answers(coefficient, WATANABE) | moment_answers(independent(*parts), MELLIN)

    return Draft(monomials, arrays, arrays["centre"], answers)


TERMS = {
    "crossing_1_1": [(1, 1)],
    "crossing_1_2": [(1, 2)],
    "crossing_2_2": [(2, 2)],
    "crossing_2_3": [(2, 3)],
    "crossing_1_1_1": [(1, 1, 1)],
    "powers": [(1,), (1,), (2,), (3,)],
    "crossing_beside_squares": [(1, 1), (1,), (1,), (1,), (1,), (1,), (1,)],
    "two_crossings": [(1, 1), (1, 2), (1,)],
}
for _name, _terms in TERMS.items():
    family(_name, "singular", COLD, WARM, NARROW)(
        lambda rng, nbeta, gamma, terms=_terms: _of_monomials(rng, terms, nbeta, gamma)
    )


@family("power_of_norm", "singular", COLD, WARM, NARROW)
def _(rng, nbeta, gamma):
    scale, size = 10 ** rng.uniform(-0.5, 0.5), 4
    arrays = {"scale": np.array([scale]), "centre": rng.normal(size=size)}

    def answers():
        known = coefficient_answers(exact.power_of_norm(size, 2), WATANABE)
        return known | moment_answers(product_of_norms(scale, [(size, 2)], nbeta, gamma), MELLIN)

    return Draft(norm_power, arrays, arrays["centre"], answers)


def _in_the_plane(rng, formula, loss, extra, coefficient, nbeta, gamma):
    """A loss of two variables, by quadrature in coordinates in which the localization is what it was."""
    scale = 10 ** rng.uniform(-0.5, 0.5)
    arrays = _turned(rng, 2) | extra | {"scale": np.array([scale])}
    points = (4096, 16384) if formula is cusp else (4096, 4096)

    def answers():
        moments = on_plane(lambda x, y: scale * loss(x, y), nbeta, gamma, points)
        return coefficient_answers(coefficient, WATANABE) | moment_answers(moments, GRID)

    return Draft(formula, arrays, arrays["centre"], answers)


@family("cusp", "singular", (1e3, 1.0), (100.0, 1.0), (1e4, 10.0))
def _(rng, nbeta, gamma):
    # A quasi-homogeneous square: half the threshold 5/6 of the cusp.
    coefficient = exact.LearningCoefficient(5 / 12)
    return _in_the_plane(rng, cusp, lambda y, x: (x**2 - y**3) ** 2, {}, coefficient, nbeta, gamma)


@family("two_phases", "singular", (1e3, 1.0), (100.0, 1.0), (1e4, 3.0))
def _(rng, nbeta, gamma):
    # The prior has both minima, so that the limit is that of the flatter one.
    apart, coefficient = rng.uniform(1.0, 1.5), exact.power_of_norm(2, 2)
    other = {"other": np.array([apart, 0.0])}

    def loss(x, y):
        return (x**2 + y**2) * ((x - apart) ** 2 + y**2) ** 2

    return _in_the_plane(rng, phases, loss, other, coefficient, nbeta, gamma)
