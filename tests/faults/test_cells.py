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
    assert_same,
    cells,
    check_command,
    complaint,
    environment,
    finished_run,
    inside,
    leftovers,
    measured,
    results,
    run_command,
)

import icllab
import icllab as icl
from icllab.core.files import DamagedFile


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The Dataset of a run that nothing happens to."""
    return results(finished_run(tmp_path_factory.mktemp("undisturbed")))


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
    assert "5 of 5 cells failed, 0 are kept; the first, dim=2: rho: expected another" in complaint(err)
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
    icl.run(CLAIM, "small", out=out, claims=CLAIMS)
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
def test_a_damaged_cell_is_named_and_computed_again(damage, whole, capfd, undisturbed):
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
    assert_same(whole, undisturbed)
    assert leftovers(whole) == []


@pytest.mark.parametrize("foreign", ["another cell", "another configuration"])
def test_a_file_that_is_another_cells_is_named_and_computed_again(foreign, whole, tmp_path, capfd, undisturbed):
    path = whole / STORE / "cells" / "dim=8.nc"
    if foreign == "another cell":
        shutil.copy(path.with_name("dim=4.nc"), path)
    else:
        icl.run(CLAIM, "small", claims=CLAIMS, out=tmp_path / "other", axes={"rho": [0.9]})
        shutil.copy(tmp_path / "other" / STORE / "cells" / path.name, path)
    with pytest.raises(DamagedFile, match="dim=8"):
        icl.check(CLAIM, out=whole, claims=CLAIMS)
    status, out, _ = inside(capfd, check_command(whole, "--json"))
    assert status == 4
    assert str(path) in json.loads(out)["claims"][0]["error"]["message"]
    status, out, _ = inside(capfd, run_command(whole, "--json"))
    answer = json.loads(out)
    assert (status, answer["cells"]) == (0, {"computed": 1, "kept": 4})
    assert any(f"{path} was damaged, or another cell's" in note for note in answer["notes"])
    assert_same(whole, undisturbed)


def test_cells_without_their_configuration_are_not_taken_for_those_of_another(tmp_path, capfd):
    icl.run(CLAIM, "small", claims=CLAIMS, out=tmp_path, axes={"rho": [0.9]})
    (tmp_path / STORE / "configuration.json").unlink()
    before = cells(tmp_path)
    status, _, err = inside(capfd, run_command(tmp_path))
    assert status == 2
    assert "expected a configuration.json beside its cells, found none" in complaint(err)
    assert cells(tmp_path) == before
    assert not (tmp_path / STORE / "configuration.json").exists()


@pytest.mark.parametrize("content", ["{}", '{"static": 3}', "", "[1]"])
def test_a_damaged_grid_is_named_and_written_again(content, whole, capfd):
    (path,) = (whole / STORE / "grids").glob("*.json")
    path.write_text(content)
    status, out, err = inside(capfd, check_command(whole))
    assert status == 4
    assert path.name in out + err
    assert "mistake in icl" not in out + err
    assert inside(capfd, run_command(whole))[0] == 0
    assert inside(capfd, check_command(whole))[0] == 0


def test_cells_of_two_versions_are_told_of(tmp_path, capfd, monkeypatch):
    assert inside(capfd, run_command(tmp_path, "--shard", "1/2"))[0] == 0
    version = icllab.__version__
    monkeypatch.setattr(icllab, "__version__", "0.0.1")
    status, out, _ = inside(capfd, run_command(tmp_path, "--shard", "2/2", "--json"))
    notes = json.loads(out)["notes"]
    assert status == 0
    assert [note for note in notes if f"cells of 0.0.1 and {version} of icllab" in note]


def test_a_shard_is_told_of_the_cells_that_failed_in_another(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("STEADY_FAULT", "raise:8")
    parts = ("1/2", "2/2")
    ended = {part: inside(capfd, run_command(tmp_path, "--shard", part, "--json")) for part in parts}
    (good,) = (part for part in parts if ended[part][0] == 0)
    out = inside(capfd, run_command(tmp_path, "--shard", good, "--json"))[1]
    failure = tmp_path / STORE / "failures" / "dim=8.txt"
    assert any(
        f"1 of the missing cells have failed; of the first, {failure}" in note for note in json.loads(out)["notes"]
    )
    said = "".join(inside(capfd, check_command(tmp_path, "--json"))[1:])
    assert "dim=8.txt tells why" in said


def test_a_shard_that_was_refused_leaves_no_configuration(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("STEADY_FAULT", "refuse:0.25")
    assert inside(capfd, run_command(tmp_path, "--shard", "1/2", "--set", "rho=0.25"))[0] == 2
    assert inside(capfd, run_command(tmp_path, "--shard", "1/2"))[0] == 0


def test_a_shard_without_cells_says_so(tmp_path, capfd):
    out = inside(capfd, run_command(tmp_path, "--shard", "9/9", "--json"))[1]
    assert "shard 9 of 9 has no cells: there are 5" in json.loads(out)["notes"]


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
