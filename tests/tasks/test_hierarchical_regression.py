"""A prompt is drawn as its fields say: variances, correlations, and what the columns explain."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawing import prompt_of

from icllab.core.errors import InputError
from icllab.tasks import HierarchicalRegression

SAMPLES = 20_000


@eqx.filter_jit
def prompts(task, key):
    """Inputs and labels of many prompts."""
    drawn = jax.vmap(lambda k: task.sample(key=k))(jax.random.split(key, SAMPLES))
    return drawn.x, drawn.y


def assert_mean(samples, expected, largest_error):
    """Every entry's mean within 4.5 standard errors of what is expected, and these small."""
    samples = np.asarray(samples, dtype=float)
    error = samples.std(0, ddof=1) / math.sqrt(len(samples))
    assert np.all(np.abs(samples.mean(0) - expected) <= 4.5 * error)
    assert np.max(error) <= largest_error


@pytest.mark.parametrize("explained", [(0.0, 1.0), (0.5, 0.5)])
def test_every_column_and_the_target_have_mean_0_and_variance_1(explained, getkey):
    x, y = map(np.asarray, prompts(HierarchicalRegression(3, 2, 2, *explained), getkey()))
    values = np.concatenate([x, y[..., None]], axis=-1)
    assert_mean(values, 0.0, 0.01)
    assert_mean(values**2, 1.0, 0.02)


@pytest.mark.parametrize("factors", [1, 2, 5])
def test_two_columns_have_a_squared_correlation_of_one_over_the_factors_on_average(factors, getkey):
    r"""Two rows of a prompt have independent inputs of one :math:`\Sigma`: E x_1 x_2 x'_1 x'_2 = E Sigma_12^2."""
    x = np.asarray(prompts(HierarchicalRegression(3, 1, factors), getkey())[0])
    both = x[:, 0] * x[:, 1]
    assert_mean(both[:, 0] * both[:, 1], 1 / factors, 0.05)


def test_with_one_factor_all_columns_are_equal_up_to_sign(getkey):
    sizes = np.abs(prompts(HierarchicalRegression(3, 1, 1), getkey())[0])
    np.testing.assert_allclose(sizes, sizes[..., :1].repeat(3, axis=-1), rtol=1e-6)


def test_columns_that_explain_everything_leave_no_noise(precision, getkey):
    """One weight vector for the whole prompt, and after as many examples as columns it is known exactly."""
    one = jnp.ones((), precision)
    x, y = (np.asarray(part) for part in prompts(HierarchicalRegression(3, 9, 6, one, one), getkey()))
    assert y.dtype == precision
    for some_x, some_y in zip(x[:20], y[:20], strict=True):
        residuals = some_y - some_x @ np.linalg.lstsq(some_x, some_y)[0]
        assert np.max(np.abs(residuals)) < (1e-4 if precision == "float32" else 1e-10)


def test_columns_that_explain_nothing_are_independent_of_the_target(getkey):
    x, y = map(np.asarray, prompts(HierarchicalRegression(2, 1, 3, 0.0, 0.0), getkey()))
    both = x * y[..., None]
    assert_mean(both[:, 0] * both[:, 1], 0.0, 0.02)


@pytest.mark.parametrize(("explained", "mean"), [((0.0, 1.0), 0.5), ((0.2, 0.4), 0.3), ((0.7, 0.7), 0.7)])
def test_the_explained_share_has_the_mean_it_should(explained, mean, getkey):
    """In one dimension y = +-sqrt(h) x + noise, so that E (x y)(x' y') = E h, from two rows of a prompt."""
    x, y = map(np.asarray, prompts(HierarchicalRegression(1, 1, 3, *explained), getkey()))
    both = x[..., 0] * y
    assert_mean(both[:, 0] * both[:, 1], mean, 0.03)


def test_shares_are_leaves_that_can_be_swept(getkey):
    """A traced share is not asked for its value."""
    key = getkey()

    def variance_of_noise(most):
        return jnp.mean(HierarchicalRegression(2, 3, 2, 0.0, most).sample(key=key).y ** 2)

    assert np.isfinite(jax.jit(jax.vmap(variance_of_noise))(jnp.array([0.1, 0.9]))).all()


def test_the_loss_is_the_squared_error():
    task, prompt = HierarchicalRegression(2, 3, 2), prompt_of(0, positions=4, dim=2)
    y = np.asarray(prompt.y)
    np.testing.assert_allclose(task.loss(jnp.asarray(y + 2), prompt), 4.0, rtol=1e-5)
    assert np.asarray(task.loss(jnp.zeros(1), prompt))[0] == y[-1] ** 2
    with pytest.raises(InputError, match=r"prediction: expected \(4,\), got \(2,\)"):
        task.loss(jnp.zeros(2), prompt)
