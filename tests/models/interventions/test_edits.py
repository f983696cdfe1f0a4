"""An edited model is a model."""

import inspect
import re

import equinox as eqx
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
    message = f"edit: expected a change of an activation of the model, got an edit without effect; known: {there}"
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


@pytest.fixture(scope="module")
def network():
    block = BlockOptions(heads=2, mlp=None, norm="none")
    shape = {"dim": 2, "width": 4, "layers": 1, "block": block, "positions": "none"}
    return Transformer(Interleaved(), **shape, key=jr.key(0))


def on_heads(change):
    """An edit of what the heads of the only block collect, [token, head, dim]."""
    return lambda name, value: change(value) if name == HEADS else value


PROMPT = LinearRegression.convention("garg", dim=2, length=3).sample(key=jr.key(1))
MODES = {"eager": lambda model: model(PROMPT), "jit": lambda model: eqx.filter_jit(model)(PROMPT)}
ABLATIONS = {
    "set": lambda head: lambda v: v.at[:, head].set(0.0),
    "slice": lambda head: lambda v: v.at[:, head : head + 1].multiply(0.0),
    "where": lambda head: lambda v: jnp.where((jnp.arange(2) == head)[None, :, None], 0, v),
    "mask": lambda head: (
        lambda v: v * jnp.broadcast_to((jnp.arange(2) != head).astype(v.dtype)[None, :, None], v.shape)
    ),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ablate", ABLATIONS)
def test_heads_that_do_not_exist_are_refused_and_others_ablated(ablate, mode, network):
    run, change = MODES[mode], ABLATIONS[ablate]
    message = rf"edit: expected (entries within shape \(4, 2, 2\) of {HEADS}|a change of an activation)"
    with pytest.raises(InputError, match=message):  # an empty slice returns what came
        run(edited(network, on_heads(change(9))))
    wanted = network.trace(PROMPT, on_heads(lambda v: v * np.array([0.0, 1.0], v.dtype)[None, :, None])).prediction
    np.testing.assert_allclose(run(edited(network, on_heads(change(0)))), wanted, rtol=1e-5, atol=1e-7)


def test_a_negative_index_out_of_range_is_refused_too(network):
    for head in (-3, 2):
        with pytest.raises(InputError, match="edit: expected entries within shape"):
            edited(network, on_heads(lambda v, head=head: v.at[:, head].set(0.0)))(PROMPT)
    edited(network, on_heads(lambda v: v.at[:, -2].set(0.0)))(PROMPT)


@pytest.mark.parametrize("mode", MODES)
def test_what_changes_nothing_by_chance_or_on_purpose_is_no_mistake(mode, network):
    heads = network.trace(PROMPT).activations[HEADS]
    silent = eqx.tree_at(lambda n: n.blocks[0].attention.value, network, replace_fn=jnp.zeros_like)
    for model, change in (
        (silent, lambda v: v.at[:, 0].set(0.0)),  # of a head that adds nothing anyway
        (network, lambda v: heads),  # patched from the same prompt
        (network, lambda v: v.at[:, 1].set(heads[:, 1])),
        (network, lambda v: 1.0 * v),  # one end of a sweep
        (network, lambda v: v + 0.0 * heads),
    ):
        np.testing.assert_allclose(MODES[mode](edited(model, on_heads(change))), MODES[mode](model), rtol=1e-5)


def test_what_an_edit_keeps_on_its_way_is_of_the_prompt(network):
    kept = {}

    def edit(name, value):
        kept[name] = value
        return value.at[:, 0].set(0.0) if name == HEADS else value

    silent = eqx.tree_at(lambda n: n.blocks[0].attention.value, network, replace_fn=jnp.zeros_like)
    edited(silent, edit)(PROMPT)
    np.testing.assert_array_equal(kept[HEADS], silent.trace(PROMPT).activations[HEADS])


def test_only_a_model_is_edited_and_only_by_a_function(model):
    for make in (edited, edited_by):
        with pytest.raises(InputError, match=r"^model: expected a model with named activations .*, got 'Ridge'$"):
            inspect.unwrap(make)(Ridge(1.0), scaled("weights", 2.0))
        with pytest.raises(InputError, match=r"^edit: expected a function of .*, got 'dict'$"):
            inspect.unwrap(make)(model, {"weights": 2.0})
