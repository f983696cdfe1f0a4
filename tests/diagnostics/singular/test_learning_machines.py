"""Contributions of lengths that share their weights, against the exact posterior of a linear model."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

from icllab.core.errors import InputError
from icllab.core.prompt import RegressionPrompt
from icllab.core.protocols import AbstractPredictor
from icllab.diagnostics import HMC, SMC, LearningMachine
from icllab.tasks import GaussianInputs, GaussianWeights, LinearRegression
from icllab.theory import quadratic_posterior

TASK = LinearRegression(2, 2, GaussianInputs(1.0), GaussianWeights(1.0), 0.5)
COUNTS = (1.0, 2.0, 0.5)
N = 200


class Linear(AbstractPredictor):
    """One linear map of the input at every position: the same weights for all lengths."""

    w: Float[Array, " dim"]

    def __call__(self, prompt):
        return prompt.x @ self.w


class Last(Linear):
    positions = "last"


def data():
    """Windows whose positions have labels of different tasks, so that no length has its minimum at the whole's."""
    generator = np.random.default_rng(3)
    x = generator.normal(size=(N, 3, 2)) * np.array([1.0, 0.5, 2.0])[None, :, None]
    y = np.einsum("npi,pi->np", x, np.array([[1.0, 0.0], [0.6, 0.5], [1.3, -0.4]])) + generator.normal(size=(N, 3))
    return x, y


def machine(counts=COUNTS):
    """At the minimum of the whole loss, with the Hessians and gradients of its terms, per window."""
    x, y = data()
    often = np.asarray(counts)
    h = 2 * often[:, None, None] * np.einsum("npi,npj->pij", x, x) / N
    b = 2 * often[:, None] * np.einsum("npi,np->pi", x, y) / N
    w = np.linalg.solve(h.sum(0), b.sum(0))
    windows = jax.vmap(RegressionPrompt)(jnp.asarray(x), jnp.asarray(y))
    found = LearningMachine(Linear(jnp.asarray(w)), TASK, windows, often)
    return found, h, h @ w - b


@pytest.fixture(scope="module")
def sampled():
    with jax.enable_x64(True):
        how = {"localization": 1.0, "sampler": HMC(mode="vmap", warm_up=100, draws=500)}
        return machine()[0].contributions(key=jax.random.key(0), gains=None, **how)


def test_contributions_are_those_of_the_posterior_and_sum_to_the_estimate(sampled):
    _, h, g = machine()
    exact = quadratic_posterior.contributions(h, nbeta=N / np.log(N), localization=1.0, gradients=g)
    error = sampled["contribution_mcse"].values
    assert sampled.attrs["n"] == N
    assert np.all(np.abs(sampled["contribution"] - exact.estimate) < 4.5 * error)
    assert error.max() < 0.1
    assert float(sampled["contribution"].sum()) == pytest.approx(float(sampled["estimate"]), rel=1e-9)


def test_their_covariance_is_that_of_the_posterior(sampled):
    """Far from what separate terms would have: the gradients, which cancel in the sum, make most of it."""
    _, h, g = machine()
    exact = quadratic_posterior.contributions(h, nbeta=N / np.log(N), localization=1.0, gradients=g).covariance
    found = sampled["contribution_covariance"].values
    scale = np.sqrt(np.outer(np.diag(exact), np.diag(exact)) + exact**2)
    error = scale / np.sqrt(float(sampled["ess"]))
    assert np.all(np.abs(found - exact) < 5 * error)
    # The error that is told comes from eight chains.
    assert np.all(np.abs(found - exact) < 6 * sampled["contribution_covariance_mcse"].values)
    assert error.max() < 0.1 * exact.max()
    without = quadratic_posterior.contributions(h, nbeta=N / np.log(N), localization=1.0).covariance
    assert np.abs(found - without).max() > 10 * error.max()


def test_a_step_gains_what_a_quadratic_says(sampled):
    _, h, g = machine()
    beta = N / np.log(N)
    square = np.sum(g**2, axis=1)
    bend = np.einsum("pi,pij,pj->p", g, h, g) / square
    np.testing.assert_allclose(sampled["step_gain"], beta**2 * square / (2 * (beta * bend + 1)), rtol=1e-6)
    np.testing.assert_array_equal(sampled["length_samples"], N * np.array(COUNTS))


def test_windows_and_prefixes_count_the_same_data():
    with jax.enable_x64(True):
        found, _, _ = machine()
        assert found.samples() == N
        assert found.samples("prefixes") == 3.5 * N
        losses = found.losses()
        assert float(losses["loss_sum"]) == pytest.approx(3.5 * float(losses["loss_mean"]), rel=1e-12)
        whole = [found._split(found.often * found.size / found.samples(count))[1] for count in ("windows", "prefixes")]
        total = [found.samples(c) * float(jnp.sum(loss(found.model, found.windows))) for c, loss in
                 zip(("windows", "prefixes"), whole, strict=True)]  # fmt: skip
        assert total[0] == pytest.approx(total[1], rel=1e-12)
        assert float(losses["loss"].values @ np.array(COUNTS)) == pytest.approx(total[0] / N, rel=1e-9)


def test_a_length_alone_has_a_coefficient_only_at_its_minimum():
    """Of the whole's minimum it says that it is none; at its own it estimates half the number of weights."""
    with jax.enable_x64(True):
        found, h, g = machine()
        how = {"localization": 1e-3, "sampler": HMC(mode="vmap", warm_up=100, draws=500)}
        away = found.coefficient_of(1, key=jax.random.key(1), **how)
        assert any("does not minimise the loss at position 1" in said for said in away.attrs["warnings"])
        assert away.attrs["n"] == N * COUNTS[1]
        own = np.asarray(found.model.w) - np.linalg.solve(h[1], g[1])
        at = eqx.tree_at(lambda m: m.model.w, found, jnp.asarray(own))
        here = at.coefficient_of(1, key=jax.random.key(2), **how)
        assert abs(float(here["estimate"]) - 1.0) < 4.5 * float(here["mcse"])
        assert float(here["mcse"]) < 0.1
        assert not any("position 1" in said for said in here.attrs["warnings"])
        # On the way there the gain falls as the square of what is left.
        for gain in (0.75, 0.4):
            left = (gain / float(away["step_gain"])) ** 0.5 * (np.asarray(found.model.w) - own)
            near = eqx.tree_at(lambda m: m.model.w, found, jnp.asarray(own + left))
            there = near.coefficient_of(1, key=jax.random.key(2), **how)
            assert float(there["step_gain"]) == pytest.approx(gain, rel=1e-6)
            told = any("a step would gain 0.75" in said for said in there.attrs["warnings"])
            assert told == (gain > 0.5)


def test_gains_are_those_of_the_positions_that_are_named():
    with jax.enable_x64(True):
        found, _, _ = machine()
        how = {"nbeta": 30.0, "localization": 1.0, "sampler": HMC(mode="vmap", warm_up=100, draws=500)}
        estimate = found.contributions(key=jax.random.key(3), gains=[2, 0, 2], **how)
        known = found.gains(nbeta=30.0, localization=1.0, positions=[0, 2])
    np.testing.assert_allclose(estimate["step_gain"].sel(position=[0, 2]), known, rtol=1e-12)
    assert np.isnan(estimate["step_gain"].sel(position=1))
    np.testing.assert_allclose(estimate["contribution"].sum(), estimate["estimate"], rtol=1e-9)


def test_a_window_of_one_length_has_no_contributions():
    prompts = jax.vmap(RegressionPrompt)(jnp.ones((8, 1, 2)), jnp.ones((8, 1)))
    one = LearningMachine(Linear(jnp.ones(2)), TASK, prompts, np.ones(1))
    with pytest.raises(InputError) as error:
        one.contributions(key=jax.random.key(0))
    assert "windows: expected at least two lengths, got 1; coefficient_of(0)" in str(error.value)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda of: of(Last(jnp.ones(2))), "model: expected a predictor of every position that can be traced"),
        (lambda of: of(Linear(jnp.ones(2)), windows=1), "windows: expected an integer of at least 2, got 1"),
        (lambda of: of(Linear(jnp.ones(2)), counts=[1.0]), "counts: expected 3 finite numbers of at least 0"),
        (lambda of: of(Linear(jnp.ones(2))).samples("tokens"), "unknown count 'tokens'"),
        (
            lambda of: of(Linear(jnp.ones(2)), counts=[0.0, 1.0, 1.0]).coefficient_of(0, key=jax.random.key(0)),
            "position: expected a length that counts, from 0 to 2, got 0",
        ),
        (
            lambda of: of(Linear(jnp.ones(2))).gains(nbeta=1.0, positions=[0, 3]),
            "positions: expected integers from 0 to 2, got 3",
        ),
        (
            lambda of: of(Linear(jnp.ones(2))).contributions(key=jax.random.key(0), gains=[-1]),
            "positions: expected integers from 0 to 2, got -1",
        ),
        (
            lambda of: of(Linear(jnp.ones(2))).contributions(key=jax.random.key(0), sampler=SMC()),
            "sampler: expected one that draws chains, which have terms, got SMC(",
        ),
        (
            lambda of: of(lambda prompt: prompt.y).contributions(key=jax.random.key(0)),
            "model: expected a predictor with floating-point arrays",
        ),
    ],
)
def test_bad_questions(ask, said):
    def of(model, windows=8, **how):
        return LearningMachine.from_task(model, TASK, windows=windows, key=jax.random.key(0), **how)

    with pytest.raises(InputError) as error:
        ask(of)
    assert said in str(error.value)
