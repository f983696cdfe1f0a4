"""Every model: its trace is its prediction, and an edit reaches what comes after it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contracts.cases import MODELS, task_of

from icllab.models import edited

pytestmark = pytest.mark.parametrize("name", MODELS)


@pytest.fixture
def prompt(name, getkey):
    return task_of(name).sample(key=getkey())


def test_the_trace_ends_in_the_prediction(name, prompt):
    model = MODELS[name]()
    trace = model.trace(prompt)
    np.testing.assert_array_equal(trace.prediction, model(prompt))
    assert trace.activations
    assert all(bool(jnp.all(jnp.isfinite(a))) for a in trace.activations.values())


def test_an_edit_that_changes_nothing_changes_nothing(name, prompt):
    model = MODELS[name]()
    np.testing.assert_array_equal(model.trace(prompt, lambda _, value: value).prediction, model(prompt))


def test_every_named_activation_can_be_edited_and_matters(name, prompt):
    """Ablating an activation changes the prediction, and leaves all activations before it as they were."""
    model = MODELS[name]()
    plain = model.trace(prompt)
    for target in plain.activations:

        def ablate(at, value, target=target):
            return jnp.zeros_like(value) if at == target else value

        trace = model.trace(prompt, ablate)
        assert not np.array_equal(trace.prediction, plain.prediction)
        np.testing.assert_array_equal(edited(model, ablate)(prompt), trace.prediction)
        for other in plain.activations:
            if other == target:
                break
            np.testing.assert_array_equal(trace.activations[other], plain.activations[other])


def test_traces_batch(name, getkey):
    model, task = MODELS[name](), task_of(name)
    prompts = jax.vmap(lambda k: task.sample(key=k))(jax.random.split(getkey(), 3))
    batched = jax.vmap(model.trace)(prompts)
    one = model.trace(jax.tree.map(lambda leaf: leaf[1], prompts))
    for activation, value in one.activations.items():
        np.testing.assert_allclose(batched.activations[activation][1], value, rtol=1e-5, atol=1e-6)
