"""``icl arena``: tables, scores, registration, and their exit statuses."""

import os

import pytest
from arena import planted
from faults.processes import strictly

from icllab.arena import registry


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return planted.finished(tmp_path_factory.mktemp("planted") / "planted")


def test_tables_are_listed(icl):
    status, out, _ = icl("arena")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()] == list(registry.tables())
    rows = strictly(icl("arena", "--json")[1])["tables"]
    assert all(row["theories"] >= 2 and row["held_out"] < row["cells"] for row in rows)
    assert "planted" in icl("__complete", "arena", "pla")[1].split()


def test_scores_are_a_table_within_80_columns(table, icl, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    status, out, _ = icl("arena", table)
    assert status == 0
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    row = {line.split()[0]: line for line in lines[3:]}
    assert row["along_x"].endswith("every null")
    assert row["along_y"].endswith("no null")
    assert row["constant"].endswith("(null)")
    data = strictly(icl("arena", table, "--json")[1])
    assert next(score["theory"] for score in data["scores"]) == "along_x"
    assert data["held_out"] == 14
    declared, times = registry.phenomenon(table), registry.record(table)["value"].values
    censored, others = ((times[declared.is_held_out == part] == planted.END).sum() for part in (True, False))
    assert data["censored"] == censored != others
    assert f"{censored} of {14 * declared.seeds} held-out values censored" in lines[1]


def test_the_difference_shown_is_that_from_the_best_null(table, icl, monkeypatch):
    """The null with the best score is the one that a theory gains least over."""
    monkeypatch.setenv("COLUMNS", "120")
    _, out, _ = icl("arena", table)
    scores = {score["theory"]: score for score in strictly(icl("arena", table, "--json")[1])["scores"]}
    nulls = {name: score["log_score"][0] for name, score in scores.items() if score["null"]}
    best = max(nulls, key=nulls.get)
    assert max(nulls.values()) > min(nulls.values()) + 0.01
    for line in out.splitlines()[3:]:
        name, shown = line.split()[0], line.split()[4]
        if name in scores and not scores[name]["null"]:
            difference = scores[name]["differences"][best][0]
            assert float(shown) == pytest.approx(difference, abs=0.06)
            assert difference == pytest.approx(scores[name]["log_score"][0] - nulls[best], abs=1e-9)


def test_a_theory_of_the_users_own_is_registered_and_then_scored(table, tmp_path, icl):
    (tmp_path / "mine.py").write_text(planted.THEORY.format(name="x"))
    status, out, _ = icl("arena", table, "--theories", tmp_path)
    assert (status, "mine: not registered" in out) == (3, True)
    assert icl("arena", table, "--theories", tmp_path, "--register")[1] == "registered: mine\n"
    status, out, _ = icl("arena", table, "--theories", tmp_path)
    assert status == 0
    assert "mine *" in out
    assert out.endswith("* registered late: held-out values had been measured\n")
    at_once = (tmp_path / "mine.py").stat()
    (tmp_path / "mine.py").write_text(planted.THEORY.format(name="y"))
    os.utime(tmp_path / "mine.py", ns=(at_once.st_atime_ns, at_once.st_mtime_ns))  # edited within the same second
    status, out, _ = icl("arena", table, "--theories", tmp_path)
    assert (status, "mine: predicts otherwise than it was registered" in out) == (3, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plantd"], "unknown table 'plantd'; did you mean 'planted'?"),
        (["--register"], "expected a table beside other options"),
        (["planted", "--theories", "nowhere", "--register"], "--theories: expected a folder, got 'nowhere'"),
    ],
)
def test_bad_input_is_one_line(words, message, icl):
    status, out, error = icl("arena", *words)
    assert (status, out) == (2, "")
    assert message in error


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "expected functions `fit(train)` and `predict(numbers, conditions)`"),
        (
            "def fit(train):\n    return {'a': float('nan')}\n\ndef predict(numbers, cells):\n    return (0, 1, 0)\n",
            "numbers",
        ),
        (
            "def fit(train):\n    return {'a': 1}\n\ndef predict(numbers, cells):\n    return (0, -1, 0)\n",
            "mine.py: expected numbers that predict, got InputError: prediction: expected",
        ),
        ("import nowhere\n", "expected a file that imports, got ModuleNotFoundError"),
    ],
)
def test_a_theory_that_is_none_is_one_line(table, tmp_path, text, message, icl):
    (tmp_path / "mine.py").write_text(text)
    status, out, error = icl("arena", table, "--theories", tmp_path, "--register")
    assert (status, out) == (2, "")
    assert message in error
    assert error.count("\n") == 1


def test_fresh_cells_are_predicted_measured_and_kept(icl, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = planted.with_levels(planted.finished(tmp_path / "planted"))
    status, out, errors = icl("arena", table, "--fresh", "5")
    assert status == 0
    assert "14 fresh cells of key 5" in out
    assert "14 of 14 cells" in errors
    (file,) = (tmp_path / "icl-results" / "arena").iterdir()
    before = file.read_bytes()
    assert icl("arena", table, "--fresh", "5")[1] == out
    assert file.read_bytes() == before
    own = tmp_path / "own"
    own.mkdir()
    (own / "mine.py").write_text(planted.THEORY.format(name="x"))
    status, _, errors = icl("arena", table, "--fresh", "5", "--theories", own)
    assert status == 2
    assert "expected theories that predicted first, mine did not; try another key" in errors
