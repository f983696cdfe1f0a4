"""Cells that fail leave the others to finish; files that are damaged are noticed, named and computed again."""

import json
import shutil

import pytest
from faults.processes import (
    CLAIM,
    CLAIMS,
    DIMS,
    ICL,
    STORE,
    assert_same,
    cells,
    check_command,
    complaint,
    inside,
    leftovers,
    measured,
    run_command,
)

import icllab
import icllab as icl
from icllab.core.files import DamagedFile


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
    monkeypatch.delenv("STEADY_FAULT")
    assert inside(capfd, run_command(tmp_path))[0] == 0
    assert [dim for dim, _ in measured(tmp_path / "log")].count(4) == 4
    assert not failure.parent.exists()


def test_debug_shows_where_a_worker_failed(tmp_path, capfd, monkeypatch):
    from icllab.cli import main

    monkeypatch.setenv("STEADY_FAULT", "raise:4")
    monkeypatch.setenv("ICL_DEBUG", "1")  # as --debug does
    assert main(run_command(tmp_path, "--workers", "2", "--set", "dim=4")[len(ICL) :]) == 4
    err = capfd.readouterr().err
    assert "1 of 1 cells failed, 0 are kept" in complaint(err)
    assert 'raise RuntimeError("no such luck' in err


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


def test_damaged_cells_are_named_and_computed_again(whole, tmp_path, capfd, undisturbed):
    """Flipped, cut and empty files, another cell's, and one of another configuration."""
    paths = {dim: whole / STORE / "cells" / f"dim={dim}.nc" for dim in DIMS}
    icl.run(CLAIM, "small", claims=CLAIMS, out=tmp_path / "other", axes={"rho": [0.9], "dim": [16]})
    foreign = {4: paths[32], 16: tmp_path / "other" / STORE / "cells" / "dim=16.nc"}
    damages = {2: flipped, 8: lambda content: content[:-100]}
    before, computed = cells(whole), len(measured(whole / "log"))
    for dims in ({2, 4}, {8, 16}):
        for dim in dims:
            content = paths[dim].read_bytes()
            paths[dim].write_bytes(foreign[dim].read_bytes() if dim in foreign else damages[dim](content))
        status, out, _ = inside(capfd, check_command(whole, "--json"))
        (answer,) = json.loads(out)["claims"]
        assert (status, answer["error"]["kind"]) == (4, "environment")
        assert str(paths[min(dims)]) in answer["error"]["message"]
        status, out, _ = inside(capfd, run_command(whole, "--json"))
        answer = json.loads(out)
        assert (status, answer["cells"]) == (0, {"computed": 2, "kept": 3})
        assert sorted(dim for dim, _ in measured(whole / "log")[computed:]) == sorted(dims)
        computed = len(measured(whole / "log"))
        for dim in dims:
            assert any(f"{paths[dim]} was damaged, or another cell's" in note for note in answer["notes"])
    after = cells(whole)
    assert after[32] == before[32]
    assert_same(whole, undisturbed)
    assert leftovers(whole) == []


@pytest.mark.parametrize("cut", [100, 0])
def test_a_file_that_is_cut_short_is_refused(cut, whole):
    path = whole / STORE / "cells" / "dim=8.nc"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DamagedFile, match="dim=8"):
        icl.check(CLAIM, out=whole, claims=CLAIMS)


def test_cells_without_their_configuration_are_not_taken_for_those_of_another(tmp_path, capfd):
    icl.run(CLAIM, "small", claims=CLAIMS, out=tmp_path, axes={"rho": [0.9]})
    (tmp_path / STORE / "configuration.json").unlink()
    before = cells(tmp_path)
    status, _, err = inside(capfd, run_command(tmp_path))
    assert status == 2
    assert "expected a configuration.json beside its cells, found none" in complaint(err)
    assert cells(tmp_path) == before
    assert not (tmp_path / STORE / "configuration.json").exists()


def test_a_damaged_grid_is_named_and_written_again(whole, capfd):
    (path,) = (whole / STORE / "grids").glob("*.json")
    for content in ("{}", '{"static": 3}', "", "[1]"):
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
