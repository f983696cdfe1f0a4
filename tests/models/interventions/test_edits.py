"""An edited model is a model."""

import re

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.models import Edited, edited, edited_by, reduced
from icllab.tasks import LinearRegression


@pytest.fixture(scope="module")
def model():
    task = LinearRegression.from_scaling(dim=6, alpha=2.0, kappa=1.0, rho=0.1, key=jr.key(5))
    return reduced.fit(task, prompts=80, ridge=0.05, key=jr.key(5))


def scaled(name, by):
    return lambda at, value: by * value if at == name else value


def test_it_declares_what_the_model_declares(model):
    wrapped = edited(model, scaled("weights", 2.0))
    assert isinstance(wrapped, Edited)
    for what in ("positions", "traceable", "differentiable"):
        assert getattr(wrapped, what) == getattr(model, what)


def test_edits_compose_from_the_inside_out(model, getkey):
    prompt = model.task.sample(key=getkey())

    def shift(at, value):
        return value + 1.0 if at == "weights" else value

    inner = edited(model, scaled("weights", 2.0))
    expected = 2.0 * model.trace(prompt).activations["weights"] + 1.0
    np.testing.assert_array_equal(inner.trace(prompt, shift).activations["weights"], expected)
    np.testing.assert_array_equal(edited(inner, shift)(prompt), jnp.sum(prompt.x * expected, axis=1))


def test_the_model_it_wraps_is_unchanged(model, getkey):
    prompt = model.task.sample(key=getkey())
    before = model(prompt)
    edited(model, scaled("features", 0.0))(prompt)
    np.testing.assert_array_equal(model(prompt), before)


def test_an_edit_may_depend_on_the_prompt(model, getkey):
    """An activation patched from another prompt, scaled by what is asked: the same as the edit made by hand."""
    prompt, other = model.task.sample(key=getkey()), model.task.sample(key=getkey())
    there = model.trace(other).activations["weights"]

    def patched(asked):
        return lambda name, value: asked.y[0] * there if name == "weights" else value

    by_hand = edited(model, lambda name, value: prompt.y[0] * there if name == "weights" else value)
    np.testing.assert_array_equal(edited_by(model, patched)(prompt), by_hand(prompt))


def test_an_intervention_that_touches_nothing_is_refused(model, getkey):
    prompt = model.task.sample(key=getkey())
    there = ", ".join(model.trace(prompt).activations)
    message = f"edit: expected one that changes an activation of the model, got none; there are: {there}"
    for idle in (edited(model, lambda name, value: value), edited_by(model, lambda prompt: lambda name, value: value)):
        for wrapped in (idle, edited(idle, lambda name, value: 2 * value)):
            with pytest.raises(InputError, match=re.escape(message)):
                wrapped(prompt)
