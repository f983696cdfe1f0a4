"""Every item of conformance is met by the template, and by a claim without it is not."""

import json
import shutil

import pytest
import strangers

from icllab.core.errors import InputError
from icllab.lab import conformance, registry, smoke
from icllab.lab.conformance import RECORDED, STATIC

NAME = "mine/first"


@pytest.fixture
def folder(tmp_path):
    """A recorded claim that conforms."""
    place = tmp_path / NAME
    shutil.copytree(strangers.PACKAGE / strangers.CLAIM, place, ignore=shutil.ignore_patterns("__pycache__"))
    return place


def changed(folder, file, old, new):
    """One replacement in a file, which is there once."""
    text = (folder / file).read_text()
    assert text.count(old) == 1, old
    (folder / file).write_text(text.replace(old, new))


def faults(item, folder):
    """What is missing of one item."""
    return "; ".join({**STATIC, **RECORDED}[item](registry.load(NAME, folder), folder))


# Item, file, what is replaced by what, a part of the message.
LACKS = {
    "no full stop": ("sentence", "claim.py", 'Pastur value."', 'Pastur value"', "no full stop"),
    "no conditions": (
        "sentence",
        "claim.py",
        "    conditions=",
        "    references='', conditions='' and ",
        "no conditions",
    ),
    "no small": ("sizes", "claim.py", '"small": {', '"medium": {', "there is no small"),
    "repeated seeds": (
        "sizes",
        "claim.py",
        '"seed": 100},',
        '"seed": 100}, "medium": {"dim": (16,), "ridge": (0.1,), "seed": range(99, 120)},',
        "medium repeats the seeds [99]",
    ),
    "no version": ("measurement", "measure.py", "VERSION = 1", "NUMBER = 1", "no VERSION"),
    "no simulated control": (
        "measurement",
        "claim.py",
        'measure={"heavy": True}',
        "theory=lambda dataset: dataset.assign(trace_theory=2 * dataset.ridge)",
        "no control is another simulation",
    ),
    "an argument of nothing": ("measurement", "claim.py", '"heavy"', '"heavier"', "measure has no argument heavier"),
    "theory in the measurement": (
        "no shared code",
        "measure.py",
        "    samples = round",
        "    from icllab.theory.wishart import stieltjes\n    samples = round",
        "measure.py, of the side of measure.py, imports icllab.theory.wishart",
    ),
    "theory by its package": (
        "no shared code",
        "measure.py",
        "import jax\n",
        "import jax\nfrom icllab import theory\n",
        "imports icllab.theory",
    ),
    "theory as an attribute": (
        "no shared code",
        "measure.py",
        "    samples = round",
        "    import icllab as icl\n    icl.theory.wishart\n    samples = round",
        "imports icllab.theory",
    ),
    "answers in the measurement": (
        "no shared code",
        "measure.py",
        "    samples = round",
        "    from icllab import posteriors\n    posteriors.problem('cusp').answers\n    samples = round",
        "measure.py uses answers of a posterior of known answer",
    ),
    "stored answers in the measurement": (
        "no shared code",
        "measure.py",
        "    samples = round",
        "    from icllab.posteriors import stored_answers\n    samples = round",
        "measure.py, of the side of measure.py, imports icllab.posteriors.stored_answers",
    ),
    "JAX in the theory": ("no shared code", "claim.py", "def theory(", "import jax\n\n\ndef theory(", "imports jax"),
    "a model in the theory": (
        "no shared code",
        "claim.py",
        "def theory(",
        "from icllab.models import reduced\n\n\ndef theory(",
        "claim.py, of the side of claim.py, imports icllab.models",
    ),
    "a function of claim.py": (
        "no shared code",
        "measure.py",
        "VERSION = 1",
        "from .claim import theory\nVERSION = 1",
        "measure.py imports theory from claim.py",
    ),
    "another VERSION": ("record", "measure.py", "VERSION = 1", "VERSION = 2", "are of VERSION 1, measure.py has 2"),
    "another check": (
        "record",
        "claim.py",
        "largest_error=0.02 * line",
        "largest_error=1e-6 * line",
        "record.json contradicts its data: verdict",
    ),
    "a failing check": ("record", "claim.py", "stieltjes(dataset", "2 * stieltjes(dataset", "says fails on the data"),
    "another control": ("controls fail", "claim.py", '"heavy": True', '"heavy": 1 + 1', "with other arguments"),
    "a new control": (
        "controls fail",
        "claim.py",
        "controls={",
        'controls={"new": Control("", measure={"heavy": 3}), ',
        "control new is not recorded; `icl run mine/first --size small --control new --claims",
    ),
    "a check that cannot fail": (
        "controls fail",
        "claim.py",
        "    return checks.agrees(",
        '    return checks.near("trace", "", limits, line, margin=9 * line) or checks.agrees(',
        "control heavy_rows: the check must say fails, it says holds",
    ),
    "a finding that cannot fail": (
        "findings can fail",
        "claim.py",
        "    return checks.agrees(",
        '    yes = checks.equal("always", "one", 1.0, 1.0)\n    return yes + checks.agrees(',
        "no control falsifies always",
    ),
    "a figure with a memory": (
        "figure",
        "claim.py",
        'yscale="log")',
        'yscale="log", ylim=(0.1, LIMITS.pop()))\n\n\nLIMITS = [3.0, 2.0]',
        "the figure differs when it is drawn again",
    ),
    "a figure that changes the results": (
        "figure",
        "claim.py",
        "    return curves(",
        '    dataset.attrs["drawn"] = 1\n    return curves(',
        "the figure changes the results",
    ),
    "a figure that raises": ("figure", "claim.py", 'x="ridge"', 'x="width"', "the figure raises"),
}


@pytest.mark.parametrize(("item", "file", "old", "new", "message"), LACKS.values(), ids=LACKS)
def test_what_is_missing_is_named(item, file, old, new, message, folder):
    changed(folder, file, old, new)
    assert message in faults(item, folder)


def test_constants_of_the_claim_may_be_measured_with_and_modules_on_both_sides_may_not(folder):
    changed(folder, "claim.py", "def theory(", "LEVEL = 2.0\n\n\ndef theory(")
    changed(folder, "measure.py", "VERSION = 1", "from .claim import LEVEL\nVERSION = 1")
    assert faults("no shared code", folder) == ""
    (folder / "formulas.py").write_text("import equinox\n")
    changed(folder, "measure.py", "VERSION = 1", "from . import formulas\nVERSION = 1")
    assert faults("no shared code", folder) == ""
    other = folder.parents[1] / "other" / NAME
    shutil.copytree(folder, other)
    changed(other, "claim.py", "def theory(", "from .formulas import equinox\n\n\ndef theory(")
    both = faults("no shared code", other)
    assert "formulas.py, of the side of claim.py, imports equinox" in both
    assert "formulas.py is imported by claim.py and by measure.py" in both


def test_without_a_record_it_is_what_is_missing(folder, monkeypatch):
    """Nor with a record of the smoke alone."""
    monkeypatch.setattr(conformance, "smoke_items", lambda name, folder: {})
    entry = json.loads((folder / "record.json").read_text())["smoke"]
    (folder / "record.nc").unlink()
    for content in ({"smoke": entry}, None):
        (folder / "record.json").unlink() if content is None else (folder / "record.json").write_text(
            json.dumps(content)
        )
        missing = {item: fault for item, fault in conformance.conform(folder)[1].items() if fault}
        assert set(missing) == set(RECORDED)
        place = f"{NAME} --size small --claims {folder}"
        commands = f"`icl run {place}` measures it, `icl check {place} --record` records it"
        assert set(missing.values()) == {f"{NAME} is not recorded at size small; {commands}"}


def test_data_of_another_digest_are_no_record(folder, monkeypatch):
    path = folder / "record.json"
    record = json.loads(path.read_text())
    record["small"]["digest"] = "0" * 64
    path.write_text(json.dumps(record))
    monkeypatch.setattr(conformance, "smoke_items", lambda name, folder: {})
    missing = {item: fault for item, fault in conformance.conform(folder)[1].items() if fault}
    assert "expected data of digest 0000" in missing["record"]


def test_a_file_that_does_not_load_is_the_only_item(folder):
    (folder / "claim.py").write_text("1 / 0")
    name, items = conformance.conform(folder)
    assert (name, list(items)) == (NAME, ["loads"])
    assert "ZeroDivisionError" in items["loads"]
    with pytest.raises(InputError, match=r"expected a folder with a claim\.py"):
        conformance.conform(folder.parent)


def test_a_smoke_is_measured_and_may_not_connect(folder, monkeypatch):
    """A refused connection is told of even where the claim goes on without it; other numbers are told of too."""
    monkeypatch.setattr(smoke, "CPU_SECONDS", 0.0)
    changed(
        folder,
        "measure.py",
        "    samples = round",
        "    import contextlib, socket\n    with contextlib.suppress(OSError):\n"
        "        socket.create_connection(('127.0.0.1', 9))\n    point.kappa = 4.0\n    samples = round",
    )
    time, network, golden = smoke.smoke_items(NAME, folder).values()
    assert time.startswith("expected at most 0 CPU seconds, got ")
    assert 0.05 < float(time.split("got ")[1].split(":")[0]) < 30
    assert "127.0.0.1" in network
    assert "trace: 4 of 4 numbers moved" in golden


@pytest.mark.slow
def test_a_smoke_that_raises_says_what(folder):
    changed(folder, "measure.py", "    samples = round", "    1 / 0\n    samples = round")
    items = smoke.smoke_items(NAME, folder)
    assert "ZeroDivisionError" in items["smoke"]
    assert (items["no network"], items["golden numbers"]) == ("", "there is no run to compare")


@pytest.mark.parametrize(
    "use",
    ["print(__builtins__)", "import io; io.open('x')", "key.x.read_text()", "key.x.read_bytes()", "key.x.open()"],
)
def test_a_file_that_a_measurement_opens_is_told(use, folder):
    changed(folder, "measure.py", "    samples = round", f"    {use}\n    samples = round")
    assert "past which no import is seen" in faults("no shared code", folder)


def test_a_program_that_is_compiled_is_not_accused(folder):
    use = "jax.jit(abs).lower(1.0).compile()"
    changed(folder, "measure.py", "    samples = round", f"    {use}\n    samples = round")
    assert faults("no shared code", folder) == ""


def test_a_measurement_may_take_a_case_of_known_answer(folder):
    """The loss and its point, and not the answers, which are theory."""
    lines = "    from icllab import posteriors\n    posteriors.problem('cusp').loss\n"
    changed(folder, "measure.py", "    samples = round", f"{lines}    samples = round")
    assert faults("no shared code", folder) == ""
