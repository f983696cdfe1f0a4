"""A record says what was found, by which command, at which commit, on which machine; and when it has become stale."""

import json

import pytest
from faults.processes import CLAIM, CLAIMS

import icllab as icl
from icllab.cli import main
from icllab.core.errors import InputError
from icllab.experiments import digests, records, requests, runner
from icllab.experiments.checks import Finding, Outcome, Verdict


@pytest.fixture
def folder(tmp_path):
    """A folder of one's own with the toy claim as a folder."""
    place = tmp_path / "claims" / "steady"
    place.mkdir(parents=True)
    (place / "claim.py").write_text((CLAIMS / "steady.py").read_text())
    return tmp_path / "claims"


def check(folder, out, *more):
    return main(["check", CLAIM, "--size", "smoke", "--claims", str(folder), "--out", str(out), *more])


def test_a_record_has_all_that_one_needs_to_run_it_again(folder, tmp_path, capfd):
    dataset = icl.run(CLAIM, "smoke", out=tmp_path / "out", claims=folder)
    assert check(folder, tmp_path / "out") == 0
    assert records.read(CLAIM, folder) == {}  # only on demand
    assert check(folder, tmp_path / "out", "--record") == 0
    assert "record.json" in capfd.readouterr().out
    entry = records.read(CLAIM, folder)["smoke"]
    assert entry["verdict"] == "holds"
    assert entry["command"] == "icl run claims/steady --size smoke"
    assert entry["commit"] == dataset.attrs["git_commit"]
    assert "core" in entry["machine"]
    assert entry["seconds"] >= 0
    assert [finding["id"] for finding in entry["findings"]] == [f"error[dim={dim}]" for dim in (2, 4, 8, 16, 32)]
    measured = float(dataset["icl_error"].sel(dim=4).mean())
    assert entry["findings"][1]["measured"] == pytest.approx(measured, rel=1e-5)
    assert not records.is_stale(CLAIM, entry, folder)


def test_a_control_goes_to_the_entry_of_its_size(folder, tmp_path):
    out = tmp_path / "out"
    icl.run(CLAIM, "smoke", out=out, claims=folder, control="wrong")
    request = requests.stored_request(CLAIM, "smoke", out=out, claims=folder, control="wrong")
    dataset, _ = runner.read(request)
    with pytest.raises(InputError, match="record: expected the claim at size smoke before its controls"):
        records.write(request, dataset, Verdict(CLAIM, ()))
    icl.run(CLAIM, "smoke", out=out, claims=folder)
    assert check(folder, out, "--record") == 0
    assert check(folder, out, "--control", "wrong", "--record") == 1
    assert check(folder, out, "--record") == 0  # the claim again: what is known of its controls stays
    found = records.read(CLAIM, folder)["smoke"]["controls"]["wrong"]
    assert found["verdict"] == "fails"
    assert found["fails"] == [f"error[dim={dim}]" for dim in (2, 4, 8, 16, 32)]


def test_a_record_is_stale_when_what_it_measured_has_changed(folder, tmp_path):
    icl.run(CLAIM, "smoke", out=tmp_path / "out", claims=folder)
    check(folder, tmp_path / "out", "--record")
    file = folder / "steady" / "claim.py"
    text = file.read_text()
    file.write_text(text.replace('"""A claim for tests', '"""A claim for the tests'))
    digests.forget()
    entry = records.read(CLAIM, folder)["smoke"]
    assert not records.is_stale(CLAIM, entry, folder)
    file.write_text(text.replace(".normal() / 10", ".normal() / 11"))
    digests.forget()
    assert records.is_stale(CLAIM, entry, folder)


def test_numbers_that_are_none_are_written_as_words(folder, tmp_path):
    icl.run(CLAIM, "smoke", out=tmp_path / "out", claims=folder)
    request = requests.stored_request(CLAIM, "smoke", out=tmp_path / "out", claims=folder)
    odd = Finding("x", "x", float("inf"), float("nan"), 0.123456789, 0.0, Outcome.UNDECIDED)
    path = records.write(request, runner.read(request)[0], Verdict(CLAIM, (odd,)))
    (finding,) = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(name))["smoke"]["findings"]
    assert (finding["predicted"], finding["measured"], finding["standard_error"]) == ("inf", "nan", 0.123457)
