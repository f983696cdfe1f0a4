"""What is particular to this claim: its check on made-up worlds, and its integrals against closed forms."""

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from iclbook.claims.singular.additivity import claim, measure
from icllab.lab.checks import Outcome
from icllab.theory import learning_coefficients

NBETA = [10.0, 1000.0]
NAMES = ("learning_coefficient", "additivity_gap", "contribution", "term_covariance")


def made_up(arrangements=tuple(claim.ARRANGEMENTS), error=0.002, warned=0.0, **shifts):
    """The integrals themselves, with a scatter of half a standard error; ``shifts``: what is added to a number."""
    dims = ("arrangement", "nbeta")
    shape = (len(arrangements), len(NBETA))
    there = {"arrangement": list(arrangements), "nbeta": NBETA}
    dataset = claim.theory(xr.Dataset(coords=there, attrs={"configuration": '{"fixed": {"dim": 3}}'}))
    scatter = np.random.default_rng(0).choice([-0.5, 0.5], size=(len(NAMES), *shape)) * error
    for name, off in zip(NAMES, scatter, strict=True):
        dataset[name] = dataset[f"{name}_theory"] + xr.DataArray(off, dims=dims) + shifts.get(name, 0.0)
        dataset[f"{name}_error"] = (dims, np.full(shape, error))
    return dataset.assign(sampler_warnings=(dims, np.full(shape, warned))).expand_dims(draws=[4000])


def failing(dataset):
    return {finding.id.split("[")[0] for finding in claim.check(dataset) if finding.outcome is Outcome.FAILS}


def test_it_fails_where_one_number_is_off():
    assert failing(made_up(contribution=0.02)) == {"contribution"}
    assert "term_covariance" in failing(made_up(term_covariance=-0.02))


def test_it_fails_where_sharing_makes_no_difference():
    dataset = made_up()
    gapless = dataset["additivity_gap"] - dataset["additivity_gap_theory"]
    found = failing(dataset.assign(additivity_gap=gapless))
    assert found == {"additivity_gap", "whole_is_less"}


def closed_form(arrangement):
    """The coefficient of the whole, and the sum of those of its terms."""
    chosen = claim.ARRANGEMENTS[arrangement]
    alone = [learning_coefficients.reduced_rank_regression(1, len(units), 3, 0) for units, _ in chosen]
    inputs, units = len({which for _, which in chosen}), len(chosen[0][0])
    shared = learning_coefficients.reduced_rank_regression(inputs, units, 3, 0)
    whole = learning_coefficients.of_sum(*alone) if arrangement == "apart" else shared
    return whole, sum(one.value for one in alone)


@pytest.mark.parametrize("arrangement", list(claim.ARRANGEMENTS))
def test_the_integrals_tend_to_the_closed_forms(arrangement):
    """lambda - (m - 1) / (log nbeta + a constant): from two temperatures, both."""
    (value, multiplicity), alone = closed_form(arrangement)
    cold, colder = (claim.integral_values(arrangement, 3, t) for t in (1e30, 1e60))
    assert abs(colder["learning_coefficient"] - value) < 0.01
    falls = (
        (value - cold["learning_coefficient"]) * np.log(1e30),
        (value - colder["learning_coefficient"]) * np.log(1e60),
    )
    assert np.allclose(falls, multiplicity - 1, atol=0.05)
    assert abs(colder["additivity_gap"] - (value - alone)) < 0.01


def test_a_gap_has_the_errors_of_all_runs():
    """One run that stands for two terms counts with twice its error, and another adds its variance."""
    whole, twice, once = ({"estimate": value, "mcse": error} for value, error in ((3.0, 0.3), (1.0, 0.1), (0.25, 0.4)))
    found, error = measure.gap(whole, [twice, twice, once])
    assert found == pytest.approx(0.75)
    assert error == pytest.approx((0.3**2 + 0.2**2 + 0.4**2) ** 0.5)


def test_terms_are_half_the_squared_answers_of_their_units():
    rng = np.random.default_rng(0)
    chosen = (((0, 2), 1), ((1,), 0))
    a, b = rng.normal(size=(claim.MOST, claim.MOST)), rng.normal(size=(3, claim.MOST))
    found = measure.Terms.from_contexts(chosen)({"a": jnp.asarray(a), "b": jnp.asarray(b)})
    wanted = [np.sum((b[:, list(units)] @ a[list(units), which]) ** 2) / 2 for units, which in chosen]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
