"""Exponents of known densities: powers, a logarithm, maps of normal draws; and their stated errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.diagnostics.singular.pushed_density import density_exponent, pushed_density


def chi(freedom, seed, draws=2**15, groups=16):
    """Distances of a density |u|^(freedom - d) that is normal far away."""
    return np.sqrt(np.random.default_rng(seed).chisquare(freedom, (groups, draws)))


@pytest.mark.parametrize(("freedom", "density"), [(1.0, "diverges"), (2.0, "tie"), (3.0, "vanishes")])
def test_the_sign_of_a_power(freedom, density):
    found = density_exponent(chi(freedom, 0), dimension=2, tail=0.02)
    single = found.isel(multiplicity=0)
    assert found.attrs["density"] == density
    assert abs(float(single["exponent"]) - (freedom - 2)) < 4 * float(single["exponent_error"]) < 0.4
    assert bool(single["allowed"])


def test_stated_errors_are_the_scatter():
    """Over 60 sets of draws, within a quarter; of the exponent and of the change in the inner ball."""
    rows = [
        density_exponent(chi(2.0, seed, 2**13, 4), dimension=2, tail=0.05).isel(multiplicity=0) for seed in range(60)
    ]
    for name, error in (("exponent", "exponent_error"), ("change", "change_error")):
        scatter = np.std([float(row[name]) for row in rows], ddof=1)
        stated = np.sqrt(np.mean([float(row[error]) ** 2 for row in rows]))
        assert stated == pytest.approx(scatter, rel=0.25)


def test_a_logarithm_is_a_tie_and_its_multiplicity_is_allowed():
    """The product of two normal numbers: P(|u| < e) ~ e (c - log e)."""
    rng = np.random.default_rng(2)
    radii = np.abs(rng.normal(size=(16, 2**17)) * rng.normal(size=(16, 2**17)))
    found = density_exponent(radii, dimension=1, multiplicities=(1, 2), tail=0.005)
    assert found.attrs["density"] == "tie"
    double = found.sel(multiplicity=2)
    assert bool(double["allowed"])
    assert abs(float(double["exponent"])) < 3 * float(double["exponent_error"]) < 0.1
    assert float(found.sel(multiplicity=1)["exponent"]) < -0.05


def test_draws_are_of_the_prior_around_the_point():
    """Not of the origin, and as wide as the localization says; a parameter that the map ignores changes nothing."""
    at = {"a": jnp.asarray([3.0, -1.0]), "b": jnp.ones(())}
    found = pushed_density(
        lambda w: w["a"], at, localization=4.0, key=jax.random.key(0), draws=2**15, groups=4, tail=0.02
    )
    assert float(found["radius"]) == pytest.approx(0.5 * np.sqrt(-2 * np.log(0.98)), rel=0.03)
    assert found.attrs["density"] == "tie"
    assert found.multiplicity.values.tolist() == [1, 2, 3]
    line = pushed_density(lambda w: w, jnp.zeros(1), localization=1.0, key=jax.random.key(0), draws=2**15, tail=0.02)
    assert line.multiplicity.values.tolist() == [1]


def test_groups_are_drawn_apart():
    """Equal groups would have no scatter."""
    found = pushed_density(lambda w: w, jnp.zeros(2), localization=1.0, key=jax.random.key(1), draws=2**14, tail=0.05)
    assert float(found["exponent_error"][0]) == pytest.approx(2 / np.sqrt(16 * 2**14 * 0.05), rel=0.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"radii": np.ones((3, 10**6))}, "at least 4 groups"),
        ({"radii": np.ones((4, 100))}, "take more draws"),
        ({"dimension": 0}, "dimension"),
        ({"multiplicities": ()}, "multiplicities"),
        ({"tail": 1.0}, "tail"),
    ],
)
def test_what_cannot_be_counted_is_refused(changes, message):
    arguments = {"radii": np.ones((4, 10**6)), "dimension": 2} | changes
    with pytest.raises(InputError, match=message):
        density_exponent(arguments.pop("radii"), **arguments)
    with pytest.raises(InputError, match="localization"):
        pushed_density(lambda w: w, jnp.zeros(1), localization=0.0, key=jax.random.key(0))
