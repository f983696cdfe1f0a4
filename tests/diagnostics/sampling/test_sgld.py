"""Langevin dynamics without a test: with the bias of their step, and on batches with the noise of these."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diagnostics.sampling import gaussian
from diagnostics.sampling.gaussian import GAMMA, NBETA

from icllab.core.errors import InputError
from icllab.diagnostics import SGLD
from icllab.diagnostics.sampling import convergence
from icllab.diagnostics.sampling.chains import chain_groups
from icllab.diagnostics.sampling.posteriors import Posterior
from icllab.diagnostics.sampling.sampled_losses import AtPoint, Batches, at_point, vector_loss
from icllab.theory import quadratic_posterior


def test_the_moments_of_a_gaussian_have_the_bias_of_the_step():
    with jax.enable_x64(True):
        epsilon = 0.04
        how = {"step_size": epsilon, "warm_up": 300, "mode": "vmap", "key": jax.random.key(3)}
        found = SGLD(draws=20_000).draw(gaussian.target(), jnp.ones((8, 3)), **how)
        gaussian.require_moments(found, step=epsilon)
        assert float(found.step_size) == epsilon


def test_a_step_sees_a_batch_where_there_are_more_samples():
    """And all of them where there are not: then there is nothing that a control variate could take away."""
    posterior, slope = gaussian.target("float32"), jnp.zeros(3)
    many, few = AtPoint(jnp.zeros((300, 1)), slope), AtPoint(jnp.zeros((256, 1)), slope)
    seen = SGLD(control_variate=True).target(posterior, many)
    assert isinstance(seen, Batches)
    assert seen.size == 256
    assert seen.slope is slope
    assert SGLD().target(posterior, many).slope is None
    assert SGLD().target(posterior, few) is posterior
    with pytest.raises(InputError) as error:
        SGLD(control_variate=True).target(posterior, few)
    said = "control_variate: expected more samples than a batch has, got '256 in batches of 256'; leave it out"
    assert str(error.value) == said
    with pytest.raises(InputError, match="batch: expected an integer of at least 1, got 0"):
        SGLD(batch=0)
    assert SGLD().steps == (2000, 4000)
    assert not SGLD().tested


def test_batches_of_equal_samples_are_all_the_data():
    """Whatever is drawn, the gradient is that of all: the moments of a Gaussian, with the bias of the step."""
    with jax.enable_x64(True):
        loss, centre = vector_loss(lambda w, batch: gaussian.quadratic(w) + 0 * batch.sum(), jnp.zeros(3), jnp.ones(9))
        posterior = Posterior(loss, centre, jnp.asarray(NBETA), jnp.asarray(GAMMA))
        sampler, epsilon = SGLD(batch=2, draws=8000), 0.04
        batches = sampler.target(posterior, at_point(loss, centre, batch=9))
        assert isinstance(batches, Batches)
        how = {"step_size": epsilon, "warm_up": 300, "mode": "vmap", "key": jax.random.key(3)}
        found = sampler.draw(batches, jnp.ones((8, 3)), **how)
        gaussian.require_moments(found, step=epsilon, relative=0.05)
        assert found.terms.shape == (8, 8000, 1)


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
        h, vectors = np.linalg.eigh(x.T @ x / 600)
        each = np.asarray((x @ at - noise)[:, None] * x) @ vectors
        scatter = 0.0 if control else each.var(0) / size
        step = 0.1 / (nbeta * h[-1] + gamma)
        sampler = SGLD(batch=size, control_variate=control, warm_up=500, draws=4000)
        batches = sampler.target(posterior, known)
        assert isinstance(batches, Batches)
        starts = jnp.broadcast_to(centre, (32, 3))
        found = sampler.draw(batches, starts, step_size=step, warm_up=500, mode="vmap", key=key)
        pull = nbeta * h + gamma
        wanted = np.sum(nbeta * h / pull * (1 + step * nbeta**2 * scatter / 4) / (1 - step * pull / 4)) / 2
        mean, error = convergence.mean_and_mcse(nbeta * np.asarray(found.terms)[:, :, 0])
        assert error < 0.03 * wanted
        assert abs(mean - wanted) < 4 * error
        if not control:
            without = quadratic_posterior.gaussian_coefficient(h, nbeta=nbeta, localization=gamma, step_size=step)
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
            monkeypatch.setattr("icllab.diagnostics.sampling.sgld.chain_groups", lambda chains: groups)
            how = {"step_size": 0.05, "warm_up": 3, "mode": mode, "key": jax.random.key(0)}
            return SGLD(batch=8, draws=8).draw(batches, jnp.ones((4, 3)), **how)

        one, two, three = drawn("vmap"), drawn("map"), drawn("map", 2)
        for other in (two, three):
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10), one, other)
        assert len(np.unique(np.round(one.last, 6))) == 12
        assert 1 <= chain_groups(4) <= 4
