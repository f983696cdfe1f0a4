"""Two scores of learning in context, of predictors whose scores are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.core.prompt import TokenPrompt
from icllab.core.protocols import AbstractPredictor, AbstractTask
from icllab.diagnostics import icl_scores
from icllab.tasks import GaussianInputs, GaussianWeights, LinearRegression

# Some of these predictors see their target on purpose: their scores are then known.
pytestmark = pytest.mark.filterwarnings("ignore:predictor .* looks at its own target")
TASK = LinearRegression(3, 8, GaussianInputs(1.0), GaussianWeights(1.0), 0.25)
NAMES = ("early_minus_late", "win_rate", "context_benefit")


def nothing(prompt):
    """Predicts 0 everywhere: it ignores its context."""
    return jnp.zeros_like(prompt.y)


def the_label_before(prompt):
    """Twice the loss of 0 wherever there is an example, and 0 where there is none."""
    return jnp.concatenate([jnp.zeros(1, prompt.y.dtype), prompt.y[:-1]])


def cheat(prompt):
    """Right after five examples, 0 before."""
    return jnp.where(jnp.arange(prompt.positions) >= 5, prompt.y, 0)


class LastOnly(AbstractPredictor):
    positions = "last"

    def __call__(self, prompt):
        return cheat(prompt)[-1:]


class OnTheHost(AbstractPredictor):
    traceable = False

    def __call__(self, prompt):
        assert not isinstance(prompt.y, jax.core.Tracer)
        return jnp.asarray(np.where(np.arange(prompt.positions) >= 5, prompt.y, np.float32(0)))


def test_a_predictor_that_ignores_its_context_scores_one_half_and_zero(getkey):
    result = icl_scores({"nothing": nothing}, TASK, key=getkey(), prompts=5000)
    assert float(result.win_rate[0]) == 0.5
    assert float(result.context_benefit[0]) == 0
    assert float(result.context_benefit_error[0]) == 0
    assert abs(float(result.early_minus_late[0])) < 4.5 * float(result.early_minus_late_error[0])


def test_known_scores_within_their_errors(getkey):
    """Without context both answer 0, whose loss is 3.25; with it the label before has 6.5, and the cheat 0.

    The label u before is closer to the query's label v than 0 is where 0 < u/v < 2. Given the task the two are
    independent normals of one variance, so u/v is Cauchy.
    """
    result = icl_scores({"before": the_label_before, "cheat": cheat}, TASK, key=getkey(), prompts=20_000)
    reference = {
        "early_minus_late": [3.25 - 6.5, 3.25],
        "win_rate": [np.arctan(2) / np.pi, 1.0],
        "context_benefit": [3.25 - 6.5, 3.25],
    }
    for name in NAMES:
        assert np.all(np.abs(result[name] - reference[name]) < 4.5 * result[f"{name}_error"]), name
        assert np.all(result[f"{name}_error"] > 0)
    # The error of closer is binomial, and not 0 where all prompts agree.
    smooth_rate = (result.win_rate.values * 20_000 + 1) / 20_002
    np.testing.assert_allclose(result.win_rate_error, np.sqrt(smooth_rate * (1 - smooth_rate) / 20_000), rtol=1e-12)
    assert float(result.win_rate[1]) == 1.0
    assert float(result.win_rate_error.max()) < 0.005
    assert float(result.context_benefit_error.max()) < 0.15
    assert (result.attrs["early"], result.attrs["late"]) == (0, 8)


def test_one_that_answers_last_sees_as_many_examples_as_the_others(getkey):
    """The cheat is right after five: at the early position 5 it is already, and at 4 not yet."""
    for early, target in ((5, 0.0), (4, 3.25)):
        pair = {"every": cheat, "last": LastOnly()}
        result = icl_scores(pair, TASK, key=getkey(), prompts=2000, early=early)
        np.testing.assert_allclose(result.early_minus_late[1], result.early_minus_late[0], rtol=1e-6)
        assert abs(float(result.early_minus_late[1]) - target) <= 4.5 * float(result.early_minus_late_error[1])


def test_the_error_of_a_difference_is_that_of_differences(getkey):
    """The same loss at both positions: its difference is 0 without error, though each mean has one."""

    def first_label(prompt):
        return prompt.y - prompt.y[0]

    result = icl_scores({"first": first_label}, TASK, key=getkey(), early=2, late=6)
    assert float(result.early_minus_late[0]) == pytest.approx(0, abs=1e-6)
    assert float(result.early_minus_late_error[0]) < 1e-6


def test_every_kind_of_predictor_has_the_same_scores(getkey):
    predictors = {"every": cheat, "last": LastOnly(), "host": OnTheHost()}
    for early, late in ((2, 8), (3, 6)):
        result = icl_scores(predictors, TASK, key=getkey(), early=early, late=late, prompts=10)
        for name in NAMES:
            np.testing.assert_allclose(result[name], np.full(3, result[name].values[0]), rtol=1e-6)


class Questions(AbstractTask):
    """Two questions of one token and their answers, (q, a, q', a'): a question's answer is the same all along."""

    def sample(self, *, key):
        a = jax.random.randint(key, (), 2, 10)
        return TokenPrompt(jnp.stack([jnp.zeros_like(a), a, jnp.zeros_like(a), a]))

    def loss(self, prediction, prompt):
        return (prediction != prompt.tokens[1:][-prediction.shape[0] :]).astype(jnp.float32)


def copies(prompt):
    """The token that followed the same token before: right on the second question, never on the first."""
    tokens = prompt.tokens[:-1]
    earlier = jnp.tril(tokens[:, None] == tokens[None], k=-1)
    return jnp.where(earlier.any(1), prompt.tokens[jnp.argmax(earlier, axis=1) + 1], -1)


def test_token_prompts_and_questions_of_several_tokens(getkey):
    result = icl_scores({"copies": copies}, Questions(), key=getkey(), prompts=50)
    assert [float(result[name][0]) for name in NAMES] == [1.0, 1.0, 1.0]
    # The token before the question is kept; what could be copied is still gone.
    longer = icl_scores({"copies": copies}, Questions(), key=getkey(), prompts=50, size=2)
    assert float(longer.context_benefit[0]) == 1.0


def test_a_nan_is_no_tie(getkey):
    result = icl_scores({"root": lambda prompt: jnp.sqrt(prompt.y)}, TASK, key=getkey(), prompts=64)
    for name in NAMES:
        assert np.isnan(result[name]).all()
        assert np.isnan(result[f"{name}_error"]).all()


def test_bad_input_is_named(getkey):
    key = getkey()
    with pytest.raises(InputError, match="predictors: expected at least one"):
        icl_scores({}, TASK, key=key)
    with pytest.raises(InputError, match="late: expected a position from 1 to 8, the last, got 9"):
        icl_scores({"a": nothing}, TASK, key=key, late=9)
    with pytest.raises(InputError, match="early: expected a position from 0 to 3, before the late one, got 4"):
        icl_scores({"a": nothing}, TASK, key=key, early=4, late=4)
    with pytest.raises(InputError, match="size: expected an integer from 1 to 8, so that some context"):
        icl_scores({"a": nothing}, TASK, key=key, size=9)
