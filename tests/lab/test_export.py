"""Exports: the results that were named, in the format that was named, and nothing replaced unasked."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from faults.processes import CLAIM, CLAIMS, STORE, finished_run

import icllab as icl
from icllab.core.errors import CellsMissing, EnvironmentFault, InputError
from icllab.lab.export import table, tree

DATASET = xr.Dataset({"loss": (("seed",), [0.1, np.nan])}, coords={"seed": [0, 1]}, attrs={"list": [1], "yes": True})
LINES = xr.Dataset(
    {
        "error": (("tau", "seed"), np.arange(6.0).reshape(2, 3) / 7),
        "size": ("tau", [10, 20]),
        "error_line": ("tau_line", [0.5, 0.25, 0.125, 0.0]),
        "total": 3.0,
    },
    {"tau": [1.0, 2.0], "seed": [0, 1, 2], "tau_line": [1.0, 1.25, 1.5, 2.0]},
)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    return finished_run(tmp_path_factory.mktemp("ran"))


@pytest.mark.parametrize("format", ["csv", "parquet", "netcdf", "arviz"])
def test_a_claims_results_come_back_to_the_bit(format, ran, tmp_path):
    to = tmp_path / {"csv": "a.csv", "parquet": "a.parquet", "netcdf": "a.nc", "arviz": "a.nc"}[format]
    assert icl.export(CLAIM, to, format=format, out=ran, claims=CLAIMS) == to
    dataset = icl.open(CLAIM, out=ran, claims=CLAIMS)
    if format == "arviz":
        with xr.open_datatree(to) as groups:
            assert groups.attrs == dataset.attrs
            xr.testing.assert_identical(groups["observed_data"]["icl_error"].load(), dataset["icl_error"])
            xr.testing.assert_identical(groups["predictions"]["icl_theory"].load(), dataset["icl_theory"])
    elif format == "netcdf":
        xr.testing.assert_identical(xr.load_dataset(to), dataset)
    else:
        frame = pd.read_csv(to) if format == "csv" else pd.read_parquet(to)
        back = frame.set_index(["dim", "ridge", "seed"]).to_xarray()
        np.testing.assert_array_equal(back["icl_error"], dataset["icl_error"].transpose("dim", "ridge", "seed"))
    assert sorted(tmp_path.iterdir()) == [to]


def test_a_table_has_a_row_for_every_combination_and_repeats_what_does_not_depend_on_an_axis():
    frame = table(LINES)
    assert list(frame.columns) == ["tau", "seed", "tau_line", "error", "size", "error_line", "total"]
    assert len(frame) == 2 * 3 + 4  # the line has rows of its own
    measured = frame[frame["error"].notna()]
    for _, row in measured.iterrows():
        assert row["error"] == LINES["error"].sel(tau=row["tau"], seed=row["seed"])
        assert row["size"] == LINES["size"].sel(tau=row["tau"])
    line = frame[frame["error_line"].notna()]
    assert line["tau_line"].tolist() == LINES["tau_line"].values.tolist()
    assert line[["tau", "seed", "error"]].isna().all(axis=None)
    assert (frame["total"] == 3.0).all()
    assert table(xr.Dataset({"total": 3.0})).to_dict("list") == {"total": [3.0]}


def test_a_table_keeps_coordinates_that_are_not_axes():
    """A label beside an axis, and one of the whole Dataset, are columns like quantities."""
    labelled = xr.Dataset(
        {"loss": (("member", "step"), np.arange(6.0).reshape(2, 3))},
        coords={
            "member": [4, 7],
            "step": [0, 10, 20],
            "learning_rate": ("member", [0.1, 0.3]),
            "network": "two layers",
        },
    )
    frame = table(labelled)
    assert set(frame.columns) == {"member", "step", "learning_rate", "network", "loss"}
    for _, row in frame.iterrows():
        assert row["loss"] == labelled["loss"].sel(member=row["member"], step=row["step"])
        assert row["learning_rate"] == {4: 0.1, 7: 0.3}[row["member"]]
    assert set(frame["network"]) == {"two layers"}


def test_chains_are_a_posterior_and_its_statistics():
    chains = xr.Dataset(
        {"w": (("chain", "draw", "mode"), np.zeros((2, 3, 1))), "rhat": ("mode", [1.0])}, attrs={"n": [1]}
    )
    groups = tree(chains)
    assert set(groups.children) == {"posterior", "sample_stats"}
    assert groups.attrs == {"n": "[1]"}
    assert groups["posterior"].attrs["inference_library"] == "icl-lab"


def test_a_path_and_a_dataset_are_results_too(ran, tmp_path):
    files = []
    path = ran / STORE / "results.nc"
    for i, results in enumerate((CLAIM, ran / STORE, str(path), xr.load_dataset(path))):
        files.append(icl.export(results, tmp_path / f"{i}.csv", out=ran, claims=CLAIMS))
    assert len({file.read_bytes() for file in files}) == 1


def test_the_suffix_says_which_format(tmp_path):
    icl.export(DATASET, tmp_path / "a.csv")
    icl.export(DATASET, tmp_path / "a.nc")
    icl.export(DATASET, tmp_path / "a.txt", format="csv")
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "a.txt").read_bytes()
    assert xr.load_dataset(tmp_path / "a.nc").attrs == {"list": "[1]", "yes": "true"}


@pytest.mark.parametrize(("name", "format"), [("a.csv", "parquet"), ("a.parquet", "csv"), ("a.csv", "arviz")])
def test_a_suffix_of_another_format_is_refused(name, format, tmp_path):
    message = f"to: expected a file whose suffix is not that of another format than {format}"
    with pytest.raises(InputError, match=message):
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
    with pytest.raises(InputError, match="expected a new file"):
        icl.export(DATASET, path)
    assert path.read_text() == "mine"
    icl.export(DATASET, path, force=True)
    assert path.read_text().splitlines()[-2:] == ["0,0.1", '1,""']
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("results", "to", "options", "message"),
    [
        (DATASET, "a.txt", {}, r"to: expected a file that ends in \.csv, \.parquet, \.nc"),
        (DATASET, "a.csv", {"format": "cvs"}, "did you mean 'csv'"),
        (DATASET, ".", {"format": "csv"}, "to: expected a file, got 'the directory"),
        (DATASET, "a.csv", {"size": "small"}, "expected a size and a control with a claim"),
        (DATASET.assign_attrs(bad=object()), "a.csv", {}, "attribute 'bad': expected numbers, text and lists"),
        ([1], "a.csv", {}, "results: expected a Dataset, a claim's name or a path, got 'list'"),
        ("asymptotics/double_decent", "a.csv", {}, "did you mean 'asymptotics/double_descent'"),
    ],
)
def test_what_cannot_be_exported_is_said_in_one_line(results, to, options, message, tmp_path):
    with pytest.raises(InputError, match=message):
        icl.export(results, tmp_path / to, **options)
    assert not list(tmp_path.iterdir())


def test_missing_results_and_a_missing_folder(tmp_path):
    with pytest.raises(CellsMissing, match="expected results under"):
        icl.export("asymptotics/double_descent", tmp_path / "a.csv", out=tmp_path)
    with pytest.raises(EnvironmentFault, match="No such file or directory; nothing was changed"):
        icl.export(DATASET, tmp_path / "none" / "a.csv")


LABELS = [
    ["net #1", "#2"],
    ["a\rb", "c"],
    ['say "no"', "x,y"],
    ["two\nlines", "\r\n"],
    [" blank ", "\t"],
    ["é", "λ→\u2028"],
]


@pytest.mark.parametrize("names", [*LABELS, ["NA", "null"], ["nan", "None"]])
def test_labels_of_any_kind_come_back_through_pandas(names, tmp_path):
    """With plain defaults; texts that pandas takes for missing values, as docs/results.md says."""
    values = np.array([[0.1, np.nan], [1 / 3, -2.0]])
    data = xr.Dataset({"loss #": (("net,\nwork", "position"), values)}, {"net,\nwork": names, "position": [0, 1]})
    file = icl.export(data, tmp_path / "a.csv")
    plain = names in LABELS
    for options in [{}, {"comment": "#"}] if plain else [{"keep_default_na": False, "na_values": [""]}]:
        frame = pd.read_csv(file, **options)
        assert frame["net,\nwork"].tolist() == [names[0]] * 2 + [names[1]] * 2
        np.testing.assert_array_equal(frame["loss #"], values.ravel())
        xr.testing.assert_identical(frame.set_index(["net,\nwork", "position"]).to_xarray().sel(data.coords), data)


@pytest.mark.parametrize("value", [None, True, {"low": 0.0}, {1, 2}])
def test_an_attribute_that_netcdf_cannot_store_is_named(value, tmp_path):
    data = DATASET.copy()
    data["loss"].attrs["note"] = value
    with pytest.raises(InputError, match=f"variable 'loss', attribute 'note': .* got {type(value).__name__}"):
        icl.export(data, tmp_path / "a.nc")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "format", "message"),
    [
        (
            "a.nc",
            "netcdf",
            "variable 'loss': expected numbers, times or texts that netCDF stores, got values of type obj",
        ),
        (
            "a.nc",
            "arviz",
            "variable 'loss': expected numbers, times or texts that netCDF stores, got values of type obj",
        ),
        (
            "a.parquet",
            "parquet",
            "results: expected columns of numbers, times or texts for Parquet, .* for column loss",
        ),
    ],
)
def test_values_that_a_format_cannot_hold_are_refused_by_name(name, format, message, tmp_path):
    values = np.array([{1}, {2}], object) if name == "a.nc" else np.array([1j, 2])
    with pytest.raises(InputError, match=message) as caught:
        icl.export(xr.Dataset({"loss": ("seed", values)}), tmp_path / name, format=format)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("format", ["netcdf", "arviz"])
@pytest.mark.parametrize("where", ["variable", "attribute"])
def test_a_name_that_netcdf_would_split_is_refused(where, format, tmp_path):
    data = xr.Dataset({"a/b" if where == "variable" else "loss": ("seed", [1.0])})
    data.attrs["a/b" if where == "attribute" else "c"] = 1
    with pytest.raises(InputError, match=f"{where} 'a/b': .* without '/'"):
        icl.export(data, tmp_path / "a.nc", format=format)
    assert not list(tmp_path.iterdir())
