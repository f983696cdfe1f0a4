"""Scores say yes and no: of a planted phenomenon, of theories that have seen the held-out part, and of late ones."""

import hashlib
import json
import shutil
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from arena import planted
from scipy.stats import norm

from icllab.arena import Prediction, fit_log_linear, predict_log_linear, registry, score_theories
from icllab.arena.prediction import log_scores
from icllab.arena.scores import compared
from icllab.core.errors import CellsMissing, InputError
from icllab.core.files import DamagedFile
from icllab.lab.records import data_digest

NULLS = ("constant", "nearest_neighbour", "power_law")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return planted.finished(tmp_path_factory.mktemp("planted") / "planted")


def by_name(table, own=None):
    return {score.theory: score for score in score_theories(table, own)}


def copied(table, tmp_path):
    return Path(shutil.copytree(table, tmp_path / "copy", ignore=shutil.ignore_patterns("__pycache__")))


def edited(table, tmp_path, change):
    """A copy of the table in which the registrations are changed."""
    copy = copied(table, tmp_path)
    file = copy / "theories" / "registered.json"
    entries = json.loads(file.read_text())
    change(entries)
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
        constant = registry.registered(table)["constant"][0].numbers.values()
        laws = norm(mean, row.numbers["scale"]), norm(*constant)
        for law, means in zip(laws, (terms, nulls), strict=True):
            means.append(np.mean([law.logsf(log) if censored else law.logpdf(log) for log, censored in pairs]))
    assert record["censored"].values[declared.is_held_out].sum() > 1
    error = np.std(terms, ddof=1) / len(terms) ** 0.5
    np.testing.assert_allclose(row.log_score, (np.mean(terms), error), rtol=1e-9)
    gains = np.array(terms) - nulls
    error = np.std(gains, ddof=1) / len(gains) ** 0.5
    np.testing.assert_allclose(row.differences["constant"], (gains.mean(), error), rtol=1e-9)


REFACTORED = """
'A wave along x, as a comment says.'
from numpy import cos as cosine
from icllab import arena

def fit(train):
    level, wave, spread = arena.fit_log_linear(train, {"wave": cosine(train["x"].values * 0.8)}).values()
    return {"level": level, "amplitude": wave, "spread": spread}

def predict(numbers, conditions):
    at = numbers["level"] + numbers["amplitude"] * cosine(conditions["x"].values * 0.8)
    return arena.Prediction(at, numbers["spread"])
"""


def test_a_refactored_theory_stays_in_time(table, tmp_path):
    """Other imports, names of numbers and comments: what it predicts is what was registered."""
    copy = copied(table, tmp_path)
    (copy / "theories" / "along_x.py").write_text(REFACTORED)
    row = by_name(copy)["along_x"]
    assert (row.refused, row.late) == ("", False)
    assert row.log_score == by_name(table)["along_x"].log_score
    assert registry.register(copy) == []


def shifted(at, by):
    """The planted theory, whose location in one cell is shifted; the fit does not see it."""
    return (
        planted.THEORY.format(name="x").replace("def predict(", "def planted(")
        + f"""
def predict(numbers, conditions):
    m, s, q = planted(numbers, conditions)
    return m + {by} * s * ((conditions["x"].values == {at["x"]}) & (conditions["y"].values == {at["y"]})), s, q
"""
    )


@pytest.mark.parametrize("held_out", [False, True])
def test_a_prediction_that_changes_in_one_cell_is_not_that_which_was_registered(table, tmp_path, held_out):
    """A shift by a fraction of the scale changes a probability by at most that over the root of 2 pi."""
    copy, declared = copied(table, tmp_path), registry.phenomenon(table)
    i = np.random.default_rng().choice(np.flatnonzero(declared.is_held_out == held_out))
    tolerance = registry.SAME * np.sqrt(2 * np.pi)
    for by, reason in ((0.7 * tolerance, ""), (-1.5 * tolerance, "predicts otherwise than it was registered")):
        (copy / "theories" / "along_x.py").write_text(shifted(declared.cells[i], by))
        row = by_name(copy)["along_x"]
        assert (row.refused, row.late) == (reason, False)
    assert np.isnan(row.log_score[0])
    assert "along_x" not in {score.theory for score in score_theories(copy)[:3]}  # those with a score come first


def test_an_edit_of_a_helper_is_noticed_by_what_it_predicts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    table = planted.table(tmp_path / "table", ())
    theory = (
        planted.THEORY.format(name="x").replace("0.8", "RATE").replace("import numpy", "import planted_rate, numpy")
    )
    (table / "theories" / "borrowed.py").write_text(theory.replace("RATE", "planted_rate.RATE"))
    monkeypatch.setitem(sys.modules, "planted_rate", rate := types.SimpleNamespace(RATE=0.8))
    planted.measure(table, held_out=False)
    registry.register(table)
    planted.measure(table, held_out=True)
    assert by_name(table)["borrowed"].refused == ""
    rate.RATE = 0.79
    assert by_name(table)["borrowed"].refused == "predicts otherwise than it was registered"


def test_the_record_keeps_the_digest_of_what_was_registered(table, tmp_path):
    copy = copied(table, tmp_path)
    digest = hashlib.sha256((copy / "theories" / "registered.json").read_bytes()).hexdigest()
    assert registry.record(copy).attrs[registry.REGISTERED] == digest
    (copy / "theories" / "registered.json").write_text("{}")
    for dataset in (registry.record(copy), registry.record(copy).drop_attrs()):  # what is saved later does not move it
        registry.save(copy, dataset)
        assert registry.record(copy).attrs[registry.REGISTERED] == digest


def edited_number(entries):
    rng = np.random.default_rng()
    entry = entries[rng.choice(sorted(entries))]
    numbers, name = [(entry, name) for name in ("location", "scale", "never")][rng.integers(3)]
    values = numbers[name] if isinstance(numbers[name], list) else [numbers[name]]
    values[rng.integers(len(values))] += 1e-6
    numbers[name] = values if len(values) > 1 else values[0]


@pytest.mark.parametrize(
    "change",
    [
        edited_number,
        lambda entries: entries.pop("along_y"),
        lambda entries: entries.update(another=entries["along_y"]),
    ],
)
def test_registrations_that_were_edited_after_the_measurement_are_told(table, tmp_path, change):
    """Even where no theory differs from what the edited file says by more than the tolerance."""
    rows = by_name(edited(table, tmp_path, change))
    reason = "registered.json is another than when held-out values were measured: " + registry._REMEDY
    assert {row.refused for row in rows.values()} - {"not registered"} == {reason}


def test_the_end_of_a_line_is_not_an_edit(table, tmp_path):
    copy = copied(table, tmp_path)
    file = copy / "theories" / "registered.json"
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert {row.refused for row in by_name(copy).values()} == {""}


def test_what_is_registered_later_is_late_and_leaves_the_others_in_time(table, tmp_path):
    copy = copied(table, tmp_path)
    file = copy / "theories" / "registered.json"
    before, source = file.read_bytes(), (copy / "theories" / "along_x.py").read_text()
    (copy / "theories" / "later.py").write_text(source)
    (copy / "theories" / "along_x.py").write_text(planted.THEORY.format(name="y").replace("0.8", "0.9"))
    assert by_name(copy)["along_x"].refused == "predicts otherwise than it was registered"
    assert registry.register(copy) == ["along_x", "later"]
    assert registry.register(copy) == []
    assert file.read_bytes() == before
    rows = by_name(copy)
    assert {name for name, row in rows.items() if row.late} == {"along_x", "later"}
    assert {row.refused for row in rows.values()} == {""}
    (copy / "theories" / "along_x.py").write_text(source)  # as it was registered in time
    assert not by_name(copy)["along_x"].late


def test_theories_in_a_folder_of_the_users_own_are_in_time_if_the_record_keeps_their_digest(tmp_path):
    table, own = planted.table(tmp_path / "table", ("y",)), tmp_path / "mine"
    own.mkdir()
    (own / "mine.py").write_text(planted.THEORY.format(name="x"))
    planted.measure(table, held_out=False)
    assert "mine" in registry.register(table, own)
    shutil.copytree(table, tmp_path / "unknown")
    planted.measure(table, held_out=True, own=own)
    row = by_name(table, own)["mine"]
    assert (row.refused, row.late) == ("", False)
    planted.measure(tmp_path / "unknown", held_out=True)
    assert by_name(tmp_path / "unknown", own)["mine"].refused.startswith("registered.json is another than")
    assert registry.register(tmp_path / "unknown", own) == ["mine"]
    assert by_name(tmp_path / "unknown", own)["mine"].late
    assert not by_name(table, own)["mine"].late


@pytest.mark.parametrize(
    "change", ["a field more", "a field less", "not an object", "numbers that are not", "version 0.3"]
)
def test_an_entry_that_is_not_a_registration_is_one_line(table, tmp_path, change):
    rng = np.random.default_rng()

    def damage(entries):
        name = rng.choice(sorted(entries))
        if change == "a field more":
            entries[name][f"unknown{rng.integers(1000)}"] = 0
        elif change == "a field less":
            entries[name].pop(rng.choice(sorted(entries[name])))
        elif change == "version 0.3":
            entries[name] = {"source": "0" * 64, **{field: entries[name][field] for field in ("train", "numbers")}}
        else:
            entries[name] = [1.0] if change == "not an object" else {**entries[name], "numbers": 1.0}

    with pytest.raises(DamagedFile, match=r"expected train, numbers, location, scale, never, got .*; restore it"):
        score_theories(edited(table, tmp_path, damage))


@pytest.mark.parametrize(("name", "value"), [("location", [0.0] * 3), ("scale", -1.0), ("never", None), ("never", "a")])
def test_a_registered_distribution_that_is_none_is_told(table, tmp_path, name, value):
    copy = edited(table, tmp_path, lambda entries: entries["along_x"].update({name: value}))
    assert by_name(copy)["along_x"].refused.startswith("prediction: expected")
    assert by_name(copy)["along_y"].refused.startswith("registered.json is another than")


def test_a_registration_keeps_every_distribution():
    rng = np.random.default_rng()
    prediction = Prediction(rng.normal(0, 10, 200), 10 ** rng.uniform(-9, 1, 200), 1 - 10 ** rng.uniform(-12, -1, 200))
    entry = json.loads(json.dumps(registry._entry(registry.Registration("", {}, prediction), 200)))
    np.testing.assert_array_equal([entry[name] for name in Prediction._fields], prediction)
    constant = registry._entry(registry.Registration("", {}, Prediction(np.full(5, 1 / 3), 1 / 3)), 5)
    assert (constant["location"], constant["scale"], constant["never"]) == (1 / 3, 1 / 3, 0.0)


def test_a_theory_that_was_fitted_to_the_held_out_part_has_no_score(table, tmp_path):
    whole = registry.record(table)
    numbers = registry.fitted(registry.theories(table)["along_x"], whole)
    copy = edited(table, tmp_path, lambda entries: entries["along_x"].update(numbers=numbers))
    assert by_name(copy)["along_x"].refused == "registered numbers are not those of the fit"


def test_a_theory_of_another_training_part_has_no_score(table, tmp_path):
    whole = data_digest(registry.record(table))
    copy = edited(table, tmp_path, lambda entries: entries["along_x"].update(train=whole))
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
    (before,) = registry.registered(table)["along_x"]
    assert len(registry.register(table)) == 4
    (after,) = registry.registered(table)["along_x"]
    assert after.numbers["constant"] - before.numbers["constant"] > 0.5


def test_no_score_before_all_is_measured(tmp_path):
    table = planted.table(tmp_path / "begun")
    with pytest.raises(CellsMissing, match="the training part, 26 of 26 cells are not measured"):
        registry.register(table)
    planted.measure(table, held_out=False)
    registry.register(table)
    with pytest.raises(CellsMissing, match="all cells, 14 of 40 cells are not measured"):
        score_theories(table)


def test_a_record_of_other_cells_is_refused(table, tmp_path):
    copy = copied(table, tmp_path)
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
