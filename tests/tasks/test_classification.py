"""Cross-entropy against SciPy, and accuracy; every position, or the last."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from icllab.core.errors import InputError
from icllab.tasks import InContextCopying, ItemLabel, LabelRelations, MarkovChain, RepeatedTokens


def test_loss_and_accuracy(getkey):
    task = RepeatedTokens(vocabulary=4, period=3)
    prompt = task.sample(key=getkey())
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
        task.loss(jnp.zeros((2, 4)), task.sample(key=getkey()))


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
    prompt = task.sample(key=getkey())
    for score in (task.loss, task.accuracy):
        with pytest.raises(InputError, match=rf"^prediction: expected 4 classes, got {count}$"):
            score(jnp.zeros((1, count)), prompt)
        assert score(jnp.zeros((1, 4)), prompt).shape == (1,)


@pytest.mark.parametrize(
    ("logits", "known"), [([np.nan, 0, 0, 0], False), ([0, np.inf, 0, 0], False), ([-np.inf, 1, -np.inf, 0], True)]
)
def test_accuracy_of_logits_without_a_largest_is_nan(logits, known, getkey):
    task = RepeatedTokens(vocabulary=4, period=3)
    prompt = task.sample(key=getkey())
    found = task.accuracy(jnp.zeros((5, 4)).at[2].set(jnp.array(logits)), prompt)
    assert np.isfinite(found).tolist() == [True, True, known, True, True]
