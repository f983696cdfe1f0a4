"""``icl certify`` and ``icl verify`` as they are typed."""

import json

import pytest
from faults.processes import CLAIM, CLAIMS, strictly

RECORDED = "asymptotics/double_descent"


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    """A certificate of a record, with its page."""
    from icllab.cli import main

    file = tmp_path_factory.mktemp("certified") / "new" / "c.html"
    assert main(["certify", RECORDED, "-o", str(file)]) == 0
    assert sorted(path.name for path in file.parent.iterdir()) == ["c.html", "c.json"]
    return file


def test_a_certificate_of_a_record_agrees(certified, icl):
    status, out, _ = icl("verify", certified.with_suffix(".json"))
    assert status == 0
    assert len(out.splitlines()) == 1
    assert out.startswith(f"{RECORDED}  agrees: its digest, sentence and conditions, verdict, 6 findings, 2 controls")
    assert "c.html; differs: nothing; not checked: machine, hours, date" in out
    answer = strictly(icl("verify", certified.with_suffix(".json"), "--json")[1])
    assert (answer["exit_status"], answer["differs"], answer["verdict"]) == (0, [], "holds")


def test_an_edit_of_either_file_is_found(certified, tmp_path, icl):
    page, file = tmp_path / "c.html", tmp_path / "c.json"
    text, shown = certified.with_suffix(".json").read_text("utf-8"), certified.read_text("utf-8")
    page.write_text(shown, "utf-8")
    file.write_text(text.replace("0.881228", "0.881229"), "utf-8")
    status, out, _ = icl("verify", file)
    assert status == 1
    assert "differs: the digest of the file is not that of its content" in out
    assert "findings/error[dim=16,tau=0.5]/measured is 0.881229, computed: 0.88122" in out
    file.write_text(text, "utf-8")
    page.write_text(shown.replace("0.881 ±", "0.882 ±"), "utf-8")
    status, out, _ = icl("verify", file)
    assert status == 1
    assert "differs: c.html shows other content than c.json" in out


def test_results_of_ones_own_claim_are_certified_and_measured_again(finished_run, tmp_path, icl):
    file, folders = tmp_path / "mine.json", ("--out", finished_run, "--claims", CLAIMS)
    status, out, _ = icl("certify", CLAIM, "-o", file, *folders)
    assert status == 0
    assert [path.name for path in tmp_path.iterdir()] == ["mine.json"]
    content = json.loads(file.read_text("utf-8"))
    assert content["origin"] == "results"
    assert content["controls"]["raised"]["verdict"] is None  # not run here
    assert content["controls"]["wrong"]["verdict"] == "fails"
    status, out, _ = icl("verify", file, "--rerun", "40%", "--key", "3", *folders)
    assert status == 0
    assert "2 of 5 cells measured again (12 numbers, all within 0 of their scale)" in out
    assert out.splitlines()[1].split() == ["key", "3"]
    first = strictly(icl("verify", file, "--rerun", "0.2", "--json", *folders)[1])["rerun"]
    second = strictly(icl("verify", file, "--rerun", "0.2", "--json", *folders)[1])["rerun"]
    assert first["key"] != second["key"]  # drawn, and said


def test_what_cannot_be_certified_or_verified_is_said_in_a_line(certified, tmp_path, icl):
    file = certified.with_suffix(".json")
    for words, part in (
        (("certify", RECORDED, "-o", tmp_path / "c.pdf"), "ends in .html or .json"),
        (("certify", RECORDED, "--size", "smoke"), "a size with a verdict"),
        (("certify", CLAIM, "--claims", CLAIMS), f"{CLAIM} is not recorded at size small"),
        (("verify", certified), "strict JSON"),
        (("verify", tmp_path / "none.json"), "got no file"),
        (("verify", file, "--key", "3"), "expected with --rerun"),
        (("verify", file, "--rerun", "0%"), "above 0 and at most 100%"),
        (("verify", file, "--rerun", "half"), "such as 5%"),
    ):
        status, _, err = icl(*words)
        assert status == (3 if "not recorded" in part else 2), words
        assert part in err
        assert len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_claim_without_a_control_that_was_measured_says_so_first(finished_run, tmp_path, icl):
    """Under its only control that needs no run the claim fails; without that one nothing falsifies it."""
    folder = tmp_path / "claims"
    folder.mkdir()
    text = (CLAIMS / "steady.py").read_text("utf-8")
    (folder / "steady.py").write_text(
        text.replace('"wrong": Control("nine tenths instead of one half", theory=wrong),', "")
    )
    file, folders = tmp_path / "mine.json", ("--out", finished_run, "--claims", folder)
    status, out, _ = icl("certify", CLAIM, "-o", file, *folders)
    assert status == 0
    assert out.startswith(f"{CLAIM}  holds; no control falsifies it  5 of 5 findings hold")
    status, out, _ = icl("verify", file, *folders)
    assert out.startswith(f"{CLAIM}  holds; no control falsifies it; agrees: its digest")
