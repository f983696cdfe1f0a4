"""A verdict without its data is not recorded, at the same size in every view; the numbers are stated."""

import re
import shutil

import h5py
import pytest
from faults.processes import CLAIM, CLAIMS, ICL, inside, strictly

import icllab as icl
from icllab.cli import main
from icllab.core.errors import CellsMissing
from icllab.lab import records, registry
from icllab.lab.evidence import evidence_of
from icllab.page import cards, report

ALL = registry.claims
LACKING = [name for name in registry.claims() if any(e["verdict"] is None for e in records.card(name).record.values())]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The toy claim with records of two sizes; those of the larger are the data of seeds that follow."""
    folder = tmp_path_factory.mktemp("recorded")
    place = folder / "claims" / "steady"
    place.mkdir(parents=True)
    text = (CLAIMS / "steady.py").read_text()
    small = '"small": {"dim": (2, 4, 8, 16, 32), "ridge": (0.0,), "seed": 6},'
    assert small in text
    (place / "claim.py").write_text(text.replace(small, small + small.replace("small", "medium")))
    for words in (["run"], ["check", "--record"]):
        for more in (["--size", "small"], ["--size", "medium"], ["--size", "medium", "--control", "raised"]):
            main([words[0], CLAIM, *more, *words[1:], *where(folder)])
    return folder


@pytest.fixture
def folder(recorded, tmp_path):
    """A copy of it, for one test to change."""
    return shutil.copytree(recorded, tmp_path, dirs_exist_ok=True)


def where(folder):
    return ["--claims", str(folder / "claims"), "--out", str(folder / "out")]


def without(folder, *groups):
    """Take data out of the record."""
    with h5py.File(folder / "claims" / "steady" / "record.nc", "r+") as file:
        for group in groups:
            del file[group]


def views(capfd, opened, folder):
    """View -> size and verdict of the toy claim's record; None is "not recorded"."""
    claims, (words, words_of_check) = folder / "claims", (where(folder), where(folder))
    empty = folder / "nothing"
    empty.mkdir(exist_ok=True)
    (row,) = strictly(inside(capfd, [*ICL, "list", CLAIM, *words[:2], "--json"])[1])["claims"]
    long = inside(capfd, [*ICL, "list", CLAIM, "--long", *words[:2]])[1]
    said = re.search(r"record +(\w[\w ]*) \((\w+)\)", long)
    line = inside(capfd, [*ICL, "list", CLAIM, *words[:2]])[1]
    check = inside(capfd, [*ICL, "check", CLAIM, "--recorded", *words_of_check[:2]])[1]
    size = re.search(r"at size (\w+)|\(size (\w+)\)", " ".join(check.split()))
    word = re.search("HOLDS|FAILS|UNDECIDED|NOT RECORDED", check)[0].lower()
    section = report.section(CLAIM, empty, claims)
    page = opened(empty, claims=claims)
    tile = next(row for row in page.get("/api/claims").json()["claims"] if row["claim"] == CLAIM)
    card = page.get(f"/api/claims/{CLAIM}").json()["html"]
    badge, shown = (re.search(r'class="status">(.*?)</p>', text)[1] for text in (tile["html"], card))
    assert badge == shown
    badge = " ".join(re.sub("<[^>]*>", " ", badge).replace("(", " ").replace(")", " ").replace(",", " ").split())
    badge = re.fullmatch(r"(not recorded|\w+) (small|medium|full)( recorded)?", badge)
    found = records.card(CLAIM, claims)
    status, out, _ = inside(capfd, [*ICL, "certify", CLAIM, "-o", str(folder / "c.json"), "--json", *words[:2]])
    certificate = strictly(out)
    assert ("error" not in certificate) or (status == 3 and not (folder / "c.json").exists())
    return {
        "card": (found.recorded, found.verdict),
        "list --json": (row["recorded"], row["record"][row["recorded"]]["verdict"]),
        "list --long": (said[2], said[1]),
        "list": (found.recorded, re.search("holds|not recorded", line)[0]),
        "check": (size[1] or size[2], word),
        "report": (found.recorded, section.standing.verdict if section.standing else None),
        "page": (badge[2], badge[1]),
        "tile": (found.recorded, {"none": None}.get(tile["verdict"], tile["verdict"])),
        "certificate": (certificate["size"], certificate["verdict"])
        if "error" not in certificate
        else (re.search(r"is not recorded at size (\w+)", certificate["error"]["message"])[1], None),
    }


@pytest.mark.parametrize(
    ("groups", "size", "verdict"),
    [((), "medium", "holds"), (("medium",), "small", "holds"), (("small", "medium"), "medium", None)],
    ids=["all", "of small", "none"],
)
def test_every_view_means_the_same_size(groups, size, verdict, folder, capfd, opened):
    without(folder, *groups)
    answers = views(capfd, opened, folder)
    words = dict.fromkeys(answers, (size, verdict or "not recorded"))
    assert {view: (size, word or "not recorded") for view, (size, word) in answers.items()} == words
    if groups == ("medium",):
        text = " ".join(inside(capfd, [*ICL, "check", CLAIM, "--recorded", *where(folder)[:2]])[1].split())
        assert "medium is not recorded" in text
        assert (
            "holds (small), not recorded (medium)"
            in inside(capfd, [*ICL, "list", CLAIM, "--long", *where(folder)[:2]])[1]
        )


def test_a_control_without_data_is_not_recorded_and_a_formula_needs_none(folder, capfd):
    def verdicts():
        entry = records.card(CLAIM, folder / "claims").record["medium"]
        return {name: control["verdict"] for name, control in entry["controls"].items()}

    assert verdicts() == {"raised": "fails", "wrong": "fails"}
    without(folder, "medium@raised")
    assert verdicts() == {"raised": None, "wrong": "fails"}
    card = records.card(CLAIM, folder / "claims")
    text = cards.card_html(card, cards.from_record(card), None)
    assert re.search(r"<code>raised</code>.*?not recorded</span> medium", text)
    without(folder, "medium")
    assert verdicts() == {"raised": None, "wrong": None}


@pytest.fixture
def every_claim(monkeypatch):
    """All claims, of which the page's fixtures leave few."""
    monkeypatch.setattr(registry, "claims", ALL)


def test_the_claims_of_the_book_have_one_count(capfd, every_claim):
    """Of `icl list`, the cards and the certificates; that of README has a test of its own."""
    rows = strictly(inside(capfd, [*ICL, "list", "--json"])[1])["claims"]
    listed = {row["claim"]: (row["recorded"], row["record"][row["recorded"]]["verdict"]) for row in rows}
    assert listed == {name: (card.recorded, card.verdict) for name in listed for card in [records.card(name)]}
    for name, (size, verdict) in listed.items():
        assert verdict in (records.read(name)[size]["verdict"], None)
        if verdict:
            assert evidence_of(name).size == size
        else:
            with pytest.raises(CellsMissing, match=f"{name} is not recorded at size {size}"):
                evidence_of(name)
    assert set(listed) == set(registry.claims())


@pytest.mark.parametrize("name", [*LACKING[:2], *LACKING[-2:]])
def test_a_check_of_the_record_says_which_sizes_it_lacks(name, capfd, every_claim):
    card = records.card(name)
    status, out, _ = inside(capfd, [*ICL, "check", name, "--recorded", "--json"])
    (answer,) = strictly(out)["claims"]
    if card.verdict:
        assert (answer["size"], answer["verdict"]) == (card.recorded, card.verdict)
        lacking = [size for size, entry in card.record.items() if not entry["verdict"]]
        assert all(any(note.startswith(f"{size} is not recorded") for note in answer["notes"]) for size in lacking)
        assert icl.check(name, recorded=True).notes == tuple(answer["notes"])
    else:
        assert (status, answer["verdict"]) == (3, None)
        assert f"at size {card.recorded}" in answer["error"]["message"]
