"""Answers that are random, or have another shape than is declared, are refused in a line."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diagnostics.predictors import KEY, TASK, mean_so_far

from icllab import algorithms, diagnostics
from icllab.core.errors import InputError
from icllab.diagnostics.validate_predictor import require_causal
from icllab.tasks import RepeatedTokens

RANDOM = np.random.default_rng(0)


def noisy_numpy(prompt):
    return np.asarray(prompt.y) * 0 + RANDOM.normal(size=prompt.positions)


def noisy_program(prompt):
    return mean_so_far(prompt) + jnp.asarray(RANDOM.normal(size=prompt.positions), jnp.float32)


def noisy_key(prompt):
    return mean_so_far(prompt) + jax.random.normal(jax.random.key(int(RANDOM.integers(2**30))), (prompt.positions,))


class Counting:
    """Answers another number at every call."""

    traceable = False

    def __init__(self):
        self.calls = 0

    def __call__(self, prompt):
        self.calls += 1
        return np.full(prompt.positions, float(self.calls))


class Alternating(Counting):
    def __call__(self, prompt):
        return super().__call__(prompt) % 2


class Dropout(eqx.Module):
    """Keeps a key, as a trained network with dropout that was not switched off."""

    layer: eqx.nn.Dropout
    traceable = False

    def __call__(self, prompt):
        key = jax.random.key(int(RANDOM.integers(2**30)))
        return self.layer(mean_so_far(prompt) + 1.0, key=key)


@pytest.mark.parametrize(
    "predictor", [noisy_numpy, noisy_program, noisy_key, Counting(), Alternating(), Dropout(eqx.nn.Dropout(0.5))]
)
def test_a_random_predictor_and_one_with_a_state_are_told_as_such(predictor):
    with pytest.raises(
        InputError, match="which gives two answers to the same prompt: it draws random numbers or keeps"
    ):
        require_causal(predictor, TASK, key=KEY)
    with pytest.warns(UserWarning, match="predictor 'mine' gives two answers to the same prompt") as warning_records:
        diagnostics.per_length({"mine": predictor}, TASK, key=KEY, prompts=4)
    assert len(warning_records) == 1


def test_a_constant_array_and_a_fixed_key_are_no_randomness():
    noise = np.random.default_rng(1).normal(size=6).astype(np.float32)

    def fixed(prompt):
        return mean_so_far(prompt) + noise + jax.random.normal(jax.random.key(3), (6,)) + jnp.nan

    require_causal(fixed, TASK, key=KEY)


def test_the_shape_of_an_answer_is_that_declared():
    class Last:
        positions = "last"

        def __init__(self, answer):
            self.answer = answer

        def __call__(self, prompt):
            return self.answer(prompt)

    cases = [
        (Last(mean_so_far), r"expected \(1,\), got \(6,\); it declares positions = 'last', and 'every' is for every"),
        (
            lambda p: mean_so_far(p)[-1:],
            r"expected \(6,\), got \(1,\); it declares positions = 'every', and 'last', an attribute,",
        ),
        (lambda p: mean_so_far(p)[:, None], r"expected \(6,\), got \(6, 1\); squeeze the axis of length 1"),
        (lambda p: mean_so_far(p)[None], r"expected \(6,\), got \(1, 6\); squeeze the axis of length 1"),
        (lambda p: np.asarray(p.y)[:, None], r"expected \(6,\), got \(6, 1\); squeeze the axis of length 1"),
        (Last(lambda p: mean_so_far(p)[-1]), r"expected \(6,\), got \(\)"),
        (Last(lambda p: mean_so_far(p)[-1:, None]), r"expected \(1,\), got \(1, 1\); squeeze"),
        (lambda p: mean_so_far(p)[:4], r"expected \(6,\), got \(4,\); answer every position, or the last"),
    ]
    for predictor, message in cases:
        with pytest.raises(InputError, match=message) as caught:
            require_causal(predictor, TASK, key=KEY)
        assert str(caught.value).startswith("predictor ")
        assert "\n" not in str(caught.value)
    for check in (
        lambda mine: diagnostics.per_length({"mine": mine}, TASK, key=KEY, prompts=4),
        lambda mine: diagnostics.identify(mine, {"ridge": algorithms.Ridge(0.1)}, TASK, key=KEY),
        lambda mine: diagnostics.identify(algorithms.Ridge(0.1), {"mine": mine}, TASK, key=KEY),
        lambda mine: diagnostics.icl_scores({"mine": mine}, TASK, key=KEY),
    ):
        with pytest.raises(InputError, match=cases[0][1]):
            check(cases[0][0])


def test_logits_have_an_axis_of_classes():
    task = RepeatedTokens(vocabulary=4, period=3)
    for answer, message in (
        (jnp.zeros(5), r"expected \(5, 4\), got \(5,\)"),
        (jnp.zeros((4, 5)), r"expected 4 classes, got 5"),
        (jnp.zeros((5, 4, 1)), r"expected \(5, 4\), got \(5, 4, 1\); squeeze"),
    ):
        with pytest.raises(InputError, match=message):
            diagnostics.per_length(lambda prompt, answer=answer: answer, task, key=KEY, prompts=4)
        for score in (task.loss, task.accuracy):
            with pytest.raises(InputError, match=message):
                score(answer, task.sample(key=KEY))
