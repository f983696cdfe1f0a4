"""Cells on disk are whole or not at all, sound or refused; they become one Dataset in whatever order."""

import json
import os

import numpy as np
import pytest
import xarray as xr

from icllab.core import files
from icllab.core.axes import Quantity
from icllab.core.errors import CellsMissing, EnvironmentFault, IclError, InputError
from icllab.core.files import DamagedFile, write_atomically
from icllab.core.grid import Grid
from icllab.lab import results
from icllab.lab.claim import Claim, Control
from icllab.lab.judging import predicted
from icllab.lab.netcdf import to_bytes
from icllab.lab.results import Store, assemble, cell_dataset

CONFIGURATION = {"claim": "room/claim", "version": 1, "fixed": {"rho": 0.1}, "schema": 1}
CLAIM = Claim(
    sentence="All is well.",
    sources=(),
    quantities=("icl_error", "prompts", "loss", Quantity("mood", "m", "mood")),
    static=("dim",),
    sizes={},
    controls={"other": Control("another world", measure={"level": 2.0})},
    check=lambda dataset: [],
    figure=lambda dataset: None,
    name="room/claim",
)


@pytest.mark.parametrize("failing", ["write", "fsync", "replace"])
def test_a_write_that_fails_leaves_what_was_there(failing, tmp_path, monkeypatch):
    path = tmp_path / "cell.nc"
    write_atomically(path, b"before")

    def refuse(*arguments):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        if failing == "write":
            patched.setattr(files.Path, "open", refuse)
        elif failing == "fsync":
            patched.setattr(os, "fsync", refuse)
        else:
            patched.setattr(files.Path, "replace", refuse)
        with pytest.raises(EnvironmentFault, match="No space left on device; every finished cell is kept"):
            write_atomically(path, b"after")
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_is_flushed_before_it_takes_its_name_and_the_directory_after(tmp_path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, files.Path.replace
    monkeypatch.setattr(os, "fsync", lambda f: (calls.append("directory" if os.path.isdir(f) else "file"), fsync(f)))
    monkeypatch.setattr(files.Path, "replace", lambda self, to: (calls.append("name"), replace(self, to)))
    write_atomically(tmp_path / "cell.nc", b"content")
    assert calls == ["file", "name", "directory"]


def test_a_store_holds_one_configuration(tmp_path):
    assert Store.open(tmp_path, CONFIGURATION).configuration() == CONFIGURATION
    Store.open(tmp_path, json.loads(json.dumps(CONFIGURATION)))
    with pytest.raises(InputError) as caught:
        Store.open(tmp_path, {**CONFIGURATION, "version": 2, "fixed": {"rho": 0.2, "alpha": 1}, "schema": 2})
    for difference in ("fixed.rho is 0.1 there and 0.2 here", "fixed.alpha is None there", "version is 1 there and 2"):
        assert difference in str(caught.value)
    assert Store.existing(tmp_path).configuration() == CONFIGURATION
    with pytest.raises(InputError, match=r"expected a directory of results with a configuration\.json"):
        Store.existing(tmp_path / "cells")


def test_requests_are_remembered_once_and_may_be_withdrawn(tmp_path):
    store = Store.open(tmp_path, CONFIGURATION)
    first = Grid(static={"dim": (2, 4)}, traced={"seed": (0, 1), "tau": (0.5,)})
    second = Grid(static={"dim": (8,)}, traced={"seed": (0,), "tau": (1.0,)})
    for grid in (first, second, first):
        store.request(grid)
    assert sorted(store.requests(), key=lambda grid: grid.static["dim"]) == [first, second]
    store.withdraw(first)
    assert store.requests() == [second]
    assert store.configuration() == CONFIGURATION
    store.withdraw(second)
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
    store = Store.open(tmp_path, CONFIGURATION)
    path = store.path(cell)
    assert path.parent == tmp_path / "cells"
    assert name is None or path.name == name
    assert len(path.name) < 200
    assert store.read(cell) is None
    store.put(cell, to_bytes(dataset))
    xr.testing.assert_identical(store.read(cell), dataset)


def test_setting_aside_keeps_everything_under_a_new_name(tmp_path):
    root = tmp_path / "small"
    assert Store(root).set_aside() is None
    names = set()
    for i in range(3):
        Store.open(root, {**CONFIGURATION, "key": i})
        path = Store(root).set_aside()
        assert Store.existing(path).configuration()["key"] == i
        assert not root.exists()
        names.add(path)
    assert len(names) == 3


def test_a_damaged_configuration_is_no_configuration(tmp_path):
    Store.open(tmp_path, CONFIGURATION)
    for text in ("", "[]", "{", "\x00"):
        (tmp_path / "configuration.json").write_text(text)
        with pytest.raises(DamagedFile, match=r"configuration\.json: expected a JSON object"):
            Store.open(tmp_path, CONFIGURATION)


def value(dim, tau, seed):
    """A number that tells where it belongs."""
    return dim + 10.0 * tau + 1000.0 * seed


def block(dim, taus, seeds, **attributes):
    """What a measurement at ``dim`` returns."""
    values = [[value(dim, t, s) for t in taus] for s in seeds]
    quantities = {"icl_error": (("seed", "tau"), values), "prompts": (("tau",), list(taus))}
    return cell_dataset(CLAIM, quantities, {"tau": taus, "seed": seeds}, attributes)


@pytest.mark.parametrize(
    "quantities",
    [
        {"icl_error": (("seed",), [1.0, 2.0])},
        {"icl_error": (("seed", "tau"), [1.0, 2.0, 3.0])},
        {"icl_error": (("dim",), [1.0, 2.0, 3.0])},
        {"icl_error": ((), [1.0])},
    ],
)
def test_a_shape_that_does_not_fit_is_refused(quantities):
    with pytest.raises(IclError, match="measure: expected values over traced axes"):
        cell_dataset(CLAIM, quantities, {"seed": (0, 1, 2), "tau": (1.0,)}, {})


@pytest.mark.parametrize(
    ("requested", "measured"),
    [
        ({"tau": (0.5, 1), "seed": (0, 1)}, None),
        ({"tau": (1,), "seed": (0,)}, None),
        ({"tau": (0.5, 1), "seed": (0, 1, 2)}, {"tau": (0.5, 1), "seed": (0, 1, 2)}),
        ({"tau": (2,), "seed": (0,)}, {"tau": (0.5, 1, 2), "seed": (0, 1)}),
    ],
)
def test_what_a_cell_lacks_is_measured_with_what_it_has(requested, measured, tmp_path):
    store = Store.open(tmp_path, CONFIGURATION)
    assert store.block_to_measure({"dim": 2}, requested) == requested
    store.put({"dim": 2}, to_bytes(block(2, (0.5, 1), (0, 1))))
    assert store.block_to_measure({"dim": 2}, requested) == measured


GRIDS = [
    Grid(static={"dim": (4, 2)}, traced={"tau": (1.0, 0.5), "seed": (0, 1)}),
    Grid(static={"dim": (8,)}, traced={"tau": (2.0,), "seed": (1, 2)}),
]
CELLS = [
    ({"dim": 2}, block(2, (0.5, 1), (0, 1, 2), key=0, seconds=1.0, created="b")),  # more seeds than requested
    ({"dim": 4}, block(4, (1, 0.5), (1, 0), key=0, seconds=2.0, created="a")),
    ({"dim": 8}, block(8, (2,), (2, 1), key=1, seconds=0.5, created="a")),
]


@pytest.mark.parametrize("order", [1, -1])
def test_every_number_is_where_its_coordinates_say(order):
    whole = assemble(CLAIM, GRIDS[::order], CELLS[::order])
    assert {name: c.values.tolist() for name, c in whole.coords.items()} == {
        "dim": [2, 4, 8],
        "tau": [0.5, 1, 2],
        "seed": [0, 1, 2],
    }
    for cell, held in CELLS:
        for tau in (0.5, 1, 2):
            for seed in (0, 1, 2):
                number = float(whole["icl_error"].sel(tau=tau, seed=seed, **cell))
                if tau in held["tau"] and seed in held["seed"]:
                    assert number == value(cell["dim"], tau, seed)
                else:
                    assert np.isnan(number)
    assert json.loads(whole.attrs["names"]) == {"mood": ["m", "mood", ""]}
    assert (whole.attrs["seconds"], whole.attrs["created"], whole.attrs["key"]) == (3.5, "b", '["0", "1"]')
    whole = predicted(CLAIM, whole)
    assert whole["icl_error"].attrs["meaning"] == "error on fresh tasks"
    assert whole["dim"].attrs == {"symbol": "d", "meaning": "token dimension", "unit": ""}


def test_cells_whose_axes_come_in_another_order_are_assembled_alike():
    """A measurement may turn its axes from one cell to the next; two values on each axis, so that shapes agree."""
    grid = Grid(static={"dim": (2, 4)}, traced={"tau": (0.5, 1.0), "seed": (0, 1)})
    rows = {dim: np.array([[value(dim, t, s) for t in (0.5, 1.0)] for s in (0, 1)]) for dim in (2, 4)}
    axes = {"tau": (0.5, 1.0), "seed": (0, 1)}
    cells = [
        ({"dim": 2}, cell_dataset(CLAIM, {"icl_error": (("seed", "tau"), rows[2])}, axes, {})),
        ({"dim": 4}, cell_dataset(CLAIM, {"icl_error": (("tau", "seed"), rows[4].T)}, axes, {})),
    ]
    for order in (1, -1):
        errors = assemble(CLAIM, [grid], cells[::order])["icl_error"]
        for dim in (2, 4):
            turned = errors.sel(dim=dim).transpose("seed", "tau")
            np.testing.assert_array_equal(turned, rows[dim])


def test_values_that_were_not_requested_stay_out():
    grid = Grid(static={"dim": (2,)}, traced={"tau": (1.0,), "seed": (0,)})
    whole = assemble(CLAIM, [grid], CELLS[:1])
    assert whole["icl_error"].shape == (1, 1, 1)
    assert whole["icl_error"].item() == value(2, 1, 0)


def test_scalars_and_names_assemble_too():
    quantities = {"loss": ((), 3.0), "icl_error": (("predictor",), [1.0, 2.0])}
    cell = cell_dataset(CLAIM, quantities, {"predictor": ("b", "a")}, {})
    grid = Grid(static={"dim": (7,)}, traced={"predictor": ("a", "b")})
    whole = assemble(CLAIM, [grid], [({"dim": 7}, cell)])
    assert whole["loss"].values.tolist() == [3.0]
    assert whole["icl_error"].sel(dim=7, predictor="a") == 2.0


def test_blocks_of_seeds_come_together(tmp_path):
    grid = Grid(static={"dim": (2, 4)}, traced={"tau": (0.5, 1), "seed": (0, 1, 2)}, block=2)
    store = Store.open(tmp_path, CONFIGURATION)
    for cell in grid.cells():
        store.put(cell, to_bytes(block(cell["dim"], (0.5, 1), grid.inside(cell)["seed"])))
    whole = store.collect(CLAIM, [grid])
    for dim, tau, seed in whole["icl_error"].stack(at=("dim", "tau", "seed")).at.values:
        assert whole["icl_error"].sel(dim=dim, tau=tau, seed=seed) == value(dim, tau, seed)
    store.path({"dim": 4, "block": 1}).unlink()
    message = r"room/claim: expected 4 cells, 1 are missing \(the first: dim=4, block=1\)"
    with pytest.raises(CellsMissing, match=message):
        store.collect(CLAIM, [grid])


def test_a_cell_that_lacks_a_requested_value_is_missing(tmp_path):
    store = Store.open(tmp_path, CONFIGURATION)
    store.put({"dim": 2}, to_bytes(block(2, (0.5, 1), (0, 1))))
    store.collect(CLAIM, [Grid(static={"dim": (2,)}, traced={"tau": (1,), "seed": (0,)})])
    with pytest.raises(CellsMissing, match="expected 1 cells, 1 are missing"):
        store.collect(CLAIM, [Grid(static={"dim": (2,)}, traced={"tau": (1,), "seed": (0, 3)})])


def test_fixed_values_come_from_the_configuration():
    dataset = xr.Dataset(attrs={"configuration": json.dumps({"fixed": {"rho": 0.5}})})
    assert results.fixed_values(dataset) == {"rho": 0.5}


def test_only_names_of_the_claim_are_measured_and_described():
    with pytest.raises(InputError, match="unknown quantity of the claim 'icl_eror'; did you mean 'icl_error'"):
        cell_dataset(CLAIM, {"icl_eror": (("seed",), [1.0])}, {"seed": (0,)}, {})
    with pytest.raises(InputError, match="unknown quantity of the claim 'error'"):
        predicted(CLAIM, xr.Dataset({"error": ("dim", [1.0])}))
    ours = predicted(CLAIM, xr.Dataset({"mood_error": ("dim", [1.0])}, {"dim": [2]}))
    assert ours["mood_error"].attrs["symbol"] == r"\mathrm{SE}(m)"
