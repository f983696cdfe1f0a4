"""Disks that refuse while training: the reason in one line, the last checkpoint kept."""

import resource
import signal

import jax
import optax
import pytest
from training.predictors import prompts, slope, task

import icllab as icl
from icllab.core.errors import EnvironmentFault
from icllab.training import Sweep

ADAM = optax.adam(1e-2)


def trained(store, steps):
    start = icl.ensemble(slope, seeds=2, key=jax.random.key(0))
    return icl.fit(
        start,
        task(),
        steps=steps,
        key=jax.random.key(1),
        batch=4,
        data=prompts(40),
        optimizer=ADAM,
        sweep=Sweep(mode="map"),
        store=store,
    )


@pytest.fixture
def no_room():
    """No file may grow past a kilobyte: what a full disk looks like from inside."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))

    def mend():
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    yield fill, mend
    mend()
    signal.signal(signal.SIGXFSZ, handler)


def test_a_disk_that_fills_up(tmp_path, no_room):
    fill, mend = no_room
    trained(tmp_path, 10)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    fill()
    try:
        with pytest.raises(EnvironmentFault) as caught:
            trained(tmp_path, 20)
    finally:
        mend()
    assert "File too large; the last checkpoint is kept, repair the directory and run again to continue" in str(
        caught.value
    )
    assert "\n" not in str(caught.value)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    run = trained(tmp_path, 20)
    assert run.header["resumed_at"] == 10
    assert run.dataset.equals(trained(None, 20).dataset)


def test_a_store_below_a_regular_file(tmp_path):
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(EnvironmentFault, match="for checkpoints: Not a directory; nothing is lost"):
        trained(tmp_path / "file" / "run", 5)
