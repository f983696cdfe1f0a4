"""Lies that a certificate, a record or a claim may tell, each with its digests made right, and what tells them."""

import copy
import importlib
import json
import shutil

import numpy as np
import pytest
import strangers
from lab.test_records import forget_claims

from icllab.cli import main
from icllab.lab import certificate, conformance, recording, records, registry, rerun, source_files, verification
from icllab.lab.evidence import evidence_of

NAME = "mine/first"


@pytest.fixture(autouse=True)
def without_figure(monkeypatch):
    """The figure is drawn in other tests."""
    monkeypatch.delitem(conformance.RECORDED, "figure")


@pytest.fixture(scope="module")
def measured_here(tmp_path_factory):
    """A claim of somebody else, measured and recorded on this machine."""
    place = tmp_path_factory.mktemp("here") / NAME
    shutil.copytree(strangers.PACKAGE / strangers.CLAIM, place, ignore=shutil.ignore_patterns("__pycache__", "record*"))
    folders = [NAME, "--claims", str(place), "--out", str(place.parents[1] / "out")]
    for more in ([], ["--control", "heavy_rows"]):
        assert main(["run", *folders, *more]) in (0, 1)
        assert main(["check", *folders, *more, "--record"]) in (0, 1)
    return place


@pytest.fixture
def folder(measured_here, tmp_path):
    """A copy, for a test to change."""
    forget_claims()
    return shutil.copytree(measured_here, tmp_path / NAME, ignore=shutil.ignore_patterns("__pycache__"))


def replace(folder, file, old, new):
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))
    forget_claims()


def shift(folder, change, control=None):
    """Change the recorded traces, with every digest and verdict of the record made right."""
    claim = registry.load(NAME, folder)
    dataset = records.data(NAME, "small", control, folder)
    dataset["trace"] = dataset["trace"].dims, change(dataset["trace"].values)
    path, entry = folder / "record.json", json.loads((folder / "record.json").read_text())
    (entry["small"]["controls"][control] if control else entry["small"])["digest"] = records.data_digest(dataset)
    recording._write_data(path.with_suffix(".nc"), records.group("small", control), dataset, NAME)
    path.write_text(json.dumps(entry))
    recording.judge_again(claim, folder)


def restate(folder, *at):
    """Change a value of record.json."""
    content = json.loads((folder / "record.json").read_text())
    part = content
    for name in at[:-2]:
        part = part[name]
    part[at[-2]] = at[-1]
    (folder / "record.json").write_text(json.dumps(content))


def verified(folder, change=lambda content: content, issued=None, **options):
    """Verify a certificate that is issued now, unless it was ``issued`` before, and then changed."""
    content = issued or certificate.certificate(evidence_of(NAME, folder=folder))
    file = folder / "certificate.json"
    file.write_bytes(certificate.as_bytes(certificate.sealed(change(copy.deepcopy(content)))))
    return verification.verify(file, folder=folder, **options)


def put(*at):
    """Function that changes one field of a certificate."""

    def change(content):
        part = content
        for name in at[:-2]:
            part = part[name]
        part[at[-2]] = at[-1]
        return content

    return change


FINDING = "trace[ridge=0.3]"
EDITED = {
    "sentence": put("statement", "sentence", "Pigs fly."),
    "verdict": put("verdict", "fails"),
    "number": put("findings", FINDING, "measured", 0.123456),
    "outcome": put("findings", FINDING, "outcome", "undecided"),
    "falsified by": put("findings", FINDING, "falsified_by", []),
    "control": put("controls", "heavy_rows", "verdict", "holds"),
    "seeds": put("design", "seeds", list(range(1000))),
    "version": put("design", "measure", 2),
    "commit": put("measurement", "commit", "0" * 40),
    "hours": put("measurement", "hours", 20000.0),
    "data": put("digests", "data", "small", "0" * 64),
    "sources": put("digests", "sources", "mine/first/claim.py", "0" * 64),
    "checklist": put("checklists", "TMLR", "Evidence supports the claims", "Much."),
    "conformance": put("conformance", "no shared code", "all of it"),
    "faults": put("faults", ["none"]),
}


def test_one_edited_field_under_a_new_digest_is_told(folder):
    whole = certificate.certificate(evidence_of(NAME, folder=folder))
    assert verified(folder, issued=whole).exit_status == 0
    computed = certificate.assemble(evidence_of(NAME, folder=folder))
    for name, change in EDITED.items():
        stated, right = certificate.as_stated(change(copy.deepcopy(whole)), computed)
        (at, *_), *more = verification.differences(stated, right)
        assert not more or at[0] == "design", name
    result = verified(folder, EDITED["number"], whole)
    assert (result.exit_status, result.line.partition(":")[0]) == (1, "differs")
    assert "of version 2 of the claim's measure, which is 1 now" in verified(folder, EDITED["version"], whole).headline


@pytest.mark.parametrize("size", ["full", "medium"])
def test_a_size_without_data_is_not_checked(size, folder):
    result = verified(folder, put("size", size))
    assert result.exit_status == 3
    assert result.line.startswith("not checked: all else")


RNG = np.random.default_rng(0)
SHIFTED = {
    "a thousandth": lambda values: values * 1.001,
    "a millionth": lambda values: values * (1 + 1e-6),
    "an offset": lambda values: values + 2e-6,
    "two seeds": lambda values: np.concatenate([values[:, 2:4], values[:, 2:]], axis=1),
    "a swapped axis": lambda values: values[..., ::-1],
    "noise": lambda values: values + 0.05 * values.std(1, keepdims=True) * RNG.normal(size=values.shape),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SHIFTED)
def test_a_shifted_measurement_is_told_where_it_was_measured(kind, folder):
    shift(folder, SHIFTED[kind])
    result = verified(folder, fraction=0.01, key=3)
    assert result.exit_status == 1
    assert any(text.startswith("trace at dim=") and "numbers, the worst" in text for text in result.differs)


@pytest.mark.slow
def test_an_honest_measurement_agrees_and_so_do_its_controls(folder):
    result = verified(folder, fraction=1.0, key=0)
    assert result.exit_status == 0
    assert len(result.rerun.cells) == result.rerun.total == 6
    assert sum("under heavy_rows" in cell for cell in result.rerun.cells) == 3
    assert "6 of 6 cells measured again (2400 numbers, all within 0 of their scale)" in result.agrees


@pytest.mark.slow
def test_a_shifted_control_is_told(folder):
    shift(folder, lambda values: values * 1.1, "heavy_rows")
    assert verified(folder).exit_status == 0
    result = verified(folder, fraction=0.01, key=0)
    assert result.exit_status == 1
    assert result.differs[0].startswith("trace at dim=")
    assert "under heavy_rows" in result.differs[0]


@pytest.mark.slow
def test_elsewhere_a_gap_is_named_and_is_no_agreement(folder, monkeypatch):
    monkeypatch.setattr(rerun, "on_this_machine", lambda attributes: False)
    assert verified(folder, fraction=0.1, key=0).exit_status == 0  # equal bits
    shift(folder, lambda values: values * (1 + 1e-6))
    result = verified(folder, fraction=0.1, key=0)
    assert not any("measured again" in text for text in result.agrees)
    assert "gaps of up to 1e-06 of the scale, that of trace at dim=" in result.line
    shift(folder, lambda values: values * 1.001)
    assert verified(folder, fraction=0.1, key=0).exit_status == 1


@pytest.mark.parametrize(
    ("at", "part"),
    [
        (("small", "verdict", "fails"), "verdict is 'fails', computed: 'holds'"),
        (("small", "findings", 1, "measured", 0.5), f"findings/{FINDING}/measured is 0.5"),
        pytest.param(
            ("small", "findings", 1, "outcome", "fails"),
            f"findings/{FINDING}/outcome is 'fails'",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("small", "controls", "heavy_rows", "verdict", "holds"),
            "controls/heavy_rows is ['holds'",
            marks=pytest.mark.slow,
        ),
        (("small", "controls", "heavy_rows", "fails", []), "controls/heavy_rows is ['fails', []]"),
    ],
)
def test_a_record_that_contradicts_its_data_is_told(at, part, folder):
    restate(folder, *at)
    result = verified(folder)
    assert result.exit_status == 1
    assert result.differs[0].startswith(f"record.json contradicts its data: {part}")
    assert part in certificate.headline(json.loads((folder / "certificate.json").read_text()))[0]


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        (
            '"dim": (16, 32, 64), "ridge"',
            '"dim": (16, 32, 64, 128), "ridge"',
            "3 values of dim (16, 32, 64) where the size has 4 (16, 32, 64, ...)",
        ),
        pytest.param(
            '"dim": (16, 32, 64), "ridge"',
            '"dim": (16, 32, 48), "ridge"',
            "3 values of dim (16, 32, 64) where the size has 3 (16, 32, 48)",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            '"seed": 100',
            '"seed": 99',
            "100 values of seed (0, 1, 2, ...) where the size has 99 (0, 1, 2, ...)",
            marks=pytest.mark.slow,
        ),
        ('"kappa": 2.0', '"kappa": 3.0', "another configuration: fixed.kappa is 2.0 there and 3.0 here"),
    ],
)
def test_cells_of_another_grid_are_not_those_of_the_size(old, new, part, folder):
    replace(folder, "claim.py", old, new)
    issued = certificate.certificate(evidence_of(NAME, folder=folder))
    for options in ({}, {"fraction": 1.0, "key": 0}):
        result = verified(folder, issued=issued, **options)
        assert result.exit_status == 1
        assert result.differs[0] == f"these cells are not of the size small: {part}"
        assert "mistake in icl" not in result.line


def test_another_version_is_stale(folder):
    content = certificate.certificate(evidence_of(NAME, folder=folder))
    replace(folder, "measure.py", "VERSION = 1", "VERSION = 2")
    assert "stale: measured by version 1" in verified(folder).line
    older = verified(folder, issued=content)
    assert older.exit_status == 1
    assert older.headline.startswith("holds; stale: measured by version 1 of the claim's measure, which is 2 now")


def test_a_check_that_always_holds_has_no_evidence(folder, capsys):
    old = "return checks.agrees("
    replace(folder, "claim.py", old, f"line = limits.value\n    {old}")
    recording.judge_again(registry.load(NAME, folder), folder)
    result = verified(folder)
    words = "holds, and so does its control: no evidence; no control falsifies it"
    assert (result.exit_status, result.headline) == (3, words)
    assert main(["certify", NAME, "--claims", str(folder), "-o", str(folder / "c.json")]) == 3
    assert words in capsys.readouterr().out.splitlines()[0]


def test_a_measurement_that_imports_the_theory_has_no_evidence(folder):
    replace(folder, "measure.py", "import jax\n", "import jax\nfrom icllab import theory\n")
    result = verified(folder)
    assert result.exit_status == 3
    assert result.headline.startswith("holds, but measure.py, of the side of measure.py, imports icllab.theory")


def test_a_finding_is_falsified_by_its_own_element(folder):
    """Half of the elements hold under the only control."""
    old = "return checks.agrees("
    replace(folder, "claim.py", old, f"line = line.where(line.ridge > 0.2, limits.value)\n    {old}")
    recording.judge_again(registry.load(NAME, folder), folder)
    content = certificate.certificate(evidence_of(NAME, folder=folder))
    by = {id: row["falsified_by"] for id, row in content["findings"].items()}
    assert content["controls"]["heavy_rows"]["falsifies"] == [id for id, names in by.items() if names]
    assert 0 < sum(map(bool, by.values())) < len(by)


def test_a_certificate_of_somebody_elses_claim_states_what_is_true_of_it(folder):
    from icllab.page import certificate as pages

    content = certificate.certificate(evidence_of(NAME, folder=folder))
    text = pages.html(content, None)
    assert "book of icl-lab" not in text
    assert "commit of icl-lab" in text
    assert text.count(f"icl run {NAME} --size small --claims DIR") == 3
    assert content["checklists"]["NeurIPS"]["5 Open data and code"] is None
    assert "7 of 7 items that need no run are met" in text
    replace(folder, "claim.py", "conditions=", "references='', conditions='' and ")
    text = pages.html(certificate.certificate(evidence_of(NAME, folder=folder)), None)
    assert "5 of 7 items that need no run are met; sentence: Claim(...) has no conditions; record: " in text


def test_sources_that_moved_into_a_book_are_no_forgery(folder, monkeypatch):
    """A digest of version 0.3 that the book names is told as moved, and any other as a difference."""
    name, digests = f"{NAME}/measure.py", np.random.default_rng().bytes(64).hex()
    now = source_files.digests({name: folder / "measure.py"})[name]
    monkeypatch.setattr(source_files, "moved", lambda: {name: [digests[:64], now]})
    issued = certificate.certificate(evidence_of(NAME, folder=folder))
    answer = verified(folder, put("digests", "sources", name, digests[:64]), issued)
    assert answer.differs == ()
    assert "1 sources that moved into a book, but for imports, docstrings and spelling" in answer.agrees
    for at in (name, f"{NAME}/claim.py"):
        digest = digests[64:] if at == name else digests[:64]
        (difference,) = verified(folder, put("digests", "sources", at, digest), issued).differs
        assert difference.startswith(f"digests/sources/{at} is '{digest}'")
    monkeypatch.setattr(source_files, "moved", lambda: {name: [digests[:64], digests[64:]]})  # edited since it moved
    (difference,) = verified(folder, put("digests", "sources", name, digests[:64]), issued).differs
    assert difference.startswith(f"digests/sources/{name} is")


@pytest.mark.parametrize(
    ("module", "name", "now"),
    [
        ("basis", "basis_of", "evidence.evidence_of"),
        ("results", "picture", "drawing.picture"),
        ("records", "differences", "regression.differences"),
    ],
)
def test_former_names_say_the_new_ones(module, name, now):
    former = importlib.import_module(f"icllab.lab.{module}")
    with pytest.raises(ImportError, match=rf"{module}\.{name} is icllab\.lab\.{now} since version 0\.4"):
        getattr(former, name)
    where, new = now.split(".")
    assert hasattr(importlib.import_module(f"icllab.lab.{where}"), new)
    assert not hasattr(former, "never_a_name")
