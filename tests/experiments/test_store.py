"""Cells on disk: whole or not at all, sound or refused, and any netCDF reader opens them."""

import json
import os

import numpy as np
import pytest
import xarray as xr

from icllab.core.errors import EnvironmentFault, InputError
from icllab.core.files import DamagedFile
from icllab.core.grid import Grid
from icllab.experiments import store
from icllab.experiments.store import Store, read_dataset, write_dataset

CONFIGURATION = {"claim": "room/claim", "fixed": {"rho": 0.1}, "schema": 1}


@pytest.fixture
def dataset():
    return xr.Dataset(
        {
            "icl_error": (("dim", "seed"), np.array([[0.1, np.nan], [np.inf, -0.0]])),
            "converged": ("dim", [True, False]),
        },
        coords={"dim": [2, 4], "seed": [0, 1], "predictor": ("dim", ["ridge", "λ"])},
        attrs={"claim": "room/claim", "key": 0, "number": 0.1},
    )


def test_a_dataset_comes_back_bit_for_bit(tmp_path, dataset):
    write_dataset(tmp_path / "cell.nc", dataset)
    back = read_dataset(tmp_path / "cell.nc")
    xr.testing.assert_identical(back, dataset)
    assert back["icl_error"].values.tobytes() == dataset["icl_error"].values.tobytes()
    assert list(tmp_path.iterdir()) == [tmp_path / "cell.nc"]


def test_the_same_dataset_is_the_same_file(tmp_path, dataset):
    for name in ("one.nc", "two.nc"):
        write_dataset(tmp_path / name, dataset)
    assert (tmp_path / "one.nc").read_bytes() == (tmp_path / "two.nc").read_bytes()


def test_any_netcdf_reader_opens_it(tmp_path, dataset):
    import h5py

    write_dataset(tmp_path / "cell.nc", dataset)
    with h5py.File(tmp_path / "cell.nc") as file:
        assert file.userblock_size == 512
        np.testing.assert_array_equal(file["icl_error"], dataset["icl_error"])
    assert b"sha256" in (tmp_path / "cell.nc").read_bytes()[:512]


def test_every_flipped_bit_is_noticed(tmp_path, dataset):
    path = tmp_path / "cell.nc"
    write_dataset(path, dataset)
    sound = path.read_bytes()
    rng = np.random.default_rng(0)
    places = [0, 30, 511, 512, len(sound) - 1, *rng.integers(0, len(sound), 100).tolist()]
    for place in places:
        damaged = bytearray(sound)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        with pytest.raises(DamagedFile, match=r"cell\.nc: expected a file with the checksum"):
            read_dataset(path)
    for length in (0, 100, 512, len(sound) - 1):
        path.write_bytes(sound[:length])
        with pytest.raises(DamagedFile):
            read_dataset(path)


@pytest.mark.parametrize("failing", ["write", "fsync", "replace"])
def test_a_write_that_fails_leaves_what_was_there(failing, tmp_path, dataset, monkeypatch):
    path = tmp_path / "cell.nc"
    write_dataset(path, dataset)
    before = path.read_bytes()

    def refuse(*arguments):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        if failing == "write":
            patched.setattr(store.Path, "open", refuse)
        elif failing == "fsync":
            patched.setattr(os, "fsync", refuse)
        else:
            patched.setattr(store.Path, "replace", refuse)
        with pytest.raises(EnvironmentFault, match="No space left on device; every finished cell is kept"):
            write_dataset(path, dataset.isel(dim=[0]))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_is_flushed_before_it_takes_its_name_and_the_directory_after(tmp_path, dataset, monkeypatch):
    said = []
    fsync, replace = os.fsync, store.Path.replace
    monkeypatch.setattr(os, "fsync", lambda f: (said.append("directory" if os.path.isdir(f) else "file"), fsync(f)))
    monkeypatch.setattr(store.Path, "replace", lambda self, to: (said.append("name"), replace(self, to)))
    write_dataset(tmp_path / "cell.nc", dataset)
    assert said == ["file", "name", "directory"]


def test_a_store_holds_one_configuration(tmp_path):
    assert Store.open(tmp_path, CONFIGURATION).configuration() == CONFIGURATION
    Store.open(tmp_path, json.loads(json.dumps(CONFIGURATION)))
    other = {**CONFIGURATION, "fixed": {"rho": 0.2, "alpha": 1}, "schema": 2}
    with pytest.raises(InputError) as caught:
        Store.open(tmp_path, other)
    for difference in ("fixed.rho is 0.1 there and 0.2 here", "fixed.alpha is None there", "schema is 1 there and 2"):
        assert difference in str(caught.value)
    assert Store.existing(tmp_path).configuration() == CONFIGURATION
    with pytest.raises(InputError, match=r"expected a directory of results with a configuration\.json"):
        Store.existing(tmp_path / "cells")


def test_grids_that_were_asked_for_are_remembered_once(tmp_path):
    here = Store.open(tmp_path, CONFIGURATION)
    first = Grid(static={"dim": (2, 4)}, traced={"seed": (0, 1), "tau": (0.5,)})
    second = Grid(static={"dim": (8,)}, traced={"seed": (0,), "tau": (1.0,)})
    for grid in (first, second, first):
        here.request(grid)
    assert sorted(here.requested(), key=lambda g: g.static["dim"]) == [first, second]


def test_a_grid_that_is_withdrawn_was_never_asked_for(tmp_path):
    here = Store.open(tmp_path, CONFIGURATION)
    first, second = (Grid(static={"dim": (d,)}, traced={"seed": (0,)}) for d in (2, 4))
    for grid in (first, second):
        here.request(grid)
    here.withdraw(first)
    assert here.requested() == [second]
    assert here.configuration() == CONFIGURATION
    here.withdraw(second)
    Store.open(tmp_path, {**CONFIGURATION, "schema": 2})  # an empty one takes any configuration


@pytest.mark.parametrize(
    ("cell", "name"),
    [
        ({"dim": 4, "tau": 0.5}, "dim=4,tau=0.5.nc"),
        ({"tau": 0.5, "dim": 4}, "dim=4,tau=0.5.nc"),
        ({}, "single.nc"),
        ({"predictor": "a/b"}, None),
        ({"predictor": "../up"}, None),
        ({"predictor": "λ"}, None),
        ({"predictor": "x" * 300}, None),
    ],
)
def test_a_cell_has_a_name_that_any_file_system_takes(cell, name, tmp_path, dataset):
    here = Store.open(tmp_path, CONFIGURATION)
    path = here.path(cell)
    assert path.parent == tmp_path / "cells"
    assert name is None or path.name == name
    assert len(path.name) < 200
    assert here.read(cell) is None
    here.write(cell, dataset)
    xr.testing.assert_identical(here.read(cell), dataset)


def test_setting_aside_keeps_everything_under_a_new_name(tmp_path):
    root = tmp_path / "small"
    assert Store(root).set_aside() is None
    names = set()
    for i in range(3):
        Store.open(root, {**CONFIGURATION, "key": i})
        aside = Store(root).set_aside()
        assert Store.existing(aside).configuration()["key"] == i
        assert not root.exists()
        names.add(aside)
    assert len(names) == 3


def test_a_damaged_configuration_is_no_configuration(tmp_path):
    Store.open(tmp_path, CONFIGURATION)
    for text in ("", "[]", "{", "\x00"):
        (tmp_path / "configuration.json").write_text(text)
        with pytest.raises(DamagedFile, match=r"configuration\.json: expected a JSON object"):
            Store.open(tmp_path, CONFIGURATION)
