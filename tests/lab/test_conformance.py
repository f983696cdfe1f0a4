"""Every item of conformance is met by the template, and by a claim without it is not."""

import json
import random
import shutil
import sys

import pytest
import strangers

from icllab.core.errors import InputError
from icllab.lab import conformance, records, registry
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


def rerecorded(folder, tmp_path, *options, claims=("small", "small@heavy_rows")):
    """Measure the sizes and controls again, and record them; the exit status of the last record."""
    from icllab.cli import main

    for name in [name for name in sys.modules if name.startswith("icllab_claim_")]:
        del sys.modules[name]
    for size, _, control in (name.partition("@") for name in claims):
        which = ["--size", size, *(["--control", control] if control else [])]
        places = ["--claims", str(folder), "--out", str(tmp_path / "out")]
        assert main(["run", NAME, *which, *places, *options]) in (0, 1, 3)
        status = main(["check", NAME, *which, *places, "--record"])
    return status


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
    "another check": ("record", "claim.py", "largest_error=0.02 * line", "largest_error=1e-6 * line", "the check says"),
    "a failing check": ("record", "claim.py", "stieltjes(dataset", "2 * stieltjes(dataset", "says fails on the data"),
    "another control": ("controls fail", "claim.py", '"heavy": True', '"heavy": 1 + 1', "with other arguments"),
    "a new control": (
        "controls fail",
        "claim.py",
        "controls={",
        'controls={"new": Control("", measure={"heavy": 3}), ',
        "control new is not recorded: icl run mine/first --size small --control new --claims",
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
    monkeypatch.setattr(conformance, "smoke_items", lambda name, folder: [])
    smoke = json.loads((folder / "record.json").read_text())["smoke"]
    (folder / "record.nc").unlink()
    for content in ({"smoke": smoke}, None):
        (folder / "record.json").unlink() if content is None else (folder / "record.json").write_text(
            json.dumps(content)
        )
        missing = {item.name: item.fault for item in conformance.conform(folder)[1] if not item.met}
        assert set(missing) == set(RECORDED)
        place = f"{NAME} --size small --claims {folder}"
        assert missing["record"] == f"icl run {place}, then icl check {place} --record"
        assert missing["figure"] == "there is no record to examine"


def test_data_of_another_digest_are_no_record(folder, monkeypatch):
    path = folder / "record.json"
    record = json.loads(path.read_text())
    record["small"]["digest"] = "0" * 64
    path.write_text(json.dumps(record))
    monkeypatch.setattr(conformance, "smoke_items", lambda name, folder: [])
    missing = {item.name: item.fault for item in conformance.conform(folder)[1] if not item.met}
    assert "expected data of digest 0000" in missing["record"]


def test_a_file_that_does_not_load_is_the_only_item(folder):
    (folder / "claim.py").write_text("1 / 0")
    name, items = conformance.conform(folder)
    assert (name, len(items), items[0].met) == (NAME, 1, False)
    assert "ZeroDivisionError" in items[0].fault
    with pytest.raises(InputError, match=r"expected a folder with a claim\.py"):
        conformance.conform(folder.parent)


def test_a_smoke_is_measured_and_may_not_connect(folder, monkeypatch):
    """A refused connection is told of even where the claim goes on without it; other numbers are told of too."""
    monkeypatch.setattr(conformance, "CPU_SECONDS", 0.0)
    changed(
        folder,
        "measure.py",
        "    samples = round",
        "    import contextlib, socket\n    with contextlib.suppress(OSError):\n"
        "        socket.create_connection(('127.0.0.1', 9))\n    point.kappa = 4.0\n    samples = round",
    )
    smoke, network, golden = conformance.smoke_items(NAME, folder)
    assert smoke.fault.startswith("expected at most 0 CPU seconds, got ")
    assert 0.05 < float(smoke.fault.split("got ")[1].split(":")[0]) < 30
    assert "127.0.0.1" in network.fault
    assert "trace: 4 of 4 numbers moved" in golden.fault


@pytest.mark.slow
def test_a_smoke_that_raises_says_what(folder):
    changed(folder, "measure.py", "    samples = round", "    1 / 0\n    samples = round")
    smoke, network, golden = conformance.smoke_items(NAME, folder)
    assert "ZeroDivisionError" in smoke.fault
    assert (network.met, golden.met) == (True, False)


@pytest.mark.parametrize("name", ["exec", "eval", "open", "importlib", "runpy", "__import__", "__builtins__"])
def test_code_that_no_import_shows_is_told(name, folder):
    use = f"import {name}" if name in ("importlib", "runpy") else f"print({name})"
    changed(folder, "measure.py", "    samples = round", f"    {use}\n    samples = round")
    assert f"measure.py uses {name}" in faults("no shared code", folder)


def test_a_compiled_program_and_an_expression_are_not_accused(folder):
    text = "import re\n\nPATTERN = re.compile('a')\nVERSION = 1"
    changed(folder, "measure.py", "VERSION = 1", text)
    assert faults("no shared code", folder) == ""


@pytest.mark.parametrize(
    ("field", "old"), [("sentence", "tends to the"), ("conditions", "Gaussian"), ("title", "Resolv")]
)
def test_a_record_states_the_claim_as_its_file_does(field, old, folder):
    changed(folder, "claim.py", old, f"Pigs {old}")
    assert "the record states another sentence" in faults("record", folder)


OTHER_CELLS = {
    "fewer seeds": ["--seeds", "90"],
    "more seeds": ["--seeds", "110"],
    "a fixed number": ["--set", "kappa=4"],
    "another dimension": ["--set", "dim=16,32,128"],
    "fewer values": ["--set", "ridge=0.1,3"],
}


@pytest.mark.parametrize("options", OTHER_CELLS.values(), ids=OTHER_CELLS)
def test_a_record_is_of_the_size_that_it_names(options, folder, tmp_path, capfd):
    before = (folder / "record.json").read_text()
    assert rerecorded(folder, tmp_path, *options, claims=["small"]) == 2
    assert "record: expected the cells of size small" in capfd.readouterr().err
    assert (folder / "record.json").read_text() == before


def test_a_record_whose_size_was_changed_afterwards_does_not_conform(folder):
    value = random.SystemRandom().randrange(101, 150)
    changed(folder, "claim.py", '"seed": 100}', f'"seed": {value}}}')
    assert f"seed has other values than the {value} of the size" in faults("record", folder)
    assert f"seed has other values than the {value} of the size" in faults("controls fail", folder)


def test_cells_that_nobody_asked_for_are_no_part_of_a_size(folder):
    """The union of two runs has the values of the size and not its cells."""
    claim, dataset = registry.load(NAME, folder), records.data(NAME, "small", None, folder)
    assert records.size_faults(claim, "small", None, dataset) == []
    gap = dataset.where((dataset.dim != 32) | (dataset.seed > 3))
    assert records.size_faults(claim, "small", None, gap) == ["4 of its cells or seeds have no number"]
    partly = dataset.where((dataset.ridge != 1.0) | (dataset.seed > 3))  # a quantity that is not defined everywhere
    assert records.size_faults(claim, "small", None, partly) == []


def test_a_measurement_that_was_another_does_not_conform(folder, tmp_path):
    assert rerecorded(folder, tmp_path, claims=["smoke", "small", "small@heavy_rows"]) == 1
    assert faults("record", folder) == ""
    assert faults("controls fail", folder) == ""
    changed(folder, "measure.py", "samples = round(", "samples = int(")
    assert "small were measured by another measure.py" in faults("record", folder)
    assert "small@heavy_rows were measured by another measure.py" in faults("controls fail", folder)


def test_a_measurement_that_fakes_with_many_seeds_is_measured_again_with_few(folder, tmp_path):
    changed(
        folder,
        "measure.py",
        'return {"trace": (("ridge", "seed"), traces)}',
        'return {"trace": (("ridge", "seed"), traces * (1 + 0.01 * (len(point.seed) > 99)))}',
    )
    rerecorded(folder, tmp_path)
    assert "measured again, trace at dim=" in faults("record", folder)


def test_a_check_that_reads_the_name_of_its_control_does_not_see_it(folder):
    lie = """    import json
    under = json.loads(dataset.attrs["configuration"])["control"] is not None
    return checks.equal("trace", "the trace is a trace", float(under), 0.0)
    return checks.agrees("""
    changed(folder, "claim.py", "    return checks.agrees(", lie)
    assert "control heavy_rows: the check must say fails, it says holds" in faults("controls fail", folder)


def test_a_tolerance_above_the_prediction_is_told_and_a_bound_is_not(folder):
    huge = """    trace = checks.near("trace", "trace", estimates.mean(dataset["trace"]), 0.001, margin=10.0)
    return trace + checks.above("size", "largest trace", estimates.mean(dataset["trace"]), 1e-6) + checks.agrees("""
    changed(folder, "claim.py", "    return checks.agrees(", huge)
    text = faults("record", folder)
    assert "trace: the tolerance is larger than the prediction itself: zero" in text
    assert "size: the tolerance" not in text


def test_a_prediction_that_is_copied_from_the_data_is_told(folder):
    changed(
        folder,
        "claim.py",
        '    return dataset.assign(trace_theory=("ridge", closed_form))',
        '    ratio = float(dataset["trace"].mean()) / closed_form.mean()\n'
        '    return dataset.assign(trace_theory=("ridge", closed_form * ratio))',
    )
    assert "control heavy_rows: the prediction of trace[ridge=0.1] moves" in faults("controls fail", folder)


def test_a_control_that_multiplies_everything_is_told(folder, tmp_path):
    changed(folder, "measure.py", "x = x * jax.random.normal(of_scales, (samples, 1))", "x = x * 0.01")
    changed(folder, "measure.py", "(eigenvalues + ridge)", "(eigenvalues + ridge * (0.001 if heavy else 1))")
    rerecorded(folder, tmp_path)
    assert "multiplies everything that is measured by at least" in faults("controls fail", folder)


def test_a_run_and_its_check_tell_what_theory_and_measurement_share(folder, tmp_path, capfd):
    changed(folder, "measure.py", "VERSION = 1", "from icllab.theory import wishart\n\nVERSION = 1")
    rerecorded(folder, tmp_path, claims=["small"])
    assert capfd.readouterr().out.replace("\n ", "").count("imports icllab.theory.wishart") == 2
