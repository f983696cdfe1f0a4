"""Exports: the results that were named, in the format that was named, and nothing replaced unasked."""

import numpy as np
import pytest
import xarray as xr
from faults.processes import CLAIM, CLAIMS, STORE, finished_run

import icllab as icl
from icllab.core.errors import CellsMissing, EnvironmentFault, InputError
from icllab.experiments import requests, runner, trees
from icllab.experiments.store import read_dataset
from icllab.experiments.tables import read_table

DATASET = xr.Dataset({"loss": (("seed",), [0.1, np.nan])}, coords={"seed": [0, 1]}, attrs={"list": [1], "yes": True})


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    return finished_run(tmp_path_factory.mktemp("ran"))


@pytest.mark.parametrize("format", ["csv", "parquet", "netcdf", "arviz"])
def test_a_claims_results_come_back_to_the_bit(format, ran, tmp_path):
    to = tmp_path / {"csv": "a.csv", "parquet": "a.parquet", "netcdf": "a.nc", "arviz": "a.nc"}[format]
    assert icl.export(CLAIM, to, format=format, out=ran, claims=CLAIMS) == to
    request = requests.stored_request(CLAIM, out=ran, claims=CLAIMS)
    dataset, _ = runner.read(request)
    if format == "arviz":
        with xr.open_datatree(to, engine="h5netcdf") as read:
            back = trees.dataset_of(read.load())
    else:
        back = read_dataset(to) if format == "netcdf" else read_table(to)
    xr.testing.assert_identical(back, dataset)
    assert sorted(tmp_path.iterdir()) == [to]


def test_a_path_and_a_dataset_are_results_too(ran, tmp_path):
    files = []
    for i, results in enumerate(
        (CLAIM, ran / STORE, str(ran / STORE / "results.nc"), read_dataset(ran / STORE / "results.nc"))
    ):
        files.append(icl.export(results, tmp_path / f"{i}.csv", out=ran, claims=CLAIMS))
    assert len({file.read_bytes() for file in files}) == 1


def test_the_suffix_says_which_format(tmp_path):
    icl.export(DATASET, tmp_path / "a.csv")
    icl.export(DATASET, tmp_path / "a.nc")
    icl.export(DATASET, tmp_path / "a.txt", format="csv")
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "a.txt").read_bytes()
    assert read_dataset(tmp_path / "a.nc").attrs == {"list": "[1]", "yes": "true"}


@pytest.mark.parametrize(("name", "format"), [("a.csv", "parquet"), ("a.parquet", "csv"), ("a.csv", "arviz")])
def test_a_suffix_of_another_format_is_refused(name, format, tmp_path):
    with pytest.raises(
        InputError, match=f"to: expected a file whose suffix is not that of another format than {format}"
    ):
        icl.export(DATASET, tmp_path / name, format=format)
    assert not list(tmp_path.iterdir())


def test_no_cell_of_a_run_is_replaced(ran):
    path = ran / STORE / "cells" / "dim=4.nc"
    before = path.read_bytes()
    with pytest.raises(InputError, match="to: expected a file outside the cells of a run"):
        icl.export(DATASET, path, force=True)
    assert path.read_bytes() == before


def test_a_file_that_is_there_is_kept_unless_force(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("mine")
    with pytest.raises(InputError, match="expected a file that is not there yet"):
        icl.export(DATASET, path)
    assert path.read_text() == "mine"
    icl.export(DATASET, path, force=True)
    xr.testing.assert_identical(read_table(path), DATASET)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("results", "to", "how", "message"),
    [
        (DATASET, "a.txt", {}, r"to: expected a file that ends in \.csv, \.parquet, \.nc"),
        (DATASET, "a.csv", {"format": "cvs"}, "did you mean 'csv'"),
        (DATASET, ".", {"format": "csv"}, "to: expected a file, got 'the directory"),
        (DATASET, "a.csv", {"size": "small"}, "expected a size and a control with a claim"),
        ([1], "a.csv", {}, "results: expected a Dataset, a claim's name or a path, got 'list'"),
        ("asymptotics/double_decent", "a.csv", {}, "did you mean 'asymptotics/double_descent'"),
    ],
)
def test_what_cannot_be_exported_is_said_in_one_line(results, to, how, message, tmp_path):
    with pytest.raises(InputError, match=message):
        icl.export(results, tmp_path / to, **how)
    assert not list(tmp_path.iterdir())


def test_missing_results_and_a_missing_folder(tmp_path):
    with pytest.raises(CellsMissing, match="expected results under"):
        icl.export("asymptotics/double_descent", tmp_path / "a.csv", out=tmp_path)
    with pytest.raises(EnvironmentFault, match="No such file or directory; nothing was changed"):
        icl.export(DATASET, tmp_path / "none" / "a.csv")
