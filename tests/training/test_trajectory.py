"""Parameters on the way, put together with what was not trained."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.training.runs import Trajectory


class Scaled(eqx.Module):
    w: jnp.ndarray
    fixed: jnp.ndarray
    name: str = eqx.field(static=True, default="scaled")


def kept():
    rest = Scaled(w=None, fixed=jnp.asarray([[3.0], [4.0]]))
    params = {
        step: Scaled(w=np.asarray([[step, step], [step + 0.5, step + 0.5]], float), fixed=None) for step in (0, 10)
    }
    return Trajectory((0, 10), params, rest, {"seed": np.asarray([5, 6])})


def test_an_ensemble_at_a_step_has_its_parameters_and_all_the_rest():
    members = kept().at(10)
    assert members.coordinates["seed"].tolist() == [5, 6]
    assert members.member(1).w.tolist() == [10.5, 10.5]
    assert members.member(1).fixed.tolist() == [4.0]
    assert members.member(1).name == "scaled"


def test_steps_are_counted_and_stacked():
    trajectory = kept()
    assert len(trajectory) == 2
    assert list(trajectory) == [0, 10]
    assert trajectory.stacked(1).w.tolist() == [[0.5, 0.5], [10.5, 10.5]]


def test_a_step_that_was_not_kept_is_refused_with_those_that_were():
    with pytest.raises(InputError, match=r"step: expected one of the kept steps \[0, 10\], got 5"):
        kept().at(5)
