"""Shares of the gradient by length: predictors whose expected gradients are written out, and the estimator itself."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.core.protocols import AbstractPredictor
from icllab.diagnostics import gradient_shares
from icllab.diagnostics.behaviour.length_gradients import _shares
from icllab.tasks import GaussianInputs, GaussianWeights, LinearRegression

TASK = LinearRegression(1, 3, GaussianInputs(jnp.ones(())), GaussianWeights(jnp.ones(())), 0.25)
FIRST, SECOND = np.array([1.0, 1.0, 0.5, -0.5]), np.array([0.0, 0.1, 0.2, 0.5])
AT = np.array([1.0, 2.0])
COUNTS = (1.0, 2.0, 0.0, 1.0)


class TwoNumbers(AbstractPredictor):
    """Answers position i with (a c_i + b e_i) x_i, whatever the examples: the expected loss is its square and more."""

    a: jax.Array
    b: jax.Array
    last: bool = eqx.field(static=True, default=False)

    @property
    def positions(self):
        return "last" if self.last else "every"

    def __call__(self, prompt):
        answer = (self.a * jnp.asarray(FIRST, float) + self.b * jnp.asarray(SECOND, float)) * prompt.x[:, 0]
        return answer[-1:] if self.last else answer


def two_numbers(at, **fields):
    return TwoNumbers(*jnp.asarray(at, float), **fields)


def exact(counts):
    """2 u_i (c_i, e_i) is the gradient of u_i^2, for inputs of unit variance and tasks of mean zero."""
    row = np.asarray(counts)[:, None] * 2 * ((AT[0] * FIRST + AT[1] * SECOND)[:, None] * np.stack([FIRST, SECOND], 1))
    whole = row.sum(0)
    return row @ whole / (whole @ whole), whole @ whole


@pytest.mark.parametrize("counts", [None, COUNTS])
def test_shares_are_those_of_the_gradients_written_out(getkey, counts):
    """One of them negative: its length would lose by a step."""
    result = gradient_shares(two_numbers(AT), TASK, key=getkey(), prompts=32_000, groups=32, counts=counts)
    share, square = exact(counts or (1.0,) * 4)
    assert share.min() < -0.02
    assert np.all(np.abs(result.gradient_share - share) <= 4.5 * result.gradient_share_error)
    assert float(result.gradient_share_error.max()) < 0.03
    assert abs(float(result.gradient_square) - square) < 4.5 * float(result.gradient_square_error)
    assert float(result.gradient_square_error) < 0.1 * square
    assert float(result.gradient_share.sum()) == pytest.approx(1, abs=1e-9)
    assert result.attrs == {"prompts": 32_000, "groups": 32}


def test_without_a_gradient_there_are_no_shares(getkey):
    result = gradient_shares(two_numbers([0.0, 0.0]), TASK, key=getkey(), prompts=3200)
    assert result.gradient_share.isnull().all()
    assert result.gradient_share_error.isnull().all()
    assert abs(float(result.gradient_square)) < 4 * float(result.gradient_square_error)


def test_the_last_position_has_all_of_what_is_answered_there_alone(getkey):
    result = gradient_shares({"last": two_numbers(AT, last=True)}, TASK, key=getkey(), prompts=3200)
    np.testing.assert_array_equal(result.gradient_share.values[0], [np.nan, np.nan, np.nan, 1.0])
    np.testing.assert_allclose(result.gradient_share_error.values[0, 3], 0.0, atol=1e-12)


def test_the_estimator_has_no_bias_and_knows_its_error():
    """Noisy gradients of 8 groups, 3000 times over: means of the square and of the products, and the jackknife's."""
    rng = np.random.default_rng(5)
    truth = np.array([[1.0, 0.0], [0.5, -0.5], [-0.2, 0.4]])
    rows = []
    for _ in range(3000):
        row = truth[None] + 0.8 * rng.standard_normal((8, 3, 2))
        result = _shares(np.einsum("apw,bw->pab", row, row.sum(1)))
        rows.append([result["gradient_square"], result["gradient_square_error"]])
    square, error = np.array(rows, float).T
    whole = truth.sum(0)
    assert abs(square.mean() - whole @ whole) < 4 * square.std() / 3000**0.5
    # With the noise of products on the same group it would be larger by 3 * 2 * 0.8^2 / 8.
    assert 4 * square.std() / 3000**0.5 < 0.5 * 3 * 2 * 0.64 / 8
    assert 0.9 < (error**2).mean() ** 0.5 / square.std() < 1.25


def test_the_error_of_a_share_is_its_spread():
    """Where the gradient is clear of its noise."""
    rng = np.random.default_rng(6)
    truth = np.array([[3.0, 0.0], [1.0, -1.0], [-0.5, 1.0]])
    rows = []
    for _ in range(1000):
        row = truth[None] + 0.5 * rng.standard_normal((16, 3, 2))
        result = _shares(np.einsum("apw,bw->pab", row, row.sum(1)))
        rows.append(np.stack([result["gradient_share"], result["gradient_share_error"]]))
    share, error = np.array(rows).transpose(1, 0, 2)
    whole = truth.sum(0)
    assert np.all(np.abs(share.mean(0) - truth @ whole / (whole @ whole)) < 0.01)
    ratio = np.sqrt((error**2).mean(0)) / share.std(0)
    assert np.all((ratio > 0.9) & (ratio < 1.15))


def test_what_has_no_gradient_or_does_not_divide_is_refused(getkey):
    with pytest.raises(InputError, match="predictors: expected differentiable ones with floating-point arrays"):
        gradient_shares(lambda prompt: jnp.zeros_like(prompt.y), TASK, key=getkey(), prompts=32)
    with pytest.raises(InputError, match="prompts: expected a multiple of the 16 groups, got 40"):
        gradient_shares(two_numbers(AT), TASK, key=getkey(), prompts=40)
    with pytest.raises(InputError, match="groups: expected an integer of at least 8, got 4"):
        gradient_shares(two_numbers(AT), TASK, key=getkey(), prompts=40, groups=4)
