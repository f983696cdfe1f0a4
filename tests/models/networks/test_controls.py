"""The controls are their formulas, and know of the prompt what they are said to know."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawing import prompt_of, with_normal_weights

from icllab.core.errors import InputError
from icllab.core.prompt import RegressionPrompt
from icllab.models import DeepSets, PromptPerceptron, Recurrent, parameter_count, width_for


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def prompt():
    return prompt_of(0, positions=5, dim=3)


def drawn(kind, **fields):
    key = jax.random.key(0)
    return with_normal_weights(lambda: kind(dim=3, **fields, key=key), seed=1)


def numbers(prompt):
    return np.asarray(prompt.x), np.asarray(prompt.y)


def test_the_prompt_perceptron_sees_the_examples_before_the_query(prompt):
    every, last = (
        eqx.filter_jit(drawn(PromptPerceptron, length=4, hidden=(6,), answers=answers).trace)(prompt)
        for answers in ("every", "last")
    )
    inputs, (x, y) = np.asarray(every.activations["input"]), numbers(prompt)
    for i in range(5):
        seen = np.zeros((4, 4))
        seen[:i, :3], seen[:i, 3] = x[:i], y[:i]
        np.testing.assert_array_equal(inputs[i], [*seen.ravel(), *x[i], *(np.arange(4) < i)])
    np.testing.assert_array_equal(np.asarray(last.activations["input"])[0], inputs[4, :19])
    assert last.prediction.shape == (1,)


def test_the_recurrence_is_that_of_equinox(prompt):
    """Step by step, with the label told at the next input."""
    model = drawn(Recurrent, width=6, hidden=(4,), nonlinearity="tanh")

    @jax.jit
    def step(x, told, state):
        state = model.cell(jnp.append(x, told), state)
        return state, model.readout(state)[0]

    state, told, wanted = np.zeros(6), 0.0, []
    for x, y in zip(*numbers(prompt), strict=True):
        state, answer = step(x, told, state)
        wanted.append(float(answer))
        told = y
    np.testing.assert_allclose(eqx.filter_jit(model)(prompt), wanted, rtol=1e-12)


@pytest.mark.parametrize("pool", ["sum", "mean"])
def test_deep_sets_is_its_formula_and_has_no_order(pool, prompt):
    model, (x, y) = drawn(DeepSets, width=6, hidden=(4,), pool=pool), numbers(prompt)
    order = [3, 1, 0, 2, 4]
    turned = RegressionPrompt(jnp.asarray(x[order]), jnp.asarray(y[order]))
    found, other = (np.asarray(eqx.filter_jit(model)(one)) for one in (prompt, turned))
    features, readout = jax.jit(lambda example: model.features(example)), jax.jit(lambda seen: model.readout(seen))
    made = np.array([features(np.append(a, b)) for a, b in zip(x, y, strict=True)])
    for i in range(5):
        pooled = made[:i].sum(axis=0) / (max(i, 1) if pool == "mean" else 1)
        np.testing.assert_allclose(found[i], readout(np.append(pooled, x[i]))[0], rtol=1e-12)
    np.testing.assert_allclose(other[-1], found[-1], rtol=1e-12)
    assert not np.allclose(other[1:4], found[1:4])


def test_the_names_in_order(prompt):
    def names(model):
        found = []
        eqx.filter_eval_shape(lambda: found.extend(model.trace(prompt).activations))
        return found

    deep_sets, recurrent = drawn(DeepSets, width=6, hidden=(4,), pool="sum"), drawn(Recurrent, width=6, hidden=(4,))
    assert names(deep_sets) == ["features.hidden0", "examples", "pooled", "readout.hidden0", "prediction"]
    assert names(recurrent) == ["input", "states", "hidden0", "prediction"]


def test_bad_input_is_refused(prompt, getkey):
    model = drawn(PromptPerceptron, length=3, hidden=(), answers="last")
    with pytest.raises(InputError, match="prompt: expected 3 examples before the query, got 4"):
        model(prompt)
    with pytest.raises(InputError, match="unknown answers 'all'; known: every, last"):
        PromptPerceptron(dim=3, length=3, hidden=(), answers="all", key=getkey())
    with pytest.raises(InputError, match="unknown pool 'max'; did you mean 'mean'"):
        DeepSets(dim=3, width=2, hidden=(), pool="max", key=getkey())


@pytest.mark.slow
def test_a_control_of_a_given_size(getkey):
    build = lambda w: DeepSets(dim=3, width=w, hidden=(w,), pool="mean", key=jax.random.key(0))  # noqa: E731
    assert parameter_count(build(3)) <= 60 < parameter_count(build(4))
    assert width_for(build, 60) == 3
    members = eqx.filter_vmap(lambda k: Recurrent(dim=3, width=2, key=k))(jax.random.split(getkey(), 3))
    assert parameter_count(members) == 3 * parameter_count(Recurrent(dim=3, width=2, key=getkey()))
