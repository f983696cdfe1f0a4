"""Fresh cells: drawn outside the table, predicted before they are measured, and scored by what was predicted."""

import numpy as np
import pytest
from arena import planted

from icllab.arena import fresh, registry
from icllab.core.errors import CellsMissing, InputError


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return planted.with_levels(planted.finished(tmp_path_factory.mktemp("planted") / "planted"))


def shown(*_):
    """Progress that nobody reads."""


def test_fresh_cells_are_other_combinations_and_the_key_draws_them(table):
    one, again, other = (fresh.predicted(table, key) for key in (5, 5, 6))
    cells = [set(zip(part["x"].values, part["y"].values, strict=True)) for part in (one, again, other)]
    known = {(cell["x"], cell["y"]) for cell in registry.phenomenon(table).cells}
    assert len(cells[0]) == 14
    assert cells[0] == cells[1] != cells[2]
    assert not cells[0] & known


def test_a_table_without_levels_has_no_fresh_cells(tmp_path):
    folder = planted.finished(tmp_path / "planted")
    with pytest.raises(InputError, match="levels: expected 14 combinations beside the cells, got 0"):
        fresh.predicted(folder, 1)


def test_predictions_are_written_before_the_first_value_and_are_what_is_scored(table, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "mine.py").write_text(planted.THEORY.format(name="x"))
    file, empty = tmp_path / "fresh.nc", fresh.predicted(table, 5, own)
    assert empty["value"].isnull().all()
    with pytest.raises(CellsMissing, match="fresh cells"):
        fresh.scores(empty)
    seen = []

    def interrupted(count, *_):
        seen.append(fresh.read(file))
        if count == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fresh.measured(table, file, empty, show=interrupted)
    assert seen[0]["location"].equals(empty["location"])
    half = fresh.read(file)
    assert half["value"].notnull().all("seed").sum() == 3
    whole = fresh.measured(table, file, half, show=shown)
    np.testing.assert_array_equal(whole["value"][:3], half["value"][:3])
    rows = {row.theory: row for row in fresh.scores(fresh.read(file))}
    assert {"mine", "along_x", "along_y", "constant"} <= set(rows)
    assert len(rows["along_x"].beats) == 3
    assert rows["along_y"].beats == ()
    assert rows["mine"].log_score == pytest.approx(rows["along_x"].log_score)
    worse = whole.assign(location=whole["location"] + 5.0)  # what is scored is what the file predicts
    assert {row.theory: row for row in fresh.scores(worse)}["along_x"].log_score[0] < rows["along_x"].log_score[0] - 1
