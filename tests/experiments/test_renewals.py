"""A record is renewed only where every byte that was measured again is the same."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from icllab.experiments.store import write_dataset

BENCH = Path(__file__).parents[2] / "bench"
LOSS = np.array([0.25, np.nan, 1.0])


@pytest.fixture
def digest(tmp_path, monkeypatch, capsys):
    """Names and digest of the cells of a run that left these datasets."""
    monkeypatch.setattr(sys, "path", [str(BENCH), *sys.path])
    spec = importlib.util.spec_from_file_location("renew", BENCH / "renew.py")
    renew = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(renew)

    def found(**cells):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        where = folder / "subject" / "finding" / "cells"
        where.mkdir(parents=True)
        for name, dataset in cells.items():
            write_dataset(where / f"{name}.nc", dataset)
        monkeypatch.setattr(sys, "argv", ["-c", str(folder)])
        exec(renew.DIGEST, {})
        return capsys.readouterr().out.split()

    return found


def cell(loss=LOSS, name="loss", **others):
    return xr.Dataset({name: ("step", loss), **others}, coords={"step": [1, 2, 3]})


def test_equal_cells_have_equal_digests_whichever_was_written_first(digest):
    one, other = digest(a=cell(), b=cell(LOSS * 2)), digest(b=cell(LOSS * 2), a=cell())
    assert one == other
    assert one[:-1] == ["a.nc", "b.nc"]


@pytest.mark.parametrize(
    "changed",
    [
        cell(np.nextafter(LOSS, 2.0)),
        cell(LOSS.astype(np.float32)),
        cell(LOSS.view(np.int64)),
        cell(LOSS[::-1].copy()),
        cell(name="accuracy"),
        cell(seed=0),
        cell().assign_coords(step=[1, 2, 4]),
        cell().assign_coords(step=["1", "2", "3"]),
    ],
    ids=["a bit", "a type", "a type of the same bytes", "an order", "a name", "a variable", "a coordinate", "text"],
)
def test_a_cell_that_differs_has_another_digest(digest, changed):
    assert digest(a=cell())[-1] != digest(a=changed)[-1]


def test_which_cells_there_are_is_told(digest):
    assert digest(a=cell(), b=cell())[-1] != digest(a=cell(), c=cell())[-1]
    assert len(digest()) == 1  # the digest alone: no cell was measured, and nothing shown
