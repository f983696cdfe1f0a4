"""Contracts of claims: a claim that is sound keeps them all, and each fails for a claim with one fault."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from icllab import testing
from icllab.core.axes import Axis, Quantity
from icllab.core.errors import EnvironmentFault, InputError
from icllab.lab import Claim, Control, Finding, Outcome, checks, estimates, judging
from icllab.lab.job import new_request
from icllab.lab.run import compute, read

PACKAGE = Path(__file__).parents[1] / "template" / "src" / "my_claims"
WORLDS = ("own", "other", "planted")
SOURCE = """import numpy as np

def measure(point, *, key, straight=False):
    worlds = {worlds}
    values = np.arange(1.0, 4.0)[:, None] + np.array(point.seed) / 100
    return {{"world_gap": (("world", "seed"), values[: len(worlds)])}}
"""
CLAIM = """from icllab.core.axes import Axis, Quantity
from icllab.lab import Claim, Control, checks, estimates

def check(dataset):
    gap = dataset["world_gap"]
    lead = gap.sel(world="other", drop=True) - gap.sel(world="own", drop=True)
    return checks.above("lead", "gap of others", estimates.mean(lead))

def figure(dataset):
    raise NotImplementedError

claim = Claim(
    title="Worlds",
    sentence="The gap of other worlds is larger than that of the own.",
    sources=("MarchenkoPastur67",),
    axes=(Axis("world", "W", "world"),),
    quantities=(Quantity("world_gap", "g", "gap"),),
    static=(),
    outputs=("world",),
    sizes={"smoke": {"world": ("own", "other", "planted"), "seed": 4}},
    controls={"straight": Control("no world", measure={"straight": True})},
)
"""


def subject(check, theory=None):
    """A claim over worlds, lengths and seeds, whose record is the verdict of its check on the data."""
    axes = {"world": sorted(WORLDS), "length": [1, 2, 4], "seed": list(range(6))}
    draws = np.random.default_rng(0).normal(size=(3, 3, 6))
    values = 10.0 + np.arange(3.0)[:, None, None] + np.arange(3.0)[None, :, None] + 0.01 * draws
    claim = Claim(
        sentence="The gap of the planted world is the largest.",
        sources=("MarchenkoPastur67",),
        axes=(Axis("world", "W", "world"),),
        quantities=(Quantity("world_gap", "g", "gap"),),
        static=(),
        outputs=("world",),
        sizes={"small": {"world": WORLDS, "length": (1, 2, 4), "seed": 6}},
        controls={"flat": Control("no world differs", measure={"flat": True})},
        check=check,
        theory=theory,
        measure=lambda point, *, key, flat=False: {},
        name="worlds/gap",
    )
    attributes = {"claim": claim.name, "configuration": '{"claim": "worlds/gap", "size": "small", "control": null}'}
    data = xr.Dataset({"world_gap": (tuple(axes), values)}, axes, attributes)
    planted = testing.Subject(claim, None, "small", data)
    vars(planted)["recorded"] = planted.verdict(data)
    return planted


def sound(dataset):
    """Compares two worlds, at every length."""
    gap = dataset["world_gap"]
    lead = gap.sel(world="planted", drop=True) - gap.sel(world="other", drop=True)
    return checks.above("lead", "gap of the planted world - of the others", estimates.mean(lead))


def exact(outcome):
    """A finding without an error from seeds."""
    return [Finding("exact", "exact = 1", 1.0, 1.0, 0.0, 0.0, outcome)]


def first_seed(dataset):
    """Knows the first seed from the others."""
    first = float(dataset["world_gap"].isel(seed=0).mean())
    return exact(Outcome.HOLDS if first == float(dataset["world_gap"].sel(seed=0).mean()) else Outcome.FAILS)


def second_seed(dataset):
    """Raises without a second seed."""
    return sound(dataset) if float(dataset["world_gap"][..., 1].mean()) else []


def decided_by_conditions(dataset):
    """Decides as a condition of the data, which knows no number of seeds."""
    return [
        replace(finding, about="data")
        for finding in exact(Outcome.FAILS if dataset.sizes["seed"] < 2 else Outcome.HOLDS)
    ]


def counted(dataset):
    """Counts worlds that are there: without the others it fails, whatever their numbers."""
    return exact(Outcome.HOLDS if dataset["world_gap"].mean("seed").notnull().sum() == 9 else Outcome.FAILS)


def filled(dataset):
    """A theory that makes numbers of NaN."""
    return dataset.fillna(10.0)


def ranked(dataset):
    """Takes the last length for the longest, and would have it the largest."""
    last = dataset["world_gap"].isel(length=-1, drop=True) - dataset["world_gap"].isel(length=0, drop=True)
    return checks.above("grows", "gap at the last length - at the first", estimates.mean(last))


CONTRACTS = {name: contract for name, contract in testing.CONTRACTS.items() if name not in testing.MEASURED}


@pytest.mark.parametrize("contract", [contract for name, contract in CONTRACTS.items() if name != "recorded_verdict"])
@pytest.mark.parametrize("check", [sound, ranked])
def test_a_sound_claim_keeps_every_contract(contract, check):
    contract(subject(check))


@pytest.mark.parametrize(
    ("contract", "check", "theory", "error"),
    [
        ("order_of_seeds", first_seed, None, AssertionError),
        ("one_seed_is_judged", second_seed, None, EnvironmentFault),
        ("one_seed_is_undecided", decided_by_conditions, None, AssertionError),
        ("no_number_is_undecided", lambda dataset: exact(Outcome.HOLDS), filled, AssertionError),
        ("cut_axis", counted, None, AssertionError),
    ],
)
def test_a_claim_with_a_fault_breaks_the_contract(contract, check, theory, error):
    with pytest.raises(error):
        testing.CONTRACTS[contract](subject(check, theory))


def test_the_order_of_an_axis_is_the_labs_to_keep(monkeypatch):
    monkeypatch.setattr(judging, "ascending", lambda claim, dataset: dataset)
    with pytest.raises(AssertionError, match="order of the values"):
        testing.descending_axis(subject(ranked))


def test_a_record_of_another_verdict_breaks_the_contract(monkeypatch):
    template = testing.recorded("random_matrices/resolvent", PACKAGE)
    testing.recorded_verdict(template)
    read = testing.records.read
    entries = read("random_matrices/resolvent", PACKAGE)
    entries["small"]["findings"][0]["measured"] *= 1.001
    monkeypatch.setattr(testing.records, "read", lambda *_: entries)
    with pytest.raises(AssertionError, match="small, trace"):
        testing.recorded_verdict(template)


@pytest.mark.parametrize("world", WORLDS)
def test_a_check_needs_the_world_that_it_selects(world):
    planted = subject(sound)
    verdict = planted.verdict(planted.data.sel(world=[world]))
    assert verdict.outcome is Outcome.UNDECIDED
    lacking = ", ".join(name for name in WORLDS if name != world)
    assert [finding.advice for finding in verdict.findings] == [f"needs world = {lacking}"]


def test_a_key_that_is_no_value_of_an_axis_stays_a_fault():
    planted = subject(sound)
    broken = replace(planted, claim=replace(planted.claim, check=lambda dataset: dataset["gaps"]))
    with pytest.raises(EnvironmentFault, match="KeyError"):
        broken.verdict(planted.data.isel(world=[0]))


def test_a_finding_at_a_value_still_fails_without_the_others():
    planted = subject(lambda dataset: checks.below("small", "gap", estimates.mean(dataset["world_gap"]), 1.0))
    verdict = planted.verdict(planted.data.isel(length=[0]))
    assert {finding.outcome for finding in verdict.findings} == {Outcome.FAILS}


@pytest.fixture
def worlds(tmp_path):
    """A folder with a claim whose measurement returns every world, whatever is set."""

    def write(returned):
        folder = tmp_path / "worlds" / "gap"
        folder.mkdir(parents=True)
        (folder / "claim.py").write_text(CLAIM)
        (folder / "measure.py").write_text(SOURCE.format(worlds=returned))
        return folder

    return write


def measured(folder, worlds):
    """Mean gap of each world of a run with these."""
    request = new_request("worlds/gap", "smoke", axes={"world": worlds}, out=folder / "out", claims=folder)
    compute(request, progress=lambda *_: None)
    means = read(request, theory=False)[0]["world_gap"].mean("seed")
    return {str(world): round(float(means.sel(world=world))) for world in means.world.values}


def test_an_axis_that_is_not_read_has_the_values_that_were_asked_for(worlds):
    folder = worlds(WORLDS)
    assert measured(folder, ["other", "own"]) == {"own": 1, "other": 2}
    with pytest.raises(InputError, match=r"world: expected some of .*got \['foreign'\]"):
        measured(folder, ["foreign"])


@pytest.mark.parametrize(("returned", "kept"), [("point.world", False), (WORLDS, True)])
def test_a_measurement_that_returns_other_worlds_breaks_the_contract(worlds, returned, kept, monkeypatch):
    folder = worlds(returned)
    request = new_request("worlds/gap", "smoke", out=folder / "out", claims=folder)
    compute(request, progress=lambda *_: None)
    golden = read(request, theory=False)[0].load()
    monkeypatch.setattr(testing.records, "groups", lambda *_: ["smoke"])
    monkeypatch.setattr(testing.records, "data", lambda *_, **__: golden)
    planted = testing.Subject(request.claim(), folder, "smoke", golden)
    if kept:
        testing.requested_values(planted)
    else:
        with pytest.raises(AssertionError, match="gap"):
            testing.requested_values(planted)


def test_one_line_makes_a_test_of_each_claim_and_contract_without_jax(tmp_path):
    names = ", ".join(repr(name) for name in CONTRACTS)
    (tmp_path / "test_book.py").write_text(
        f"import sys\nfrom icllab import testing\ntest_contracts = testing.contracts({str(PACKAGE)!r}, {names})\n"
        "def test_no_jax():\n    assert 'jax' not in sys.modules\n"
    )
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--import-mode=importlib", str(tmp_path)]
    output = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    assert f"{len(CONTRACTS) + 1} passed" in output
    assert "test_contracts[random_matrices/resolvent-cut_axis] PASSED" in output


def test_a_claim_without_recorded_data_is_skipped(worlds):
    contract = testing.contracts(worlds(WORLDS), "cut_axis")
    with pytest.raises(pytest.skip.Exception, match="worlds/gap: not recorded"):
        contract(testing.CONTRACTS["cut_axis"], "worlds/gap")


def test_a_folder_without_claims_and_an_unknown_contract_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"contracts: expected a folder with a claim\.py"):
        testing.contracts(tmp_path)
    with pytest.raises(InputError, match="unknown contract 'cut_axes'; did you mean 'cut_axis'"):
        testing.contracts(PACKAGE, "cut_axes")
