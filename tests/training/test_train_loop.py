"""A member whose parameters are lost goes back to the update before, whichever step of a stretch that was."""

import jax.numpy as jnp
import numpy as np
import pytest

from icllab.training.loop import State
from icllab.training.stopping import DIVERGED, RUNNING
from icllab.training.train_loop import roll_back


def state(made, lost):
    """Members after ``made`` updates each; a parameter is the number of updates, NaN from the update ``lost`` on."""
    params = jnp.asarray(np.where(made > lost, np.nan, made), float)
    status = jnp.full(len(lost), RUNNING, jnp.int32)
    return State(params[:, None], (), (), status, jnp.full(len(lost), -1, jnp.int32), params[:, None])


@pytest.mark.parametrize(("first", "last"), [(0, 1), (0, 7), (5, 13)])
def test_a_member_is_rolled_back_to_the_update_that_lost_it(first, last):
    lost = np.array([*range(first, last), 100])  # in each step of the stretch, and not at all
    after = roll_back(lambda limit: state(np.minimum(np.asarray(limit), last), lost), state(last, lost), first, last)
    np.testing.assert_array_equal(after.ended, [*lost[:-1], -1])
    np.testing.assert_array_equal(after.params[:, 0], [*lost[:-1], last])
    np.testing.assert_array_equal(after.status, [*[DIVERGED] * (len(lost) - 1), RUNNING])
