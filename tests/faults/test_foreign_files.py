"""Files from elsewhere are opened by a process that may die; they are refused in one line, with status 2."""

import fcntl
import os
import stat
import sys

import h5py
import numpy as np
import pytest
import xarray as xr
from faults.processes import CLAIM, CLAIMS, ICL, complaint, inside

import icllab as icl
from icllab.core.errors import InputError
from icllab.core.files import DamagedFile
from icllab.lab import foreign, records, registry
from icllab.lab.netcdf import from_bytes, netcdf_bytes, to_bytes


def results(**attributes):
    """What the figure of ``claims/steady`` needs."""
    return xr.Dataset(
        {"icl_error": (("dim", "ridge", "seed"), np.ones((2, 1, 3))), "icl_theory": ("dim", np.ones(2))},
        coords={"dim": [2, 4], "ridge": [0.0], "seed": [0, 1, 2]},
        attrs={"claim": CLAIM, **attributes},
    )


@pytest.fixture
def draw(capfd):
    """``icl draw``; whatever happens to the file happens in the child."""
    return lambda path, *more: inside(capfd, [*ICL, "draw", str(path), "--claims", str(CLAIMS), *more])


def test_a_good_file_is_drawn(tmp_path, draw):
    path = tmp_path / "theirs.nc"
    results(note="by another hand").to_netcdf(path, engine="h5netcdf")
    status, _, err = draw(path, "--to", str(tmp_path / "theirs" / "figure.png"))
    assert status == 0, err
    assert (tmp_path / "theirs" / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "theirs" / "figure.pdf").read_bytes().startswith(b"%PDF")


def test_what_is_read_is_what_was_written(tmp_path):
    """Also through our own checksummed files, which are netCDF with a text block in front."""
    written = results(integer=3, number=0.1, text="λ").assign_coords(predictor=("dim", ["ridge", "dMMSE"]))
    written["icl_error"][0, 0, 0] = np.nan
    written.to_netcdf(tmp_path / "theirs.nc", engine="h5netcdf")
    (tmp_path / "ours.nc").write_bytes(to_bytes(written))
    for name in ("theirs.nc", "ours.nc"):
        read = foreign.read_foreign(tmp_path / name)
        xr.testing.assert_identical(read.drop_attrs(), written.drop_attrs())
        assert read.attrs == written.attrs
    xr.testing.assert_identical(from_bytes((tmp_path / "ours.nc").read_bytes(), "ours"), written)


@pytest.mark.parametrize("content", [b"", b"\x89HDF\r\n\x1a\n" + bytes(2000), os.urandom(5000)], ids=len)
def test_garbage(content, tmp_path, draw):
    path = tmp_path / "garbage.nc"
    path.write_bytes(content)
    status, _, err = draw(path)
    assert status == 2
    assert f"{path}: expected a netCDF file of results" in complaint(err)
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        (results().drop_attrs(), "expected results of a claim (an attribute 'claim'), got []"),
        (results(claim="claims/stedy"), "unknown claim 'claims/stedy'; did you mean 'claims/steady'?"),
        (results().rename(dim="dims"), "unknown axis 'dims'; did you mean 'dim'?"),
        (results().drop_vars("icl_error"), "expected all that the figure of claims/steady needs"),
    ],
    ids=["no claim", "unknown claim", "unknown axis", "no variable"],
)
def test_files_that_say_something_else(dataset, said, tmp_path, draw, monkeypatch):
    monkeypatch.setattr(
        foreign, "_child_output", lambda path, group: foreign._answer(str(path), group)
    )  # in this process
    path = tmp_path / "other.nc"
    dataset.to_netcdf(path, engine="h5netcdf")
    status, _, err = draw(path)
    assert status == 2
    assert said in complaint(err)


def test_a_small_file_that_declares_terabytes(tmp_path):
    path = tmp_path / "large.nc"
    with h5py.File(path, "w") as file:
        file.create_dataset("icl_error", shape=(1 << 40,), chunks=(1 << 10,), dtype="f8")
    with pytest.raises(InputError, match="bytes of arrays, where"):
        foreign.read_foreign(path)


def test_a_flipped_bit_in_a_file_of_ours(tmp_path):
    path = tmp_path / "ours.nc"
    path.write_bytes(to_bytes(results()))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedFile, match="checksum"):
        foreign.read_foreign(path)


def test_a_disk_that_refuses_locks_is_read(tmp_path):
    """A lock of another descriptor stands for it: HDF5 fails to take its own. Files of icl are opened without one."""
    path, record = tmp_path / "a.nc", records.record_file(registry.claims()["asymptotics/double_descent"])
    dataset = xr.Dataset({"v": ("i", [1.0, 2.0])})
    path.write_bytes(netcdf_bytes(dataset))
    with path.open("r+b") as file, record.with_suffix(".nc").open("rb") as other:
        for locked in (file, other):
            fcntl.flock(locked, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="unable to lock file"):
            h5py.File(path)
        xr.testing.assert_identical(foreign.read_foreign(path), dataset)
        assert icl.recorded("asymptotics/double_descent").sizes


def test_what_is_no_regular_file_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.nc")
    for name in ("pipe.nc", "nothing.nc"):
        with pytest.raises(InputError, match="expected a directory of results or a"):
            foreign.read_foreign(tmp_path / name)


def stand_in(monkeypatch, tmp_path, script):
    """Another program in the child's place."""
    program = tmp_path / "stand-in"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(program))
    path = tmp_path / "file.nc"
    path.write_bytes(b"HDF5, of a kind")
    return path


def test_a_reader_that_crashes_is_one_line(monkeypatch, tmp_path):
    path = stand_in(monkeypatch, tmp_path, "kill -SEGV $$")
    with pytest.raises(InputError, match=r"got a file that kills its reader \(signal 11\)"):
        foreign.read_foreign(path)


def test_a_reader_that_hangs_is_stopped(monkeypatch, tmp_path):
    path = stand_in(monkeypatch, tmp_path, "exec sleep 60")
    monkeypatch.setattr(foreign, "SECONDS", 0.2)
    with pytest.raises(InputError, match=r"opens in 0\.2 s, this one does not"):
        foreign.read_foreign(path)


@pytest.mark.parametrize("answer", ["", "{}", "[]", '{"dims": {"x": []}, "coords": [], "attrs": {}}', "not JSON"])
def test_a_reader_that_lies_is_not_believed(answer, monkeypatch, tmp_path):
    path = stand_in(monkeypatch, tmp_path, f"echo '{answer}'")
    with pytest.raises(InputError, match="expected arrays with named axes"):
        foreign.read_foreign(path)
