"""The pieces of the sampler: weights, resampling and steps of temperature, and populations of a prior."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.diagnostics import SMC
from icllab.diagnostics.sampling import smc
from icllab.diagnostics.sampling.posteriors import Posterior
from icllab.diagnostics.sampling.smc import Whitened

GENERATOR = np.random.default_rng(0)
LOSSES = GENERATOR.gamma(2.0, 3.0, (3, 200))


def identity(w):
    return w


def whitened(region=None):
    return Whitened(lambda w: jnp.sum(w**2) / 2, region, jnp.zeros(3), jnp.ones(3), identity)


def test_weights_are_a_mean_of_exponentials():
    increment, share = smc._weigh(LOSSES, 0.3)
    weights = np.exp(-0.3 * LOSSES)
    np.testing.assert_allclose(increment, -np.log(weights.mean(1)), rtol=1e-13)
    np.testing.assert_allclose(share, weights.sum(1) ** 2 / (weights**2).sum(1) / 200, rtol=1e-12)
    # A shift of the loss, of whatever size, is a shift of the free energy.
    np.testing.assert_allclose(smc._weigh(LOSSES + 1e5, 0.3)[0], increment + 3e4, rtol=1e-12)


def test_a_step_leaves_the_share_that_is_asked_for():
    for share in (0.5, 0.9, 0.99):
        step = smc._longest(LOSSES, share, 1e3)
        assert smc._weigh(LOSSES, step)[1].min() == pytest.approx(share, abs=1e-4)
    assert smc._longest(LOSSES, 0.9, 1e-6) == 1e-6
    assert smc._longest(np.ones((2, 5)), 0.9, 7.0) == 7.0


def test_everyone_is_kept_as_often_as_the_weight_says_up_to_one():
    for offset in (0.0, 0.4, 0.999):
        kept = smc._resample(LOSSES, 0.2, np.full((3, 1), offset))
        assert kept.shape == LOSSES.shape
        for row, losses in zip(kept, LOSSES, strict=True):
            weights = np.exp(-0.2 * losses)
            times = np.bincount(row, minlength=200)
            assert (np.abs(times - 200 * weights / weights.sum()) < 1 + 1e-9).all()
    still = smc._resample(np.ones((1, 6)), 5.0, np.full((1, 1), 0.5))
    np.testing.assert_array_equal(still[0], np.arange(6))


def test_a_path_is_its_key_s_and_its_last_population_is_the_posterior():
    """A quadratic: at t = 9 every parameter has the variance 1/10, to within four errors, below 4 per cent."""
    sampler = SMC(particles=400, repeats=4)
    with jax.enable_x64(True):
        loss, stops = whitened(), np.array([9.0])
        paths = [sampler.path(loss, stops=stops, key=jax.random.key(k)) for k in (0, 0, 1)]
    assert [rung.temperature for rung in paths[0].rungs] == [rung.temperature for rung in paths[1].rungs]
    np.testing.assert_array_equal(paths[0].last, paths[1].last)
    assert not np.array_equal(paths[0].last, paths[2].last)
    squares = 10 * paths[0].last ** 2
    error = np.sqrt(2 / squares.size)
    assert error < 0.04
    # Neighbours share ancestors: the error is larger than that of independent draws, at most by the moves' memory.
    assert abs(squares.mean() - 1) < 4 * 1.4 * error
    assert abs(paths[0].last.mean()) < 4 * 1.4 * np.sqrt(0.1 / squares.size)
    assert paths[0].rungs[-1].temperature == 9
    assert paths[0].rungs[0].moves.moves == 0


@pytest.mark.parametrize(
    ("region", "came"), [(lambda w: w > 0, "bool[3]"), (lambda w: w[0], "float32[]"), (lambda w: w[:1] > 0, "bool[1]")]
)
def test_a_region_is_one_boolean(region, came):
    """Of several the loss was counted several times, and of a number every one but zero was inside."""
    with pytest.raises(InputError) as error:
        SMC(particles=20, repeats=2).path(whitened(region), stops=np.array([1.0]), key=jax.random.key(0))
    said = f"region: expected a function of parameters with one boolean, got '{came}'; take jnp.all of several"
    assert str(error.value) == said


def test_a_loss_that_is_nowhere_finite_is_the_loss_s_fault():
    nowhere = Whitened(lambda w: jnp.sum(w) * jnp.nan, None, jnp.zeros(1), jnp.ones(1), identity)
    with pytest.raises(
        InputError, match=r"^loss: expected a finite number at more than 0.0001 of the prior, got '0 of"
    ):
        smc._inside(nowhere, np.random.default_rng(3), SMC(particles=5000))


def test_a_region_s_share_of_the_prior():
    """Half of it; what has no finite loss is outside as well."""
    sampler = SMC(particles=500, repeats=8)
    loss = whitened(lambda w: w[0] > 0)
    points, losses, mass = smc._inside(loss, np.random.default_rng(3), sampler)
    assert (points[..., 0] > 0).all()
    assert points.shape == (8, 500, 3)
    np.testing.assert_allclose(losses, (points**2).sum(-1) / 2, rtol=1e-5)
    error = np.sqrt(0.25 / 1000 / 8)
    assert abs(mass.mean() - 0.5) < 4 * error < 0.03
    with pytest.raises(InputError, match=r"region: expected more than 0.0001 of the prior to have a finite loss in it"):
        smc._inside(whitened(lambda w: w[0] > 9), np.random.default_rng(3), sampler)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"particles": 9}, "particles: expected an integer of at least 10, got 9"),
        ({"repeats": 1}, "repeats: expected an integer of at least 2, got 1"),
        ({"share": 1.0}, "share: expected a number between 0 and 1, got 1.0"),
        ({"forgotten": 0.0}, "forgotten: expected a number between 0 and 1, got 0.0"),
        ({"leapfrogs": 0}, "leapfrogs: expected an integer of at least 1, got 0"),
        ({"moves": (3, 2)}, "moves: expected a least number of at least 1 and a largest not below, got (3, 2)"),
    ],
)
def test_bad_questions(how, said):
    with pytest.raises(InputError) as error:
        SMC(**how)
    assert str(error.value) == said


def test_it_has_no_chains():
    with pytest.raises(TypeError, match=r"unknown argument of .*: 'chains'"):
        SMC(chains=8)


def test_trajectories_have_from_half_to_three_halves_of_the_steps(monkeypatch):
    """All lengths about the one asked for; with others a resonance would hold."""
    lengths = []

    def trajectories(posterior, states, length, *drawn):
        lengths.append(int(length))
        return states, jnp.ones(len(states.w))

    monkeypatch.setattr(smc, "_trajectories", trajectories)
    sampler, z = SMC(particles=10, repeats=2, leapfrogs=5, moves=(80, 80)), np.ones((2, 10, 3), np.float32)
    target = Posterior(whitened(), jnp.zeros(3), jnp.ones(()), jnp.ones(()))
    moved = smc._move(target, z, 0.1, np.random.default_rng(0), sampler)[2]
    assert set(lengths) == set(range(3, 8))
    assert len(lengths) == moved.moves == 80
