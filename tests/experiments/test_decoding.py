"""What is read without xarray is what xarray reads; and what cells hold is read without it."""

import io

import h5py
import numpy as np
import pytest
import xarray as xr

from icllab.experiments import store
from icllab.experiments.decoding import decoded, decoded_axes
from icllab.experiments.store import packed, read_dataset, write_dataset

ERRORS = np.array([[0.1, np.nan], [np.inf, -0.0], [1e-300, 2.0]])


def payload(dataset):
    return packed(dataset)[512:]


def like_xarray(dataset):
    """Both readings of one file, which must agree in all there is to see."""
    content = payload(dataset)
    ours, theirs = decoded(content), xr.load_dataset(io.BytesIO(content), engine="h5netcdf")
    assert ours is not None
    xr.testing.assert_identical(ours, theirs)
    for names in (lambda one: one.data_vars, lambda one: one.coords, lambda one: one.sizes, lambda one: one.attrs):
        assert list(names(ours)) == list(names(theirs))
    for name, variable in theirs.variables.items():
        own = ours.variables[name]
        assert (own.dims, own.dtype, list(own.attrs)) == (variable.dims, variable.dtype, list(variable.attrs))
        assert own.values.tobytes() == variable.values.tobytes()
    assert [type(value) for value in ours.attrs.values()] == [type(value) for value in theirs.attrs.values()]
    return ours


@pytest.mark.parametrize(
    "dataset",
    [
        xr.Dataset({"error": (("dim", "seed"), ERRORS)}, {"dim": [2, 4, 8], "seed": [0, 1]}),
        xr.Dataset({"error": (("seed", "dim"), ERRORS.T)}, {"dim": [2, 4, 8], "seed": [0, 1]}),
        xr.Dataset({"b": ("x", [1.0]), "a": (("y", "x"), [[1.0], [2.0]])}, {"y": [0.5, 0.1], "x": [7]}),
        xr.Dataset({"square": (("i", "j"), np.arange(4.0).reshape(2, 2))}),
        xr.Dataset({"error": ("model", [0.1, 0.2])}, {"model": ["ridge", "λ of another"]}),
        xr.Dataset({"name": ("dim", ["", "ridge"]), "flag": ("dim", [True, False])}, {"dim": [3, 1]}),
        xr.Dataset({"flag": ("yes", [0.5, 1.5])}, {"yes": [False, True]}),
        xr.Dataset({n: ("x", np.arange(3).astype(n)) for n in ("float32", "float64", "int8", "int64", "uint16")}),
        xr.Dataset({"single": 0.25, "count": 3, "held": np.bool_(True)}),
        xr.Dataset({"error": ("dim", np.zeros(0))}, {"dim": np.zeros(0, int)}),
        xr.Dataset({"e": ("d", [1.0], {"unit": "", "symbol": "\\ell^*", "n": 3})}, {"d": ("d", [1], {"meaning": "λ"})}),
        xr.Dataset({"e": ("d", [1.0])}, attrs={"key": 3, "seconds": 0.5, "claim": "a/b", "empty": "", "created": "λ"}),
        xr.Dataset(),
    ],
    ids=lambda one: ",".join([*map(str, one.variables), *map(str, one.attrs)]) or "nothing",
)
def test_it_is_what_xarray_reads(dataset):
    xr.testing.assert_identical(like_xarray(dataset), dataset)


@pytest.mark.parametrize(
    "dataset",
    [
        xr.Dataset({"e": ("dim", [1.0, 2.0])}, {"dim": [1, 2], "name": ("dim", ["ridge", "λ"])}),
        xr.Dataset({"e": ("dim", [1.0, 2.0])}, {"one": 3}),
        xr.Dataset({"when": ("i", np.array(["2020-01-01", "2021-01-01"], "datetime64[ns]"))}),
        xr.Dataset({"e": ("i", [1.0], {"units": "days since 2000-01-01"})}),
        xr.Dataset({"e": ("i", [1.0, 2.0], {"scale_factor": 2.0})}),
        xr.Dataset({"e": ("i", [1.0, 2.0], {"add_offset": 2.0})}),
        xr.Dataset({"e": ("i", np.array([1, 2], "i2"), {"_Unsigned": "true"})}),
        xr.Dataset({"e": ("i", [1.0, 2.0], {"calendar": "noleap"})}),
        xr.Dataset({"e": ("i", [1.0, 2.0], {"missing_value": 2.0})}),
        xr.Dataset({"e": ("i", [1.0, 2.0], {"_FillValue": 2.0})}),
        xr.Dataset({"e": ("i", [1.0, 2.0], {"levels": np.array([1.0, 2.0])})}),
        xr.Dataset({"text": "one alone"}),
        xr.Dataset({"bytes": ("i", np.array([b"ab", b"c"]))}),
        xr.Dataset({"e": ("i", [1.0])}, attrs={"several": np.array([1, 2])}),
    ],
    ids=lambda one: ",".join([*map(str, one.variables), *(str(a) for v in one.values() for a in v.attrs)]),
)
def test_what_is_unusual_is_left_to_xarray(dataset, tmp_path):
    """Values and coordinates that are not as they stand: read as before, whatever they are."""
    assert decoded(payload(dataset)) is None
    write_dataset(tmp_path / "one.nc", dataset)
    theirs = xr.load_dataset(io.BytesIO(payload(dataset)), engine="h5netcdf")
    xr.testing.assert_identical(read_dataset(tmp_path / "one.nc"), theirs)


def group(file):
    file.create_group("another")


def plain(file):
    file["plain"] = np.zeros(2)


def crossed(file):
    """Coordinates of an axis over another axis, which no index can be made of."""
    file["dim"].attrs["_Netcdf4Coordinates"] = file["e"].attrs["_Netcdf4Coordinates"][1:]


def text_for_gaps(file):
    file["name"].attrs["_FillValue"] = "none"


def truth_of_numbers(file):
    file["e"].attrs["dtype"] = "bool"


def lengths_of_time(file):
    file["dim"].attrs["dtype"] = "timedelta64[s]"


def a_kind_of_text(file):
    file["name"].attrs["dtype"] = "object"


@pytest.mark.parametrize(
    "change", [group, plain, crossed, text_for_gaps, truth_of_numbers, lengths_of_time, a_kind_of_text]
)
def test_a_file_of_another_writer_is_left_to_xarray(change):
    whole = {"e": (("dim", "seed"), np.ones((2, 2))), "name": ("seed", ["ridge", "λ"])}
    content = io.BytesIO(payload(xr.Dataset(whole, {"dim": [2, 4], "seed": [0, 1]})))
    assert decoded(content.getvalue()) is not None
    with h5py.File(content, "r+") as file:
        change(file)
    assert decoded(content.getvalue()) is None


def test_a_cell_and_the_results_of_a_run_are_read_without_xarray(tmp_path, monkeypatch):
    import icllab as icl

    icl.run("asymptotics/double_descent", "smoke", out=tmp_path, axes={"dim": [10], "seed": [0]})
    files = list(tmp_path.rglob("*.nc"))
    assert len(files) >= 2

    def refuse(*arguments, **options):
        raise AssertionError("xarray reads it")

    monkeypatch.setattr(xr, "load_dataset", refuse)
    for path in files:
        assert store.read_dataset(path).attrs["claim"] == "asymptotics/double_descent"


def test_axes_are_those_of_the_whole():
    dataset = xr.Dataset(
        {"error": (("dim", "model", "plain"), np.zeros((2, 2, 3))), "square": ("flag", [1.0])},
        {"dim": [0.5, 0.25], "model": ["ridge", "λ"], "flag": [True]},
    )
    assert decoded_axes(payload(dataset)) == ({"dim": [0.5, 0.25], "model": ["ridge", "λ"]}, {})


def test_with_the_axes_comes_what_says_which_cell_it_is():
    dataset = xr.Dataset({"error": ("dim", [0.5])}, {"dim": [2]}, {"cell": "a", "configuration": "b", "claim": "c"})
    assert decoded_axes(payload(dataset)) == ({"dim": [2]}, {"cell": "a", "configuration": "b"})
