"""Claims from elsewhere: their code runs on ``icl run`` alone, and their records are data."""

import sys

import pytest
import strangers
from faults.processes import strictly
from strangers import CLAIM

import icllab as icl_lab
from icllab.core.errors import InputError
from icllab.lab import authoring, registrations, registry


@pytest.fixture(autouse=True)
def configuration(tmp_path, monkeypatch):
    """A configuration directory and a working directory of the test's own."""
    monkeypatch.setenv("ICLLAB_CONFIG", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    registrations._installed.cache_clear()
    yield
    registrations._installed.cache_clear()


@pytest.fixture
def mark(tmp_path):
    """The file that the planted claim writes when its code runs."""
    return tmp_path / "ran"


@pytest.fixture
def added(tmp_path, mark, icl):
    """The planted claim, added."""
    folder = strangers.planted(tmp_path / "elsewhere", mark)
    assert icl("claim", "add", folder)[0] == 0
    return folder


READING = [
    (["list"], 0),
    (["list", "--long"], 0),
    (["list", "--json"], 0),
    (["check", CLAIM, "--recorded"], 0),
    (["check", CLAIM], 3),
    (["check", CLAIM, "--control", "heavy_rows", "--recorded"], 2),
    (["check", CLAIM, "--record"], 2),
    (["cite", CLAIM], 0),
    (["cite", CLAIM, "--text"], 0),
    (["draw", CLAIM, "--recorded", "--to", "drawn.png"], 0),
    (["draw", CLAIM], 2),
    (["export", CLAIM, "--to", "a.csv"], 2),
    (["report", CLAIM], 0),
    (["certify", CLAIM], 2),
    (["claim", "cost", CLAIM], 2),
    (["run", "--help"], 0),
    (["__complete", "run", "random_m"], 0),
    (["run", f"{CLAIM}s"], 2),
]


def test_foreign_code_runs_on_run_alone(added, mark, icl, tmp_path):
    for words, status in READING:
        returned, out, err = icl(*words)
        assert returned == status, (words, out, err)
        assert not mark.exists(), words
        if status == 2 and words[0] != "run":
            assert f"with --claims {added / CLAIM} you ask for it here too" in err
    assert CLAIM in icl("__complete", "run", "random_m")[1]
    for function in (icl_lab.check, icl_lab.draw, icl_lab.open, icl_lab.recorded):
        with pytest.raises(InputError, match="runs on `icl run` alone"):
            function(CLAIM)
    assert "MarchenkoPastur67" in icl_lab.cite(CLAIM)
    assert not mark.exists()
    status, out, _ = icl("run", CLAIM, "--size", "smoke", "--json")
    assert (status, strictly(out)["numbers"], mark.exists()) == (0, "as recorded", True)


def test_what_is_shown_is_the_authors(added, icl, tmp_path):
    out = icl("list", "resolvent")[1]
    heading, line = out.splitlines()[1:]
    assert heading.startswith("from elsewhere, with their authors' verdicts")
    assert line.split() == [CLAIM, "holds", "Resolvents", "of", "Wishart", "matrices"]
    rows = {row["claim"]: row for row in strictly(icl("list", "--json")[1])["claims"]}
    assert (rows[CLAIM]["origin"], rows["asymptotics/double_descent"]["origin"]) == ("added", None)
    out = icl("check", CLAIM, "--recorded")[1]
    assert "HOLDS  4 of 4 findings hold" in out
    assert "as its author recorded it; nothing of it was run here" in out
    assert icl("report", CLAIM)[0] == 0
    assert "recorded by its author" in (tmp_path / "report.html").read_text()


def test_draw_refuses_data_of_another_digest(added, icl):
    strangers.edited(added, lambda record: record["small"].update(digest="0" * 64))
    status, _, err = icl("draw", CLAIM, "--recorded")
    assert (status, "expected data of digest 0000" in err) == (4, True)


HOSTILE = {
    "no object": lambda record: record.clear() or record.update(claim=3),
    "no sentence": lambda record: record["claim"].pop("sentence"),
    "a size of its own": lambda record: record["claim"]["sizes"].append("../x"),
    "a control that is a path": lambda record: record["claim"]["controls"].update({"/../../etc": "x"}),
    "an unknown source": lambda record: record["claim"]["sources"].append("Nobody00"),
    "references that are none": lambda record: record["claim"].update(references="@misc{a,\n b\n}"),
    "another verdict": lambda record: record["small"].update(verdict="undecided"),
    "an outcome of its own": lambda record: record["small"]["findings"][0].update(outcome="proved"),
    "a number that is none": lambda record: record["small"]["findings"][0].update(measured=[1]),
    "a machine that is no list": lambda record: record["small"].update(machine="[x"),
    "a version that is text": lambda record: record["small"].update(measure="1"),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_a_record_of_another_shape_is_left_out_with_a_line(change, added, icl):
    strangers.edited(added, change)
    status, out, _ = icl("list", "double_d", "--json")
    answer = strictly(out)
    assert status == 0
    assert CLAIM not in {row["claim"] for row in answer["claims"]}
    (warning,) = answer["warnings"]
    assert "\n" not in warning
    assert any(word in warning for word in ("expected", "unknown source"))
    for words in (["check", CLAIM, "--recorded"], ["cite", CLAIM]):
        assert icl(*words)[0] in (2, 4)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[" * 100_000, b'{"claim": NaN}', b" " * (3 << 20)])
def test_a_record_that_is_no_json_is_left_out_too(content, added, icl):
    (added / CLAIM / "record.json").write_bytes(content)
    assert icl("list")[0] == 0
    assert icl("cite", CLAIM)[0] == 4
    (added / CLAIM / "record.json").unlink()
    (warning,) = strictly(icl("list", "--json")[1])["warnings"]
    assert "expected a record.json, by which a claim from elsewhere is shown, found none" in warning


def test_text_of_a_record_is_no_command_to_a_terminal_or_browser(added, icl, tmp_path):
    title = "\x1b]0;owned\x07\x1b[31mRed <script>alert(1)</script>\r"
    strangers.edited(added, lambda record: record["claim"].update(title=title, sentence=title))
    for words in (["list", "--json"], ["list"], ["list", "--long"], ["check", CLAIM, "--recorded"]):
        out = icl(*words)[1]
        assert not {"\x1b", "\x07", "\r"} & set(out), words
    assert icl("report", CLAIM)[0] == 0
    text = (tmp_path / "report.html").read_text()
    assert "&lt;script&gt;alert(1)" in text
    assert "<script>alert" not in text


def test_a_wheel_names_claims_by_an_entry_point(tmp_path, mark, monkeypatch, icl):
    """Not even the package is imported: its ``__init__.py`` would write the file too."""
    site = tmp_path / "site"
    strangers.planted(site / "my_claims", mark)
    strangers.installed(site)
    monkeypatch.syspath_prepend(str(site))
    rows = {row["claim"]: row for row in strictly(icl("list", "--json")[1])["claims"]}
    assert (rows[CLAIM]["origin"], rows[CLAIM]["record"]["small"]["verdict"]) == ("my_claims 1.2", "holds")
    assert icl("check", CLAIM, "--recorded")[0] == 0
    assert not mark.exists()
    assert "my_claims" not in sys.modules
    # The same folder, added as well, is no second claim.
    assert icl("claim", "add", site / "my_claims")[0] == 0
    assert strictly(icl("list", "--json")[1])["warnings"] == []


def test_a_folder_and_its_parent_are_not_both_added(added, icl):
    """In either order: the claim would be in two places."""
    inner = added / CLAIM.split("/")[0]
    status, _, err = icl("claim", "add", inner)
    assert status == 2
    assert f"is in {added}; `icl claim add --remove` forgets that" in err
    assert icl("claim", "add", added)[0] == 0  # the same folder once more
    assert icl("claim", "add", "--remove", added)[0] == 0
    assert icl("claim", "add", inner)[0] == 0
    assert icl("claim", "add", added)[0] == 2


@pytest.mark.parametrize("value", ["nobody.has.this", "my_claims.nothing", "../elsewhere", "os", ""])
def test_an_entry_point_without_claims_is_a_note(value, tmp_path, mark, monkeypatch, icl):
    strangers.planted(tmp_path / "site" / "my_claims", mark)
    strangers.installed(tmp_path / "site", value=value)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    (warning,) = strictly(icl("list", "--json")[1])["warnings"]
    assert "my_claims 1.2" in warning
    assert not mark.exists()


def test_no_name_of_the_library_is_taken(tmp_path, mark, monkeypatch, icl):
    """Refused where it is added, left out with a note where a wheel brings it; so is another folder's."""
    folder = strangers.planted(tmp_path / "site" / "my_claims", mark)
    (folder / CLAIM).rename(folder / "random_matrices" / "double_descent")
    (folder / "random_matrices").rename(folder / "asymptotics")
    status, _, err = icl("claim", "add", folder)
    assert (status, "asymptotics/double_descent is a claim of icl-lab-book 0.1" in err) == (2, True)
    assert not (tmp_path / "config").exists()
    strangers.installed(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    registrations._installed.cache_clear()  # another process reads what is installed anew
    (warning,) = strictly(icl("list", "--json")[1])["warnings"]
    assert "is left out: asymptotics/double_descent is a claim of icl-lab-book 0.1" in warning
    assert registry.load("asymptotics/double_descent").version
    assert not mark.exists()
    first, second = (strangers.planted(tmp_path / name, mark) for name in ("first", "second"))
    assert icl("claim", "add", first)[0] == 0
    status, _, err = icl("claim", "add", second)
    assert (status, f"{CLAIM} is a claim of {first / CLAIM} (added)" in err) == (2, True)


def test_a_folder_is_forgotten_and_one_that_has_gone_is_a_note(added, icl, tmp_path):
    added.rename(tmp_path / "gone")
    (warning,) = strictly(icl("list", "--json")[1])["warnings"]
    assert f"`icl claim add --remove {added}` forgets it" in warning
    assert icl("claim", "add", added, "--remove")[0] == 0
    assert icl("claim", "add", added, "--remove")[0] == 2
    assert strictly(icl("list", "--json")[1])["warnings"] == []


@pytest.mark.parametrize("text", ["", "3", '{"folders": "x"}', '{"folders": ["relative"]}', '{"folders": [3]}'])
def test_a_damaged_list_of_folders_is_a_note_and_is_not_overwritten(text, icl, tmp_path, added):
    path = tmp_path / "config" / "claims.json"
    path.write_text(text)
    (warning,) = strictly(icl("list", "--json")[1])["warnings"]
    assert "claims.json: expected a JSON list of absolute paths" in warning
    assert icl("claim", "add", added)[0] == 4
    assert path.read_text() == text


def test_what_holds_no_claims_is_not_added(tmp_path, icl):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_x.py").write_text("1 / 0")
    for folder in (tmp_path / "nothing", tmp_path):
        status, _, err = icl("claim", "add", folder)
        assert (status, "icl claim add: expected" in err) == (2, True)


def test_templates_are_those_that_the_command_offers(icl):
    status, _, err = icl("claim", "new", "mine/first", "--from", "nothing")
    assert status == 2
    assert all(name in err for name in authoring.templates())
    assert len(authoring.templates()) == 3


@pytest.mark.parametrize("name", ["first", "Mine/first", "../mine/first", "mine/first/more", "mine/2", "/mine/first"])
def test_a_name_is_a_subject_and_a_finding(name, icl, tmp_path):
    assert icl("claim", "new", name, "--from", "theory")[0] == 2
    assert [path.name for path in tmp_path.iterdir()] == []


def test_nothing_is_overwritten_by_new(icl, tmp_path):
    (tmp_path / "mine" / "first").mkdir(parents=True)
    status, _, err = icl("claim", "new", "mine/first", "--from", "theory")
    assert (status, "nothing was written" in err) == (2, True)
    assert not any((tmp_path / "mine" / "first").iterdir())


def test_a_book_is_written_by_its_name(icl, tmp_path):
    status, out, _ = icl("claim", "new", "mine", "--book", "--json")
    answer = strictly(out)
    assert (status, answer["book"], answer["next"][0]) == (0, "mine", "cd mine")
    assert sorted(map(str, answer["files"])) == sorted(
        str(path.relative_to(tmp_path)) for path in (tmp_path / "mine").rglob("*") if path.is_file()
    )
    claim = tmp_path / "mine" / "src" / "mine" / authoring.EXAMPLE
    assert str((claim / "claim.py").relative_to(tmp_path)) in answer["files"]
    status, _, err = icl("claim", "new", "mine", "--book")
    assert (status, "expected a name that is free, got mine, which is there" in err) == (2, True)


BAD_PACKAGES = ["Mine", "../mine", "mine/first", "mine/", "mine/first/more/still", "my-claims", "my__claims", "_m"]
TAKEN_PACKAGES = ["class", "json", "numpy", "icllab", *registry.PACKAGES]


@pytest.mark.parametrize("name", [*BAD_PACKAGES, *TAKEN_PACKAGES])
def test_the_name_of_a_book_is_a_package_that_is_free(name, icl, tmp_path):
    status, _, err = icl("claim", "new", name, "--book")
    assert (status, "expected a package's name" in err) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == []


def test_no_book_has_the_name_of_a_trusted_one(icl, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "PACKAGES", ("not_installed",))
    assert icl("claim", "new", "not_installed", "--book")[0] == 2
    assert list(tmp_path.iterdir()) == []


def test_a_book_of_another_template_names_its_claim(icl, tmp_path):
    status, _, err = icl("claim", "new", "mine", "--book", "--from", "trained")
    assert (status, "package/subject/finding" in err) == (2, True)
    assert icl("claim", "new", "mine/first/claim", "--book", "--from", "trained")[0] == 0
    assert (tmp_path / "mine" / "src" / "mine" / "first" / "claim" / "measure.py").is_file()
