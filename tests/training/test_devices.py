"""On several devices a run is that on one: the same prompts, updates to rounding, one store."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import optax
import pytest
from training.predictors import slope, task

import icllab as icl
from icllab.core.errors import InputError
from icllab.training import split_processor

ADAM = optax.adam(0.1)


def found(*arguments):
    """What a process of eight devices found."""
    here = Path(__file__)
    paths = os.pathsep.join([str(here.parent), *sys.path])
    done = subprocess.run(
        [sys.executable, here.with_name("eight_devices.py"), *arguments],
        env={**os.environ, "PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def eight(tmp_path_factory):
    """What a process found, and the store it left."""
    store = tmp_path_factory.mktemp("eight") / "store"
    return found(store) | {"store": store}


def require_same_steps(batches):
    for name, (arrays, losses) in batches.items():
        assert arrays < 1e-6, name
        assert losses < 1e-5, name


def require_same_members(members):
    """Six over four devices; in the same mode sums are taken in the same order."""
    assert members["arrays"] < 1e-5
    assert members["losses"] < 1e-4
    assert members["division"] == {"devices": 4, "along": "member"}
    assert members["seeds"] == [0, 0, 1, 1, 2, 2]
    assert members["devices"] == 1


def test_one_step_on_eight_devices_is_that_on_one(eight):
    """The mean gradient of eight parts of a batch is that of the batch."""
    assert list(eight["batches"]) == ["fresh", "epochs"]
    require_same_steps(eight["batches"])


def test_members_are_dealt_out_and_each_is_what_it_was(eight):
    require_same_members(eight["members"])


@pytest.mark.slow
def test_other_sources_of_prompts_and_members_side_by_side_are_divided_too():
    more = found()
    assert list(more["batches"]) == ["reused", "full", "drawn at once"]
    require_same_steps(more["batches"])
    require_same_members(more["members"])


def test_members_that_diverge_do_so_at_the_same_step(eight):
    ended = eight["ended"]
    assert ended["status"]
    assert ended["ended"]
    assert ended["statuses"] == ["diverged", "ok"]
    assert max(ended["apart"]) < 1e-5


def test_a_run_that_was_cut_keeps_its_devices_and_its_bits(eight):
    resumed = eight["resumed"]
    assert resumed["apart"] == [0.0, 0.0]
    assert resumed["kept"] == 0.0
    assert resumed["division"] == resumed["loaded"] == {"devices": 2, "along": "batch"}
    assert resumed["resumed_at"] == 4
    assert resumed["held_out"] < 1e-5
    (said,), division = resumed["undivided"]
    assert said.endswith("the run began on 2 devices, and goes on with 1: not with the same bits")
    assert division is None


def test_devices_that_do_not_fit_are_refused(eight):
    assert eight["batch"] == "devices: expected a divisor of the batch, 12, got 8; try 6"
    assert eight["few"] == "devices: expected at most 2, the number of members, got 4"
    with pytest.raises(InputError, match=r"devices: expected at most 1, .* got 2; training.split_processor\(\)"):
        icl.fit(slope(key=jax.random.key(0)), task(), devices=2, steps=1, key=jax.random.key(1))
    with pytest.raises(InputError, match="devices: expected an integer of at least 1, got 0"):
        icl.fit(slope(key=jax.random.key(0)), task(), devices=0, steps=1, key=jax.random.key(1))


@pytest.mark.filterwarnings("ignore:.*written elsewhere")
def test_a_run_on_more_devices_than_there_are_goes_on_where_another_number_is_asked_for(eight):
    start, store = slope(key=jax.random.key(0)), f"{eight['store']}-again"
    how = {"key": jax.random.key(1), "batch": 16, "optimizer": ADAM, "store": store}
    with pytest.raises(InputError, match=r"devices: expected at most 1, .* got 4; training.split_processor\(\)"):
        icl.fit(start, task(), steps=40, devices=4, **how)
    with pytest.warns(UserWarning, match="the run began on 4 devices, and goes on with 1"):
        header = icl.fit(start, task(), steps=24, **how).header
    assert (header["resumed_at"], header["division"]) == (20, None)


def test_devices_are_made_before_jax_is_used():
    jax.devices()
    with pytest.raises(InputError, match="expected to be called before JAX is first used, got 1 device in use and 3"):
        split_processor(3)
