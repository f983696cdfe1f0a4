"""A file is a claim; nothing but the file asked for is run."""

import sys
from types import SimpleNamespace

import pytest
import strangers
from faults.processes import CLAIMS

from icllab.arena import registry as arena
from icllab.core.errors import InputError
from icllab.lab import api, provenance, registrations, registry

STEADY = (CLAIMS / "steady.py").read_text()


def test_claims_of_the_book_are_named_by_subject_and_file():
    assert "asymptotics/double_descent" in registry.claims()
    for name in registry.claims():
        assert registry.load(name).name == name
        assert registry.load(name).sentence.endswith(".")


def test_a_folder_is_a_room_or_holds_rooms(tmp_path):
    (tmp_path / "mine" / "deep" / "folded").mkdir(parents=True)
    for path in (
        "mine/here.py",
        "mine/deep/there.py",
        "mine/_private.py",
        "mine/Not-A-Name.py",
        "mine/notes.txt",
        "mine/deep/folded/claim.py",
    ):
        (tmp_path / path).write_text(STEADY)
    own = set(registry.claims(tmp_path / "mine")) - set(registry.claims())
    assert own == {"mine/here", "deep/there", "deep/folded"}
    assert registry.load("deep/there", tmp_path / "mine").name == "deep/there"


def test_only_the_claim_asked_for_is_run(tmp_path):
    (tmp_path / "bad.py").write_text("raise SystemExit('I was run')")
    (tmp_path / "good.py").write_text(STEADY)
    assert registry.load(f"{tmp_path.name}/good", tmp_path).sentence


def test_two_folders_with_claims_of_one_name_stay_two(tmp_path):
    for word in ("one", "two"):
        folder = tmp_path / word / "mine"
        folder.mkdir(parents=True)
        (folder / "half.py").write_text(STEADY.replace("one half", word))
    loaded = [registry.load("mine/half", tmp_path / word / "mine").sentence for word in ("one", "two")]
    assert loaded == [f"What is measured is {word} and a little noise." for word in ("one", "two")]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("claim = 3", "expected a module-level `claim = Claim(...)`, got 3"),
        ("", "expected a module-level `claim = Claim(...)`, got None"),
        ("1 / 0", "expected a file that imports, got ZeroDivisionError: division by zero"),
        ("raise SystemExit(0)", "expected a file that imports, got SystemExit: 0"),
        ("def (", "expected a file that imports, got SyntaxError"),
        ("experiment = 3", "got None; since version 0.3 `experiment = Experiment(claim=...)` is `claim = Claim(sente"),
        (STEADY.replace("controls={", "controls={} and {"), "expected at least one negative control"),
        (STEADY.replace('"Lu24"', '"Lu25"'), "unknown source 'Lu25'; did you mean 'Lu24'?"),
    ],
    ids=["a number", "nothing", "an error", "an exit", "no Python", "an experiment", "no control", "an unknown source"],
)
def test_a_file_that_is_no_claim_is_refused(content, said, tmp_path):
    (tmp_path / "broken.py").write_text(content)
    with pytest.raises(InputError) as caught:
        registry.load(f"{tmp_path.name}/broken", tmp_path)
    assert said in str(caught.value)


def test_folders_that_hold_no_claims_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"expected a folder of claims, got .* which is not a folder"):
        registry.claims(tmp_path / "nothing")
    with pytest.raises(InputError, match=r"expected at least one <finding>/claim\.py or <finding>\.py"):
        registry.claims(tmp_path)


def test_a_name_cannot_be_taken_twice(tmp_path):
    room = tmp_path / "asymptotics"
    room.mkdir()
    (room / "double_descent.py").write_text(STEADY)
    with pytest.raises(InputError, match="expected a name of its own, got 'asymptotics/double_descent' twice"):
        registry.claims(room)


def test_an_unknown_claim_is_answered_with_the_nearest():
    with pytest.raises(InputError, match=r"unknown claim 'double_decent'; did you mean .*--claims DIR"):
        registry.load("double_decent")
    with pytest.raises(InputError, match="did you mean 'asymptotics/double_descent'"):
        registry.load("double_descent")


MEASURE = """
import sys
from .claim import LEVEL
from icllab.core.grid import tabulated

sys.modules["measured"] = True


def measure(point, *, key, raised=0.0):
    return tabulated(lambda seed: {"icl_error": LEVEL + raised}, seed=point.seed)
"""


def test_a_folder_of_ones_own_measures_beside_its_claim(tmp_path, monkeypatch):
    """The claim alone is imported until something is measured; both files may share constants."""
    folder = tmp_path / "mine" / "level"
    folder.mkdir(parents=True)
    text = STEADY.replace("    measure=measure,\n", "").replace("claim = ", "LEVEL = 0.25\nclaim = ")
    (folder / "claim.py").write_text(text)
    (folder / "measure.py").write_text(MEASURE)
    monkeypatch.delitem(sys.modules, "measured", raising=False)
    for where in (tmp_path, tmp_path / "mine", folder):
        experiment = registry.load("mine/level", where)
        assert experiment.name == "mine/level"
    assert "measured" not in sys.modules
    measured = experiment.measure(SimpleNamespace(seed=(0, 1)), key=None)
    assert measured["icl_error"][1].tolist() == [0.25, 0.25]
    assert "measured" in sys.modules
    (folder / "measure.py").unlink()
    with pytest.raises(InputError, match=r"expected a measure\.py beside it, or Claim\(measure=\.\.\.\), got neither"):
        registry.load("mine/level", folder)


def test_functions_are_found_by_name_and_a_claim_without_one_is_refused(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "steady.py").write_text(STEADY)
    experiment = registry.load("mine/steady", folder)
    assert (experiment.theory.__name__, experiment.check.__name__, experiment.figure.__name__) == (
        "theory",
        "check",
        "figure",
    )
    for part in ("check", "figure"):
        (folder / f"without_{part}.py").write_text(STEADY.replace(f"def {part}(", f"def no_{part}("))
        with pytest.raises(InputError, match=rf"without_{part}.py: expected a function `{part}\(dataset\)`, got none"):
            registry.load(f"mine/without_{part}", folder)
    # The subpackage of this name is no theory.
    (folder / "imported.py").write_text("from icllab import theory\n" + STEADY.replace("def theory(", "def other("))
    assert registry.load("mine/imported", folder).theory is None


def test_the_version_is_that_of_the_measuring_file(tmp_path):
    folder = tmp_path / "mine" / "level"
    folder.mkdir(parents=True)
    (folder / "claim.py").write_text(STEADY.replace("    measure=measure,\n", ""))
    for text, version in ((MEASURE, 1), ("VERSION = 12\n" + MEASURE, 12), (MEASURE + "\n# VERSION = 3\n", 1)):
        (folder / "measure.py").write_text(text)
        assert registry.load("mine/level", tmp_path).version == version


def test_a_scratch_directory_is_for_measurements_that_ask_for_one():
    assert "scratch" in registry.parameters(registry.load("claims/steady", CLAIMS), CLAIMS)
    assert not {"scratch", "checkpoints"} & registry.parameters(registry.load("asymptotics/double_descent"))


def test_only_the_named_packages_are_trusted(tmp_path, monkeypatch):
    """A wheel with a like name, and a folder with that very name, hold foreign claims: none of it is imported."""
    mark, (trusted,) = tmp_path / "ran", registry.PACKAGES
    strangers.planted(tmp_path / "site" / f"{trusted}s", mark)
    strangers.installed(tmp_path / "site", name="other", value=f"{trusted}s")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("ICLLAB_CONFIG", str(tmp_path / "config"))
    registrations.add(strangers.planted(tmp_path / trusted, mark))
    forget_books()
    try:
        assert [entry.package for entry in registry.books()] == [f"{trusted}.claims"]
        assert strangers.CLAIM not in registry.claims()
        assert registry.foreign()[0][strangers.CLAIM].origin == "other 1.2"
        with pytest.raises(InputError, match="a claim from elsewhere, whose code runs on `icl run` alone"):
            registry.load(strangers.CLAIM)
        assert not mark.exists()
    finally:
        monkeypatch.undo()
        forget_books()


def forget_books():
    """What is installed is read once by a process."""
    for function in (registrations._installed, registry.books, registry._trusted):
        function.cache_clear()


def test_without_a_book_an_answer_says_where_one_is(monkeypatch):
    monkeypatch.setattr(registry, "books", lambda: ())
    monkeypatch.setattr(registrations, "registered", lambda: ([], []))
    monkeypatch.setattr(registry, "_trusted", dict)
    for search in (registry.load, api.open, arena.folder):
        with pytest.raises(InputError, match="in a clone of icl-lab `pip install -e book` brings its claims"):
            search("asymptotics/double_descent")
    assert registry.claims() == {}


def test_a_result_names_the_book_of_its_claim_and_both_commits():
    assert registry.origin("asymptotics/double_descent")["book"] == "icl-lab-book 0.1"
    assert registry.origin("claims/steady", CLAIMS)["book"] == ""
    commit = registry.origin("asymptotics/double_descent")["book_commit"]
    assert commit == provenance.commit(registry.books()[0].folder)
