"""Draws as a value: those of an estimate, as a tree, of a part, thinned, and as observables."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diagnostics.questions import ask
from refusals import assert_refused

from icllab.core.errors import InputError
from icllab.diagnostics import (
    HMC,
    MALA,
    NUTS,
    SGLD,
    SMC,
    Prior,
    coefficient_at_temperature,
    coefficient_of_draws,
    posterior_draws,
)

AT = {"q": jnp.zeros((3, 2)), "b": jnp.ones(2), "name": "layer"}
HOW = {"nbeta": 60.0, "localization": 1.0, "key": jax.random.key(0)}
SAMPLER = HMC(warm_up=30, draws=40)


def loss(w):
    """Quadratic in every weight, with curvatures that differ."""
    return jnp.sum(jnp.arange(1.0, 7.0).reshape(3, 2) * w["q"] ** 2) / 2 + jnp.sum((w["b"] - 1) ** 2)


def test_draws_are_those_of_the_estimate():
    draws, estimate = (
        ask(posterior_draws, loss, AT, sampler=SAMPLER, **HOW),
        ask(coefficient_at_temperature, loss, AT, sampler=SAMPLER, **HOW),
    )
    assert draws.tree["q"].shape == (8, 40, 3, 2)
    assert draws.tree["b"].shape == (8, 40, 2)
    again = jax.vmap(jax.vmap(lambda q, b: loss({"q": q, "b": b})))(draws.tree["q"], draws.tree["b"])
    np.testing.assert_allclose(draws.losses, again, atol=1e-5)
    np.testing.assert_allclose(HOW["nbeta"] * draws.losses.mean(), estimate["estimate"], rtol=1e-6)
    assert draws.warnings() == [w for w in estimate.attrs["warnings"] if w in draws.warnings()]


def test_a_part_of_an_array_moves_alone():
    """A mask selects one row of q: 2 weights, of exact coefficient, with the others where they were."""
    mask = {"q": np.array([[False, False], [True, True], [False, False]]), "b": False, "name": False}
    centre = {"q": jnp.full((3, 2), 0.01), "b": jnp.zeros(2), "name": "x"}
    at = AT | {"q": jnp.asarray([[5.0, 6.0], [0.0, 0.0], [7.0, 8.0]])}
    options = HOW | {"weights": mask, "prior": Prior(centre=centre, std=10.0)}
    draws = ask(posterior_draws, loss, at, sampler=HMC(warm_up=100, draws=400), observables=None, **options)
    assert draws.parameters.shape[2] == 2
    assert draws.tree["b"] is None
    moved = np.asarray(draws.tree["q"])
    np.testing.assert_array_equal(moved[:, :, [0, 2]], np.broadcast_to(at["q"][jnp.asarray([0, 2])], (8, 400, 2, 2)))
    np.testing.assert_array_equal(moved[:, :, 1], draws.parameters)
    estimate = coefficient_of_draws(draws)
    assert estimate.attrs["parameters"] == 2
    exact = np.sum(60 * np.array([3.0, 4.0]) / (60 * np.array([3.0, 4.0]) + 1.01)) / 2
    assert abs(float(estimate["estimate"]) - exact) < 4 * float(estimate["mcse"])
    options["observables"] = {"whole": lambda w: w["q"][2, 1] + w["b"][0], "row": lambda w: w["q"][1]}
    observed = ask(posterior_draws, loss, at, sampler=SAMPLER, **options).observed
    np.testing.assert_array_equal(observed["whole"], np.full((8, 40), 9.0))
    assert observed["row"].shape == (8, 40, 2)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"q": False, "b": False, "name": False}, "parts with floating-point arrays, got 'none'"),
        ({"q": np.array([True, False]), "b": True, "name": False}, "a mask like it, got 'a mask of shape"),
        ({"q": True, "name": False}, "a mask like it"),
    ],
)
def test_masks_that_select_nothing_or_do_not_fit_are_refused(weights, message):
    with pytest.raises(InputError, match=f"weights: expected .*{message}"):
        ask(posterior_draws, loss, AT, weights=weights, **HOW)


@pytest.mark.parametrize("sampler", [HMC, MALA, SGLD, pytest.param(NUTS, marks=pytest.mark.slow)])
def test_thinned_draws_are_every_third_move_after_the_warm_up(sampler):
    every = ask(posterior_draws, loss, AT, sampler=sampler(warm_up=20, draws=24), **HOW)
    third = ask(posterior_draws, loss, AT, sampler=sampler(warm_up=20, draws=8, thinning=3), **HOW)
    np.testing.assert_allclose(third.parameters, every.parameters[:, 2::3], atol=1e-6)
    np.testing.assert_allclose(third.losses, every.losses[:, 2::3], atol=1e-6)
    np.testing.assert_array_equal(third.parameters[:, -1], third.chains.last)  # no draw is a move early
    if sampler is not NUTS:
        np.testing.assert_allclose(third.chains.acceptance, every.chains.acceptance, rtol=1e-5)


def test_draws_on_batches_are_thinned_too():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(64, 2)), jnp.float32)
    mean = lambda w, batch: jnp.mean((batch @ w) ** 2)  # noqa: E731
    options = HOW | {"data": x}
    every = ask(posterior_draws, mean, jnp.zeros(2), sampler=SGLD(batch=16, warm_up=20, draws=24), **options)
    third = ask(posterior_draws, mean, jnp.zeros(2), sampler=SGLD(batch=16, warm_up=20, draws=8, thinning=3), **options)
    np.testing.assert_allclose(third.parameters, every.parameters[:, 2::3], atol=1e-6)


def test_a_noise_level_is_another_temperature_and_told():
    """At small steps the draws are those of U over its square: four times the coefficient at 2."""
    sampler = SGLD(warm_up=500, draws=6000, noise_level=2.0)
    draws = ask(posterior_draws, loss, AT, sampler=sampler, **HOW)
    estimate = coefficient_of_draws(draws)
    exact = coefficient_of_draws(
        ask(posterior_draws, loss, AT, sampler=dataclasses.replace(sampler, noise_level=1.0), **HOW)
    )
    ratio = float(estimate["estimate"]) / float(exact["estimate"])
    assert ratio == pytest.approx(4, rel=0.15)
    assert any("noise level is 2" in sentence for sentence in estimate.attrs["warnings"])
    assert not any("noise level" in sentence for sentence in exact.attrs["warnings"])


def test_observables_stand_in_the_place_of_parameters():
    options = HOW | {"sampler": SAMPLER}
    observables = {"norm": lambda w: jnp.sum(w["q"] ** 2), "row": lambda w: w["q"][0]}
    draws, kept = (
        ask(posterior_draws, loss, AT, observables=observables, **options),
        ask(posterior_draws, loss, AT, **options),
    )
    np.testing.assert_allclose(draws.observed["row"], kept.tree["q"][:, :, 0], atol=1e-6)
    np.testing.assert_allclose(draws.observed["norm"], (np.asarray(kept.tree["q"]) ** 2).sum((2, 3)), rtol=1e-4)
    assert sum(leaf.size for leaf in jax.tree.leaves(draws.chains.parameters)) == 8 * 40 * 3
    with pytest.raises(InputError, match="draws with their parameters, got 'losses or observables alone'"):
        _ = draws.parameters
    with pytest.raises(InputError, match="observables: expected at least one function"):
        ask(posterior_draws, loss, AT, observables={}, **options)
    call = lambda: ask(posterior_draws, loss, AT, **HOW, sampler=SMC())  # noqa: E731
    assert_refused(call, "sampler: expected 'auto' or a sampler of chains")
