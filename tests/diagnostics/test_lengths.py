"""The loss per length of predictors whose loss is known exactly."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.core.protocols import AbstractPredictor
from icllab.diagnostics import per_length
from icllab.tasks import GaussianInputs, GaussianWeights, LinearRegression

TASK = LinearRegression(3, 5, GaussianInputs(jnp.ones(())), GaussianWeights(jnp.ones(())), 0.25)


def nothing(prompt):
    """Predicts 0: its loss is E y^2 = tr(Sigma C) + rho at every position."""
    return jnp.zeros_like(prompt.y)


def the_label_before(prompt):
    """Its loss is 2 (tr(Sigma C) + rho), except at the first position, where it predicts 0."""
    return jnp.concatenate([jnp.zeros(1, prompt.y.dtype), prompt.y[:-1]])


class LastOnly(AbstractPredictor):
    positions = "last"

    def __call__(self, prompt):
        return jnp.zeros(1, prompt.y.dtype)


class Untraceable(AbstractPredictor):
    """Leaves JAX, as a scikit-learn model does."""

    traceable = False
    scale: float = eqx.field(static=True, default=0.0)

    def __call__(self, prompt):
        return jnp.asarray(self.scale * np.asarray(prompt.y))


def test_known_losses_within_their_errors(getkey):
    result = per_length({"nothing": nothing, "before": the_label_before}, TASK, key=getkey(), prompts=20_000)
    exact = np.array([[3.25] * 6, [3.25] + [6.5] * 5])
    assert np.all(np.abs(result.loss - exact) < 4.5 * result.standard_error)
    assert float(result.standard_error.max()) < 0.15
    np.testing.assert_array_equal(result.position, np.arange(6))


def test_every_predictor_sees_the_same_prompts(getkey):
    result = per_length({"a": nothing, "b": Untraceable(), "last": LastOnly()}, TASK, key=getkey(), prompts=64)
    np.testing.assert_allclose(result.loss.sel(predictor="b"), result.loss.sel(predictor="a"), rtol=1e-6)
    last = result.loss.sel(predictor="last").values
    assert np.isnan(last[:-1]).all()
    np.testing.assert_allclose(last[-1], result.loss.sel(predictor="a").values[-1], rtol=1e-6)


def test_the_block_changes_nothing(getkey):
    key = getkey()
    whole = per_length({"a": the_label_before}, TASK, key=key, prompts=60, block=60)
    parts = per_length({"a": the_label_before}, TASK, key=key, prompts=60, block=7)
    np.testing.assert_allclose(whole.loss, parts.loss, rtol=1e-6)


def test_the_standard_error_is_that_of_a_mean(getkey):
    few, many = (per_length({"a": nothing}, TASK, key=getkey(), prompts=n) for n in (1000, 16_000))
    ratio = np.asarray(few.standard_error / many.standard_error)
    assert np.all((ratio > 3) & (ratio < 5.3))  # 4, each error known to a few per cent of a heavy-tailed loss


def test_bad_input_is_named(getkey):
    with pytest.raises(InputError, match="prompts: expected an integer of at least 2"):
        per_length({"a": nothing}, TASK, key=getkey(), prompts=1)
    with pytest.raises(InputError, match="prediction: expected 6 positions, or 1 for the last, got 2"):
        per_length({"short": lambda prompt: prompt.y[:2]}, TASK, key=getkey())
    with pytest.raises(InputError, match="predictors: expected at least one"):
        per_length({}, TASK, key=jax.random.key(0))
