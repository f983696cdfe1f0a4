"""Scores say yes and no: of a planted phenomenon, of theories that have seen the held-out part, and of late ones."""

import json
import shutil
import sys

import numpy as np
import pytest
import xarray as xr
from arena import planted
from scipy.stats import norm

from icllab.arena import fit_log_linear, predict_log_linear, registry, score_theories
from icllab.arena.prediction import log_scores
from icllab.arena.scores import compared
from icllab.core.errors import CellsMissing, InputError
from icllab.lab.records import data_digest

NULLS = ("constant", "nearest_neighbour", "power_law")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return planted.finished(tmp_path_factory.mktemp("planted") / "planted")


def by_name(table, own=None):
    return {score.theory: score for score in score_theories(table, own)}


def edited(table, tmp_path, change):
    """A copy of the registered theories in which the entry of ``along_x`` is changed."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in [*table.glob("*.*"), *table.glob("theories/*.*")]:
        target = copy / path.relative_to(table)
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(path.read_bytes())
    file = copy / "theories" / "registered.json"
    entries = json.loads(file.read_text())
    change(entries["along_x"])
    file.write_text(json.dumps(entries))
    return copy


def test_the_planted_theory_beats_every_null_and_an_unrelated_one_none(table):
    rows = by_name(table)
    assert set(rows) == {"along_x", "along_y", *NULLS}
    assert set(rows["along_x"].beats) == set(NULLS)
    assert rows["along_y"].beats == ()
    assert next(iter(rows)) == "along_x"
    assert not any(row.refused or row.late for row in rows.values())
    gain, error = rows["along_x"].differences["constant"]
    assert gain > 3 * error
    for level, (inside, error) in rows["along_x"].coverage.items():
        assert abs(inside - level) < 4 * max(error, 0.05)


def test_scores_are_those_of_the_held_out_cells_with_censoring(table):
    declared, record = registry.phenomenon(table), registry.record(table)
    row, terms, nulls = by_name(table)["along_x"], [], []
    for i in np.flatnonzero(declared.is_held_out):
        mean = row.numbers["constant"] + row.numbers["wave"] * np.cos(0.8 * declared.cells[i]["x"])
        pairs = list(zip(np.log(record["value"].values[i]), record["censored"].values[i], strict=True))
        constant = registry.registered(table)["constant"]["numbers"]
        laws = norm(mean, row.numbers["scale"]), norm(constant["constant"], constant["scale"])
        for law, means in zip(laws, (terms, nulls), strict=True):
            means.append(np.mean([law.logsf(log) if censored else law.logpdf(log) for log, censored in pairs]))
    assert record["censored"].values[declared.is_held_out].sum() > 1
    error = np.std(terms, ddof=1) / len(terms) ** 0.5
    np.testing.assert_allclose(row.log_score, (np.mean(terms), error), rtol=1e-9)
    gains = np.array(terms) - nulls
    error = np.std(gains, ddof=1) / len(gains) ** 0.5
    np.testing.assert_allclose(row.differences["constant"], (gains.mean(), error), rtol=1e-9)


def test_a_theory_that_differs_from_the_registered_one_has_no_score(table, tmp_path):
    copy = edited(table, tmp_path, lambda entry: None)
    (copy / "theories" / "along_x.py").write_text(planted.THEORY.format(name="x") + "# a change\n")
    row = by_name(copy)["along_x"]
    assert row.refused == "changed since it was registered"
    assert np.isnan(row.log_score[0])
    assert "along_x" not in {score.theory for score in score_theories(copy)[:3]}  # those with a score come first


@pytest.fixture
def borrowed(tmp_path, monkeypatch):
    """A registered table with a theory whose work is done by a helper, which has a helper itself."""
    monkeypatch.syspath_prepend(tmp_path)
    table = planted.table(tmp_path / "borrowed_waves", ("x",))
    (table / "theories" / "borrowed.py").write_text(planted.BORROWED.format(package="borrowed_waves.theories"))
    for name, source in planted.HELPERS.items():
        (table / "theories" / f"{name}.py").write_text(source)
    planted.measure(table, held_out=False)
    registry.register(table)
    planted.measure(table, held_out=True)
    yield table
    for name in [name for name in sys.modules if name.startswith("borrowed_waves")]:
        del sys.modules[name]


@pytest.mark.parametrize("name", planted.HELPERS)
def test_an_edit_of_a_helper_is_noticed(borrowed, name):
    """Though the fit stays the same, and the theory's own file too."""
    helper = borrowed / "theories" / f"{name}.py"
    assert by_name(borrowed)["borrowed"].refused == ""
    source = helper.read_bytes()
    helper.write_bytes(source + b"# later\n")
    rows = by_name(borrowed)
    assert rows["borrowed"].refused == "what it imports changed since it was registered"
    assert rows["along_x"].refused == ""
    helper.write_bytes(source)
    assert by_name(borrowed)["borrowed"].refused == ""


def test_an_edited_helper_is_registered_anew_and_late(borrowed):
    entry = registry.registered(borrowed)["borrowed"]
    assert (len(entry["helpers"]), entry["late"]) == (2, False)
    (borrowed / "theories" / "_rate.py").write_text("RATE = 0.8  # again\n")
    assert registry.register(borrowed) == ["borrowed"]
    row = by_name(borrowed)["borrowed"]
    assert (row.refused, row.late) == ("", True)


def test_what_was_registered_without_helpers_and_has_some_has_no_score(borrowed):
    file = borrowed / "theories" / "registered.json"
    entries = json.loads(file.read_text())
    del entries["borrowed"]["helpers"], entries["along_x"]["helpers"]
    file.write_text(json.dumps(entries))
    rows = by_name(borrowed)
    assert rows["borrowed"].refused == "what it imports changed since it was registered"
    assert rows["along_x"].refused == ""


def test_a_copy_of_a_table_imports_its_helpers_from_where_they_are(tmp_path):
    """Theories of a copy name the helper of the table that ships: its digest is that of the code that runs."""
    shutil.copytree(registry.folder("task_threshold"), tmp_path / "copy", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "copy" / "theories" / "_odds.py").write_text("# is not imported\n")
    theory, shipped = registry.theories(tmp_path / "copy")["race"], registry.theories("task_threshold")["race"]
    assert theory.helpers == shipped.helpers != []


def test_a_theory_that_was_fitted_to_the_held_out_part_has_no_score(table, tmp_path):
    whole = registry.record(table)
    numbers = registry.fitted(registry.theories(table)["along_x"], whole)
    copy = edited(table, tmp_path, lambda entry: entry.update(numbers=numbers))
    assert by_name(copy)["along_x"].refused == "registered numbers are not those of the fit"


def test_a_theory_of_another_training_part_has_no_score(table, tmp_path):
    whole = data_digest(registry.record(table))
    copy = edited(table, tmp_path, lambda entry: entry.update(train=whole))
    assert by_name(copy)["along_x"].refused == "registered with another training part"


def test_theories_see_the_training_part_alone(tmp_path):
    spy = planted.THEORY.format(name="x").replace(
        "def fit(train):", "def fit(train):\n    assert train.sizes == {'cell': 26, 'seed': 2}"
    )
    spy = spy.replace(
        "def predict(numbers, conditions):",
        "def predict(numbers, conditions):\n    assert 'value' not in conditions or conditions.sizes['cell'] == 26",
    )
    table = planted.table(tmp_path / "spied", ())
    (table / "theories" / "spy.py").write_text(spy)
    planted.measure(table, held_out=False)
    assert "spy" in registry.register(table)
    planted.measure(table, held_out=True)
    assert by_name(table)["spy"].refused == ""


def test_a_late_theory_of_the_users_own_folder_is_marked(table, tmp_path):
    (tmp_path / "mine.py").write_text(planted.THEORY.format(name="x"))
    assert by_name(table, tmp_path)["mine"].refused == "not registered"
    assert registry.register(table, tmp_path) == ["mine"]
    assert registry.register(table, tmp_path) == []
    row = by_name(table, tmp_path)["mine"]
    assert row.late
    assert row.log_score == by_name(table)["along_x"].log_score
    assert not (table / "theories" / "mine.py").exists()
    assert "mine" not in registry.registered(table)


def test_theories_are_registered_anew_for_another_training_part(tmp_path):
    table = planted.table(tmp_path / "again", ("x",))
    planted.measure(table, held_out=False)
    assert len(registry.register(table)) == 4
    assert registry.register(table) == []
    dataset = registry.record(table)
    dataset["value"].values *= 2.0
    registry.save(table, dataset)
    before = registry.registered(table)["along_x"]["numbers"]
    assert len(registry.register(table)) == 4
    after = registry.registered(table)["along_x"]["numbers"]
    assert after["constant"] - before["constant"] > 0.5


def test_no_score_before_all_is_measured(tmp_path):
    table = planted.table(tmp_path / "begun")
    with pytest.raises(CellsMissing, match="the training part, 26 of 26 cells are not measured"):
        registry.register(table)
    planted.measure(table, held_out=False)
    registry.register(table)
    with pytest.raises(CellsMissing, match="all cells, 14 of 40 cells are not measured"):
        score_theories(table)


def test_a_record_of_other_cells_is_refused(table, tmp_path):
    copy = edited(table, tmp_path, lambda entry: None)
    (copy / "phenomenon.py").write_text(planted.PHENOMENON.replace("range(1, 6)", "range(2, 7)"))
    with pytest.raises(InputError, match="expected the cells of the phenomenon, got others"):
        score_theories(copy)


def test_an_unrelated_theory_seldom_beats_a_null():
    """At 95 % confidence against one null: at most one in twenty, and a true theory nearly always."""
    rng, wins = np.random.default_rng(0), {"true": 0, "unrelated": 0}
    for _ in range(120):
        x, z = rng.standard_normal((2, 40))
        value = np.exp(1.5 * x[:, None] + rng.standard_normal((40, 2)))
        data = xr.Dataset({"value": (("cell", "seed"), value), "censored": (("cell", "seed"), 0 * value)})
        train = data.isel(cell=slice(26))

        def terms(columns, train=train, value=value):
            numbers = fit_log_linear(train, {name: column[:26] for name, column in columns.items()})
            prediction = predict_log_linear(numbers, {name: column[26:] for name, column in columns.items()})
            return log_scores(prediction, value[26:], np.zeros((14, 2), bool)).mean(1)

        null = {"constant": terms({})}
        for name, column in (("true", x), ("unrelated", z)):
            wins[name] += bool(compared(terms({"x": column}), null)["beats"])
    assert wins["unrelated"] <= 12  # 6 expected at most, with a standard deviation of 2.4
    assert wins["true"] >= 96
