"""The controls are their formulas, and know of the prompt what they are said to know."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.core.prompt import RegressionPrompt
from icllab.models import DeepSets, PromptPerceptron, Recurrent, parameter_count, width_for


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def prompt(getkey):
    return RegressionPrompt(x=jax.random.normal(getkey(), (5, 3)), y=jax.random.normal(getkey(), (5,)))


def test_the_prompt_perceptron_sees_the_examples_before_the_query(prompt, getkey):
    model = PromptPerceptron(dim=3, length=4, hidden=(6,), answers="every", key=getkey())
    inputs = model.trace(prompt).activations["input"]
    for i in range(5):
        seen = np.zeros((4, 4))
        seen[:i, :3], seen[:i, 3] = prompt.x[:i], prompt.y[:i]
        np.testing.assert_array_equal(inputs[i], [*seen.ravel(), *prompt.x[i], *(np.arange(4) < i)])
    last = PromptPerceptron(dim=3, length=4, hidden=(6,), answers="last", key=getkey())
    np.testing.assert_array_equal(last.trace(prompt).activations["input"][0], inputs[4, :19])
    assert last(prompt).shape == (1,)


def test_the_recurrence_is_that_of_equinox(prompt, getkey):
    """Step by step, with the label told at the next input."""
    model = Recurrent(dim=3, width=6, hidden=(4,), nonlinearity="tanh", key=getkey())
    state, told, wanted = jnp.zeros(6), 0.0, []
    for x, y in zip(prompt.x, prompt.y, strict=True):
        state = model.cell(jnp.append(x, told), state)
        wanted.append(model.readout(state)[0])
        told = y
    np.testing.assert_allclose(model(prompt), wanted, rtol=1e-12)


@pytest.mark.parametrize("pool", ["sum", "mean"])
def test_deep_sets_is_its_formula_and_has_no_order(pool, prompt, getkey):
    model = DeepSets(dim=3, width=6, hidden=(4,), pool=pool, key=getkey())
    made = [model.features(jnp.append(x, y)) for x, y in zip(prompt.x, prompt.y, strict=True)]
    for i, answer in enumerate(model(prompt)):
        pooled = sum(made[:i], jnp.zeros(6)) / (max(i, 1) if pool == "mean" else 1)
        np.testing.assert_allclose(answer, model.readout(jnp.append(pooled, prompt.x[i]))[0], rtol=1e-12)
    turned = RegressionPrompt(x=prompt.x[jnp.array([3, 1, 0, 2, 4])], y=prompt.y[jnp.array([3, 1, 0, 2, 4])])
    np.testing.assert_allclose(model(turned)[-1], model(prompt)[-1], rtol=1e-12)
    assert not np.allclose(model(turned)[1:4], model(prompt)[1:4])


def test_the_names_in_order(prompt, getkey):
    names = list(DeepSets(dim=3, width=6, hidden=(4,), pool="sum", key=getkey()).trace(prompt).activations)
    assert names == ["features.hidden0", "examples", "pooled", "readout.hidden0", "prediction"]
    names = list(Recurrent(dim=3, width=6, hidden=(4,), key=getkey()).trace(prompt).activations)
    assert names == ["input", "states", "hidden0", "prediction"]


def test_bad_input_is_refused(prompt, getkey):
    model = PromptPerceptron(dim=3, length=3, hidden=(), answers="last", key=getkey())
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
