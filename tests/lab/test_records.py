"""A record has the verdict, the data it was given on and where they come from; golden numbers tell what has moved."""

import dataclasses
import json
import shutil
import sys

import h5py
import numpy as np
import pytest
import strangers
import xarray as xr
from faults.processes import CLAIM, CLAIMS

import icllab as icl
from icllab.cli import main
from icllab.core.errors import CellsMissing, InputError
from icllab.core.files import DamagedFile
from icllab.lab import recording, records, registrations, registry
from icllab.lab.checks import Finding, Outcome


@pytest.fixture
def folder(tmp_path):
    """A folder of one's own with the toy claim as a folder."""
    place = tmp_path / "claims" / "steady"
    place.mkdir(parents=True)
    (place / "claim.py").write_text((CLAIMS / "steady.py").read_text())
    return tmp_path / "claims"


@pytest.fixture
def icl_command(folder, tmp_path):
    out = tmp_path / "out"

    def command(name, *more):
        return main([name, CLAIM, "--claims", str(folder), *([] if name == "list" else ["--out", str(out)]), *more])

    command.out = out
    return command


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """The toy claim with a record of small, of its control, and of golden numbers, beside the results."""
    place = tmp_path_factory.mktemp("record")
    (place / "claims" / "steady").mkdir(parents=True)
    (place / "claims" / "steady" / "claim.py").write_text((CLAIMS / "steady.py").read_text())
    where = ["--claims", str(place / "claims"), "--out", str(place / "out")]
    for more in (["--size", "smoke"], [], ["--control", "raised"]):
        assert main(["run", CLAIM, *where, *more]) in (0, 1)
        main(["check", CLAIM, *where, *more, "--record"])
    return place


@pytest.fixture
def recorded(record, folder):
    """A copy of it, for one test to change."""
    shutil.copytree(record, folder.parent, dirs_exist_ok=True)
    return folder


def forget_claims():
    """A process imports a claim's file once; another process would see the change."""
    for name in [name for name in sys.modules if name.startswith("icllab_file_")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("device", "machine", "words"),
    [
        ("cpu: cpu", "2 cores of A", "cpu: cpu, 2 cores of A"),
        (
            '["cpu: cpu", "gpu: B"]',
            '["11 cores of A", "5 cores of A"]',
            "cpu: cpu and gpu: B, 11 cores of A and 5 cores of A",
        ),
    ],
)
def test_the_machines_of_a_record_are_words(folder, icl_command, device, machine, words):
    dataset = icl.run(CLAIM, out=icl_command.out, claims=folder).assign_attrs(device=device, machine=machine)
    recording.write(registry.load(CLAIM, folder), "small", None, dataset, folder)
    assert records.read(CLAIM, folder)["small"]["machine"] == words


def test_a_record_has_all_that_one_needs_to_run_it_again(folder, icl_command, capfd):
    dataset = icl.run(CLAIM, out=icl_command.out, claims=folder)
    assert icl_command("check") == 0
    assert records.read(CLAIM, folder) == {}  # only on demand
    assert icl_command("check", "--record") == 0
    assert "record.json" in capfd.readouterr().out
    entry = records.read(CLAIM, folder)["small"]
    assert entry["verdict"] == "holds"
    assert entry["command"] == "icl run claims/steady --size small"
    assert entry["commit"] == dataset.attrs["git_commit"]
    assert (entry["measure"], entry["package"]) == (1, icl.__version__)
    assert "core" in entry["machine"]
    assert (entry["generator"], entry["matmul_precision"]) == ("threefry2x32, partitionable", "default")
    assert entry["seconds"] >= 0
    assert [finding["id"] for finding in entry["findings"]] == [f"error[dim={dim}]" for dim in (2, 4, 8, 16, 32)]
    measured = float(dataset["icl_error"].sel(dim=4).mean())
    assert entry["findings"][1]["measured"] == pytest.approx(measured, rel=1e-5)


@pytest.mark.parametrize("cells", ["one", "several"])
def test_results_of_code_that_is_not_committed_make_no_record(folder, icl_command, cells):
    dataset = icl.run(CLAIM, out=icl_command.out, claims=folder)
    commit = dataset.attrs["git_commit"] + "+changes"
    dataset.attrs["git_commit"] = commit if cells == "one" else json.dumps(["0" * 40, commit])
    with pytest.raises(InputError, match=r"expected results of committed code, got .*\+changes.*--fresh"):
        recording.write(registry.load(CLAIM, folder), "small", None, dataset, folder)
    assert records.read(CLAIM, folder) == {}


def test_results_of_another_measurement_make_no_record(folder, icl_command, capfd):
    """A measurement that fakes its numbers, replaced by an honest one before it is recorded."""
    path = folder / "steady" / "claim.py"
    honest, fake = path.read_text(), path.read_text().replace(".normal() / 10", ".normal() / 1000")
    assert honest != fake
    path.write_text(fake)
    forget_claims()
    assert icl_command("run") == 0
    path.write_text(honest)
    forget_claims()
    assert icl_command("check", "--record") == 2
    assert "expected results of the measure.py that is here" in capfd.readouterr().err
    assert icl_command("run", "--fresh") == 0
    path.write_text(honest.replace('title="', 'title="Other words: '))
    forget_claims()
    assert icl_command("check", "--record") == 0
    assert records.data(CLAIM, "small", None, folder).attrs["measure_digest"]


def test_recorded_data_are_those_of_the_run_and_are_judged_and_drawn(recorded, icl_command, tmp_path, capfd):
    dataset = icl.open(CLAIM, out=icl_command.out, claims=recorded)
    data = icl.recorded(CLAIM, claims=recorded)
    for name in dataset.variables:
        np.testing.assert_array_equal(data[name], dataset[name])
        assert data[name].attrs == dataset[name].attrs
    assert records.groups(CLAIM, recorded) == ["small", "small@raised", "smoke"]
    stored = icl.check(CLAIM, out=icl_command.out, claims=recorded)
    assert icl.check(CLAIM, claims=recorded, recorded=True).findings == stored.findings
    failing = icl.check(CLAIM, claims=recorded, recorded=True, control="raised")
    assert failing.outcome is Outcome.FAILS
    assert not icl.recorded(CLAIM, control="raised", claims=recorded).equals(data)
    # A control that is another formula needs no data of its own.
    assert icl.check(CLAIM, claims=recorded, recorded=True, control="wrong").outcome is Outcome.FAILS
    assert icl.draw(CLAIM, claims=recorded, recorded=True).axes
    capfd.readouterr()
    assert icl_command("check", "--recorded", "--json") == 0
    assert json.loads(capfd.readouterr().out)["claims"][0]["verdict"] == "holds"
    assert icl_command("draw", "--recorded", "--to", str(tmp_path / "figure")) == 0
    assert (tmp_path / "figure.png").is_file()


def test_data_that_are_not_there_or_not_those_of_the_record_are_refused(recorded):
    with pytest.raises(CellsMissing, match=r"is not recorded at size medium; `icl run"):
        icl.recorded(CLAIM, "medium", claims=recorded)
    path = records.record_file(registry.claims(recorded)[CLAIM])
    content = json.loads(path.read_text())
    content["small"]["digest"] = "0" * 64
    path.write_text(json.dumps(content))
    with pytest.raises(DamagedFile, match="expected data of digest 000"):
        icl.recorded(CLAIM, claims=recorded)


def test_a_claim_from_elsewhere_without_data_is_not_recorded_and_its_files_stay_closed(tmp_path, monkeypatch):
    monkeypatch.setenv("ICLLAB_CONFIG", str(tmp_path / "config"))
    folder, mark = strangers.planted(tmp_path / "theirs", tmp_path / "mark"), tmp_path / "mark"
    registrations.add(folder)
    (folder / strangers.CLAIM / "record.nc").write_bytes(b"not opened")
    assert records.groups(strangers.CLAIM) == ["smoke", "small"]
    assert records.card(strangers.CLAIM).verdict == "holds"
    (folder / strangers.CLAIM / "record.nc").unlink()
    assert records.card(strangers.CLAIM).verdict is None
    with pytest.raises(CellsMissing, match=f"{strangers.CLAIM} is not recorded at size small"):
        records.data(strangers.CLAIM)
    assert not mark.exists()


def test_data_of_another_generator_are_refused_and_those_of_version_03_are_of_this_one(recorded):
    path = recorded / "steady" / "record.nc"
    with h5py.File(path, "r+") as file:
        attributes = file["small"].attrs
        configuration = json.loads(attributes["configuration"])
        older = {name: configuration[name] for name in configuration if name not in ("generator", "matmul_precision")}
        attributes["configuration"] = json.dumps(older)
    assert records.configuration(records.data(CLAIM, "small", None, recorded)) == configuration
    with h5py.File(path, "r+") as file:
        file["small"].attrs["configuration"] = json.dumps(configuration | {"generator": "rbg"})
    with pytest.raises(
        InputError, match=r"generator: expected numbers drawn by 'threefry2x32, partitionable', got 'rb"
    ):
        records.data(CLAIM, "small", None, recorded)


def test_a_control_goes_to_the_entry_of_its_size(folder, icl_command):
    assert icl_command("run", "--control", "raised") == 1
    assert icl_command("check", "--control", "raised", "--record") == 2  # the claim itself comes first
    assert icl_command("run") == 0
    assert icl_command("check", "--record") == 0
    assert icl_command("check", "--control", "raised", "--record") == 1
    assert icl_command("check", "--record") == 0  # the claim again: the entries of its controls stay
    controls = records.read(CLAIM, folder)["small"]["controls"]
    assert set(controls) == {"raised", "wrong"}  # another formula is judged on the claim's own data
    entry = controls["raised"]
    assert entry["verdict"] == "fails"
    assert entry["fails"] == [f"error[dim={dim}]" for dim in (2, 4, 8, 16, 32)]


def test_runs_of_parts_that_lack_cells_make_no_record(folder, icl_command, capfd):
    """Together they have every value of the size, and no number where a dim was asked for with one ridge alone."""
    path = folder / "steady" / "claim.py"
    text = path.read_text()
    assert text.count('"ridge": (0.0,)') > 1
    path.write_text(text.replace('"ridge": (0.0,)', '"ridge": (0.0, 0.5)'))
    forget_claims()
    assert icl_command("run", "--set", "ridge=0") == 0
    assert icl_command("run", "--set", "dim=2") == 0
    assert icl_command("check", "--record") == 3
    assert "expected 5 cells, 4 are missing" in " ".join("".join(capfd.readouterr()).split())
    assert records.read(CLAIM, folder) == {}
    assert icl_command("run") == 0
    assert icl_command("check", "--record") == 0


def test_a_record_is_stale_when_the_measurement_states_another_version(recorded):
    card = records.card(CLAIM, recorded)
    assert (card.recorded, card.verdict, card.stale) == ("small", "holds", False)
    assert list(card.record) == ["small"]  # smoke has no verdict
    path = registry.claims(recorded)[CLAIM]
    path.write_text(path.read_text().replace(".normal() / 10", ".normal() / 11"))
    assert not records.card(CLAIM, recorded).stale
    path.write_text(path.read_text() + "\nVERSION = 2\n")
    assert records.card(CLAIM, recorded).stale


def test_a_record_that_is_too_large_asks_for_a_reduction(recorded, monkeypatch, icl_command, capfd):
    monkeypatch.setattr(recording, "LARGEST", 5_000)
    assert icl_command("check", "--record") == 2
    assert "fewer values of an axis, or `Claim(reduce=...)`" in capfd.readouterr().err
    path = registry.claims(recorded)[CLAIM]
    path.write_text(path.read_text() + "\n\ndef reduce(dataset):\n    return dataset.isel(seed=slice(3))\n")
    forget_claims()
    monkeypatch.setattr(recording, "LARGEST", 300_000)
    icl_command("check", "--record")
    assert icl.recorded(CLAIM, claims=recorded).sizes["seed"] == 3


def test_numbers_that_are_none_are_written_as_words(recorded, monkeypatch):
    odd = Finding("x", "x", float("inf"), float("nan"), 0.123456789, 0.0, Outcome.UNDECIDED)
    claim = dataclasses.replace(registry.load(CLAIM, recorded), check=lambda dataset: [odd])
    monkeypatch.setattr(registry, "load", lambda name, folder=None: claim)
    recording.judge_again(claim, recorded)
    text = records.record_file(registry.claims(recorded)[CLAIM]).read_text()
    (finding,) = json.loads(text, parse_constant=lambda name: pytest.fail(name))["small"]["findings"]
    assert (finding["predicted"], finding["measured"], finding["standard_error"]) == ("inf", "nan", 0.123457)


def test_a_smoke_run_says_whether_its_numbers_are_the_records(recorded, icl_command, capfd):
    capfd.readouterr()
    assert icl_command("run", "--size", "smoke", "--json") == 0
    answer = json.loads(capfd.readouterr().out)
    assert (answer["verdict"], answer["numbers"], answer["moved"]) == (None, "as recorded", [])
    path = registry.claims(recorded)[CLAIM]
    path.write_text(path.read_text().replace("point.rho + ", "2 * point.rho + "))
    forget_claims()
    assert icl_command("run", "--size", "smoke", "--json", "--fresh") == 3
    answer = json.loads(capfd.readouterr().out)
    assert answer["numbers"] == "moved"
    assert "icl_error: 2 of 2 numbers moved" in answer["moved"][0]


DATA = xr.Dataset(
    {
        "error": (("dim", "seed"), np.random.default_rng(0).normal(1.0, 0.1, (3, 6))),
        "time": ("dim", [1.0, 2.0, np.inf]),
    },
    {"dim": [2, 4, 8], "seed": range(6)},
)


def test_the_digest_is_of_names_axes_and_values_alone():
    digest = records.data_digest(DATA)
    assert records.data_digest(DATA[list(DATA)[::-1]].assign_attrs(a=1)) == digest
    for other in (DATA.assign(error=-DATA.error), DATA.rename(time="tim"), DATA.assign_coords(dim=[2, 4, 9])):
        assert records.data_digest(other) != digest


@pytest.mark.parametrize("claim", registry.claims())
def test_a_card_says_what_claim_and_record_say(claim):
    card, content, record = records.card(claim), registry.load(claim), records.read(claim)
    assert (card.claim, card.title, card.sentence) == (claim, content.title, content.sentence)
    assert card.conditions == content.conditions
    assert json.loads(records.record_file(registry.claims()[claim]).read_text())["claim"] == records.about(content)
    assert tuple(source.key for source in card.sources) == content.sources
    assert card.controls.keys() == content.controls.keys()
    present = records.groups(claim)
    assert {size: entry["verdict"] for size, entry in card.record.items()} == {
        size: entry["verdict"] if size in present else None for size, entry in record.items() if "verdict" in entry
    }
    assert card.subject == claim.split("/")[0]
    assert card.ordinary in content.sizes


def test_data_that_a_record_will_not_hold_are_told_before_a_run():
    claim = registry.load("asymptotics/double_descent")
    grid = claim.grid("small", {"tau": tuple(range(1, 1000))}, 48)
    note = recording.size_note(claim, grid)
    assert str(4 * 2 * 999 * 48) in note
    assert "Claim(reduce=...)" in note
    assert recording.size_note(claim, claim.grid("small")) == ""
    assert recording.size_note(dataclasses.replace(claim, reduce=lambda dataset: dataset), grid) == ""
