"""Files as people and programs write them are read to the number, or refused in one line that says how to read them."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import icllab as icl
from icllab.core.errors import InputError
from icllab.tasks import Table

WANTED = [[0.5, 40.0], [-1.5, 50.0], [2.25, 61.0]]


def read(tmp_path, text, saved="utf-8", **options):
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode(saved))
    return Table.from_csv(path, **({"target": "out", "length": 1} | options))


def refusal(tmp_path, text, saved="utf-8", **options):
    with pytest.raises(InputError) as caught:
        read(tmp_path, text, saved, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


PLAIN = "dose,age,out\n0.5,40,1\n-1.5,50,2\n2.25,61,4\n"
GERMAN = "dose;age;out\n0,5;40;1\n-1,5;50;2\n2,25;61;4\n"


@pytest.mark.parametrize(
    ("text", "encoding", "options"),
    [
        (PLAIN, "utf-8", {}),
        (PLAIN, "utf-8-sig", {}),
        (PLAIN.replace("\n", "\r\n"), "utf-8", {}),
        (PLAIN.replace("\n", "\r"), "utf-8", {}),
        (PLAIN.replace(",", "\t"), "utf-8", {"delimiter": "\t"}),
        (PLAIN, "utf-16", {"encoding": "utf-16"}),
        (PLAIN.replace("age", "größe"), "latin-1", {"encoding": "latin-1"}),
        (GERMAN, "utf-8", {"delimiter": ";", "decimal": ","}),
        (PLAIN.replace("0.5", '"0,5"').replace("-1.5", '"-1,5"').replace("2.25", '"2,25"'), "utf-8", {"decimal": ","}),
        ("# a file\n#of, two lines\n" + PLAIN + "# the end\n", "utf-8", {"comment": "#"}),
        (PLAIN.replace("out", '"net #1"'), "utf-8", {"comment": "#", "target": "net #1"}),
        ("dose,age,out\n\n0.5,40,1\n-1.5,50,2\n\n2.25,61,4\n\n", "utf-8", {}),
        (",dose,age,out\n0,0.5,40,1\n1,-1.5,50,2\n2,2.25,61,4\n", "utf-8", {}),  # of pandas
        ("Unnamed: 0,dose,age,out\n0,0.5,40,1\n1,-1.5,50,2\n2,2.25,61,4\n", "utf-8", {}),  # and once more
        ('"","dose","age","out"\n"ann",0.5,40,1\n"bob",-1.5,50,2\n"eve",2.25,61,4\n', "utf-8", {}),  # of R
        ("index,dose,age,out\n0,0.5,40,1\n1,-1.5,50,2\n2,2.25,61,4\n", "utf-8", {}),
        ("dose,age,out,\n0.5,40,1,\n-1.5,50,2,\n2.25,61,4,\n", "utf-8", {}),  # a delimiter at the end of each line
    ],
)
def test_files_of_people_are_read_to_the_number(tmp_path, text, encoding, options):
    table = read(tmp_path, text, encoding, **options)
    np.testing.assert_array_equal(table.x, WANTED)
    np.testing.assert_array_equal(table.y, [1, 2, 4])


def test_a_column_that_does_not_count_the_rows_is_an_input(tmp_path):
    """A name alone accuses nothing, and what is chosen is an input."""
    assert read(tmp_path, "index,out\n3,1\n5,2\n4,4\n").columns == ("index",)
    assert read(tmp_path, "time,out\n0,1\n1,2\n2,4\n").columns == ("time",)
    assert read(tmp_path, "index,a,out\n0,1,1\n1,5,2\n2,4,4\n", columns=["index"]).columns == ("index",)
    assert read(tmp_path, ",a,out\n7,1,1\n9,5,2\n8,4,4\n", columns=[0]).columns == ("",)
    assert read(tmp_path, "a,\n7,1\n9,5\n8,4\n", target=1).columns == ("a",)


def test_a_quoted_newline_is_read_at_any_size(tmp_path):
    """Longer than what a reader takes at a time, and across its borders."""
    notes = ["x\n" * 700_000, 'says "no"\r\n', "a,b\n" * 400_000]
    rows = "".join('"{}",{},{}\n'.format(note.replace('"', '""'), i, i * i) for i, note in enumerate(notes))
    table = read(tmp_path, '"the\nnote",a,out\n' + rows, columns=["a"])
    np.testing.assert_array_equal(table.x, [[0], [1], [2]])


def test_numbers_are_read_to_the_last_bit(tmp_path):
    values = np.random.default_rng(0).normal(size=20) * 10.0 ** np.arange(-10, 10)
    text = "".join(f"{value!r},{i}\n" for i, value in enumerate(values.tolist()))
    import jax

    with jax.enable_x64(True):
        np.testing.assert_array_equal(read(tmp_path, "a,out\n" + text).x[:, 0], values)


@pytest.mark.parametrize(
    ("text", "encoding", "options", "message"),
    [
        ("größe,out\n1,2\n3,4\n", "latin-1", {}, "t.csv: expected text in utf-8, got other bytes"),
        (PLAIN, "utf-16", {}, "; give the encoding it was saved in, such as encoding='latin-1' or 'utf-16'"),
        (PLAIN, "utf-8", {"encoding": "utf-99"}, "t.csv: expected a table that can be read; unknown encoding: utf-99"),
        ("# made by hand\n" + PLAIN, "utf-8", {}, "; comment='#' leaves out lines that begin with it"),
        (GERMAN, "utf-8", {"delimiter": ";"}, "column 'dose', row 1: expected a number, got '0,5'; decimal=',' reads"),
        (
            "dose;out\n1.234;1\n2;3\n",
            "utf-8",
            {"delimiter": ";", "decimal": ","},
            "row 1: expected a number, got '1.234'",
        ),
        ("dose,out\n1_000,1\n2,3\n", "utf-8", {}, "row 1: expected a number, got '1_000'"),
        ("dose,out\n5%,1\n2,3\n", "utf-8", {}, "row 1: expected a number, got '5%'"),
        ("dose,out\n1,9007199254740993\n2,3\n", "utf-8", {}, "'out', row 1: expected an integer up to 2^53, got 9007"),
        (f"dose,out\n1,1{400 * '0'}\n2,3\n", "utf-8", {}, "column 'out', row 1: expected an integer up to 2^53"),
        ("dose,out\n1e400,1\n2,3\n", "utf-8", {}, "column 'dose', row 1: expected a number, got inf"),
        ("dose,out\n1,2\n3\n", "utf-8", {}, "column 'out', row 2: expected a number, got ''"),
        ("dose,out\n1,2\n3,4,5\n", "utf-8", {}, "t.csv: expected a table that can be read; "),
        ("dose,out\n1,2,3\n3,4,5\n", "utf-8", {}, "t.csv: expected a table that can be read; "),
        ('dose,out\n"1,2\n', "utf-8", {}, "t.csv: expected a table that can be read; "),
        ("dose,dose,out\n1,2,3\n", "utf-8", {}, "t.csv, columns: expected names that differ, got 'dose'"),
        (",out\n0,1\n1,5\n", "utf-8", {}, "columns: expected at least one column, each once, without the target"),
        (PLAIN, "utf-8", {"delimiter": ",,"}, "delimiter: expected one character, got ',,'"),
        (
            PLAIN,
            "utf-8",
            {"comment": ","},
            "comment: expected a character that differs from the delimiter and the decimal sign",
        ),
    ],
)
def test_what_is_not_read_is_refused_with_the_option_that_reads_it(tmp_path, text, encoding, options, message):
    assert message in refusal(tmp_path, text, encoding, **options)


@pytest.mark.parametrize("names", [["net #1", "#2"], ["NA", "null"], ["a\rb", 'c"d\n'], [" x ", "é,"], ["", "nan"]])
def test_an_exported_file_is_read_back(tmp_path, names):
    """Labels of any kind stand beside numbers, which are those that were written."""
    data = xr.Dataset(
        {"loss": (("predictor", "position"), np.arange(4.0).reshape(2, 2) / 3)},
        {"predictor": names, "position": [0, 1]},
    )
    file = icl.export(data, tmp_path / "a.csv")
    table = Table.from_csv(file, target="loss", columns=["position"], length=1)
    np.testing.assert_array_equal(table.y, np.float32(np.arange(4) / 3))
    np.testing.assert_array_equal(table.x[:, 0], [0, 1, 0, 1])


def test_the_index_of_a_parquet_file_of_pandas_is_no_input(tmp_path):
    frame = pd.DataFrame({"a": [1.0, 3.0], "out": [2, 5]}, index=pd.Index([4, 9], name="patient"))
    for i, index in enumerate((["patient"], None, ["patient", "visit"])):
        saved = frame if index else frame.set_axis(pd.Index([7, 9]))
        saved = saved.assign(visit=[1, 2]).set_index("visit", append=True) if index and len(index) > 1 else saved
        saved.to_parquet(tmp_path / f"{i}.parquet")
        assert Table.from_parquet(tmp_path / f"{i}.parquet", target="out", length=1).columns == ("a",)
    chosen = Table.from_parquet(tmp_path / "0.parquet", target="out", columns=["patient"], length=1)
    np.testing.assert_array_equal(chosen.x, [[4], [9]])
    frame.assign(a=["1", "2"]).to_parquet(tmp_path / "text.parquet")
    with pytest.raises(InputError, match="column 'a', row 1: expected a number, got '1'"):
        Table.from_parquet(tmp_path / "text.parquet", target="out", length=1)
