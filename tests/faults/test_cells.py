"""Cells that fail leave the others to finish; files that are damaged are noticed, named and computed again."""

import json
import shutil
import subprocess

import pytest
from faults.processes import (
    CLAIM,
    CLAIMS,
    DIMS,
    STORE,
    cells,
    check_command,
    complaint,
    environment,
    inside,
    measured,
    run_command,
)

import icllab as icl


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("raise:4", "the first, dim=4: RuntimeError: no such luck, said on two lines"),
        ("shape:4", "got 'icl_error' with axes ('seed', 'ridge') and shape (5, 1)"),
    ],
)
def test_a_cell_that_fails_leaves_the_others_to_go_on(fault, said, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("STEADY_FAULT", fault)
    monkeypatch.setenv("STEADY_LOG", str(tmp_path / "log"))
    status, _, err = inside(capfd, run_command(tmp_path))
    assert status == 4
    assert "1 of 5 cells failed, 4 are kept" in complaint(err)
    assert said in complaint(err)
    assert set(cells(tmp_path)) == set(DIMS) - {4}
    assert [dim for dim, _ in measured(tmp_path / "log")].count(4) == 3  # tried again twice
    (failure,) = (tmp_path / STORE / "failures").iterdir()
    assert str(failure) in complaint(err)
    assert "Traceback" in failure.read_text()
    assert "cell: dim=4" in failure.read_text()


def test_input_that_is_refused_is_not_tried_again(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("STEADY_FAULT", "refuse:0.25")
    monkeypatch.setenv("STEADY_LOG", str(tmp_path / "log"))
    status, _, err = inside(capfd, run_command(tmp_path, "--set", "rho=0.25"))
    assert status == 2
    assert "5 of 5 cells failed, 0 are kept; the first, dim=2: InputError: rho: expected another" in complaint(err)
    assert sorted(dim for dim, _ in measured(tmp_path / "log")) == sorted(DIMS)
    assert not (tmp_path / STORE / "failures").exists()


def test_so_it_is_with_workers_and_debug_shows_where(tmp_path):
    command = run_command(tmp_path, "--debug", "--workers", "2")
    done = subprocess.run(command, capture_output=True, text=True, env=environment(STEADY_FAULT="raise:4"))
    assert done.returncode == 4
    assert "1 of 5 cells failed, 4 are kept" in complaint(done.stderr)
    assert 'raise RuntimeError("no such luck' in done.stderr
    assert set(cells(tmp_path)) == set(DIMS) - {4}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished store."""
    out = tmp_path_factory.mktemp("finished")
    icl.run(CLAIM, "smoke", out=out, claims=CLAIMS)
    return out


@pytest.fixture
def whole(finished, tmp_path, monkeypatch):
    """A finished store of one's own, and a log of what is measured from now on."""
    monkeypatch.setenv("STEADY_LOG", str(tmp_path / "log"))
    return shutil.copytree(finished, tmp_path, dirs_exist_ok=True)


def flipped(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize("damage", [flipped, lambda c: c[:-100], lambda c: c[:100], lambda c: b""])
def test_a_damaged_cell_is_named_and_computed_again(damage, whole, capfd):
    path = whole / STORE / "cells" / "dim=8.nc"
    before = cells(whole)
    path.write_bytes(damage(path.read_bytes()))

    status, out, _ = inside(capfd, check_command(whole, "--json"))
    (answer,) = json.loads(out)["claims"]
    assert status == 4
    assert str(path) in answer["error"]["message"]
    assert answer["error"]["kind"] == "environment"

    status, out, _ = inside(capfd, run_command(whole, "--json"))
    answer = json.loads(out)
    assert status == 0
    assert [dim for dim, _ in measured(whole / "log")] == [8]
    assert answer["cells"] == {"computed": 1, "kept": 4}
    assert any(f"{path} was damaged" in note for note in answer["notes"])
    after = cells(whole)
    assert {d: after[d] for d in DIMS if d != 8} == {d: before[d] for d in DIMS if d != 8}


def test_hdf5_does_not_notice_a_flipped_bit(whole):
    """Why a checksum: HDF5 returns a number with a flipped bit without a word."""
    import io

    import h5py

    payload = (whole / STORE / "cells" / "dim=8.nc").read_bytes()[512:]
    with h5py.File(io.BytesIO(payload)) as file:
        where, size = file["icl_error"].id.get_offset(), file["icl_error"].id.get_storage_size()
        sound = file["icl_error"][()]
    content = bytearray(payload)
    content[where + size // 2] ^= 1
    with h5py.File(io.BytesIO(bytes(content))) as file:
        assert (file["icl_error"][()] != sound).sum() == 1


def test_a_damaged_configuration_is_named(tmp_path, capfd):
    store = tmp_path / STORE
    (store / "cells").mkdir(parents=True)
    (store / "configuration.json").write_text('{"claim": ')
    for command in (check_command(tmp_path), run_command(tmp_path)):
        status, out, err = inside(capfd, command)
        assert status == 4
        assert str(store / "configuration.json") in out + err
