"""A predictor that sees what it may not is refused by name; one that does not is not."""

import inspect

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import icllab as icl
from icllab import algorithms, diagnostics
from icllab.core.errors import InputError
from icllab.core.prompt import RegressionPrompt
from icllab.core.protocols import AbstractModel, Trace
from icllab.diagnostics.causality import forbidden_positions
from icllab.diagnostics.validate_predictor import require_causal
from icllab.models import edited
from icllab.tasks import LinearRegression, RepeatedTokens, Standardised
from icllab.tasks.regression import AbstractRegression
from icllab.training import Ensemble, Record

KEY = jax.random.key(0)
TASK = LinearRegression.convention("raventos", dim=3, length=5)


def own_target(prompt):
    return prompt.y


def next_input(prompt):
    return jnp.append(prompt.x[1:, 0], 0.0)


def mean_of_all(prompt):
    return jnp.full(prompt.positions, prompt.y.mean())


def last_target_at_the_first(prompt):
    return jnp.zeros(prompt.positions).at[0].set(prompt.y[-1])


def mean_so_far(prompt):
    sums = jnp.concatenate([jnp.zeros(1), jnp.cumsum(prompt.y)[:-1]])
    return sums / jnp.maximum(jnp.arange(float(prompt.positions)), 1)


class OnHost:
    """Written with NumPy, and called prompt by prompt."""

    traceable = False

    def __init__(self, sees):
        self.sees = sees

    def __call__(self, prompt):
        return np.asarray(self.sees(prompt))


@pytest.mark.parametrize(
    ("predictor", "positions"),
    [
        (own_target, [0, 1, 2, 3, 4, 5]),
        (next_input, [0, 1, 2, 3, 4]),
        (mean_of_all, [0, 1, 2, 3, 4, 5]),
        (last_target_at_the_first, [0, 1, 2, 3, 4, 5]),
        (mean_so_far, []),
        (algorithms.Ridge(0.1), []),
        (OnHost(own_target), [0, 1, 2, 3, 4, 5]),
        (OnHost(mean_so_far), []),
    ],
)
def test_the_positions_at_which_it_looks_ahead(predictor, positions):
    assert forbidden_positions(predictor, TASK, key=KEY) == positions


def test_one_that_answers_the_last_position_alone():
    class Last(eqx.Module):
        sees: bool
        positions = "last"

        def __call__(self, prompt):
            return (prompt.y[-1:] if self.sees else 0 * prompt.y[-1:]) + prompt.y[:1]

    assert forbidden_positions(Last(True), TASK, key=KEY) == [5]
    assert forbidden_positions(Last(False), TASK, key=KEY) == []


def test_a_long_prompt_is_tried_at_sixteen_positions():
    task = LinearRegression.convention("raventos", dim=3, length=99)
    result = forbidden_positions(own_target, task, key=KEY)
    assert (len(result), result[0], result[-1]) == (16, 0, 99)


def test_it_is_refused_by_name():
    with pytest.raises(
        InputError, match=r"causal predictor, got own_target, which looks at its own target .* \(at positions 0, 1"
    ):
        require_causal(own_target, TASK, key=KEY)
    require_causal(mean_so_far, TASK, key=KEY)


def test_a_function_of_numpy_is_called_on_the_host():
    """It says nothing of itself: that JAX cannot trace it is found out."""

    def before(prompt):
        y = np.asarray(prompt.y)
        return np.concatenate([[0.0], np.cumsum(y)[:-1]])

    require_causal(before, TASK, key=KEY)
    with pytest.raises(InputError, match="causal predictor, got up_to_it, which looks at its own target"):
        require_causal(up_to_it, TASK, key=KEY)


def up_to_it(prompt):
    return np.cumsum(np.asarray(prompt.y))


def test_a_diagnostic_warns_of_it_by_name():
    with pytest.warns(UserWarning, match="predictor 'cheat' looks at its own target"):
        diagnostics.per_length({"ridge": algorithms.Ridge(0.1), "cheat": own_target}, TASK, key=KEY, prompts=4)
    diagnostics.per_length({"ridge": algorithms.Ridge(0.1), "fair": mean_so_far}, TASK, key=KEY, prompts=4)


class Seeing(AbstractModel):
    """A model that answers a multiple of the target it is asked for."""

    weight: jax.Array

    def trace(self, prompt, edit=None):
        value = self.weight * prompt.y
        value = value if edit is None else edit("value", value)
        return Trace(value, {"value": value})


def seeing(key):
    return Seeing(jax.random.normal(key))


@pytest.mark.parametrize(
    ("name", "subject"),
    [
        ("scaled", lambda: {"scaled": Standardised(own_target)}),
        ("Edited", lambda: edited(seeing(KEY), lambda name, value: 2 * value)),
        ("Seeing", lambda: icl.ensemble(seeing, seeds=2, key=KEY)),
        ("Seeing", lambda: icl.fit(icl.ensemble(seeing, seeds=2, key=KEY), TASK, steps=2, key=KEY)),
        ("Seeing", lambda: icl.fit(seeing(KEY), TASK, steps=2, key=KEY, record=Record(keep=[0, 2])).trajectory),
    ],
    ids=["wrapped", "edited", "ensemble", "run", "trajectory"],
)
def test_it_is_found_inside_of_what_the_library_wraps(name, subject):
    with pytest.warns(UserWarning, match=f"predictor '{name}' looks at its own target") as warning_records:
        diagnostics.per_length(subject(), TASK, key=KEY, prompts=4)
    assert len(warning_records) == 1


def test_what_predictors_are_compared_with_is_tried_too():
    ridge, small = algorithms.Ridge(0.1), {"key": KEY, "prompts": 10}
    with pytest.warns(UserWarning, match="predictor 'own_target' looks at its own target") as warning_records:
        diagnostics.per_length({"ridge": ridge}, TASK, against=own_target, **small)
    with pytest.warns(UserWarning, match="predictor 'mine' looks at its own target") as candidates:
        diagnostics.identify(ridge, {"mine": own_target}, TASK, fitting=10, **small)
    with pytest.warns(UserWarning, match="predictor 'Seeing' looks at its own target") as members:
        diagnostics.identify(icl.ensemble(seeing, seeds=2, key=KEY), {"ridge": ridge}, TASK, fitting=10, **small)
    assert [len(warning_records), len(candidates), len(members)] == [1, 1, 1]


def test_wrapped_predictors_that_see_nothing_are_not_warned_of():
    subject = {"scaled": Standardised(mean_so_far), "again": Standardised(Standardised(mean_so_far))}
    diagnostics.per_length(subject, TASK, key=KEY, prompts=4)


@pytest.mark.parametrize(
    "subject", [[own_target], {"a": own_target}, Ensemble(own_target, {"seed": np.zeros(1)}), Seeing]
)
def test_what_is_no_predictor_is_refused_in_a_line(subject):
    with pytest.raises(InputError, match=r"^predictor: expected one function of a prompt, got '\w+'$"):
        inspect.unwrap(require_causal)(subject, TASK, key=KEY)


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


def test_tokens_have_no_bits_to_nudge():
    task = RepeatedTokens(vocabulary=5, period=3)
    table = jnp.asarray(np.random.default_rng(0).normal(size=(5, 5)), jnp.float32)

    def sums(prompt):
        rows = table[prompt.tokens]
        return (jnp.cumsum(rows, axis=0) + rows.sum(0, keepdims=True) - jnp.cumsum(rows[::-1], axis=0)[::-1])[:-1]

    def ahead(prompt):
        return sums(prompt) + 1e-3 * table[prompt.tokens[1:]]

    for predictor, positions in ((sums, []), (ahead, list(range(5)))):
        assert forbidden_positions(predictor, task, key=KEY) == positions
        host = OnHost(predictor)
        assert forbidden_positions(host, task, key=KEY) == positions


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
