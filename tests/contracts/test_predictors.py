"""Every predictor: causal, the same compiled and batched, and its declarations true."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contracts.cases import PREDICTORS, cast, part, task_of
from drawing import sampled, sampled_batch

from icllab.core.errors import InputError
from icllab.core.prompt import RegressionPrompt, TokenPrompt
from icllab.core.protocols import declared

# One case after the other: what is compiled for a case is used by all of its tests.
pytestmark = pytest.mark.parametrize("name", PREDICTORS, scope="module")


@pytest.fixture
def prompt(name, getkey):
    return sampled(task_of(name), getkey())


@eqx.filter_jit
def compiled(predictor, prompt):
    return predictor(prompt)


@eqx.filter_jit
def batched(predictor, prompts):
    return jax.vmap(predictor)(prompts)


@eqx.filter_jit
def one_by_one(predictor, prompts):
    return jax.lax.map(predictor, prompts)


@eqx.filter_jit
def derivatives(predictor, prompt):
    """Of every answer, with respect to the leaves of the predictor and to the prompt."""
    return eqx.filter_jacrev(lambda both: both[0](both[1]))((predictor, prompt))


def answered(predictor, prompt):
    """Its prediction, by one program where there can be one: an eager call compiles every operation by itself."""
    return compiled(predictor, prompt) if declared(predictor, "traceable") else predictor(prompt)


def test_positions_are_what_is_declared(name, prompt):
    predictor = PREDICTORS[name]()
    prediction = answered(predictor, prompt)
    assert prediction.shape[0] == {"every": prompt.positions, "last": 1}[declared(predictor, "positions")]


def test_causality_is_an_exactly_zero_gradient(name, prompt):
    """d prediction_i / d (later inputs, and targets from i on) is exactly zero; the rest is not all zero."""
    predictor = PREDICTORS[name]()
    ids = not isinstance(prompt, RegressionPrompt)
    if ids or not declared(predictor, "differentiable") or declared(predictor, "positions") == "last":
        pytest.skip("no gradient at every position: the next test asks for exact equality instead")
    _, jacobian = derivatives(predictor, prompt)
    i = np.arange(prompt.positions)
    to_x, to_y = np.asarray(jacobian.x), np.asarray(jacobian.y)
    assert np.all(to_x[i[:, None] < i[None, :]] == 0)
    assert np.all(to_y[i[:, None] <= i[None, :]] == 0)
    assert np.isfinite(to_x).all()
    assert np.isfinite(to_y).all()
    assert np.all(np.abs(to_x[1:]).max(axis=(1, 2)) > 0)
    assert np.all(np.abs(to_y[1:]).max(axis=1) > 0)


def test_causality_is_exact_equality_when_the_future_changes(name, prompt, getkey):
    predictor = PREDICTORS[name]()
    other = sampled(task_of(name), getkey())
    before = answered(predictor, prompt)
    if declared(predictor, "positions") == "last":
        np.testing.assert_array_equal(before, answered(predictor, prompt.replaced_after(prompt.length, other)))
        return
    for position in range(prompt.positions):
        after = answered(predictor, prompt.replaced_after(position, other))
        np.testing.assert_array_equal(before[: position + 1], after[: position + 1])


@pytest.mark.parametrize("precision", ["float64", pytest.param("float32", marks=pytest.mark.slow)], indirect=True)
def test_map_equals_vmap_and_one_alone(name, precision, getkey):
    predictor = cast(PREDICTORS[name](), precision)
    if not declared(predictor, "traceable"):
        pytest.skip("declared not traceable: there is nothing to compile, and a test below sees that it cannot be")
    task = cast(task_of(name), precision)
    prompts = sampled_batch(task, jax.random.split(getkey(), 3))
    tolerance = 1e-5 if precision == "float32" else 1e-12
    mapped = one_by_one(predictor, prompts)
    assert mapped.dtype == jnp.dtype(precision)
    np.testing.assert_allclose(batched(predictor, prompts), mapped, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(compiled(predictor, part(prompts, 0)), mapped[0], rtol=tolerance, atol=tolerance)


def test_gradients_of_its_leaves_are_finite(name, prompt):
    predictor = PREDICTORS[name]()
    if not declared(predictor, "differentiable"):
        pytest.skip("declared not differentiable: it runs on the host")
    jacobian, _ = derivatives(predictor, prompt)
    leaves = jax.tree.leaves(eqx.filter(jacobian, eqx.is_inexact_array))
    assert bool(leaves) == bool(jax.tree.leaves(eqx.filter(predictor, eqx.is_inexact_array)))
    assert all(np.isfinite(leaf).all() for leaf in leaves)


def test_it_answers_in_the_precision_of_the_prompt_and_the_same_every_time(name, precision, getkey):
    predictor, task = cast(PREDICTORS[name](), precision), cast(task_of(name), precision)
    prompt = sampled(task, getkey())
    if declared(predictor, "traceable"):  # a program gives the same every time
        assert jax.eval_shape(predictor, prompt).dtype == jnp.dtype(precision)
        return
    first = predictor(prompt)
    assert first.dtype == jnp.dtype(precision)
    np.testing.assert_array_equal(first, predictor(prompt))


def test_what_it_declares_of_tracing_is_true(name, prompt):
    predictor = PREDICTORS[name]()
    if declared(predictor, "traceable"):
        assert jax.eval_shape(predictor, prompt).shape == answered(predictor, prompt).shape
    else:
        with pytest.raises(jax.errors.TracerArrayConversionError):
            jax.eval_shape(predictor, prompt)


@pytest.mark.slow
def test_padding_changes_no_answer_at_a_real_position(name, prompt):
    """The answers to a masked prompt are those to the prompt without what is masked."""
    predictor = PREDICTORS[name]()
    if declared(predictor, "positions") == "last" or not hasattr(prompt, "mask"):
        pytest.skip("an answer at the last position is to a prompt without padding")
    real = 4
    alone = prompt.alone(real - 1, size=real)
    mask = jnp.arange(prompt.positions + isinstance(prompt, TokenPrompt)) < real + isinstance(prompt, TokenPrompt)
    padded = eqx.tree_at(lambda p: p.mask, prompt, mask, is_leaf=lambda leaf: leaf is None)
    padded = type(padded)(*jax.tree.leaves(padded))  # what is masked reads as 0
    try:
        wanted = answered(predictor, alone)
    except InputError:
        pytest.skip("prompts of one length alone")
    answers = answered(predictor, padded)
    np.testing.assert_allclose(answers[:real], wanted, rtol=2e-3, atol=2e-4)
    assert np.isfinite(answers[:real]).all()
