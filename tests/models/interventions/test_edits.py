"""An edited model is a model."""

import inspect
import re

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from icllab.algorithms import Ridge
from icllab.core.errors import InputError
from icllab.models import BlockOptions, Edited, Interleaved, Transformer, edited, edited_by, reduced
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


HEADS = "block0.attention.heads"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda value: value[:1], f"edit: expected shape (17, 2, 8) of {HEADS}, got (1, 2, 8)"),
        (lambda value: 0.0, f"edit: expected shape (17, 2, 8) of {HEADS}, got ()"),
        (lambda value: None, f"edit: expected an array for {HEADS}, got 'NoneType'"),
        (lambda value: [value], f"edit: expected an array for {HEADS}, got 'list'"),
    ],
)
def test_what_has_another_shape_is_no_edit(change, said):
    task = LinearRegression.convention("raventos", dim=4, length=8)
    network = Transformer(
        Interleaved(),
        dim=4,
        width=16,
        layers=2,
        block=BlockOptions(heads=2, mlp=None, norm="none"),
        positions="none",
        key=jr.key(0),
    )
    prompt = task.sample(key=jr.key(1))

    def edit(name, value):
        return change(value) if name == HEADS else value

    for refused in (edited(network, edit), edited_by(network, lambda asked: edit)):
        with pytest.raises(InputError) as error:
            refused(prompt)
        assert str(error.value) == said
    with pytest.raises(InputError, match=r"^edit: expected shape|^edit: expected an array"):
        edited(network, lambda name, value: 2 * value).trace(prompt, edit)
    with pytest.raises(InputError) as error:
        network.trace(prompt, edit)
    assert str(error.value) == said


def test_only_a_model_is_edited_and_only_by_a_function(model):
    for make in (edited, edited_by):
        with pytest.raises(InputError, match=r"^model: expected one with named activations, .*, got 'Ridge'$"):
            inspect.unwrap(make)(Ridge(1.0), scaled("weights", 2.0))
        with pytest.raises(InputError, match=r"^edit: expected a function of .*, got 'dict'$"):
            inspect.unwrap(make)(model, {"weights": 2.0})
