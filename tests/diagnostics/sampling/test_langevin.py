"""Gaussian targets, whose moments are known; and one step of each method against the other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.diagnostics.sampling import convergence
from icllab.diagnostics.sampling.langevin import chain_groups, over_chains, sample, sample_batches
from icllab.diagnostics.sampling.posteriors import ChainState, Posterior, hamiltonian, langevin, steepest
from icllab.diagnostics.sampling.sampled_losses import Batches, at_point, vector_loss
from icllab.theory import quadratic_posterior

H = np.array([3.0, 1.0, 0.2])
NBETA, GAMMA = 7.0, 0.5


def quadratic(w):
    return jnp.sum(jnp.asarray(H, w.dtype) * w**2) / 2 + 1.5


def target(dtype="float64"):
    return Posterior(quadratic, jnp.zeros(3, dtype), jnp.asarray(NBETA, dtype), jnp.asarray(GAMMA, dtype))


@pytest.mark.parametrize("method", ["hmc", pytest.param("mala", marks=pytest.mark.slow), "sgld"])
def test_the_moments_of_a_gaussian(method):
    """Loss and distance within four Monte Carlo errors, each below 3 per cent; of Langevin dynamics with their bias."""
    with jax.enable_x64(True):
        posterior, key = target(), jax.random.key(3)
        epsilon = 0.04
        found = sample(
            posterior,
            jnp.ones((8, 3)),
            method=method,
            step_size=jnp.asarray(epsilon if method == "sgld" else 0.1),
            warm_up=300,
            draws=3000 if method == "hmc" else 20_000,
            key=key,
        )
        step = epsilon if method == "sgld" else 0.0
        wanted = quadratic_posterior.learning_coefficient(H, nbeta=NBETA, localization=GAMMA, step_size=step)
        mean, error = convergence.mean_and_mcse(NBETA * np.asarray(found.terms)[:, :, 0])
        assert error < 0.03 * wanted
        assert abs(mean - wanted) < 4 * error
        curvature = NBETA * H + GAMMA
        wanted = np.sum(1 / curvature / (1 - step * curvature / 4))
        mean, error = convergence.mean_and_mcse(np.asarray(found.distance))
        assert error < 0.03 * wanted
        assert abs(mean - wanted) < 4 * error
        if method == "sgld":
            assert float(found.step_size) == epsilon
        else:  # of the harmonic mean over chains, so that the mean is above what was asked for
            assert 0.5 < float(jnp.mean(found.acceptance)) < 0.95
        assert found.terms.shape == (*found.distance.shape, 1)
        assert found.last.shape == (8, 3)


def test_one_leapfrog_step_is_one_of_langevin_dynamics_with_a_test():
    """The same proposal, and the same chance of taking it, from the densities of the two moves."""
    with jax.enable_x64(True):
        posterior = target()
        evaluate = over_chains(posterior.loss_and_slope, "vmap")
        w, noise = jax.random.normal(jax.random.key(0), (2, 50, 3))
        states, size = ChainState(w, *evaluate(w)), jnp.asarray(0.3)
        always = jnp.zeros(50)
        leap, one = hamiltonian(posterior, evaluate, states, noise, size, 1, always)
        step, other = langevin(posterior, evaluate, states, noise, size**2)
        np.testing.assert_allclose(leap.w, step.w, atol=1e-13)
        np.testing.assert_allclose(one, other, atol=1e-12)
        assert 0.01 < float(jnp.mean(one)) < 0.99


@pytest.mark.slow
def test_one_after_the_other_is_side_by_side():
    """Both modes draw the same numbers; terms of the loss sum to it at every draw."""
    with jax.enable_x64(True):
        posterior = Posterior(lambda w: H * w**2 / 2, jnp.zeros(3), jnp.asarray(NBETA), jnp.asarray(GAMMA))
        summed = Posterior(lambda w: jnp.sum(H * w**2) / 2, jnp.zeros(3), jnp.asarray(NBETA), jnp.asarray(GAMMA))
        how = {"method": "hmc", "step_size": jnp.asarray(0.1), "warm_up": jnp.asarray(20), "draws": 30}
        one, two = (
            sample(target, jnp.ones((4, 3)), mode=mode, key=jax.random.key(2), **how)
            for target, mode in ((posterior, "vmap"), (summed, "map"))
        )
        assert one.terms.shape == (4, 30, 3)
        np.testing.assert_allclose(jnp.sum(one.terms, axis=2), two.terms[:, :, 0], rtol=1e-9)
        np.testing.assert_allclose(one.last, two.last, rtol=1e-9)
        assert np.ptp(one.terms) > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("control", [False, True])
def test_langevin_dynamics_on_batches(control):
    r"""Squared errors of a linear model with noise: the batches' gradients add to the variance what theory says.

    With C the covariance of a batch's gradient, the stationary variance along an eigenvector is
    (1 + eps nbeta^2 C / 4) / (a (1 - eps a / 4)) at leading order, a = nbeta h + gamma. With the control variate the
    first factor is 1 but for (w - w*)^2 / batch. The estimate is within four of its errors, which are below 3 per cent.
    """
    with jax.enable_x64(True):
        of_x, of_noise, key = jax.random.split(jax.random.key(0), 3)
        x = jax.random.normal(of_x, (600, 3)) @ jnp.diag(jnp.asarray([1.0, 0.7, 0.4]))
        noise = jax.random.normal(of_noise, (600,))
        at = jnp.linalg.lstsq(x, noise)[0]
        loss, centre = vector_loss(lambda w, batch: jnp.mean((batch[0] @ w - batch[1]) ** 2) / 2, at, (x, noise))
        size, nbeta, gamma = 100, 3000.0, 1.0
        known = at_point(loss, centre, batch=size)
        posterior = Posterior(loss, centre, jnp.asarray(nbeta), jnp.asarray(gamma))
        batches = Batches(posterior, known.terms, known.slope if control else None, size)
        h, vectors = np.linalg.eigh(x.T @ x / 600)
        each = np.asarray((x @ at - noise)[:, None] * x) @ vectors
        scatter = 0.0 if control else each.var(0) / size
        step = 0.1 / (nbeta * h[-1] + gamma)
        found = sample_batches(
            batches,
            jnp.broadcast_to(centre, (32, 3)),
            step_size=jnp.asarray(step),
            warm_up=jnp.asarray(500),
            draws=4000,
            key=key,
        )
        pull = nbeta * h + gamma
        wanted = np.sum(nbeta * h / pull * (1 + step * nbeta**2 * scatter / 4) / (1 - step * pull / 4)) / 2
        mean, error = convergence.mean_and_mcse(nbeta * np.asarray(found.terms)[:, :, 0])
        assert error < 0.03 * wanted
        assert abs(mean - wanted) < 4 * error
        if not control:
            without = quadratic_posterior.learning_coefficient(h, nbeta=nbeta, localization=gamma, step_size=step)
            assert wanted - without > 6 * error  # the noise is seen
        assert 0.8 < float(jnp.min(found.acceptance)) <= 1


@pytest.mark.slow
def test_a_chain_on_batches_is_the_same_in_any_company(monkeypatch, getkey):
    """Side by side, one after the other, and shared out among two cores."""
    with jax.enable_x64(True):
        x = jax.random.normal(getkey(), (40, 3))
        loss, centre = vector_loss(lambda w, batch: jnp.mean((batch @ w) ** 2) / 2, jnp.zeros(3), x)
        known = at_point(loss, centre, batch=8)
        batches = Batches(Posterior(loss, centre, jnp.asarray(NBETA), jnp.asarray(GAMMA)), known.terms, None, 8)

        def drawn(mode, groups=1):
            monkeypatch.setattr("icllab.diagnostics.sampling.langevin.chain_groups", lambda chains: groups)
            how = {"step_size": jnp.asarray(0.05), "warm_up": 3, "draws": 5, "mode": mode, "key": jax.random.key(0)}
            return sample_batches(batches, jnp.ones((4, 3)), **how)

        one, two, three = drawn("vmap"), drawn("map"), drawn("map", 2)
        for other in (two, three):
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10), one, other)
        assert len(np.unique(np.round(one.last, 6))) == 12
        assert 1 <= chain_groups(4) <= 4


def test_what_runs_away_is_not_taken():
    posterior = Posterior(lambda w: jnp.exp(jnp.sum(w**2)), jnp.zeros(2), jnp.asarray(1.0), jnp.asarray(1.0))
    evaluate = jax.vmap(posterior.loss_and_slope)
    w = jnp.full((1, 2), 3.0)
    states = ChainState(w, *evaluate(w))
    found, chance = hamiltonian(posterior, evaluate, states, w, jnp.asarray(1e6), 3, jnp.zeros(1))
    np.testing.assert_array_equal(found.w, w)
    assert float(chance[0]) == 0


def test_the_largest_curvature():
    with jax.enable_x64(True):
        found = float(steepest(target(), key=jax.random.key(1)))
    assert found == pytest.approx(NBETA * 3 + GAMMA, rel=1e-6)
    assert found <= NBETA * 3 + GAMMA + 1e-9
