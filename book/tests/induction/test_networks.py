"""What is trained and how, and that test sets are asked of the right network at the right step."""

from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from iclbook.claims.induction import _networks
from icllab.core.errors import InputError
from icllab.models import ItemLabelNetwork

TINY: dict[str, Any] = {"pairs": 2, "labels": 4, "dim": 3}


@pytest.fixture(scope="module")
def run():
    key = jax.random.key(3)
    task, network, *_ = _networks.start(5, key=key, **TINY)
    how: dict[str, Any] = {"steps": [0, 2, 3], "key": key, "rates": [0.0, 0.1], "batch": 4}
    return task, network, _networks.train(task, network, **how)


def test_the_reduced_size_is_what_it_says(getkey):
    task = _networks.task(key=getkey())
    assert (task.pairs, task.labels, task.dim, task.position_dim, task.classes) == (4, 16, 31, 9, None)
    assert task.no_repeats
    assert task.levels().context_label == 1 / 4
    with pytest.raises(InputError, match="labels"):
        _networks.task(key=getkey(), labels=3)


def test_descent_is_the_gradient_times_the_rate_and_a_little_decay():
    optimizer = _networks.descent()(0.5)
    params = {"a": jnp.array([2.0, -4.0])}
    change, _ = optimizer.update({"a": jnp.array([1.0, 0.0])}, optimizer.init(params), params)
    np.testing.assert_allclose(change["a"], [-0.5 - 2e-6, 4e-6], rtol=1e-6)
    assert _networks.descent() is _networks.descent()


def test_without_a_rate_only_the_decay_is_left(run):
    _, network, trained = run
    before, after = (np.asarray(part.layers[0].query) for part in (network, trained.members.stacked))
    np.testing.assert_allclose(after[0], before * (1 - _networks.DECAY) ** 3, rtol=1e-6)
    assert np.abs(after[1] - before).max() > 1e-4


@eqx.filter_jit
def sampled(task, key):
    prompts = task.sample_many(32, key=key)
    return prompts, jax.vmap(lambda prompt: prompt.matches)(prompts)


@eqx.filter_jit
def traces(model, prompts):
    return jax.vmap(model.trace)(prompts)


def test_what_is_measured_is_the_mean_over_the_prompts_of_a_key(run, getkey):
    task, network, trained = run
    key = getkey()
    found = _networks.evaluate(trained, task, key=key, prompts=32, progress=True)
    assert {values.shape for values in found.values()} == {(2, 3)}
    prompts, matches = sampled(task, key)
    labels = np.asarray(prompts.labels)[:, -1]
    for member, step, model in ((0, 0, network), (1, 2, trained.member(1))):
        traced = jax.tree.map(np.asarray, traces(model, prompts))
        logits = traced.prediction[:, 0]
        own = traced.activations["attention2"][:, 1::2]
        wanted = {
            "accuracy": np.mean(np.argmax(logits, axis=1) == labels),
            "label_loss": -np.mean(log_softmax(logits, axis=1)[np.arange(32), labels]),
            "label_attention": np.mean(np.sum(own, axis=1)),
            "target_attention": np.mean(np.sum(np.where(matches, own, 0), axis=1)),
        }
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name][member, step], value, rtol=1e-4)


def test_a_start_depends_on_its_seed_and_key_alone(getkey):
    key = getkey()
    one, same, other = (_networks.start(seed, key=key, **TINY) for seed in (4, 4, 5))
    assert eqx.tree_equal(one, same)
    np.testing.assert_array_equal(one.task.label_vectors, _networks.task(key=one.of_task, **TINY).label_vectors)
    for name in ("of_task", "of_prompts", "of_tests"):
        assert getattr(one, name) != getattr(other, name)
    assert np.abs(np.subtract(one.network.layers[0].query, other.network.layers[0].query)).min() > 0
    assert len(_networks.start(4, key=key, fields={"layers": 1}, **TINY).network.layers) == 1


@pytest.mark.slow
def test_curves_have_their_axes_and_no_two_seeds_the_same_numbers(getkey):
    sizes = {"pairs": 2, "label_count": 4, "dim": 3, "step": (0, 2), "prompts": 16, "batch": 4}
    how: dict[str, Any] = {"key": getkey(), "rates": [0.1, 0.2]}
    found = _networks.learning_curves(SimpleNamespace(seed=(0, 4), **sizes), **how)
    assert set(found) == {"accuracy", "label_loss", *_networks.PROGRESS}
    assert {axes for axes, _ in found.values()} == {("seed", "rate", "step")}
    values = found["label_loss"][1]
    assert values.shape == (2, 2, 2)
    np.testing.assert_array_equal(values[:, 0, 0], values[:, 1, 0])  # before the first step all rates are one
    assert len(np.unique(values[:, :, 1])) == 4
    one = _networks.learning_curves(SimpleNamespace(seed=(4,), **sizes), **how)
    np.testing.assert_allclose(one["label_loss"][1][0], values[1], rtol=1e-5)
    axes, curves = _networks.at_one_rate(found)["label_loss"]
    assert axes == ("seed", "step")
    np.testing.assert_array_equal(curves, values[:, 0])
    more = _networks.learning_curves(SimpleNamespace(seed=(4,), **sizes), labels=8, **how)
    assert more["label_loss"][1][0, 0, 0] > values[1, 0, 0] + 0.3  # chance of twice as many labels, ln 2 more


@pytest.mark.slow
def test_attention_of_first_order_is_one_more_where_it_is_linear_and_softmax_elsewhere(getkey):
    task = _networks.task(key=getkey(), **TINY)
    prompt = task.sample(key=getkey())
    plain = ItemLabelNetwork.from_task(task, attention=("linear", "softmax"), key=getkey())
    traced = eqx.filter_jit(_networks.first_order(plain).trace)(prompt).activations
    scores = eqx.filter_jit(plain.trace)(prompt).activations["scores1"]
    wanted = np.tril(np.ones((5, 5))) * (1 + np.asarray(scores)) / np.arange(1, 6)[:, None]
    np.testing.assert_allclose(traced["attention1"], wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.sum(traced["attention2"]), 1, rtol=1e-5)
    assert (np.asarray(traced["attention2"]) >= 0).all()
