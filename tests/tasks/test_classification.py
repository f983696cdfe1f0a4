"""Cross-entropy against SciPy, and accuracy; every position, or the last."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawing import sampled, sampled_many
from scipy.special import log_softmax

from icllab.core.errors import InputError
from icllab.core.prompt import TokenPrompt
from icllab.tasks import FixedPrompts, InContextCopying, ItemLabel, LabelRelations, MarkovChain, RepeatedTokens


def test_loss_and_accuracy(getkey):
    task = RepeatedTokens(vocabulary=4, period=3)
    prompt = sampled(task, getkey())
    with jax.enable_x64(True):
        logits = jnp.asarray(3 * np.random.default_rng(0).normal(size=(5, 4)))
        target = np.asarray(prompt.tokens[1:])
        wanted = -log_softmax(np.asarray(logits), axis=1)[np.arange(5), target]
        loss = jax.jit(task.loss)
        np.testing.assert_allclose(loss(logits, prompt), wanted, rtol=1e-14, atol=1e-14)
        np.testing.assert_array_equal(loss(logits[-1:], prompt), loss(logits, prompt)[-1:])
        np.testing.assert_array_equal(
            jax.jit(task.accuracy)(logits, prompt), np.asarray(logits).argmax(axis=1) == target
        )


def test_another_number_of_positions_is_refused(getkey):
    task = RepeatedTokens(vocabulary=4, period=3)
    with pytest.raises(InputError, match=r"prediction: expected \(5, 4\), got \(2, 4\)"):
        task.loss(jnp.zeros((2, 4)), sampled(task, getkey()))


def tasks_of_four_classes():
    items = ItemLabel.init(classes=8, labels=4, pairs=2, dim=3, no_repeats=True, key=jax.random.key(0))
    return {
        "chain": MarkovChain(np.full((4, 4), 0.25), 5),
        "copying": InContextCopying(items=2, labels=2, pairs=1),
        "repeated": RepeatedTokens(vocabulary=4, period=3),
        "items": items,
        "relations": LabelRelations.init(items, 2, key=jax.random.key(1)),
    }


@pytest.mark.parametrize("name", tasks_of_four_classes())
@pytest.mark.parametrize("count", [1, 3, 5])
def test_as_many_logits_as_classes_are_asked_for(count, name, getkey):
    task = tasks_of_four_classes()[name]
    prompt = sampled(task, getkey())
    for score in (task.loss, task.accuracy):
        with pytest.raises(InputError, match=rf"^prediction: expected 4 classes, got {count}$"):
            score(jnp.zeros((1, count)), prompt)
        assert score(jnp.zeros((1, 4)), prompt).shape == (1,)


@pytest.mark.parametrize(
    ("logits", "known"), [([np.nan, 0, 0, 0], False), ([0, np.inf, 0, 0], False), ([-np.inf, 1, -np.inf, 0], True)]
)
def test_accuracy_of_logits_without_a_largest_is_nan(logits, known, getkey):
    task = RepeatedTokens(vocabulary=4, period=3)
    prompt = sampled(task, getkey())
    found = task.accuracy(jnp.zeros((5, 4)).at[2].set(jnp.array(logits)), prompt)
    assert np.isfinite(found).tolist() == [True, True, known, True, True]


@pytest.mark.parametrize("wrong", [-100, -1, 4, 9])
@pytest.mark.parametrize("name", tasks_of_four_classes())
def test_a_right_answer_that_is_no_class_has_no_loss(name, wrong, getkey):
    task = tasks_of_four_classes()[name]
    field = "tokens" if isinstance(sampled(task, getkey()), TokenPrompt) else "labels"
    prompts = sampled_many(task, 3, getkey())
    task.require_prompts(prompts)
    prompts = eqx.tree_at(lambda p: getattr(p, field), prompts, getattr(prompts, field).at[1, -1].set(wrong))
    prompt = jax.tree.map(lambda leaf: leaf[1], prompts)
    for level in (0.0, -5.0):  # it was finite, and below 0 with all logits
        logits = jnp.full((prompt.positions, 4), level)
        for score in (task.loss, task.accuracy, eqx.filter_jit(task.loss)):
            scores = score(logits, prompt)
            assert np.isnan(scores[-1])
            assert np.isfinite(scores[:-1]).all()
    with pytest.raises(InputError, match=rf"expected an id from 0 to 3, a vocabulary of 4, got {wrong}"):
        task.require_prompts(prompts)
    with pytest.raises(InputError, match="expected an id from 0 to 3"):
        FixedPrompts(task, prompts, 3)


def test_the_refusal_of_a_token_names_the_mask():
    task = RepeatedTokens(vocabulary=4, period=3)
    with pytest.raises(InputError, match="mask the padding, TokenPrompt"):
        task.require_prompts(jax.vmap(TokenPrompt)(jnp.full((2, 6), -1)))


def test_of_a_masked_prompt_what_is_real_has_its_loss_and_gradient():
    task, logits = RepeatedTokens(vocabulary=4, period=3), jax.random.normal(jax.random.key(0), (5, 4))
    padded, alone = TokenPrompt.from_ragged([[0, 3, 1, 2, 2, 0], [3, 1, 2]]), TokenPrompt(jnp.asarray([3, 1, 2]))
    prompt = jax.tree.map(lambda leaf: leaf[1], padded)

    def total(logits, prompt):
        losses = task.loss(logits, prompt)
        return jnp.nansum(losses), losses

    # What is answered at padding may be anything.
    answered = logits.at[2:].set(jnp.inf)
    (_, losses), gradient = jax.value_and_grad(total, has_aux=True)(answered, prompt)
    (_, wanted), of_alone = jax.value_and_grad(total, has_aux=True)(logits[:2], alone)
    np.testing.assert_array_equal(losses[:2], wanted)
    np.testing.assert_array_equal(gradient, np.concatenate([of_alone, np.zeros((3, 4))]))
    assert np.isnan(losses[2:]).all()
    assert np.isnan(task.accuracy(logits, prompt)[2:]).all()


def test_a_last_answer_to_a_padded_prompt_has_no_loss():
    task, padded = RepeatedTokens(vocabulary=4, period=3), TokenPrompt.from_ragged([[0, 3, 1], [3, 1]])
    last = jax.vmap(lambda prompt: task.loss(jnp.zeros((1, 4)), prompt))(padded)
    np.testing.assert_array_equal(np.isnan(last[:, 0]), [False, True])
