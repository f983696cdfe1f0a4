"""The loss per length of predictors whose loss is known exactly."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.core.protocols import AbstractPredictor
from icllab.diagnostics import per_length
from icllab.diagnostics.behaviour.lengths import counts_of
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
    for name, reference in (("loss_sum", exact.sum(1)), ("loss_mean", exact.mean(1))):
        assert np.all(np.abs(result[name] - reference) < 4.5 * result[f"{name}_error"])


def test_weighted_lengths_weigh_in_every_sum_mean_and_difference(getkey):
    counts, key = [0.0, 1.0, 2.0, 0.0, 3.0, 0.5], getkey()
    predictors = {"nothing": nothing, "before": the_label_before}
    result = per_length(predictors, TASK, key=key, prompts=200, against="nothing", counts=counts)
    plain = per_length(predictors, TASK, key=key, prompts=200, against="nothing")
    np.testing.assert_array_equal(result.loss, plain.loss)
    np.testing.assert_allclose(result.loss_sum, plain.loss.values @ counts, rtol=1e-6)
    np.testing.assert_allclose(result.loss_mean, plain.loss.values @ counts / sum(counts), rtol=1e-6)
    np.testing.assert_allclose(result.difference_mean, plain.difference.values @ counts / sum(counts), rtol=1e-6)
    np.testing.assert_allclose(result.loss_mean_error, result.loss_sum_error / sum(counts), rtol=1e-6)
    single = per_length(predictors, TASK, key=key, prompts=200, against="nothing", counts=[0, 0, 0, 0, 2, 0]).isel(
        predictor=1
    )
    error = float(plain.difference_error.sel(position=4)[1])
    assert float(single.difference_mean_error) == pytest.approx(error, rel=1e-6)


def test_every_predictor_sees_the_same_prompts(getkey):
    result = per_length({"a": nothing, "b": Untraceable(), "last": LastOnly()}, TASK, key=getkey(), prompts=64)
    np.testing.assert_allclose(result.loss.sel(predictor="b"), result.loss.sel(predictor="a"), rtol=1e-6)
    last = result.loss.sel(predictor="last").values
    assert np.isnan(last[:-1]).all()
    np.testing.assert_allclose(last[-1], result.loss.sel(predictor="a").values[-1], rtol=1e-6)
    for name in ("loss_sum", "loss_sum_error", "loss_mean", "loss_mean_error"):
        np.testing.assert_array_equal(np.isnan(result[name]), [False, False, True])


@pytest.mark.parametrize("predictor", [nothing, Untraceable()])
def test_the_block_changes_nothing(predictor, getkey):
    key = getkey()
    whole = per_length({"a": predictor}, TASK, key=key, prompts=60, block=60)
    parts = per_length({"a": predictor}, TASK, key=key, prompts=60, block=7)
    np.testing.assert_allclose(whole.loss, parts.loss, rtol=1e-6)


@pytest.mark.slow
def test_the_standard_error_is_that_of_a_mean(getkey):
    small, many = (per_length({"a": nothing}, TASK, key=getkey(), prompts=n) for n in (1000, 16_000))
    ratio = np.asarray(small.standard_error / many.standard_error)
    assert np.all((ratio > 3) & (ratio < 5.3))  # 4, each error known to a few per cent of a heavy-tailed loss


def test_the_error_of_a_sum_knows_that_positions_go_together(getkey):
    """Given the task, losses of 0 are (|w|^2 + rho) chi^2_1: their sum has the variance below, not six times one.

    With s2 = |w|^2 + rho: Var s2 = 2 d, E s2^2 = Var s2 + (E s2)^2; the sum of p positions has variance
    p 2 E s2^2 + p^2 Var s2.
    """
    positions, dim, prompts = 6, 3, 40_000
    variance_s2 = 2 * dim
    second = variance_s2 + 3.25**2
    exact = np.sqrt((2 * positions * second + positions**2 * variance_s2) / prompts)
    result = per_length({"nothing": nothing}, TASK, key=getkey(), prompts=prompts)
    assert float(result.loss_sum_error[0]) == pytest.approx(exact, rel=0.06)
    distances = float(np.sqrt((result.standard_error**2).sum()))
    assert distances == pytest.approx(np.sqrt(positions * (2 * second + variance_s2) / prompts), rel=0.06)
    assert exact > 1.25 * distances
    np.testing.assert_allclose(result.loss_sum_error, positions * result.loss_mean_error, rtol=1e-12)


def a_little_more(prompt):
    return jnp.full_like(prompt.y, 0.01)


def test_differences_are_taken_prompt_by_prompt(getkey):
    """(y - c)^2 - y^2 = c^2 - 2 c y has the standard deviation 2 c sd(y): far below that of either loss."""
    result = per_length({"more": a_little_more, "0": nothing}, TASK, key=getkey(), prompts=20_000, against="0")
    extra, zero = result.sel(predictor="more"), result.sel(predictor="0")
    np.testing.assert_allclose(extra.difference, extra.loss - zero.loss, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(extra.difference_error, 0.02 * np.sqrt(3.25 / 20_000), rtol=0.05)
    assert np.all(np.abs(extra.difference - 1e-4) < 4.5 * extra.difference_error)
    assert np.all(extra.difference_error < 0.01 * extra.standard_error)
    for name in ("difference", "difference_error", "difference_mean", "difference_mean_error"):
        np.testing.assert_array_equal(zero[name], np.zeros_like(zero[name]))
    assert float(extra.difference_mean) == pytest.approx(float(extra.loss_mean - zero.loss_mean), abs=1e-9)


class Constant(AbstractPredictor):
    """Answers one number everywhere, and counts how often it is traced."""

    value: jax.Array
    count: object = eqx.field(static=True)

    def __call__(self, prompt):
        next(self.count)
        return jnp.broadcast_to(self.value, prompt.y.shape)


def test_another_key_or_another_value_compiles_nothing_again(getkey):
    """Neither for a predictor with leaves, nor for a plain function, nor for a task with another noise."""
    count = itertools.count()

    def plain(prompt):
        next(count)
        return jnp.zeros_like(prompt.y)

    def ask(value):
        noisy = eqx.tree_at(lambda task: task.noise_variance, TASK, jnp.asarray(value))
        per_length({"leaf": Constant(jnp.asarray(value), count), "plain": plain}, noisy, key=getkey(), prompts=8)
        return next(count)

    first = ask(0.5)
    assert first >= 2
    assert ask(1.5) == first + 1  # the call of next itself


def test_a_nan_is_never_left_out(getkey):
    result = per_length({"root": lambda prompt: jnp.sqrt(-jnp.ones(prompt.positions))}, TASK, key=getkey(), prompts=64)
    assert np.isnan(result.loss).all()
    assert np.isnan(result.standard_error).all()


def test_bad_input_is_named(getkey):
    with pytest.raises(InputError, match="prompts: expected an integer of at least 2"):
        per_length({"a": nothing}, TASK, key=getkey(), prompts=1)
    with pytest.raises(InputError, match="block: expected an integer of at least 1"):
        per_length({"a": nothing}, TASK, key=getkey(), block=0)
    with pytest.raises(InputError, match=r"predictor .short.: prediction: expected \(6,\), got \(2,\)"):
        per_length({"short": lambda prompt: prompt.y[:2]}, TASK, key=getkey())
    with pytest.raises(InputError, match="predictors: expected at least one"):
        per_length({}, TASK, key=jax.random.key(0))
    with pytest.raises(InputError, match=r"unknown predictor 'ridges'; did you mean 'ridge'\?"):
        per_length({"ridge": nothing}, TASK, key=getkey(), against="ridges")


@pytest.mark.parametrize(
    "counts", [[1.0, 1.0], [1.0, -1.0, 1.0], [0.0, 0.0, 0.0], [1.0, np.nan, 1.0], [1.0, np.inf, 1.0]]
)
def test_counts_of_another_length_and_those_that_are_no_weights_are_refused(counts):
    with pytest.raises(InputError, match="counts: expected 3 finite numbers of at least 0, one for each length"):
        counts_of(3, counts)
