"""Weights in one gauge, their distance, and the way between them."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab import constructions
from icllab.algorithms import FunctionalDescent, GradientDescent, PreconditionedDescent, Ridge
from icllab.core.errors import InputError
from icllab.core.prompt import RegressionPrompt
from icllab.diagnostics import interpolate, weight_distance
from icllab.diagnostics.behaviour.answers import sample_prompts
from icllab.diagnostics.identification.weights import align, as_linear_attention
from icllab.models import GeneralisedAttention, LinearAttention
from icllab.tasks import LinearRegression
from icllab.training import Ensemble

DIM, LENGTH, LAYERS = 2, 5, 2


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def with_arrays(model, **arrays):
    return dataclasses.replace(model, **{name: jnp.asarray(array) for name, array in arrays.items()})


def random_attention(layers=LAYERS):
    """Attention with every number drawn, also those that nobody reads."""
    rng = np.random.default_rng(layers)
    zero = _nothing(layers)
    return with_arrays(zero, p=0.5 * rng.normal(size=zero.p.shape), q=0.5 * rng.normal(size=zero.q.shape))


@functools.cache
def _nothing(layers):
    with jax.enable_x64(True):
        return LinearAttention.ahn(dim=DIM, layers=layers, std=0.0, key=jax.random.key(0))


def a_prompt():
    rng = np.random.default_rng(0)
    return RegressionPrompt(*(jnp.asarray(rng.normal(size=shape)) for shape in ((LENGTH + 1, DIM), LENGTH + 1)))


answer = eqx.filter_jit(lambda model, prompt: model(prompt))


def task():
    return LinearRegression.convention("ahn", dim=DIM, length=LENGTH)


def regauged(model, factors):
    s = np.asarray(factors)[:, None, None]
    return with_arrays(model, p=s * np.asarray(model.p), q=np.asarray(model.q) / s)


def with_noise_where_nobody_reads(model):
    p, q = np.array(model.p), np.array(model.q)
    p[-1, :-1] += 3.0
    q[0, :, -1] += 2.0 if model.layers == 1 else 0.0
    return with_arrays(model, p=p, q=q)


@pytest.mark.parametrize("layers", [1, 2])
def test_the_gauge_and_what_nobody_reads_make_no_distance(layers):
    model = random_attention(layers=layers)
    reference_model = with_noise_where_nobody_reads(regauged(model, [-0.2, 5.0][:layers]))
    prompt = a_prompt()
    np.testing.assert_allclose(answer(reference_model, prompt), answer(model, prompt), rtol=1e-11)
    assert weight_distance(model, reference_model) < 1e-14
    left, right = align(model, reference_model)
    np.testing.assert_allclose(left.p, right.p, atol=1e-14)
    np.testing.assert_allclose(left.q, right.q, atol=1e-14)
    # Both are still what they were, and balanced.
    for before, after in ((model, left), (reference_model, right)):
        np.testing.assert_allclose(answer(after, prompt), answer(before, prompt), rtol=1e-11)
        of_p, of_q = (np.sum(np.square(part), axis=(1, 2)) for part in (after.p, after.q))
        np.testing.assert_allclose(of_p, of_q, rtol=1e-12)


@pytest.mark.parametrize("layers", [1, 2])
def test_every_other_entry_is_read(layers):
    """The derivative of the answer with respect to an entry is zero exactly where the gauge puts a zero."""
    model, prompt = random_attention(layers=layers), a_prompt()
    slopes = jax.jit(jax.grad(lambda m: m(prompt)[0]))(model)
    ones = with_arrays(model, p=np.ones(model.p.shape), q=np.ones(model.q.shape))
    indices, _ = align(ones, ones)
    np.testing.assert_array_equal(np.asarray(slopes.p) != 0, np.asarray(indices.p) != 0)
    np.testing.assert_array_equal(np.asarray(slopes.q) != 0, np.asarray(indices.q) != 0)


def test_a_distance_that_is_known():
    """Twice the step: (P, 2Q) balanced is (√2 P', √2 Q') of (P', Q'), so the distance is √2 - 1."""
    once, twice = (
        constructions.gradient_descent(GradientDescent(rate, layers=2, dim=DIM, normalised=True, half=True))
        for rate in (0.3, 0.6)
    )
    assert float(weight_distance(twice, once)) == pytest.approx(np.sqrt(2) - 1, rel=1e-12)
    # A step of the other sign is no gauge: P and Q of the same gauge cannot both be matched.
    back = with_arrays(once, q=-np.asarray(once.q))
    assert float(weight_distance(back, once)) == pytest.approx(np.sqrt(2), rel=1e-12)


def test_a_layer_that_does_nothing_is_zero():
    model = random_attention()
    second = np.array([0.0, 1.0])[:, None, None]
    idle = with_arrays(model, q=second * np.asarray(model.q))
    equal = with_arrays(model, p=second * np.asarray(model.p))
    assert weight_distance(idle, equal) == 0


def test_one_layer_with_the_other_sign():
    model = random_attention(layers=1)
    reference_model = dataclasses.replace(with_arrays(model, p=-np.asarray(model.p)), sign=1)
    assert weight_distance(model, reference_model) < 1e-14
    with pytest.raises(InputError, match="reference: expected the conventions"):
        weight_distance(random_attention(), dataclasses.replace(random_attention(), sign=1))


def test_what_has_weights():
    shape = {"layers": 1, "dim": DIM, "normalised": True}
    kernel = {"temperature": 1.0, "noise_variance": 0.0, **shape}
    descent = GradientDescent(0.3, half=True, **shape)
    assert isinstance(as_linear_attention(descent), LinearAttention)
    general = GeneralisedAttention.from_linear(constructions.gradient_descent(descent))
    assert weight_distance(as_linear_attention(general), as_linear_attention(descent)) < 1e-14
    linear = as_linear_attention(FunctionalDescent(0.3, kernel="linear", **kernel))
    assert weight_distance(linear, as_linear_attention(descent)) < 1e-14
    for reference_model in (
        Ridge(1.0),
        FunctionalDescent(0.3, kernel="exponential", **kernel),
        lambda prompt: prompt.y,
    ):
        assert as_linear_attention(reference_model) is None


def test_the_way_between_two_gauges_of_one_network_is_level():
    model = with_noise_where_nobody_reads(random_attention())
    reference_model = regauged(random_attention(), [-3.0, 0.1])
    result = interpolate(model, reference_model, task(), key=jax.random.key(2), points=3, prompts=50)
    np.testing.assert_allclose(result.difference, 0, atol=1e-11 * float(result.loss.max()))


def test_the_ways_of_two_networks_are_those_of_each():
    one, other = random_attention(), with_arrays(random_attention(), p=0.3 * random_attention().p[::-1])
    both = Ensemble(jax.tree.map(lambda *leaves: jnp.stack(leaves), one, other), {"seed": np.arange(2)})
    end, small = regauged(random_attention(), [2.0, 0.5]), {"key": jax.random.key(3), "points": 3, "prompts": 20}
    together = interpolate(both, end, task(), **small)
    for i, network in enumerate((one, other)):
        alone = interpolate(network, end, task(), **small)
        for name in ("loss", "standard_error", "difference", "difference_error"):
            np.testing.assert_allclose(together[name][i], alone[name], rtol=1e-9, atol=1e-12)


def test_the_way_from_step_to_step(getkey):
    """P and Q both move in the balanced gauge: the root of the rate moves evenly from one end's to the other's."""

    def step(rate):
        return GradientDescent(rate, layers=1, dim=DIM, normalised=True, half=True)

    key, law = getkey(), task()
    end = PreconditionedDescent(0.7 * np.eye(DIM), layers=1, dim=DIM, normalised=True, half=True)
    result = interpolate(constructions.gradient_descent(step(0.1)), end, law, key=key, points=3, prompts=50)
    prompts = sample_prompts(law, key=key, prompts=50, block=50)
    losses = eqx.filter_jit(lambda step, p: jax.vmap(lambda prompt: law.loss(step(prompt), prompt))(p))
    for i, rate in enumerate((0.1, ((np.sqrt(0.1) + np.sqrt(0.7)) / 2) ** 2, 0.7)):
        assert float(result.loss[i]) == pytest.approx(np.mean(np.asarray(losses(step(rate), prompts))), rel=1e-12)
    assert float(result.difference[0]) == float(result.difference_error[0]) == 0


def test_bad_input_is_refused_in_a_line(getkey):
    with pytest.raises(InputError, match="points: expected an integer of at least 2, got 1"):
        interpolate(random_attention(), random_attention(), task(), key=getkey(), points=1)
    with pytest.raises(InputError, match="reference: expected linear attention, or an algorithm with a construction"):
        interpolate(random_attention(), Ridge(1.0), task(), key=getkey())
