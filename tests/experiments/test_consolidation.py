"""One file stands for many cells exactly as long as they are what it was made of."""

import itertools

import numpy as np
import pytest
import xarray as xr

from icllab.core.errors import EnvironmentFault
from icllab.core.files import DamagedFile
from icllab.core.grid import Grid
from icllab.experiments import consolidation, stacks
from icllab.experiments.consolidation import FILE, held, unfinished
from icllab.experiments.results import missing_part
from icllab.experiments.store import Store

RNG = np.random.default_rng(0)
CONFIGURATION = {"claim": "room/claim"}
GRID = Grid(static={"dim": (2, 4, 8), "length": (1, 3)}, traced={"seed": (0, 1, 2), "predictor": ("ridge", "λ")})


def cell_of(traced, **attributes):
    values = RNG.normal(size=[len(values) for values in traced.values()])
    values[0] = np.nan
    variables = {"loss": (tuple(traced), values), "steps": ("seed", list(traced["seed"]))}
    return xr.Dataset(variables, {name: list(some) for name, some in traced.items()}, attributes)


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A store with six cells, and no consolidated file yet."""
    monkeypatch.setattr(consolidation, "LEAST", 2)
    made = Store.open(tmp_path / "store", CONFIGURATION)
    for i, cell in enumerate(GRID.cells()):
        made.write(cell, cell_of(GRID.traced, key=0, seconds=0.1 * i, created=f"2026-01-0{i + 1}", device="xy"[i % 2]))
    return made


def everything(store, found, grids=(GRID,)):
    """All numbers, axes and attributes, to the bit."""

    def name(cell):
        return store.path(cell).name

    variables, axes = stacks.assembled(found.stacks, grids, name)
    bits = {variable: (dims, values.shape, values.tobytes()) for variable, (dims, values) in variables.items()}
    return bits, axes, stacks.shared_attributes(found.stacks, grids, name)


def reads(monkeypatch):
    """The cells that are read from their own files from now on."""
    read, seen = Store.read, []
    monkeypatch.setattr(Store, "read", lambda self, cell: (seen.append(cell), read(self, cell))[1])
    return seen


def test_what_is_read_from_it_is_what_the_cells_hold(store, monkeypatch):
    one_by_one = held(store, [GRID], keep=False)
    assert not (store.root / FILE).exists()
    kept = held(store, [GRID], keep=True)
    files = sorted(path.name for path in store.root.iterdir() if path.is_file() and path.name != ".lock")
    assert files == [FILE, "configuration.json"]
    seen = reads(monkeypatch)
    consolidated = held(store, [GRID], keep=False)
    assert seen == []
    assert (consolidated.missing, consolidated.wanted) == ([], 6)
    assert everything(store, one_by_one) == everything(store, kept) == everything(store, consolidated)


def test_a_cell_that_changed_is_read_from_its_own_file(store, monkeypatch):
    held(store, [GRID], keep=True)
    cell = {"dim": 4, "length": 3}
    new = cell_of({**GRID.traced, "seed": (0, 1, 2, 3)}, key=0, seconds=1.0, created="2026-02-01", device="x")
    store.write(cell, new)
    seen = reads(monkeypatch)
    for keep in (False, True):
        found = held(store, [GRID], keep=keep)
        variables, axes = stacks.assembled(found.stacks, [GRID], lambda cell: store.path(cell).name)
        place = (axes["dim"].index(4), axes["length"].index(3))
        np.testing.assert_array_equal(variables["loss"][1][place], new["loss"].values[:3])
    assert seen == [cell, cell]
    held(store, [GRID], keep=False)
    assert len(seen) == 2  # it has been brought up to date


def test_a_store_that_grows_keeps_what_it_has(store, monkeypatch):
    held(store, [GRID], keep=True)
    more = Grid(static={"dim": (16,), "length": (1,)}, traced=GRID.traced)
    (cell,) = more.cells()
    found = held(store, [GRID, more], keep=False)
    assert (found.missing, found.wanted) == ([cell], 7)
    store.write(cell, cell_of(GRID.traced, key=0, seconds=1.0, created="2026-02-01", device="x"))
    assert held(store, [more], keep=True).missing == []
    seen = reads(monkeypatch)
    assert held(store, [GRID, more], keep=False).missing == []
    assert seen == []
    store.path(cell).unlink()
    assert held(store, [GRID, more], keep=False).missing == [cell]  # the file of the cell is the truth


def test_values_that_a_cell_lacks_are_missing(store):
    held(store, [GRID], keep=True)
    wider = Grid(static=GRID.static, traced={**GRID.traced, "seed": (0, 3)})
    assert held(store, [wider], keep=False).missing == list(GRID.cells())
    narrower = Grid(static=GRID.static, traced={"seed": (1,), "predictor": ("λ",)})
    assert held(store, [narrower], keep=False).missing == []


def test_a_cell_of_two_grids_is_one_cell(store):
    """As when fewer seeds are asked for than before."""
    longer, fewer = (Grid(static=GRID.static | {"dim": dims}, traced=GRID.traced) for dims in ((2, 4, 8, 16), (8, 16)))
    found = held(store, [longer, fewer], keep=False)
    assert found.wanted == 8
    assert found.missing == [{"dim": 16, "length": 1}, {"dim": 16, "length": 3}]


def test_cells_of_one_shape_that_hold_other_values_are_told_apart(store):
    cell = {"dim": 4, "length": 3}
    store.write(cell, cell_of({**GRID.traced, "seed": (3, 4, 5)}, key=0, seconds=1.0, created="2026-02-01", device="x"))
    for keep in (True, False):
        found = held(store, [GRID], keep=keep)
        assert len(found.stacks) == 1
        assert found.missing == [cell]


def test_a_flipped_bit_is_found_and_the_cells_are_read(store, monkeypatch):
    whole = everything(store, held(store, [GRID], keep=True))
    path = store.root / FILE
    sound = path.read_bytes()
    rng = np.random.default_rng(0)
    damages = [sound[: len(sound) // 2], b"", sound[:31]]
    for place in [0, 31, 32, len(sound) - 1, *rng.integers(0, len(sound), 8).tolist()]:
        damaged = bytearray(sound)
        damaged[place] ^= 1 << int(rng.integers(8))
        damages.append(bytes(damaged))
    for damage in damages:
        path.write_bytes(damage)
        with monkeypatch.context() as patched:
            seen = reads(patched)
            assert everything(store, held(store, [GRID], keep=False)) == whole
            assert len(seen) == 6
    held(store, [GRID], keep=True)
    assert path.read_bytes() == sound


def test_a_damaged_cell_is_refused_where_only_its_own_file_has_it(store):
    path = store.path({"dim": 4, "length": 3})
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedFile, match="expected a file with the checksum"):
        held(store, [GRID], keep=True)
    assert not (store.root / FILE).exists()


def test_few_cells_and_very_large_ones_stay_as_they_are(store, monkeypatch):
    monkeypatch.setattr(consolidation, "LEAST", 7)
    held(store, [GRID], keep=True)
    monkeypatch.setattr(consolidation, "LEAST", 2)
    monkeypatch.setattr(consolidation, "LARGEST", 100)
    held(store, [GRID], keep=True)
    assert not (store.root / FILE).exists()


def test_what_does_not_arrive_is_removed_and_a_full_disk_is_no_fault(store, monkeypatch):
    whole = everything(store, held(store, [GRID], keep=False))

    def torn(path, content):
        path.write_bytes(content[:-1])

    def full(path, content):
        raise EnvironmentFault("No space left on device")

    for write in (torn, full):
        monkeypatch.setattr(consolidation, "write_atomically", write)
        assert everything(store, held(store, [GRID], keep=True)) == whole
        assert not (store.root / FILE).exists()


def test_a_file_of_another_schema_is_passed_over(store, monkeypatch):
    monkeypatch.setattr(consolidation, "_SCHEMA", 0)
    held(store, [GRID], keep=True)
    monkeypatch.undo()
    seen = reads(monkeypatch)
    held(store, [GRID], keep=False)
    assert len(seen) == 6


def test_cells_of_several_shapes_come_back(store):
    odd = Grid(static={"dim": (32,), "length": (1,)}, traced={"seed": (5,), "predictor": ("ridge",)})
    (cell,) = odd.cells()
    store.write(cell, cell_of(odd.traced, key=0, created="2026-02-01", device="x"))  # no seconds either
    for cells in itertools.repeat([GRID, odd], 2):
        found = held(store, cells, keep=True)
        assert sorted(len(stack.names) for stack in found.stacks) == [1, 6]
        assert not any(
            "seconds" in attributes for attributes in next(s for s in found.stacks if len(s.names) == 1).attributes
        )


def test_a_finished_run_leaves_one_and_a_check_reads_it(tmp_path, monkeypatch, capfd):
    from faults import processes

    monkeypatch.setattr(consolidation, "LEAST", 2)
    processes.finished_run(tmp_path)
    root = tmp_path / processes.STORE
    assert (root / FILE).is_file()
    said = processes.inside(capfd, processes.check_command(tmp_path, "--json"))
    seen = reads(monkeypatch)
    assert processes.inside(capfd, processes.check_command(tmp_path, "--json")) == said
    assert seen == []
    (root / FILE).unlink()
    assert processes.inside(capfd, processes.check_command(tmp_path, "--json")) == said
    assert len(seen) == len(processes.DIMS)
    assert not (root / FILE).exists()  # what only reads writes nothing


def flipped(path):
    """A file with one bit of its last byte changed."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def incomplete(store, grid, cells):
    """What :func:`unfinished` finds, from whole Datasets."""
    return [cell for cell in cells if missing_part(store.read(cell), grid.inside(cell)) is not None]


@pytest.mark.parametrize("consolidated", [False, True])
def test_a_resumed_run_opens_no_finished_cell(store, monkeypatch, consolidated):
    """What lacks something is found all the same: a cell that is not there, and values that it does not have."""
    cells = list(GRID.cells())
    held(store, [GRID], keep=consolidated)
    store.path(cells[1]).unlink()
    few = {"seed": (0, 1), "predictor": ("ridge", "λ")}
    store.write(cells[4], cell_of(few))
    grown = Grid(GRID.static, {"seed": (0, 1, 2, 3), "predictor": ("ridge",)})
    less = Grid(GRID.static, {"seed": (2, 1), "predictor": ("λ",)})
    slow = [incomplete(store, grid, cells) for grid in (GRID, grown, less)]
    assert [len(some) for some in slow] == [2, 6, 2]
    seen = reads(monkeypatch)
    assert [unfinished(store, grid, cells) for grid in (GRID, grown, less)] == [(some, []) for some in slow]
    assert seen == []


@pytest.mark.parametrize("consolidated", [False, True])
def test_a_flipped_bit_is_found_although_another_file_has_the_cell(store, consolidated):
    cells = list(GRID.cells())
    held(store, [GRID], keep=consolidated)
    flipped(store.path(cells[3]))
    assert unfinished(store, GRID, cells) == ([cells[3]], [store.path(cells[3])])
    assert store.path(cells[3]).with_suffix(".nc.damaged").exists()


def test_axes_of_another_kind_are_read_as_xarray_has_them(store):
    """HDF5 has no booleans: xarray writes them as integers, which would be other values."""
    cell, traced = next(iter(GRID.cells())), {"seed": (0, 1), "predictor": (False, True)}
    store.write(cell, cell_of(traced))
    grid = Grid({name: (value,) for name, value in cell.items()}, traced)
    assert store.axes(cell) == {"seed": [0, 1]}
    assert unfinished(store, grid, [cell]) == ([], [])
