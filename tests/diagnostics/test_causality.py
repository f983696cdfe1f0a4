"""A predictor that sees what it may not is refused by name; one that does not is not."""

import inspect

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diagnostics.predictors import KEY, TASK, OnHost, mean_so_far, own_target

import icllab as icl
from icllab import algorithms, diagnostics
from icllab.core.errors import InputError
from icllab.core.protocols import AbstractModel, Trace
from icllab.diagnostics.causality import forbidden_positions
from icllab.diagnostics.validate_predictor import require_causal
from icllab.models import edited
from icllab.tasks import LinearRegression, RepeatedTokens, Standardised
from icllab.training import Ensemble, Record


def next_input(prompt):
    return jnp.append(prompt.x[1:, 0], 0.0)


def mean_of_all(prompt):
    return jnp.full(prompt.positions, prompt.y.mean())


def last_target_at_the_first(prompt):
    return jnp.zeros(prompt.positions).at[0].set(prompt.y[-1])


@pytest.mark.parametrize(
    ("predictor", "positions"),
    [
        (own_target, [0, 1, 2, 3, 4, 5]),
        (next_input, [0, 1, 2, 3, 4]),
        (mean_of_all, [0, 1, 2, 3, 4, 5]),
        (last_target_at_the_first, [0]),
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


def test_a_long_prompt_is_tried_at_twenty_positions():
    task = LinearRegression.convention("raventos", dim=3, length=99)
    result = forbidden_positions(own_target, task, key=KEY)
    assert (len(result), result[0], result[-1]) == (20, 0, 99)


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
        diagnostics.identify(
            ridge, {"mine": own_target}, TASK, key=KEY, prompts=diagnostics.PromptSplit(10, fitting=10)
        )
    with pytest.warns(UserWarning, match="predictor 'Seeing' looks at its own target") as members:
        diagnostics.identify(
            icl.ensemble(seeing, seeds=2, key=KEY),
            {"ridge": ridge},
            TASK,
            key=KEY,
            prompts=diagnostics.PromptSplit(10, fitting=10),
        )
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
