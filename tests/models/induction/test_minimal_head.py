"""The minimal head: its patterns in closed form, and what strengths it needs."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.diagnostics.behaviour.item_label_heads import context_labels
from icllab.models import MinimalHead
from icllab.models.induction.minimal_head import label_mass
from icllab.tasks import ItemLabel

TASK = ItemLabel.init(classes=None, labels=8, pairs=4, dim=64, no_repeats=True, key=jax.random.key(0))


def test_the_first_pattern_in_closed_form(getkey):
    """Attention of token i to the one before it is e^b / (e^b + i) with i others, itself included."""
    with jax.enable_x64(True):
        head = MinimalHead.reading(labels=8, beta1=1.5, xi=1.0)
        prompt = jax.tree.map(lambda a: a.astype(float) if a.dtype == jnp.float32 else a, TASK.sample(key=getkey()))
        found = np.asarray(eqx.filter_jit(head.trace)(prompt).activations["attention1"])
        for i in range(1, 9):
            before = np.exp(1.5) / (np.exp(1.5) + i)
            np.testing.assert_allclose(found[i, i - 1], before, rtol=1e-13)
            np.testing.assert_allclose(found[i, : i - 1], (1 - before) / i, rtol=1e-13)
        assert found[0, 0] == 1


def test_without_strengths_every_label_of_the_context_gets_the_same(getkey):
    head = MinimalHead.reading(labels=8, xi=3.0)
    prompt = TASK.sample(key=getkey())
    logits = np.asarray(eqx.filter_jit(head)(prompt)[0])
    wanted = np.zeros(8)
    wanted[np.asarray(prompt.labels[:-1])] = 3 / 9
    np.testing.assert_allclose(logits, wanted, rtol=1e-5)


def test_with_label_preference_alone_attention_is_on_labels(getkey):
    head = MinimalHead.reading(labels=8, beta2=30.0, xi=1.0)
    found = eqx.filter_jit(head.trace)(TASK.sample(key=getkey())).activations["attention2"]
    np.testing.assert_allclose(found[1::2], 0.25, rtol=1e-5)


def test_it_answers_with_all_strengths_and_names_any_label_without_the_match(getkey):
    """Novel classes: every answer is right with a strong head; with alpha = 0 all labels of the context tie."""
    prompts = TASK.sample_many(400, key=getkey())

    @eqx.filter_jit
    def logits(head):
        return jax.vmap(head)(prompts)[:, 0]

    strengths = {"beta1": 20.0, "alpha": 40.0, "beta2": 10.0, "xi": 20.0}
    found = logits(MinimalHead.reading(labels=8, **strengths))
    np.testing.assert_array_equal(jnp.argmax(found, axis=1), prompts.labels[:, -1])
    tied = np.sort(logits(MinimalHead.reading(labels=8, **(strengths | {"alpha": 0.0}))), axis=1)
    np.testing.assert_allclose(tied[:, 4:], tied[:, 4:].mean(), rtol=1e-5)
    assert tied[:, :4].max() == 0


def test_its_strengths_and_its_classifier_have_gradients(getkey):
    head = MinimalHead.init(dim=64, labels=8, beta1=0.5, alpha=0.5, beta2=0.5, depth=1, key=getkey())
    prompts = TASK.sample_many(8, key=getkey())
    gradient = eqx.filter_jit(jax.grad(lambda h: jnp.mean(jax.vmap(lambda p: TASK.loss(h(p), p))(prompts))))(head)
    assert all(float(jnp.abs(leaf).max()) > 0 for leaf in jax.tree.leaves(gradient))


def test_a_label_that_is_none_has_no_mass():
    prompt = ItemLabel.init(classes=4, labels=2, pairs=2, dim=2, key=jax.random.key(0)).sample(key=jax.random.key(1))
    prompt = eqx.tree_at(lambda p: p.labels, prompt, jnp.array([1, 5, 1]))
    attention = jnp.full(5, 0.2)
    with pytest.raises(InputError, match="labels at 1: expected an id from 0 to 1, a vocabulary of 2, got 5"):
        label_mass(attention, prompt, 2)
    assert np.isnan(eqx.filter_jit(label_mass)(attention, prompt, 2)).all()
    logits = jnp.zeros(2)
    with pytest.raises(InputError, match="labels at 1"):
        context_labels(logits, prompt.labels[:-1])
    assert np.isnan(jax.jit(context_labels)(logits, prompt.labels[:-1])).all()


def test_a_token_has_a_place():
    prompt = ItemLabel.init(classes=4, labels=2, pairs=2, dim=2, key=jax.random.key(0)).sample(key=jax.random.key(1))
    prompt = eqx.tree_at(lambda p: p.shift, prompt, jnp.array(3))
    with pytest.raises(InputError, match="shift at 2: expected an id from 0 to 4, a vocabulary of 5, got 5; give more"):
        prompt.tokens()
    assert np.isnan(eqx.filter_jit(type(prompt).tokens)(prompt)).any(axis=1).tolist() == [
        False,
        False,
        True,
        True,
        True,
    ]
