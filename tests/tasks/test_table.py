"""Prompts of a table are rows of that table, drawn evenly; files are read to the number or refused to the cell."""

import builtins
import itertools
from inspect import unwrap as unchecked  # without the types that are checked in tests
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import EnvironmentFault, InputError
from icllab.core.prompt import RegressionPrompt
from icllab.tasks import Standardised, Table
from icllab.tasks.table import dealt, distinct_rows

X = np.arange(18.0).reshape(6, 3) ** 2
Y = np.array([3.0, 1.0, 4.0, 1.0, 5.0, 9.0])


@eqx.filter_jit
def sampled(table, key):
    return table.sample(key=key)


@eqx.filter_jit
def losses_of(table, prediction, prompt):
    return table.loss(prediction, prompt)


@pytest.mark.parametrize(("rows", "count"), [(4, 2), (5, 3), (4, 4), (3, 1)])
def test_each_ordered_choice_of_rows_comes_from_one_sequence_of_draws(rows, count):
    """The draws are independent and uniform, so a bijection makes every ordered choice equally likely."""
    draws = np.array(list(itertools.product(*[range(rows - j) for j in range(count)])), np.int32)
    choices = np.asarray(jax.jit(jax.vmap(dealt))(draws))
    assert sorted(map(tuple, choices.tolist())) == sorted(itertools.permutations(range(rows), count))


def test_the_draws_behind_distinct_rows_are_uniform(getkey):
    """Counts of the 20 ordered pairs of 5 rows: their chi-square has mean 19 and standard deviation sqrt(38)."""
    many = 20_000
    pairs = jax.jit(jax.vmap(lambda k: distinct_rows(5, 2, key=k)))(jax.random.split(getkey(), many))
    _, counts = np.unique(np.asarray(pairs) @ [5, 1], return_counts=True)
    assert counts.size == 20
    chi_square = np.sum((counts - many / 20) ** 2) / (many / 20)
    assert abs(chi_square - 19) < 4.5 * np.sqrt(38)


def test_a_prompt_is_rows_of_the_table_each_at_most_once(precision, getkey):
    table = Table(X, Y, length=5)
    prompt = sampled(table, getkey())
    order = [int(np.flatnonzero((np.asarray(table.x) == row).all(1))[0]) for row in np.asarray(prompt.x)]
    assert sorted(order) == list(range(6))
    np.testing.assert_array_equal(prompt.y, np.asarray(table.y)[order])
    assert prompt.x.dtype == jnp.dtype(precision)


def test_the_unit_of_the_loss_is_the_variance_of_the_target(getkey):
    """Over all rows, the mean's loss averages to 1: exactly, since a prompt of all rows holds each once."""
    with jax.enable_x64(True):
        table = Table(X, Y, length=5)
        prompt = sampled(table, getkey())
        losses, last = (np.asarray(losses_of(table, jnp.asarray(a), prompt)) for a in (np.full(6, Y.mean()), [0.0]))
    np.testing.assert_allclose(losses.mean(), 1.0, rtol=1e-14)
    np.testing.assert_array_equal(last, np.asarray(prompt.y)[-1:] ** 2 / Y.var())


@pytest.mark.parametrize("length", [1, 2, 3])
def test_the_loss_of_the_mean_of_some_other_rows(length):
    """R / (R - 1) (1 + 1 / l), exactly, over all ordered choices of l examples and a query."""
    rows = np.array(list(itertools.permutations(range(6), length + 1)))
    means = Y[rows][:, :-1].mean(axis=1, keepdims=True)
    with jax.enable_x64(True):
        table = Table(X, Y, length=length)
        loss = jax.vmap(lambda x, y, mean: table.loss(mean, RegressionPrompt(x, y)))
        losses = jax.jit(loss)(X[rows], Y[rows], means)
        np.testing.assert_allclose(np.mean(losses), 6 / 5 * (1 + 1 / length), rtol=1e-12)


def test_another_unit_of_the_target_changes_no_loss(getkey):
    key = getkey()
    with jax.enable_x64(True):
        table, other = Table(X, Y, length=4), Table(X, 1000 * Y, length=4)
        prompt, scaled = sampled(table, key), sampled(other, key)
        answers = np.asarray(prompt.y)[::-1]
        losses = losses_of(table, jnp.asarray(answers), prompt)
        np.testing.assert_allclose(losses_of(other, jnp.asarray(1000 * answers), scaled), losses, rtol=1e-14)


def test_shuffled_keeps_the_targets_and_breaks_the_pairs(getkey):
    table = Table(X, Y, length=2)
    other = table.shuffled(key=getkey())
    np.testing.assert_array_equal(np.sort(other.y), np.sort(table.y))
    assert not np.array_equal(other.y, table.y)
    np.testing.assert_array_equal(other.x, table.x)


def test_the_query_alone_is_a_prompt_of_length_0(getkey):
    table, key = Table(X, Y, length=0), getkey()
    prompt = eqx.filter_eval_shape(lambda: table.sample(key=key))
    assert (prompt.positions, prompt.length) == (1, 0)


def test_arrays_that_make_no_table_are_refused():
    with pytest.raises(
        InputError, match="length: expected an integer from 0 to 5, one less than there are rows, got 6"
    ):
        Table(X, Y, length=6)
    with pytest.raises(InputError, match=r"target 'y': expected values that differ between rows, got 2\.0"):
        Table(X, np.full(6, 2.0), length=2)
    with pytest.raises(InputError, match="columns: expected one name for each of 3 columns"):
        Table(X, Y, length=2, columns=["a"])
    broken = X.copy()
    broken[4, 1] = np.nan
    with pytest.raises(InputError, match="table, column 'x1', row 5: expected a number, got nan; choose other columns"):
        Table(broken, Y, length=2)
    with pytest.raises(InputError, match="table, column 'age', row 1: expected a number, got inf"):
        Table(X, np.array([np.inf, *Y[1:]]), length=2, target="age")


def masked(array):
    return np.ma.masked_array(array, mask=np.arange(array.size).reshape(array.shape) == 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length": 2.5}, "length: expected an integer of at least 0, got 2.5"),
        ({"length": True}, "length: expected an integer of at least 0, got True"),
        ({"length": "5"}, "length: expected an integer of at least 0, got '5'"),
        ({"x": masked(X)}, "x: expected numbers, got 'a masked array'; fill or drop missing values first"),
        ({"y": masked(Y)}, "y: expected numbers, got 'a masked array'; fill or drop missing values first"),
        ({"columns": ["a", "b", "a"]}, "columns: expected names that differ, got ('a', 'b', 'a')"),
        ({"y": Y + 1j}, "y: expected real numbers with 1 axis, got 'complex128 of shape (6,)'"),
        ({"y": Y.astype(str)}, "y: expected real numbers with 1 axis, got 'str"),
        ({"x": X.astype(object)}, "x: expected real numbers with 2 axes, got 'object of shape (6, 3)'"),
        ({"y": [*range(5), 10**400]}, "y: expected real numbers with 1 axis, got 'object of shape (6,)'"),
        (
            {"y": 2**53 + np.arange(6)},
            "table, column 'y': expected integers up to 2^53, got 9007199254740997; subtract",
        ),
        ({"x": X.astype(np.int64) - 2**60 - 1}, "table, column 'x0': expected integers up to 2^53, got -11529215"),
        ({"y": np.float32(Y + 1.7e9)}, "target 'y': expected values that differ between rows, got 1700000000.0"),
        (
            {"y": np.float32(20 * Y + 1.7e9)},
            "table, column 'y': expected numbers that differ in float32, got 'steps of",
        ),
        ({"x": X[:, :1] / 1e10 + 1e8}, "table, column 'x0': expected numbers that differ in float64, got 'steps of"),
    ],
)
def test_what_makes_no_table_is_refused_in_one_line(change, message):
    with pytest.raises(InputError) as error:
        unchecked(Table.__init__)(SimpleNamespace(), **{"x": X, "y": Y, "length": 3} | change)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


UNITS = [(1e-300, 0), (1e30, 0), (1e-9, 1.7), (1, -1e11)]
MORE = [(1e-30, 0), (1e300, 0), (1, 1e8), (1, 1.7e9), (1e-6, 1e3)]


@pytest.mark.parametrize(("unit", "zero"), [*UNITS, *(pytest.param(*pair, marks=pytest.mark.slow) for pair in MORE)])
def test_losses_do_not_depend_on_the_unit_or_the_zero_of_a_column(unit, zero):
    """Each column has its own; NumPy says what the loss of the mean of the context is."""
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(50, 2)), generator.normal(size=50)
    stretched, key = np.stack([unit * x[:, 0] + zero, x[:, 1]], axis=1), jax.random.key(3)
    tables = [Table(stretched, unit * y + zero, length=9), Table(x, y, length=9)]
    prompts = [sampled(table, key) for table in tables]
    targets = y[np.asarray(distinct_rows(50, 10, key=key))]
    predictors = (
        Standardised(lambda prompt: jnp.zeros_like(prompt.y)),
        Standardised(lambda prompt: prompt.x.sum(axis=1)),
    )
    for predictor in predictors:
        losses = [np.asarray(losses_of(t, predictor(p), p))[2:] for t, p in zip(tables, prompts, strict=True)]
        np.testing.assert_allclose(losses[0], losses[1], rtol=2e-3, atol=1e-4)
    mean = losses_of(tables[0], predictors[0](prompts[0]), prompts[0])[-1]
    np.testing.assert_allclose(mean, (targets[:-1].mean() - targets[-1]) ** 2 / y.var(), rtol=2e-3)
    np.testing.assert_allclose((tables[0].restored(prompts[0].y) - zero) / unit, targets, atol=2e-3)
    assert len(np.unique(tables[0].y)) == len(np.unique(tables[0].x[:, 0])) == 50


def test_a_table_that_the_type_holds_is_shown_as_it_stands(precision):
    years = 1990 + 5 * np.arange(6)
    for y in (Y, years, 1e12 * Y, 1e-12 * Y):
        table = Table(np.stack([y, np.full(6, 7.0)], axis=1), y, length=2)
        assert (table.zeros, table.scales) == ((0.0,) * 3, (1.0,) * 3)
        np.testing.assert_array_equal(table.y, y.astype(table.y.dtype))
    with jax.enable_x64(True):
        assert Table(X, Y + 1.7e9, length=2).zeros == (0.0,) * 4


def test_what_float64_and_the_type_of_the_arrays_hold_is_a_table():
    assert Table(X, 2**60 + 1024 * np.arange(6), length=2).rows == 6
    assert Table(X, np.arange(6, dtype=np.uint64), length=2).rows == 6
    half = Table(jnp.asarray(X, jnp.bfloat16), jnp.asarray(Y, jnp.float16), length=2)
    np.testing.assert_array_equal(half.y, Y)
    assert Table(np.full((6, 1), 1e35), Y, length=2).x.max() < 2  # constant, and far away


def test_a_constant_column_and_a_mask_that_hides_nothing_make_a_table():
    Table(X * [1, 0, 1], Y, length=3)
    Table(np.ma.masked_array(X, mask=False), Y, length=3)


# Files.

TEXT = "id,age,dose,group,out\n1,40,0.5,true,10\n2,50,1.5,false,20.5\n3,61,2.5,true,7\n"


@pytest.fixture
def csv(tmp_path):
    path = tmp_path / "trial.csv"
    path.write_text(TEXT, "utf-8")
    return path


def test_a_csv_file_to_the_number(csv):
    table = Table.from_csv(csv, target="out", length=2)
    assert (table.columns, table.target, table.dim, table.rows) == (("id", "age", "dose", "group"), "out", 4, 3)
    np.testing.assert_array_equal(table.x, [[1, 40, 0.5, 1], [2, 50, 1.5, 0], [3, 61, 2.5, 1]])
    np.testing.assert_array_equal(table.y, [10, 20.5, 7])


def test_columns_by_name_and_by_index(csv):
    table = Table.from_csv(csv, target=-1, columns=["dose", 1], length=2)
    assert (table.columns, table.target) == (("dose", "age"), "out")
    np.testing.assert_array_equal(table.x, [[0.5, 40], [1.5, 50], [2.5, 61]])


def test_another_delimiter(tmp_path):
    path = tmp_path / "trial.csv"
    path.write_text("a;b\n1;2\n3;5\n", "utf-8")
    np.testing.assert_array_equal(Table.from_csv(path, target="b", length=1, delimiter=";").x, [[1], [3]])


def test_a_parquet_file_is_the_same_table(csv, tmp_path):
    import pyarrow.csv
    import pyarrow.parquet

    path = tmp_path / "trial.parquet"
    pyarrow.parquet.write_table(pyarrow.csv.read_csv(csv), path)
    one, other = (read(p, target="out", length=2) for read, p in ((Table.from_csv, csv), (Table.from_parquet, path)))
    np.testing.assert_array_equal(one.x, other.x)
    np.testing.assert_array_equal(one.y, other.y)
    assert one.columns == other.columns


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n,3\n", "t.csv, column 'a', row 2: expected a number, got ''; choose other columns"),
        ("a,b\n1,2\nx,3\n4,5\n", "t.csv, column 'a', row 2: expected a number, got 'x'; choose other columns"),
        ("a,b\n1,2\n2,NA\n", "t.csv, column 'b', row 2: expected a number, got 'NA'"),
        ("a,b\n1,inf\n2,3\n", "t.csv, column 'b', row 1: expected a number, got inf"),
        ("a,b\n2020-01-01,1\n2020-01-02,2\n", "t.csv, column 'a', row 1: expected a number, got '2020-01-01'"),
        ("a,b,a\n1,2,3\n4,5,6\n", "t.csv, columns: expected names that differ, got 'a'"),
        ("a,b\n1,2,3\n", "t.csv: expected a table that can be read; "),
        ("", "t.csv: expected a table that can be read; "),
    ],
)
def test_what_is_no_number_is_refused_with_its_place(text, message, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(text, "utf-8")
    with pytest.raises(InputError) as error:
        Table.from_csv(path, target="b", length=1)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_not_chosen_may_be_anything(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("name,a,b\nann,1,2\n,3,5\n", "utf-8")
    np.testing.assert_array_equal(Table.from_csv(path, target="b", columns=["a"], length=1).x, [[1], [3]])


def test_a_choice_that_is_not_there_is_answered_with_the_nearest(csv, tmp_path):
    with pytest.raises(InputError, match=r"unknown column of trial.csv 'doze'; did you mean 'dose'\?"):
        Table.from_csv(csv, target="out", columns=["doze"], length=2)
    with pytest.raises(InputError, match="target: expected a name, or an index below 5, got 5"):
        Table.from_csv(csv, target=5, length=2)
    with pytest.raises(InputError, match="columns: expected at least one column, each once, without the target 'out'"):
        Table.from_csv(csv, target="out", columns=["age", "out"], length=2)
    with pytest.raises(InputError, match="path: expected a file that exists, got"):
        Table.from_parquet(tmp_path / "none.parquet", target=0, length=2)


def test_without_the_extra_one_line_says_what_to_install(csv, monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("pyarrow"):
            raise ImportError("No module named 'pyarrow'")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        EnvironmentFault, match=r"reading Parquet needs pyarrow \(No module .*\): .*pip install -e \S*\[tables"
    ):
        Table.from_parquet(csv, target="out", length=2)
    assert Table.from_csv(csv, target="out", length=2).rows == 3


def test_a_frame_keeps_its_names():
    """Whatever has columns, and a name: pandas is not asked."""
    import pandas as pd

    x = pd.DataFrame({"height": [1.0, 2.0, 4.0, 3.0], "7": [3.0, 1.0, 4.0, 1.0], 7.5: [0.0, 1.0, 0.0, 2.0]})
    y = pd.Series([1.0, 4.0, 2.0, 3.0], name="weight")
    table = Table(x, y, length=2)
    assert (table.columns, table.target) == (("height", "7", "7.5"), "weight")
    assert "columns=('height', '7', '7.5')" in repr(table)
    assert Table(x, y.rename(None), length=2, columns=["a", "b", "c"]).columns == ("a", "b", "c")
    assert Table(x, y, length=2, target="goal").target == "goal"
    assert Table(x.to_numpy(), y.to_numpy(), length=2).target == "y"
    with pytest.raises(InputError, match="table, column 'height', row 2: expected a number, got nan"):
        Table(x.assign(height=[1.0, np.nan, 2.0, 3.0]), y, length=2)
