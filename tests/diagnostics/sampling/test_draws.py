"""Expectations by draws and nodes, if they are exact."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diagnostics.questions import ask

from icllab.core.errors import InputError
from icllab.diagnostics import (
    HMC,
    Quadrature,
    coefficient_at_temperature,
    coefficient_of_draws,
    free_energy,
    free_energy_of_populations,
    susceptibility,
    susceptibility_of_draws,
)
from icllab.diagnostics.sampling.local_loss import LocalLoss
from icllab.diagnostics.sampling.observables import at_centre, disagreements
from icllab.diagnostics.sampling.smc import SMC
from icllab.diagnostics.susceptibilities.quadrature import weighted_mean
from icllab.diagnostics.susceptibilities.tilts import _tilt


def test_the_error_of_a_quadrature_is_what_every_other_node_changes():
    """Nothing of a constant, or where both rules are one; of x^2 by Simpson's and the trapezium rule a sixth."""
    x, fine, coarse = np.array([0, 0.5, 1]), np.array([1, 4, 1]) / 6, np.array([1, 0, 1]) / 2
    np.testing.assert_allclose(weighted_mean(np.full(3, 2.0), fine, coarse), (2, 0), atol=1e-14)
    np.testing.assert_allclose(weighted_mean(x**2, fine, coarse), (1 / 3, 1 / 6), rtol=1e-12)
    assert weighted_mean(x**2, fine, fine)[1] == 0


def test_chains_that_differ_disagree():
    constant = np.full((4, 8, 2), 3.0)
    assert disagreements(constant) == []
    shifted = constant + np.random.default_rng(0).normal(size=constant.shape) + np.arange(4.0)[:, None, None]
    assert "chains disagree" in disagreements(shifted)[0]


@pytest.mark.parametrize("values", [[1.0, np.nan], [np.inf, 0.0], [[1.0]]])
def test_what_is_not_finite_at_the_point_is_refused(values):
    local = LocalLoss.from_loss(lambda w: jnp.sum(w**2), jnp.asarray([1.0, 2.0]), None)
    with pytest.raises(InputError, match="observables: expected finite numbers at the point given"):
        at_centre(lambda _: jnp.asarray(values), local)
    np.testing.assert_array_equal(at_centre(lambda w: w, local)[1], [1, 2])


def test_a_tilt_is_a_difference_of_sums_over_terms():
    w = jnp.asarray([1.0, 2.0, 4.0])
    assert float(_tilt(lambda w: w**2, lambda w: w[:2], w)) == 21 - 3


def loss(w):
    """Two terms, in a tree."""
    return jnp.stack([w["a"] ** 2, jnp.sum(w["b"] ** 2) ** 2])


POINT = {"a": np.zeros(()), "b": np.zeros(2)}
SAMPLER = HMC(warm_up=30, draws=60)
HOW = {"nbeta": 100.0, "localization": 1.0, "key": jax.random.key(0)}


def test_one_set_of_draws_has_the_estimates_of_separate_runs():
    """The coefficient, the loss at the parameters of every draw, and the susceptibilities are of the same chains."""
    with jax.enable_x64(True):
        at = jax.tree.map(jnp.asarray, POINT)
        draws = ask(
            SAMPLER.sample, loss, at, **HOW | {"key": jax.random.fold_in(HOW["key"], 0)}
        )  # of the one temperature
        separate = ask(coefficient_at_temperature, loss, at, sampler=SAMPLER, **HOW)
        estimate = coefficient_of_draws(draws)
        functions = {"tilted": {"a": lambda w: w["a"]}, "observables": {"loss": lambda w: jnp.sum(loss(w))}}
        separate_response = ask(susceptibility, loss, at, route=SAMPLER, **functions, **HOW | {"key": draws.key})
        pair = susceptibility_of_draws(draws, **functions), separate_response
        values = np.asarray(jax.vmap(jax.vmap(lambda w: jnp.sum(loss(draws.local.tree(w)))))(draws.parameters))
        constant = draws.values(lambda w: jnp.ones(1))[1][:, :, 0]
    for name in ("estimate", "mcse", "rhat", "loss_trace", "hessian_share", "localization_share"):
        np.testing.assert_array_equal(estimate[name], separate[name])
    np.testing.assert_allclose(values, draws.losses, rtol=1e-9)
    assert draws.parameters.shape == (8, 60, 3)
    np.testing.assert_array_equal(pair[0]["susceptibility"], pair[1]["susceptibility"])
    assert float(pair[0]["mean"][0]) == pytest.approx(draws.losses.mean())
    assert draws.mean(constant) == (0.0, 0.0)


def test_a_free_energy_is_a_function_of_populations():
    with jax.enable_x64(True):
        at = jax.tree.map(jnp.asarray, POINT)
        sampler, options = SMC(particles=20, repeats=2), {"nbeta": [1.0, 9.0], "key": jax.random.key(1)}
        populations = ask(sampler.sample, loss, at, localization=2.0, **options)
        separate = ask(free_energy, loss, at, localization=2.0, sampler=sampler, **options)
    np.testing.assert_array_equal(free_energy_of_populations(populations)["free_energy"], separate["free_energy"])
    assert separate.attrs["localization"] == 2.0
    assert separate.attrs["parameters"] == 3


def test_nodes_are_the_draws_of_a_quadrature():
    with jax.enable_x64(True):
        nodes = ask(Quadrature(points=129).sample, lambda w: jnp.sum(w**2) / 2, jnp.zeros(1), **HOW)
        _, values = nodes.values(lambda w: w**2)
    assert nodes.mean(values[:, 0])[0] == pytest.approx(1 / 101, rel=1e-6)
