"""Clamps set what they say, pass no gradient to what they replace, and nest; grafts take parts."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from drawing import with_normal_weights

import icllab as icl
from icllab.core.errors import InputError
from icllab.models import ItemLabelNetwork, ablated, copy_clamped, match_clamped, previous_token_clamped, transplanted
from icllab.tasks import ItemLabel
from icllab.training import Record

KEY = jax.random.key(0)
TASK = ItemLabel.init(classes=None, labels=4, pairs=3, dim=6, key=KEY)
PROMPTS = eqx.filter_jit(lambda key: TASK.sample_many(20, key=key))(jax.random.key(2))


def drawn(seed, **fields):
    return with_normal_weights(lambda: ItemLabelNetwork.from_task(TASK, depth=1, key=KEY, **fields), seed)


NETWORK = drawn(1)


@eqx.filter_jit
def traces(model):
    return jax.vmap(model.trace)(PROMPTS).activations


def activations(model):
    return jax.tree.map(np.asarray, traces(model))


@eqx.filter_jit
def gradient(model):
    return eqx.filter_grad(lambda m: jnp.mean(jax.vmap(lambda p: TASK.loss(m(p), p))(PROMPTS)))(model)


def largest(tree):
    return max(np.abs(leaf).max() for leaf in jax.tree.leaves(tree))


def test_the_previous_token_is_clamped_for_labels_alone():
    before, after = (activations(m)["attention1"] for m in (NETWORK, previous_token_clamped(NETWORK, 0.7)))
    for k in range(3):
        np.testing.assert_allclose(after[:, 2 * k + 1, 2 * k], 0.7, rtol=1e-6)
        np.testing.assert_allclose(after[:, 2 * k + 1, : 2 * k], 0.3 / (2 * k + 1), rtol=1e-6)
        np.testing.assert_allclose(after[:, 2 * k + 1, 2 * k + 1], 0.3 / (2 * k + 1), rtol=1e-6)
    np.testing.assert_array_equal(after[:, ::2], before[:, ::2])
    np.testing.assert_allclose(after.sum(axis=2), 1, rtol=1e-6)


def test_the_match_is_clamped_to_all_tokens_of_the_right_label():
    found = activations(match_clamped(NETWORK, 0.8))["attention2"]
    matches = np.asarray(PROMPTS.matches)
    assert {1, 2} <= set(matches.sum(axis=1).tolist())  # labels repeat in some of these prompts
    for pattern, right in zip(found, matches, strict=True):
        on = np.zeros(7, bool)
        on[1::2] = right
        np.testing.assert_allclose(pattern[on], 0.8 / right.sum(), rtol=1e-6)
        np.testing.assert_allclose(pattern[~on], 0.2 / (7 - right.sum()), rtol=1e-6)


def test_a_prompt_without_the_label_is_left_alone(getkey):
    task = ItemLabel.init(classes=4, labels=4, pairs=3, dim=6, key=KEY).in_weights(purged=True)
    prompt = eqx.filter_jit(task.sample)(key=getkey())
    assert not np.any(prompt.matches)  # as many classes as labels: no other class has the query's
    answered = eqx.filter_jit(lambda model: model(prompt))
    np.testing.assert_allclose(answered(match_clamped(NETWORK)), answered(NETWORK), rtol=1e-6)


def test_match_and_copy_together_are_always_right():
    """Whatever the weights: the log mass on the right label is ln z, and that of others at most ln((1 - z) + floor)."""
    model = copy_clamped(match_clamped(NETWORK, 0.8))
    logits = activations(model)["logits"]
    right = np.take_along_axis(logits[:, 0], np.asarray(PROMPTS.labels)[:, -1:], axis=1)
    np.testing.assert_allclose(right, np.log(0.8), rtol=1e-5)
    assert logits.min() == pytest.approx(np.log(1e-6))  # a label that is not in the context
    linear = activations(copy_clamped(match_clamped(NETWORK, 0.8), 5.0))["logits"]
    np.testing.assert_allclose(linear[:, 0].max(axis=1), 4.0, rtol=1e-5)


def test_what_is_clamped_gets_no_gradient_and_the_rest_does():
    copied = gradient(copy_clamped(NETWORK)).model
    assert largest(copied.classifier) == 0 == largest(copied.layers[1].value)
    assert min(largest(copied.layers[0]), largest(copied.layers[1].query)) > 0
    matched = gradient(match_clamped(NETWORK)).model
    assert largest((matched.layers[1].query, matched.layers[1].key)) == 0
    assert min(largest(matched.classifier), largest(matched.layers[1].value), largest(matched.layers[0].value)) > 0


@pytest.mark.parametrize("layer", [1, 2])
def test_an_ablated_head_adds_nothing(layer):
    found, plain = activations(ablated(NETWORK, layer)), activations(NETWORK)
    assert largest(found[f"update{layer}"]) == 0
    if layer == 1:
        np.testing.assert_array_equal(found["layer1"], found["tokens"])
    else:
        np.testing.assert_allclose(found["layer2"], plain["layer1"][:, -1], rtol=1e-5, atol=1e-5)


def test_clamped_networks_are_trained(getkey):
    model = previous_token_clamped(copy_clamped(NETWORK), 0.9)
    fields = {"steps": 40, "batch": 16, "record": Record([0], held_out=PROMPTS)}
    run = icl.fit(
        model, TASK, key=getkey(), optimizer=optax.sgd(0.3), trainable=lambda m: m.model.model.layers, **fields
    )
    before, after = run.dataset.held_out_loss.values[0, [0, -1], 0]
    assert after < before - 0.05
    assert eqx.tree_equal(run.predictor.model.model.classifier, NETWORK.classifier)


def test_a_graft_takes_the_parts_and_nothing_else():
    donor = drawn(7)
    mixed = transplanted(NETWORK, donor, lambda m: (m.layers[0], m.classifier.readout))
    assert eqx.tree_equal(mixed.layers[0], donor.layers[0])
    assert eqx.tree_equal(mixed.classifier.readout, donor.classifier.readout)
    assert eqx.tree_equal(mixed.layers[1], NETWORK.layers[1])
    assert eqx.tree_equal(mixed.classifier.weights, NETWORK.classifier.weights)


def test_what_cannot_be_clamped_or_grafted_is_refused():
    with pytest.raises(InputError, match=r"strength: expected a number from 0 to 1, got 1.5"):
        match_clamped(NETWORK, 1.5)
    with pytest.raises(InputError, match="layer: expected 1 or 2, got 3"):
        ablated(NETWORK, 3)
    one, prompt = drawn(7, layers=1), jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[0]), PROMPTS)
    for clamped in (previous_token_clamped(one), copy_clamped(one)):
        with pytest.raises(InputError, match="model: expected"):
            eqx.filter_eval_shape(clamped, prompt)
    with pytest.raises(
        InputError, match="edit: expected a change of an activation of the model, got an edit without effect"
    ):
        eqx.filter_eval_shape(ablated(one, 2), prompt)
    with pytest.raises(InputError, match="parts: expected parts that model and donor have"):
        transplanted(NETWORK, one, lambda m: m.layers[1])
    wide = with_normal_weights(lambda: ItemLabelNetwork(dim=9, position_dim=7, labels=4, depth=1, key=KEY), 7)
    with pytest.raises(InputError, match="donor: expected parts of shapes"):
        transplanted(NETWORK, wide, lambda m: m.layers[0])
