"""Padding counts in no mean: losses per length, accuracies, scores of context and of heads, algorithms compared."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.algorithms import Ridge
from icllab.core.errors import InputError
from icllab.core.prompt import RegressionPrompt, TokenPrompt
from icllab.diagnostics import PromptSplit, accuracy, head_scores, icl_scores, identify, per_length
from icllab.diagnostics.behaviour.answers import of_targets, sample_prompts
from icllab.diagnostics.singular.learning_machines import LearningMachine
from icllab.models import BlockOptions, Tokens, Transformer
from icllab.tasks import LinearRegression, RepeatedTokens
from icllab.tasks.sequences import AbstractTokens

KEY = jax.random.key(3)


class Ragged(AbstractTokens):
    """Uniform tokens, of which 3 to 6 are real."""

    tokens: int = 6
    vocabulary: int = 4
    mask: Any = None

    def sample(self, *, key):
        tokens = jax.random.randint(key, (6,), 0, 4)
        size = 3 + jnp.sum(tokens) % 4
        return TokenPrompt(tokens, jnp.arange(6) < size)


class RaggedRegression(LinearRegression):
    """Linear regression after 3 to 5 examples."""

    def sample(self, *, key):
        prompt = super().sample(key=key)
        return RegressionPrompt(prompt.x, prompt.y, jnp.arange(6) < jnp.where(prompt.y[0] > 0, 4, 6))


def logits(prompt):
    """A causal predictor with another answer at every position."""
    return jnp.cumsum(jax.nn.one_hot(prompt.tokens[:-1], 4), axis=0)


def rows_alone(score, count=64):
    """NaN beyond the end of each sequence, which is answered alone."""
    prompts = sample_prompts(Ragged(), key=KEY, prompts=count)
    rows = np.full((count, 5), np.nan)
    for row, tokens, mask in zip(rows, np.asarray(prompts.tokens), np.asarray(prompts.mask), strict=True):
        prompt = TokenPrompt(jnp.asarray(tokens[mask]))
        row[: prompt.positions] = score(logits(prompt), prompt)
    return rows


@pytest.mark.parametrize("measure", [per_length, accuracy])
def test_means_and_errors_are_over_the_prompts_that_have_a_target(measure):
    task = Ragged()
    result = measure(logits, task, key=KEY, prompts=64)
    rows = rows_alone(task.loss if measure is per_length else task.accuracy)
    count = np.isfinite(rows).sum(0)
    name, error = ("loss", "standard_error") if measure is per_length else ("accuracy", "accuracy_error")
    assert 64 == count[1] > count[2] > count[4] > 1
    np.testing.assert_array_equal(result["targets"], count)
    np.testing.assert_allclose(result[name], np.nanmean(rows, axis=0), rtol=1e-5)
    np.testing.assert_allclose(result[error], np.nanstd(rows, axis=0, ddof=1) / np.sqrt(count), rtol=1e-5)
    if measure is per_length:
        np.testing.assert_allclose(result["loss_sum"], np.nanmean(rows, axis=0).sum(), rtol=1e-5)
        np.testing.assert_allclose(result["loss_mean"], result["loss"].mean(), rtol=1e-6)


def test_a_difference_is_taken_prompt_by_prompt():
    result = per_length({"a": logits, "b": lambda p: logits(p)[:, ::-1]}, Ragged(), key=KEY, prompts=64, against="a")
    np.testing.assert_allclose(result.difference, result.loss - result.loss.sel(predictor="a"), atol=1e-5)
    assert float(abs(result.difference_error.sel(predictor="a")).max()) == 0


def test_a_position_that_one_prompt_has_is_no_error_and_none_is_nothing():
    scored = np.array([[True, True, False], [True, False, False]])
    samples = of_targets(np.array([[1.0, 5.0, 7.0], [3.0, np.inf, np.nan]]), scored)
    np.testing.assert_allclose(samples.mean(0), [2, 5, np.nan])
    np.testing.assert_allclose(samples.std(0, ddof=1), [2**0.5, 0, np.nan])  # the caller has no error of one

    class One(Ragged):
        def sample(self, *, key):
            prompt = super().sample(key=key)
            return TokenPrompt(prompt.tokens, jnp.arange(6) < 4)

    result = per_length(logits, One(), key=KEY, prompts=4)
    assert np.isfinite(result["loss"]).values.tolist() == [True, True, True, False, False]
    assert np.isnan(result["loss_sum"])
    assert np.isnan(result["loss_sum_error"])


def test_nan_of_a_predictor_stays_nan():
    result = per_length(lambda p: logits(p).at[1].set(jnp.nan), Ragged(), key=KEY, prompts=16)
    assert np.isnan(result["loss"]).values.tolist() == [False, True, False, False, False]


def test_scores_of_context_are_those_of_the_prompts_that_reach_the_late_position():
    result = icl_scores(logits, Ragged(), key=KEY, prompts=64)
    rows = rows_alone(Ragged().loss)
    late = np.isfinite(rows[:, 4])
    assert result.attrs["prompts"] == late.sum() < 64
    np.testing.assert_allclose(result["early_minus_late"], (rows[late, 0] - rows[late, 4]).mean(), rtol=1e-4)
    assert np.isfinite(result["win_rate_error"])


@pytest.mark.slow
def test_scores_of_heads_leave_padding_out(getkey):
    block = BlockOptions(heads=2, mlp=None, norm="none")
    shape = {"dim": 4, "width": 8, "layers": 1, "block": block, "positions": "none"}
    model = Transformer(Tokens(4), **shape, std=1.0, key=getkey())
    result = head_scores(model, Ragged(), key=KEY, prompts=8)
    prompts = sample_prompts(Ragged(), key=KEY, prompts=8)
    scores = []
    for tokens, mask in zip(np.asarray(prompts.tokens), np.asarray(prompts.mask), strict=True):
        real = tokens[mask]
        pattern = model.trace(TokenPrompt(jnp.asarray(real))).activations["block0.attention.pattern"]
        # The last of all is a target only; the last real one of a padded sequence attends too.
        if not mask.all():
            pattern = model.trace(TokenPrompt(jnp.asarray([*real, 0]))).activations["block0.attention.pattern"]
        scores.append(np.diagonal(np.asarray(pattern), -1, 1, 2).mean(axis=1))
    np.testing.assert_allclose(result["previous_token_score"], np.mean(scores, axis=0), rtol=1e-4)


def test_algorithms_are_compared_at_positions_that_all_prompts_have():
    task = RaggedRegression.convention("raventos", dim=2, length=5)
    options = {"key": KEY, "prompts": PromptSplit(16, fitting=16)}
    with pytest.raises(InputError, match=r"positions: expected positions that all prompts have, got '4, which \d+ of"):
        identify(Ridge(1.0), {"ridge": Ridge(1.0)}, task, positions="every", **options)
    result = identify(Ridge(1.0), {"ridge": Ridge(1.0)}, task, positions=[0, 1, 2, 3], **options)
    assert str(result["verdict"].values) == "ridge"


def test_a_learning_machine_of_padded_windows_is_refused():
    windows = sample_prompts(Ragged(), key=KEY, prompts=4)
    with pytest.raises(InputError, match="windows: expected prompts of one length, without a mask"):
        LearningMachine(logits, Ragged(), windows, np.ones(5))


def test_tokens_without_a_mask_have_no_number_of_targets():
    assert "targets" not in per_length(logits, RepeatedTokens(vocabulary=4, period=3), key=KEY, prompts=4)
