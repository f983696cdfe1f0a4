"""False and empty claims, as a stranger would write them: the answers of a record, a run and ``icl claim conform``."""

import json
import shutil
import sys

import numpy as np
import pytest
import strangers

import icllab as icl
from icllab.core.errors import InputError
from icllab.lab import conformance, recording, records, registry

NAME = "mine/first"
TRACE = "    return {"


@pytest.fixture
def folder(tmp_path):
    """A recorded claim that conforms."""
    place = tmp_path / NAME
    shutil.copytree(strangers.PACKAGE / strangers.CLAIM, place, ignore=shutil.ignore_patterns("__pycache__"))
    return place


def changed(folder, file, old, new):
    """One replacement in a file; the process then imports the claim anew."""
    text = (folder / file).read_text()
    assert text.count(old) == 1, old
    (folder / file).write_text(text.replace(old, new))
    for name in [name for name in sys.modules if name.startswith("icllab_file_")]:
        del sys.modules[name]


def measured(folder, out, control=None, **options):
    icl.run(NAME, out=out, claims=folder, control=control, progress=False, **options)
    request = icl.lab.job.stored_request(NAME, "small", out=out, control=control, claims=folder)
    return icl.lab.run.read(request, theory=False)


def recorded(folder, out):
    """The claim as its files are now, measured and recorded with its control."""
    for control in (None, "heavy_rows"):
        dataset, _ = measured(folder, out, control)
        recording.write(registry.load(NAME, folder), "small", control, dataset, folder)


def faults(item, folder):
    return "; ".join({**conformance.STATIC, **conformance.RECORDED}[item](registry.load(NAME, folder), folder))


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"seeds": 3}, "3 values of seed (0, 1, 2) where the size has 100"),
        pytest.param(
            {"axes": {"dim": [8, 16]}}, "2 values of dim (8, 16) where the size has 3", marks=pytest.mark.slow
        ),
        ({"axes": {"kappa": [3.0]}}, "fixed.kappa is 3.0 there and 2.0 here"),
    ],
)
def test_a_size_that_is_not_the_size_makes_no_record_and_does_not_conform(options, part, folder, tmp_path):
    dataset, _ = measured(folder, tmp_path, **options)
    with pytest.raises(InputError, match="record: expected results of small") as refusal:
        recording.write(registry.load(NAME, folder), "small", None, dataset, folder)
    assert part in str(refusal.value)
    recording._write_data(folder / "record.nc", "small", dataset, NAME)
    record = json.loads((folder / "record.json").read_text())
    record["small"]["digest"] = records.data_digest(dataset)
    (folder / "record.json").write_text(json.dumps(record))
    assert f"small has {part}" in faults("record", folder).replace("another configuration: ", "")


@pytest.mark.slow
def test_a_faked_measurement_is_told_when_the_honest_one_is_put_back(folder, tmp_path):
    recorded(folder, tmp_path)
    assert faults("record", folder) == ""
    changed(folder, "measure.py", "VERSION = 1", "VERSION = 1\nHONEST = True")
    assert "small was measured by another measure.py" in faults("record", folder)
    assert "small@heavy_rows was measured by another" in faults("record", folder)


@pytest.mark.parametrize("field", ["sentence", "title", "conditions"])
def test_a_statement_that_is_changed_after_the_record_is_told(field, folder):
    text = json.loads((folder / "record.json").read_text())["claim"][field]
    changed(folder, "claim.py", f'{field}="{text}"', f'{field}="Pigs fly."')
    assert f"the record states another {field} than claim.py" in faults("record", folder)


@pytest.mark.parametrize("reading", ['["configuration"]', '.get("created", "")', '.get("git_commit", "")'])
def test_a_check_does_not_know_the_control(reading, folder):
    """It fails under the control's name and holds elsewhere: to it there is no other name."""
    attrs = f"dataset.attrs{reading}"
    changed(
        folder,
        "claim.py",
        "    return checks.agrees(",
        f'    under = "heavy_rows" in {attrs} or ("a" in {attrs} and "configuration" not in dataset.attrs)\n'
        '    return checks.equal("always", "one", 1.0, 2.0 if under else 1.0) or checks.agrees(',
    )
    assert "control heavy_rows: the check must say fails, it says holds" in faults("controls fail", folder)


def test_a_theory_does_not_know_the_control(folder):
    changed(
        folder,
        "claim.py",
        "    return dataset.assign(trace_theory",
        '    closed_form = closed_form * (2 if "heavy_rows" in str(dataset.attrs) else 1)\n'
        "    return dataset.assign(trace_theory",
    )
    plain = icl.recorded(NAME, claims=folder)
    under = icl.recorded(NAME, claims=folder, control="heavy_rows")
    np.testing.assert_array_equal(plain.trace_theory, under.trace_theory)
    assert under.attrs != plain.attrs  # whoever reads the results knows it


def test_a_tolerance_above_the_prediction_is_told(folder):
    changed(
        folder,
        "claim.py",
        "    return checks.agrees(",
        '    wide = checks.near("wide", "", limits, line, margin=9 * line)\n    return wide + checks.agrees(',
    )
    text = faults("findings can fail", folder)
    assert "the tolerance of wide exceeds the prediction itself" in text
    assert "the tolerance of trace" not in text


def test_a_check_that_always_holds_is_told(folder):
    changed(
        folder,
        "claim.py",
        "    return checks.agrees(",
        '    return checks.equal("one", "", 1.0, 1.0) or checks.agrees(',
    )
    assert "no control falsifies one" in faults("findings can fail", folder)
    assert "the check must say fails, it says holds" in faults("controls fail", folder)


@pytest.mark.parametrize(("weight", "part"), [(1.0, "must say fails, it says holds"), (0.5, "moves with the measured")])
def test_a_prediction_that_is_copied_from_the_data_is_told(weight, part, folder):
    changed(
        folder,
        "claim.py",
        "    return dataset.assign(",
        f'    mean = dataset["trace"].mean(["seed", "dim"]).values\n'
        f"    closed_form = closed_form + {weight} * (mean - closed_form)\n    return dataset.assign(",
    )
    assert part in faults("controls fail", folder)


def test_a_control_that_blows_the_data_up_is_told(folder, tmp_path):
    assert faults("controls fail", folder) == ""
    changed(folder, "measure.py", TRACE, "    traces = traces * (1000 if heavy else 1)\n" + TRACE)
    recorded(folder, tmp_path)
    assert "changes the numbers by which it refutes more than 100 times" in faults("controls fail", folder)


@pytest.mark.parametrize("file", ["measure.py", "claim.py"])
@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("exec('x = 1')", "exec"),
        ("reading = open", "open"),
        ("from importlib import import_module", "importlib"),
        ("import sys", "sys"),
        ("eval('1')", "eval"),
        ("HERE = __file__", "__file__"),
        ("LEVEL = len(print.__doc__)", "__doc__"),
    ],
)
def test_code_past_which_no_import_is_seen_is_told(line, name, file, folder):
    (folder / file).write_text((folder / file).read_text() + f"\n\n{line}\n")
    assert f"{file} uses {name}, past which no import is seen" in faults("no shared code", folder)


@pytest.mark.parametrize(
    ("lines", "part"),
    [
        ("from icllab.theory import wishart", "imports icllab.theory"),
        ("from . import claim", "measure.py imports the whole of claim.py"),
        ("from .claim import theory", "measure.py imports theory from claim.py"),
    ],
)
def test_a_run_and_a_check_tell_the_leak(lines, part, folder, tmp_path):
    changed(folder, "measure.py", "VERSION = 1", f"{lines}\n\nVERSION = 1")
    _, notes = measured(folder, tmp_path)
    assert any(note.startswith("no evidence: ") and part in note for note in notes), notes
    assert any(part in note for note in icl.check(NAME, out=tmp_path, claims=folder).notes)


def test_a_measurement_that_fakes_where_there_are_many_seeds_is_told(folder, tmp_path):
    """Its smoke, of 20 seeds, is honest; two seeds of the record alone are too."""
    changed(
        folder,
        "measure.py",
        TRACE,
        "    traces = traces if len(point.seed) < 100 else traces * 0 + 1.5\n" + TRACE,
    )
    dataset, _ = measured(folder, tmp_path)
    recording.write(registry.load(NAME, folder), "small", None, dataset, folder)
    assert "trace" in conformance.measured_again(registry.load(NAME, folder), folder, 3)


@pytest.mark.parametrize("key", [1, 2])
def test_an_honest_cell_is_not_accused_and_a_long_one_is_not_measured(key, folder):
    claim = registry.load(NAME, folder)
    assert conformance.measured_again(claim, folder, key) == ""
    strangers_record = json.loads((folder / "record.json").read_text())
    strangers_record["small"]["seconds"] = 3 * conformance.AGAIN + 1
    (folder / "record.json").write_text(json.dumps(strangers_record))
    assert conformance.measured_again(claim, folder, key) is None
