"""A finished run as a value."""

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from training.predictors import Slope

from icllab.core.errors import InputError
from icllab.training.ensembles import Ensemble
from icllab.training.runs import Run, Trajectory


def run(size):
    members = Ensemble(Slope(jnp.arange(3.0 * size).reshape(size, 3)), {"seed": np.arange(size)})
    dataset = xr.Dataset({"status": ("member", np.asarray(["ok", "diverged", "stopped"])[:size])})
    return Run(members, dataset, {"mode": "map"}, Trajectory((), {}, None))


def test_members_have_a_status_each():
    found = run(3)
    assert found.size == 3
    assert found.status == ("ok", "diverged", "stopped")
    assert all(type(one) is str for one in found.status)
    assert found.member(2).w.tolist() == [6.0, 7.0, 8.0]


def test_the_predictor_of_a_run_is_that_of_its_only_member():
    assert run(1).predictor.w.tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(InputError, match=r"run: expected one member, got 3; choose one with run.member\(i\)"):
        _ = run(3).predictor
