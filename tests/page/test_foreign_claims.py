"""The page shows claims from elsewhere by their records: it imports none, escapes their texts, and runs none."""

import pytest
import strangers
from strangers import CLAIM

from icllab.lab import registrations


@pytest.fixture
def mark(tmp_path):
    return tmp_path / "ran"


@pytest.fixture
def folder(tmp_path, monkeypatch, mark):
    """The planted claim, added, with markup in what it states."""
    monkeypatch.setenv("ICLLAB_CONFIG", str(tmp_path / "config"))
    folder = registrations.add(strangers.planted(tmp_path / "elsewhere", mark))
    markup = "<img src=x onerror=alert(1)>"
    statement = {"title": markup, "sentence": markup, "conditions": markup, "controls": {"a": markup}}
    strangers.edited(folder, lambda record: record["claim"].update(statement))
    strangers.edited(folder, lambda record: record["small"]["findings"][0].update(what=markup, id=f"a[{markup}=1]"))
    return folder


def test_the_page_shows_the_record_and_runs_nothing(opened, tmp_path, folder, mark):
    page = opened(tmp_path / "results", claims=None)
    tile = next(tile for tile in page.get("/api/claims").json()["claims"] if tile["claim"] == CLAIM)
    assert tile["verdict"] == "holds"
    assert "small, recorded by its author" in tile["html"]
    card = page.get(f"/api/claims/{CLAIM}").json()
    assert card["sizes"] == []  # no form that would run it
    assert "def measure(point, *, key, heavy=False):" in card["html"]  # its text, to be read first
    for html in (tile["html"], card["html"]):
        assert "<img src=x" not in html
        assert "&lt;img src=x" in html
    answer = page.post("/api/runs", json={"claim": CLAIM, "size": "smoke"})
    assert answer.status_code == 400
    assert "one from elsewhere is run in a terminal" in answer.json()["error"]
    assert not mark.exists()


def test_the_librarys_figure_is_no_foreign_claims(opened, tmp_path, folder, mark):
    """Also where the finding has the name of a claim of the book."""
    (folder / CLAIM).rename(folder / "random_matrices" / "double_descent")
    page = opened(tmp_path / "results", claims=None)
    tiles = {tile["claim"]: tile["html"] for tile in page.get("/api/claims").json()["claims"]}
    assert "/card.png" in tiles["asymptotics/double_descent"]
    assert ".png" not in tiles["random_matrices/double_descent"]
    for name in ("figure", "card"):
        assert page.get(f"/api/claims/random_matrices/double_descent/{name}.png").status_code == 404


def test_a_damaged_record_is_a_fault_of_its_own_tile(opened, tmp_path, folder, mark):
    (folder / CLAIM / "record.json").write_text("{")
    (folder / CLAIM / "claim.py").write_text("def (")
    page = opened(tmp_path / "results", claims=None)
    tile = next(tile for tile in page.get("/api/claims").json()["claims"] if tile["claim"] == CLAIM)
    assert "Cannot be shown" in tile["html"]
    assert "expected a JSON object" in tile["html"]
    assert not mark.exists()
