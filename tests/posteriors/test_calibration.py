"""Settings of chains: spectra have shapes, a twin has a spectrum, and what is proposed is near a known level."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab import posteriors
from icllab.diagnostics import LocalPosterior
from icllab.posteriors.calibration import FRACTIONS, SPECTRUM, _curvatures, quadratic_twin, shape


def bowl(h, nbeta=1e3):
    return LocalPosterior.from_function(
        lambda w: jnp.sum(jnp.asarray(h) * w**2) / 2, jnp.zeros(len(h)), nbeta=nbeta, localization=1.0
    )


def test_a_shape_does_not_depend_on_a_common_scale():
    """Of the curvatures and the inverse temperature, or of the localization."""
    h = np.array([3.0, 1.0, 0.1, 0.0])
    expected = [1.5, np.log10(30) / 2, np.log10(3001) / 2, np.log10(4) / 2]
    np.testing.assert_allclose(shape(h, 1e3, 1.0), expected)
    np.testing.assert_allclose(shape(10 * h, 1e2, 1.0), expected)
    np.testing.assert_allclose(shape(h, 1e4, 10.0), expected)
    np.testing.assert_allclose(shape(np.zeros(4), 1e3, 1.0), [0, 0, 0, np.log10(4) / 2])


@pytest.mark.parametrize("name", ["quadratic", "regression", "tanh_unit", "crossing_1_2"])
def test_curvatures_of_a_problem(name):
    """Differences of the formula in NumPy, and derivatives in JAX."""
    known = posteriors.problem(name)
    with jax.enable_x64(True):
        loss = known.loss if known.data is None else lambda w: known.loss(w, known.data)
        expected = np.linalg.eigvalsh(jax.hessian(loss)(jnp.asarray(known.at)))[::-1]
    np.testing.assert_allclose(_curvatures(known), expected, rtol=1e-3, atol=1e-5)


def test_a_twin_has_the_spectrum_and_the_noise():
    """Of 1000 directions 256 quantiles, the ends among them; the mean over samples is the loss itself."""
    h = np.sort(np.random.default_rng(0).uniform(-0.1, 4, 1000))[::-1]
    twin, level = quadratic_twin(h, 50.0, 1e3, 1.0)
    assert twin.at.shape == (256,)
    w = jnp.full(256, 0.1)
    whole, first = float(twin.loss(w, twin.data)), float(twin.loss(w, twin.data[:1]))
    assert whole == pytest.approx(float(twin.loss(w)), rel=1e-5)
    assert first != pytest.approx(whole, rel=1e-5)
    scatter = np.var(np.asarray(twin.data), axis=0).sum()
    assert scatter == pytest.approx(50 * 256 / 1000, rel=0.01)
    ratio = 1e3 * np.maximum(h, 0)
    assert level == pytest.approx((ratio / (1 + ratio)).sum() / 2 * 256 / 1000, rel=0.01)


@pytest.mark.slow
def test_what_is_proposed_is_near_a_known_level():
    """A quadratic loss of six curvatures: the twin is the loss itself, and its level is met within the stated error."""
    h = np.array([4.0, 2.0, 1.0, 0.5, 0.3, 0.1])
    found = posteriors.calibrate_sampler(bowl(h), key=jax.random.key(0))
    assert found.problems[0] == SPECTRUM
    assert FRACTIONS[0] / 2 < found.sampler.step_size * 4001 < 2 * FRACTIONS[-1]
    assert found.error < 0.2
    assert abs(found.bias) <= found.error
    draws = found.sampler.sample(bowl(h), key=jax.random.key(1))
    level = quadratic_twin(h, 0.0, 1e3, 1.0)[1]
    assert float(draws.statistics["estimate"]) == pytest.approx(level, rel=0.15)


@pytest.mark.slow
def test_a_spectrum_that_no_problem_has_is_said_to_be_extrapolated():
    found = posteriors.calibrate_sampler(bowl(np.full(3000, 1e-6), nbeta=1e9), key=jax.random.key(0), seconds=1e-9)
    assert any("extrapolated" in text for text in found.warnings)
    assert found.sampler.warm_up == 12


@pytest.mark.slow
def test_a_hessian_of_zero_leaves_the_nearest_problems():
    """Its quadratic loss has the level 0, from which no relative distance is measured."""
    known = posteriors.problem("crossing_1_2")
    found = posteriors.calibrate_sampler(known, key=jax.random.key(0), seconds=1e-9, without=("crossing_1_2",))
    assert len(found.problems) == 2
    assert SPECTRUM not in found.problems
    assert np.isfinite(found.sampler.step_size)
