"""Members that lost their parameters, found by bisection in a run that is written down here."""

import jax.numpy as jnp
import numpy as np

from icllab.training.loop import State
from icllab.training.stopping import DIVERGED, RUNNING
from icllab.training.train_loop import roll_back

LOST = np.asarray([7, 40, 12])  # the update that loses each member's parameters; that of the second is never made


def state(step):
    """After ``step[member]`` updates: the parameters count them, and are infinite from the fatal one on."""
    step = jnp.asarray(step)
    params = jnp.where(step > LOST, jnp.inf, step.astype(float))
    running = jnp.full(3, RUNNING, jnp.int32)
    return State({"w": params}, (), (), running, jnp.full(3, -1, jnp.int32), jnp.zeros((3, 1)))


def test_each_lost_member_is_as_it_was_before_the_update_that_lost_it():
    asked = []

    def replay(limit):
        asked.append(np.asarray(limit))
        return state(jnp.minimum(limit, 20))

    found = roll_back(replay, state(jnp.full(3, 20)), 4, 20)
    assert found.params["w"].tolist() == [7, 20, 12]
    assert found.ended.tolist() == [7, -1, 12]
    assert found.status.tolist() == [DIVERGED, RUNNING, DIVERGED]
    assert len(asked) <= 5  # bisection of 16 steps, and the state that is kept


def test_where_none_is_lost_nothing_is_replayed():
    sound = state(jnp.full(3, 6))

    def replay(limit):
        raise AssertionError("a sound run was replayed")

    assert roll_back(replay, sound, 4, 6) is sound
