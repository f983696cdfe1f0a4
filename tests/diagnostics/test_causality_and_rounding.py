"""Answers that change by rounding alone are causal; those that see a little of what they must not see are not."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diagnostics.predictors import KEY

from icllab.core.errors import InputError
from icllab.core.prompt import RegressionPrompt
from icllab.diagnostics.causality import forbidden_positions
from icllab.diagnostics.validate_predictor import require_causal
from icllab.tasks import LinearRegression
from icllab.tasks.regression import AbstractRegression

LONG = LinearRegression.convention("raventos", dim=3, length=40)


class Targets(AbstractRegression):
    """The prompts of another task with targets ``scale * y + offset``."""

    scale: float = eqx.field(static=True)
    offset: float = eqx.field(static=True, default=0.0)

    def sample(self, *, key):
        prompt = LONG.sample(key=key)
        return RegressionPrompt(x=prompt.x, y=self.scale * prompt.y + self.offset)


def count(prompt):
    return jnp.maximum(jnp.arange(float(prompt.positions)), 1)


def one_step(prompt):
    terms = prompt.y[:, None] * prompt.x
    return jnp.sum(prompt.x * (jnp.cumsum(terms, axis=0) - terms), axis=1) / (count(prompt) + prompt.dim)


def mean_of_cumulative_sums(prompt):
    return (jnp.cumsum(prompt.y) - prompt.y) / count(prompt)


def mean_by_a_matrix(prompt):
    return jnp.tril(jnp.ones((prompt.positions, prompt.positions)), -1) @ prompt.y / count(prompt)


def all_minus_later(prompt):
    return (jnp.sum(prompt.y) - jnp.cumsum(prompt.y[::-1])[::-1]) / count(prompt)


def centred(prompt):
    """The mean minus the first target: what cancels is much larger than what stays."""
    return jnp.where(count(prompt) > 1, mean_of_cumulative_sums(prompt) - prompt.y[0], 0)


def leave_out_ridge(prompt, ridge=1e-3):
    """Ridge regression on all examples without the later ones."""
    outer = prompt.x[:, :, None] * prompt.x[:, None, :]
    labelled = prompt.x * prompt.y[:, None]
    gram = jnp.sum(outer, axis=0)[None] - jnp.cumsum(outer[::-1], axis=0)[::-1] + ridge * jnp.eye(prompt.dim)[None]
    moment = jnp.sum(labelled, axis=0)[None] - jnp.cumsum(labelled[::-1], axis=0)[::-1]
    return jnp.sum(prompt.x * jnp.linalg.solve(gram, moment[..., None])[..., 0], axis=1)


def numpy_leave_out_ridge(prompt):
    x, y, answers = np.asarray(prompt.x), np.asarray(prompt.y), []
    for i in range(len(y)):
        gram = x.T @ x - x[i:].T @ x[i:] + np.float32(0.1) * np.eye(x.shape[1], dtype=x.dtype)
        answers.append(x[i] @ np.linalg.solve(gram, x.T @ y - x[i:].T @ y[i:]))
    return np.array(answers)


def numpy_mean(prompt):
    y = np.asarray(prompt.y)
    return (np.cumsum(y) - y) / np.maximum(np.arange(len(y)), 1)


def mean_in(dtype, of_answer=None):
    def predictor(prompt):
        y = prompt.y.astype(dtype)
        return ((jnp.cumsum(y) - y) / count(prompt).astype(dtype)).astype(of_answer or dtype)

    return predictor


def half_numpy_mean(prompt):
    y = np.asarray(prompt.y, np.float16)
    return (np.cumsum(y) - y) / np.maximum(np.arange(len(y), dtype=np.float16), 1)


def no_number(prompt):
    return jnp.full(prompt.positions, jnp.nan)


def root_of_rounding(prompt):
    """A NaN or a small number, as rounding has it."""
    before = jnp.concatenate([jnp.zeros(1), jnp.cumsum(prompt.y)[:-1]])
    return jnp.sqrt(jnp.cumsum(prompt.y) - prompt.y - before)


def sign_of_the_mean(prompt):
    return (mean_by_a_matrix(prompt) > 0).astype(jnp.int32)


CAUSAL = [
    one_step,
    mean_of_cumulative_sums,
    mean_by_a_matrix,
    all_minus_later,
    centred,
    leave_out_ridge,
    numpy_leave_out_ridge,
    numpy_mean,
    mean_in(jnp.bfloat16),
    mean_in(jnp.bfloat16, jnp.float32),
    half_numpy_mean,
    no_number,
    root_of_rounding,
    sign_of_the_mean,
]


@pytest.mark.parametrize("predictor", CAUSAL)
def test_rounding_is_no_dependence(predictor):
    for seed in range(3):
        require_causal(predictor, LONG, key=jax.random.key(seed))


@pytest.mark.parametrize("task", [Targets(1e6), Targets(1e-15), Targets(1.0, 1e4)], ids=["large", "small", "offset"])
@pytest.mark.parametrize("predictor", [one_step, centred, all_minus_later, leave_out_ridge, numpy_mean])
def test_rounding_is_no_dependence_in_any_unit(predictor, task):
    require_causal(predictor, task, key=KEY)


def test_rounding_differs_in_bits():
    """The tests above are about predictors whose answers do change, one by almost its own size."""
    prompt, other = (LONG.sample(key=jax.random.key(i)) for i in range(2))
    for predictor in (one_step, mean_of_cumulative_sums, all_minus_later, numpy_mean, centred):
        changed = [predictor(prompt.replaced_after(i, other))[: i + 1] for i in range(prompt.positions)]
        assert any(not np.array_equal(a, predictor(prompt)[: len(a)]) for a in changed)


class Absorbing(AbstractRegression):
    """Every second target is 1e9: a sum with it has lost the small ones."""

    def sample(self, *, key):
        prompt = LONG.sample(key=key)
        return RegressionPrompt(x=prompt.x, y=jnp.where(jnp.arange(prompt.positions) % 2 == 1, 1e9, prompt.y))


def test_float64_acquits_what_float32_cannot_sum():
    require_causal(mean_of_cumulative_sums, Absorbing(), key=KEY)
    require_causal(numpy_mean, Absorbing(), key=KEY)


def with_own_target(predictor, share):
    return lambda prompt: predictor(prompt) + share * prompt.y


def with_numpy_target(predictor, share):
    return lambda prompt: np.asarray(predictor(prompt)) + np.float32(share) * np.asarray(prompt.y)


def rank_of_target(prompt):
    return jnp.argsort(jnp.argsort(prompt.y)).astype(prompt.y.dtype)


def nearest_target(prompt):
    """Nearest neighbours with the query among them, and the later examples."""
    x, y = np.asarray(prompt.x), np.asarray(prompt.y)
    distances = ((x[:, None] - x[None]) ** 2).sum(-1)
    return y[np.argsort(distances, axis=1)[:, :3]].mean(1)


def scaled_by_all(prompt):
    return mean_by_a_matrix(prompt) / jnp.sqrt(jnp.mean(prompt.y**2))


def log_of_target(prompt):
    return jnp.log(prompt.y)


def little_of_the_next_input(prompt):
    return mean_of_cumulative_sums(prompt) + 1e-3 * jnp.append(prompt.x[1:, 0], 0.0)


def little_sign(prompt):
    return mean_of_cumulative_sums(prompt) + 1e-3 * jnp.sign(prompt.y)


def half_with_target(prompt):
    return mean_in(jnp.bfloat16)(prompt) + (0.1 * prompt.y).astype(jnp.bfloat16)


AHEAD = {
    "thousandth": with_own_target(mean_of_cumulative_sums, 1e-3),
    "less": with_own_target(one_step, 3e-5),
    "ridge": with_own_target(leave_out_ridge, 1e-3),
    "numpy": with_numpy_target(numpy_mean, 1e-3),
    "numpy ridge": with_numpy_target(numpy_leave_out_ridge, 1e-3),
    "rank": rank_of_target,
    "neighbours": nearest_target,
    "scaled": scaled_by_all,
    "NaN": log_of_target,
    "input": little_of_the_next_input,
    "sign": little_sign,
    "bfloat16": half_with_target,
}


@pytest.mark.parametrize("name", AHEAD)
def test_little_dependence_is_dependence(name):
    for seed in range(3):
        with pytest.raises(InputError, match="which looks at its own target or at later entries"):
            require_causal(AHEAD[name], LONG, key=jax.random.key(seed))


@pytest.mark.parametrize("task", [Targets(1e6), Targets(1e-15), Targets(1.0, 1e4)], ids=["large", "small", "offset"])
@pytest.mark.parametrize("name", ["thousandth", "ridge", "numpy", "rank"])
def test_dependence_is_dependence_in_any_unit(name, task):
    with pytest.raises(InputError, match="which looks at its own target or at later entries"):
        require_causal(AHEAD[name], task, key=KEY)


def test_float64_decides_where_float32_cannot():
    """Targets of 1e6 +- 1: in float32 a nudge of the last places reorders them, and ranks look like rounding."""
    assert forbidden_positions(rank_of_target, Targets(1.0, 1e6), key=KEY)
