"""Every model: its trace is its prediction, and an edit reaches what comes after it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contracts.cases import MODELS, part, task_of
from drawing import sampled, sampled_batch

from icllab.models import edited

# One case after the other: what is compiled for a case is used by all of its tests.
pytestmark = pytest.mark.parametrize("name", MODELS, scope="module")
ROUNDING = {"rtol": 1e-6, "atol": 1e-7}  # one program holds both, and may fuse them differently


@pytest.fixture
def prompt(name, getkey):
    return sampled(task_of(name), getkey())


@eqx.filter_jit
def traced(model, prompt):
    """The trace, that with an edit that changes nothing, and the prediction."""
    return model.trace(prompt), model.trace(prompt, lambda _, value: value), model(prompt)


@eqx.filter_jit
def ablations(model, prompt, names):
    """Traces and predictions of the edited model: the first of no edit, then for each name with that value as zero."""

    def ablated(target):
        def edit(name, value):
            return jnp.where(target == names.index(name), 0, value)

        return model.trace(prompt, edit), edited(model, edit)(prompt)

    return jax.lax.map(ablated, jnp.arange(-1, len(names)))


def test_the_trace_ends_in_the_prediction(name, prompt):
    trace, unchanged, prediction = traced(MODELS[name](), prompt)
    np.testing.assert_allclose(trace.prediction, prediction, **ROUNDING)
    np.testing.assert_array_equal(unchanged.prediction, trace.prediction)
    assert trace.activations
    assert all(np.isfinite(np.asarray(a)).all() for a in trace.activations.values())


def test_every_named_activation_can_be_edited_and_matters(name, prompt):
    """Ablating an activation changes the prediction, and leaves all activations before it as they were."""
    model = MODELS[name]()
    names = []  # in the order in which they are computed, which a compiled program does not keep
    jax.eval_shape(lambda prompt: model.trace(prompt, lambda name, value: names.append(name) or value), prompt)
    traces, predictions = jax.tree.map(np.asarray, ablations(model, prompt, tuple(names)))
    for i, target in enumerate(names):
        assert not np.array_equal(traces.prediction[i + 1], traces.prediction[0]), target
        np.testing.assert_allclose(predictions[i + 1], traces.prediction[i + 1], **ROUNDING)
        for other in names[:i]:
            np.testing.assert_array_equal(traces.activations[other][i + 1], traces.activations[other][0])


def test_no_random_numbers_are_drawn_twice(name):
    """Two arrays of a new model are not the same draws, whatever their shapes and scales."""
    leaves = jax.tree.leaves(eqx.filter(MODELS[name](), eqx.is_inexact_array))
    draws = [values for values in (np.ravel(np.asarray(leaf, float)) for leaf in leaves) if np.unique(values).size > 3]
    for i, first in enumerate(draws):
        for second in draws[:i]:
            count = min(first.size, second.size)
            assert abs(np.corrcoef(first[:count], second[:count])[0, 1]) < 0.999


@pytest.mark.slow
def test_traces_batch(name, getkey):
    model = MODELS[name]()
    prompts = sampled_batch(task_of(name), jax.random.split(getkey(), 3))
    batched = eqx.filter_jit(lambda model, prompts: jax.vmap(model.trace)(prompts))(model, prompts)
    one, _, _ = traced(model, part(prompts, 1))
    for activation, value in one.activations.items():
        np.testing.assert_allclose(batched.activations[activation][1], value, rtol=1e-5, atol=1e-6)
