"""A mixture draws each prompt from one of its tasks, with the probabilities of the weights."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawing import sampled
from refusals import assert_refused
from tasks.test_item_label import drawn, within

from icllab.tasks import Curriculum, ItemBursts, ItemLabel, LinearRegression, Mixture

KEY = jax.random.key(3)
ITEMS = ItemLabel.init(classes=6, labels=6, pairs=4, dim=3, key=KEY)
BURSTS = ItemBursts(ITEMS.means[:, None], ITEMS.label_vectors, pairs=4, burstiness=2, distractors=1, remainder="apart")
LINES = LinearRegression.convention("garg", dim=2, length=3)


def test_every_prompt_is_of_one_task_and_that_with_its_probability(getkey):
    """Two slots of the query's class in a prompt of bursts, none in a purged one, four where all is one burst."""
    single = dataclasses.replace(BURSTS, burstiness=4, distractors=0)
    mixture = Mixture([BURSTS, ITEMS.in_weights(purged=True), single], [1.0, 3.0, 2.0])
    prompts = drawn(mixture, 8000, getkey())
    slots = np.sum(prompts.classes[:, :-1] == prompts.classes[:, -1:], axis=1)
    for count, share in ((2, 1 / 6), (0, 3 / 6), (4, 2 / 6)):
        within(slots == count, share)
    np.testing.assert_array_equal(prompts.label_vectors, np.asarray(ITEMS.label_vectors)[prompts.labels[:, :-1]])


def test_weights_may_be_swept_and_zero_draws_no_prompt(getkey):
    def mean(weights):
        mixture = Mixture((BURSTS, ITEMS.in_weights(purged=True)), weights)
        classes = mixture.sample_many(200, key=key).classes
        return jnp.mean(jnp.any(classes[:, :-1] == classes[:, -1:], axis=1))

    key = getkey()
    weights = jnp.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    levels = np.asarray(jax.jit(jax.vmap(mean))(weights))
    np.testing.assert_array_equal(levels[:2], [1.0, 0.0])
    assert abs(levels[2] - 0.5) < 4 * 0.5 / 200**0.5


def test_loss_and_accuracy_are_those_of_the_first(getkey):
    mixture = Mixture((BURSTS, ITEMS), [1.0, 1.0])
    prompt, logits = sampled(mixture, getkey()), jax.random.normal(getkey(), (5, 6))
    np.testing.assert_array_equal(mixture.loss(logits, prompt), ITEMS.loss(logits, prompt))
    np.testing.assert_array_equal(mixture.accuracy(logits, prompt), ITEMS.accuracy(logits, prompt))
    assert not hasattr(Mixture([LINES], [1.0]), "accuracy")


def test_a_curriculum_in_a_mixture_grows(getkey):
    mixture = Mixture(
        (Curriculum(LINES, dim=1, positions=2, interval=1), Curriculum(LINES, dim=2, positions=4)), [1, 0]
    )
    assert int(jnp.sum(sampled(mixture.at_step(jnp.array(0)), getkey()).mask)) == 2
    assert int(jnp.sum(sampled(mixture, getkey()).mask)) == 4


@pytest.mark.parametrize(
    ("tasks", "weights", "message"),
    [
        (
            (ITEMS, LINES),
            [1.0, 1.0],
            "tasks: expected prompts of one shape and one number of classes, got ['ItemLabel', 'Li",
        ),
        (
            (ITEMS, ItemLabel.init(classes=8, labels=8, pairs=4, dim=3, key=KEY)),
            [1.0, 1.0],
            "tasks: expected prompts of one shape and one number of classes, got ['ItemLabel', 'ItemLabel']",
        ),
        ((ITEMS, BURSTS), [1.0], "weights: expected one for each of 2 tasks, got 'shape (1,)'"),
        ((ITEMS, BURSTS), 1.0, "weights: expected one for each of 2 tasks, got 'shape ()'"),
        ((), [], "weights: expected one for each of 0 tasks, got 'shape (0,)'"),
        ((ITEMS, BURSTS), [0.0, 0.0], "weights: expected a positive sum, got [0.0, 0.0]"),
        ((ITEMS, BURSTS), [2.0, -1.0], "weights: expected a finite number >= 0, got [2.0, -1.0]"),
        ((ITEMS, 3), [1.0, 1.0], "tasks: expected tasks such as ItemLabel.init(...), got 'int'"),
        ((ITEMS, BURSTS), "half", "weights: expected real numbers, got 'half'"),
    ],
)
def test_what_is_no_mixture_is_refused_in_one_line(tasks, weights, message):
    assert_refused(lambda: Mixture(tasks, weights), message)
