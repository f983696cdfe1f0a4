"""A table has every number of a Dataset where its coordinates say, and gives the Dataset back to the bit."""

import csv
import dataclasses
import sys

import numpy as np
import pytest
import xarray as xr

from icllab.core.errors import EnvironmentFault, InputError
from icllab.experiments import tables

RNG = np.random.default_rng(0)


def whole():
    """Blocks that do not fit into one another, every type, what is no number, and what a CSV must quote."""
    errors = RNG.normal(size=(3, 2, 4)) * 10.0 ** RNG.integers(-300, 300, (3, 2, 4))
    errors[0, 0] = [np.nan, np.inf, -np.inf, -0.0]
    return xr.Dataset(
        {
            "icl_error": (("dim", "tau", "seed"), errors, {"symbol": r"\epsilon", "unit": "nats"}),
            "icl_theory": (("tau", "dim"), RNG.normal(size=(2, 3))),
            "error_line": ("tau_line", RNG.normal(size=5).astype(np.float32)),
            "converged": ("seed", [True, False, True, True]),
            "updates": ("dim", np.array([2**63 - 1, -(2**63), 0])),
            "trace": (("chain", "draw"), RNG.normal(size=(2, 3)).astype(np.float16)),
            "least": ((), 0.1),
            "nothing": ("seed", [np.nan] * 4),
        },
        coords={
            "dim": [2, 4, 8],
            "tau": [0.1, 1 / 3],
            "seed": np.arange(4),
            "tau_line": np.linspace(0, 1, 5),
            "predictor": ("dim", ["ridge, λ", 'a "b"\nc', "#"]),
            "draw": [0, 1, 2],
            "unused": [7, 8],
        },
        attrs={"claim": "room/claim", "key": 3, "seconds": 0.1, "warnings": ["one\ntwo", "#"], "none": None},
    )


FORMATS = {".csv": tables.as_csv, ".parquet": tables.as_parquet}


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("change", ["whole", "scalars", "empty", "objects", "one block"])
def test_what_is_written_and_read_back_is_the_dataset_to_the_bit(suffix, change, tmp_path):
    dataset = whole()
    if change == "scalars":
        dataset = dataset.drop_vars(list(dataset.coords))[["least"]]
    elif change == "empty":
        dataset = dataset.isel(seed=[])
    elif change == "objects":
        dataset["predictor"] = dataset["predictor"].astype(object)
    elif change == "one block":
        dataset = dataset[["icl_error"]]
    path = tmp_path / f"table{suffix}"
    path.write_bytes(FORMATS[suffix](tables.table(dataset)))
    back = tables.read_table(path)
    xr.testing.assert_identical(back, dataset)
    assert set(back.coords) == set(dataset.coords)
    for name, variable in dataset.variables.items():
        assert back[name].dtype == variable.dtype
        if variable.dtype != object:
            assert back[name].values.tobytes() == variable.values.tobytes()


def test_a_row_is_a_combination_of_coordinates_and_a_column_a_quantity():
    dataset = whole()[["icl_error", "icl_theory", "error_line"]]
    text = tables.as_csv(tables.table(dataset)).decode()
    rows = list(csv.DictReader(line for line in text.split("\n") if not line.startswith("# ")))
    of_errors = [row for row in rows if row["tau_line"] == ""]
    assert len(rows) == len(of_errors) + 5
    assert len(of_errors) == 3 * 2 * 4
    for row in of_errors:
        at = {"dim": int(row["dim"]), "tau": float(row["tau"])}
        error = float(dataset["icl_error"].sel(**at, seed=int(row["seed"])))
        assert np.array_equal(float(row["icl_error"]), error, equal_nan=True)
        assert float(row["icl_theory"]) == float(dataset["icl_theory"].sel(at))
        assert row["error_line"] == ""


def test_provenance_labels_and_units_stand_above_the_table():
    text = tables.as_csv(tables.table(whole())).decode()
    header = [line for line in text.split("\n") if line.startswith("# ")]
    assert '# attribute "claim" "room/claim"' in header
    (column,) = [line for line in header if line.startswith('# column "icl_error"')]
    assert '"unit": "nats"' in column


def test_other_programs_read_the_tables(tmp_path):
    pandas, parquet = pytest.importorskip("pandas"), pytest.importorskip("pyarrow.parquet")
    dataset = whole()[["icl_error", "icl_theory"]].drop_vars("predictor")
    content = tables.table(dataset.assign(error_line=whole()["error_line"]))
    (tmp_path / "a.csv").write_bytes(tables.as_csv(content))
    (tmp_path / "a.parquet").write_bytes(tables.as_parquet(content))
    ours = pandas.read_csv(tmp_path / "a.csv", comment="#")
    theirs = dataset.to_dataframe(dim_order=["dim", "tau", "seed"]).reset_index()
    pandas.testing.assert_frame_equal(ours.dropna(subset="dim")[list(theirs)], theirs, check_dtype=False)
    read = parquet.read_table(tmp_path / "a.parquet")
    assert read.schema.field("icl_error").metadata[b"unit"] == b"nats"
    assert read.column("icl_error").null_count == 5  # those of the line; NaN is a value
    assert np.isnan(read.column("icl_error").to_numpy()[0])


@pytest.mark.parametrize(
    "values", [np.array([1j]), np.array(["2020-01-01"], "datetime64[D]"), np.array([1, "a"], object)]
)
def test_what_a_table_cannot_hold_is_refused(values):
    with pytest.raises(InputError, match=r"odd: expected real numbers or text"):
        tables.table(xr.Dataset({"odd": ("seed", values)}))


def test_attributes_that_are_no_plain_data_are_refused():
    with pytest.raises(InputError, match="attributes: expected numbers, text and lists"):
        tables.table(xr.Dataset(attrs={"odd": object()}))


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_file_that_was_changed_is_refused(suffix, tmp_path):
    content = tables.table(whole())
    path = tmp_path / f"table{suffix}"
    other = dataclasses.replace(content, columns={**content.columns, "icl_theory": [*content.columns["icl_theory"]]})
    repeated = other.columns["icl_theory"][0].copy()
    repeated[1] += 1  # another seed, the same dim and tau
    other.columns["icl_theory"][0] = repeated
    path.write_bytes(FORMATS[suffix](other))
    with pytest.raises(InputError, match="expected one value of icl_theory along the axes that it lacks"):
        tables.read_table(path)
    path.write_bytes(FORMATS[suffix](content)[:-40])
    with pytest.raises(InputError, match="expected a table that icl exported"):
        tables.read_table(path)
    path.write_bytes(b"a,b\n1,2\n")
    with pytest.raises(InputError, match="expected a table that icl exported"):
        tables.read_table(path)
    with pytest.raises(InputError, match=r"expected a \.csv or \.parquet file"):
        tables.read_table(tmp_path / "table.txt")


def test_without_pyarrow_one_line_says_what_brings_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(EnvironmentFault, match=r"Parquet needs pyarrow; `pip install 'icl-lab\[tables\]'`"):
        tables.as_parquet(tables.table(whole()))
