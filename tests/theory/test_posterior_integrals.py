"""Each integral against another quadrature, against draws, and in its limits."""

import numpy as np
import pytest
from scipy.integrate import dblquad, quad
from scipy.special import k0

from icllab.theory import posterior_integrals

FIXED = {"barrier": 3.0, "effect": 0.15}


def test_the_cusp_by_another_quadrature():
    """One direction y, in two dimensions."""
    where = {"split": 0.7, "tilt": 0.1}

    def density(y, x):
        loss = x**4 / 4 - 0.7 * x**2 / 2 - 0.1 * x + (x + 1) ** 2 * y**2 / 2
        return np.exp(-10 * loss - (x * x + y * y) / 2) / (2 * np.pi)

    for side, ends in (("left", (-4, 0)), ("right", (0, 4))):
        total = dblquad(density, *ends, -8, 8)[0]
        mean = dblquad(lambda y, x: x * density(y, x), *ends, -8, 8)[0] / total
        assert posterior_integrals.cusp(side, 10.0, **where, free=1.0) == pytest.approx(
            (-np.log(total), mean), abs=1e-5
        )


def test_the_line_without_free_directions_is_that_of_the_loss():
    """By the symmetry of x, at any n; and with them it goes to zero as d log n / 4n, at p = 1."""
    for n in (10.0, 1000.0):
        assert posterior_integrals.cusp_line(n, split=1.0, free=0.0) == pytest.approx(0, abs=1e-9)
    for n in (1e4, 1e6):
        assert posterior_integrals.cusp_line(n, split=1.0, free=4.0) == pytest.approx(np.log(n) / n, rel=0.2)


def test_the_gated_model_by_another_quadrature():
    """One product, by the density K0 of a product of normal numbers; one weight, by the two-dimensional integral."""
    means, n = np.array([0.1, 0.2, -0.15]), 20.0

    def misfit(s, z):
        answer = (3.0 * s * (1 - s), 0.15 * s**2 * (3 - 2 * s), s * z)
        return n / 2 * sum((a - m) ** 2 for a, m in zip(answer, means, strict=True))

    def prior(s):
        return np.exp(-((s - 0.5) ** 2) / 2) / np.sqrt(2 * np.pi)

    def product(s):
        def density(z):
            return np.exp(-misfit(s, z)) * k0(abs(z)) / np.pi

        return sum(quad(density, *ends, limit=200)[0] for ends in ((-8, 0), (0, 8)))

    for phase, ends in (("simple", (-3, 0.5)), ("rich", (0.5, 4))):
        known = -np.log(quad(lambda s: prior(s) * product(s), *ends, epsabs=1e-12)[0])
        assert posterior_integrals.gated(phase, means, n, **FIXED) == pytest.approx(known, abs=1e-4)
        one = dblquad(lambda z, s: np.exp(-misfit(s, z) - z * z / 2) * prior(s) / np.sqrt(2 * np.pi), *ends, -7, 7)[0]
        assert posterior_integrals.gated(phase, means, n, **FIXED, layers=1) == pytest.approx(-np.log(one), abs=1e-4)


def test_the_gated_model_tends_to_its_expansion():
    """Without noise the remainder settles: d times what log log n has still to say, log(1 + 1.5 / log n), and less."""
    rests = []
    for n in (1e3, 1e4, 1e5):
        gap = np.subtract(
            *(posterior_integrals.gated(p, np.array([0, 0.15, 0, 0]), n, **FIXED) for p in ("rich", "simple"))
        )
        rest = gap + n * FIXED["effect"] ** 2 / 2 - np.log(n) + 2 * np.log(np.log(n))
        rests.append(rest + 2 * np.log1p((3 * np.log(2) - np.euler_gamma) / np.log(n)))
    assert rests[2] == pytest.approx(rests[1], abs=0.002)
    assert rests[1] == pytest.approx(rests[0], abs=0.005)


def test_the_circle_agrees_with_free_energies_of_drawn_data():
    """A thousand data sets, each with a sum over a grid of w in the place of the Bessel function."""
    rng, w = np.random.default_rng(0), np.linspace(0, 2 * np.pi, 512, endpoint=False)
    means = np.stack([np.cos(w), np.sin(w)])
    for n, radius in ((50, 0.0), (50, 0.4), (200, 1.0)):
        drawn = np.array([radius, 0.0]) + rng.normal(size=(1000, 2)) / np.sqrt(n)
        exponents = n * (drawn @ (means - means[:, :1]))
        energies = -np.log(np.mean(np.exp(exponents), axis=1))
        error = energies.std() / np.sqrt(1000)
        assert abs(energies.mean() - posterior_integrals.circle(n, radius=radius)) < 4 * error < 2


def test_the_circle_is_regular_but_for_the_centre():
    """Half of log n for a radius above 0; minus the square root of pi n / 2, and a quarter of log n, at the centre."""
    for radius in (0.5, 1.0):
        change = posterior_integrals.circle(1e5, radius=radius) - posterior_integrals.circle(1e4, radius=radius)
        assert change == pytest.approx(np.log(10) / 2, abs=0.01)
    for n in (1e3, 1e5):
        constant = np.log(2 * np.pi) / 2 + (np.log(2) - np.euler_gamma) / 4
        known = -np.sqrt(np.pi * n / 2) + np.log(n) / 4 + constant
        assert posterior_integrals.circle(n, radius=0.0) == pytest.approx(known, abs=0.05)


@pytest.mark.parametrize(("terms", "units"), [(1, 1), (2, 2), (3, 2)])
def test_shared_units_agree_with_draws(terms, units):
    """Contexts' losses given B, by 200 000 draws of B: within 4 standard errors, of at most a hundredth."""
    rng, t, draws = np.random.default_rng(1), 5.0, 200_000
    b = rng.normal(size=(draws, 3, units))
    s = np.linalg.eigvalsh(np.einsum("niu,niv->nuv", b, b)).T
    weight = np.prod(1 + t * s, axis=0) ** (-terms / 2)
    p = t * s / (1 + t * s)
    # Given B, the loss of a context is half a sum of p z^2.
    z = rng.normal(size=(2, units, draws))
    one, other = (np.sum(p * part**2, axis=0) / 2 for part in z)
    mean, variance, covariance = posterior_integrals.shared_units(terms, units, 3, t)
    for value, wanted in ((one, mean), ((one - mean) ** 2, variance), ((one - mean) * (other - mean), covariance)):
        average = (weight * value).sum() / weight.sum()
        error = np.sqrt((weight**2 * (value - average) ** 2).sum()) / weight.sum()
        assert error < 0.01
        assert abs(average - wanted) < 4 * error
