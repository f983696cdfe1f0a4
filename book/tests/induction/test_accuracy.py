"""Runs that end when their training loss is small, and accuracy along training."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from iclbook.claims.induction import _accuracy
from icllab.models import ItemLabelNetwork
from icllab.tasks import ItemLabel

TASK = ItemLabel.init(classes=None, labels=4, pairs=2, dim=3, no_repeats=True, key=jax.random.key(0))
HOW = {"key": jax.random.key(1), "prompts": 64}


def knowing(prompt):
    """Who is told the answer."""
    return jax.nn.one_hot(prompt.labels[-1:], 4)


def first(prompt):
    """Who always names the first label."""
    return jnp.eye(1, 4, dtype=prompt.items.dtype)


def test_shares_are_those_of_the_prompts_drawn():
    assert _accuracy.accuracy(knowing, TASK, **HOW) == 1.0
    labels = np.asarray(_accuracy.sample(TASK, **HOW).labels)[:, -1]
    np.testing.assert_allclose(_accuracy.accuracy(first, TASK, **HOW), np.mean(labels == 0), rtol=1e-6)


@pytest.fixture(scope="module")
def runs():
    """A network that is content at once, and one that never is."""
    network = ItemLabelNetwork.from_task(TASK, depth=0, key=jax.random.key(2))
    how = {"memory": 1, "steps": 4, "key": jax.random.key(3), "keep": (0, 2, 3)}
    return [_accuracy.train_until(TASK, network, loss=loss, **how) for loss in (100.0, 1e-6)]


@pytest.mark.slow
def test_a_run_ends_when_its_loss_is_small(runs):
    assert [run.status[0] for run in runs] == ["stopped", "ok"]


@pytest.mark.slow
def test_on_the_way_every_step_is_that_of_its_network(runs):
    for run in runs:
        found = _accuracy.accuracy_curve(run, TASK, steps=(0, 2, 3, 4), **HOW)
        own = [run.trajectory.at(step) if step in run.trajectory else run.members for step in (0, 2, 3, 4)]
        expected = [_accuracy.accuracy(one.member(0), TASK, **HOW) for one in own]
        np.testing.assert_allclose(found, expected, atol=1e-6)
    assert len(set(_accuracy.accuracy_curve(runs[0], TASK, steps=(0, 2, 3, 4), **HOW))) == 1
