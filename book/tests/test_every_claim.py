"""Every claim: smoke measures its golden numbers, and its check refutes its controls' data."""

import functools
import json
import os
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from contracts.cases import CLAIMS
from prompt_uses import watched

import icllab as icl
from icllab.core.errors import CellsMissing
from icllab.lab import conformance, provenance, records, registry, regression
from icllab.lab.checks import Outcome
from icllab.lab.job import Request
from icllab.lab.judging import judge
from icllab.lab.results import fixed_values
from icllab.lab.run import read

pytestmark = pytest.mark.claims
FEWEST_CELLS = 8
"""Cells of a claim at ``medium``: a kill loses little, and workers are busy."""
UNFALSIFIED: dict[str, str] = {}
"""Findings that no control of their claim falsifies yet. The list may only shrink."""
UNREFUTED: set[tuple[str, str]] = set()
"""Controls under which the data of ``small`` leave a claim undecided, where they should refute it."""
WITHOUT_DATA = {
    "asymptotics/task_diversity_threshold",
}
"""Claims whose verdict has no data on record. The list may only shrink."""
UNRECORDED: set[tuple[str, str]] = set()
"""Controls without data at the size of a claim's verdict. The list may only shrink."""
MODELS = Path(os.environ.get("ICLLAB_MODELS", "models"))
CONTROLS = [(claim, name) for claim in CLAIMS for name in registry.load(claim).controls]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Results shared by the tests of this file."""
    return tmp_path_factory.mktemp("results")


def require_models(claim, size="smoke"):
    """Skip a measurement of language models where ``make models`` has not brought those of its size."""
    missing = [name for name in registry.load(claim).grid(size).static.get("model", ()) if not (MODELS / name).is_dir()]
    if missing:
        pytest.skip(f"{claim}: needs {', '.join(str(MODELS / name) for name in missing)}, which `make models` brings")


@functools.lru_cache(maxsize=8)
def judged(claim, control=None):
    """The size of the largest recorded data, and the verdict on them; (None, None) where none are."""
    try:
        dataset = icl.recorded(claim, control=control)
    except CellsMissing:
        return None, None
    size = json.loads(dataset.attrs["configuration"])["size"]
    return size, judge(registry.load(claim).under(control), dataset)


def required(claim, control=None):
    """The size and the verdict of what is recorded; skips, and says so, where nothing is yet."""
    size, verdict = judged(claim, control)
    listed = claim in WITHOUT_DATA or (claim, control) in UNRECORDED
    assert (verdict is None) == listed, "data that lack are listed, and none that are there"
    if verdict is None:
        pytest.skip(f"{claim}: not recorded" + (f" under {control}" if control else ""))
    return size, verdict


@pytest.mark.parametrize("claim", CLAIMS)
def test_smoke_measures_the_golden_numbers(claim, out, record_property):
    require_models(claim)
    with watched() as uses:
        dataset = icl.run(claim, "smoke", out=out)
    assert uses.faults() == []
    content, entry = registry.load(claim), records.read(claim)["smoke"]
    measured, _ = read(Request(claim, "smoke", out=str(out)), theory=False)
    advice = f"a VERSION of its own in measure.py, and bench/records.py --only {claim}"
    assert entry["measure"] == content.version, f"the golden numbers are of another VERSION: {advice}"
    golden = records.data(claim, "smoke")
    strict = regression.same_platform(golden, measured)
    record_property("strict", strict)
    changes = regression.differences(golden, records.reduced(content, measured), strict=strict)
    assert changes == [], f"numbers moved; where that is meant, they need {advice}"
    assert set(fixed_values(dataset)) == set(content.fixed)
    for name in ("claim", "sources", "package_version", "git_commit", "jax_version", "device", "precision", "key"):
        assert name in dataset.attrs


MEASURED_ANEW = {
    "asymptotics/task_alignment",
    "context_map/a_context_is_partly_a_step",
    "context_map/flag_token",
    "context_map/frozen_entities",
    "context_map/simplest_model",
    "descent/components_one_by_one",
    "descent/depth_needs_rotation",
    "descent/merged_heads_drop_once",
    "descent/softmax_layers_are_steps",
    "induction/bimodal_at_the_threshold",
    "induction/exponentials_or_products",
    "induction/race_of_memorising",
    "language/function_vectors_or_induction",
    "language/induction_heads_in_a_real_model",
    "routing/blind_in_networks",
    "routing/codes",
    "singular/effective_dimension_across_the_cliff",
}
"""Claims whose golden numbers are of another processor than the run of all the others."""


def test_all_golden_numbers_are_judged_strictly_where_they_were_recorded():
    """On a platform, all that name it are judged strictly; one run recorded all but the claims measured anew."""
    here = xr.Dataset(attrs=provenance.machine())
    golden = {claim: records.data(claim, "smoke") for claim in CLAIMS}
    assert [claim for claim, dataset in golden.items() if not regression.same_platform(dataset, dataset)] == []
    strict = [claim for claim, dataset in golden.items() if regression.same_platform(dataset, here)]
    if not strict:
        pytest.skip(f"golden numbers are of {next(iter(golden.values())).attrs['processor']} and of other versions")
    assert set(strict) in (MEASURED_ANEW, set(CLAIMS) - MEASURED_ANEW)


@pytest.mark.parametrize("claim", CLAIMS)
def test_no_seed_is_measured_twice(claim, out):
    """Whatever else a claim's seeds share, two of them are not alike in all that is measured."""
    require_models(claim)
    dataset = icl.run(claim, "smoke", out=out)
    measured = [values for values in dataset.data_vars.values() if "seed" in values.dims]
    assert bool(measured) == ("seed" in dataset.dims)
    rows = [
        b"".join(values.isel(seed=i).values.tobytes() for values in measured)
        for i in range(dataset.sizes.get("seed", 0))
    ]
    assert len(set(rows)) == len(rows)


@pytest.mark.parametrize("claim", CLAIMS)
def test_recorded_data_are_of_the_size_and_the_measurement_that_they_name(claim):
    content = registry.load(claim)
    for group in records.groups(claim):
        size, _, control = group.partition("@")
        dataset = records.data(claim, size, control or None)
        assert list(records.size_faults(content, size, control or None, dataset)) == []
        assert not records.measured_by_another(content, dataset, None)


@pytest.mark.parametrize(("claim", "control"), CONTROLS)
def test_the_claim_fails_under_a_negative_control(claim, control):
    size, verdict = required(claim, control)
    assert verdict.outcome is (Outcome.UNDECIDED if (claim, control) in UNREFUTED else Outcome.FAILS)
    entry, world = records.read(claim)[size]["controls"][control], registry.load(claim).controls[control]
    assert entry["verdict"] == verdict.outcome.value
    assert entry["fails"] == [finding.id for finding in verdict.findings if finding.outcome is Outcome.FAILS]
    if world.simulated or world.axes:
        assert entry["definition"] == records.definition(world), "the control measures something else: record it again"
    assert entry["fails"] == [finding.id for finding in verdict.findings if finding.outcome is Outcome.FAILS]


@pytest.mark.parametrize("claim", CLAIMS)
def test_every_finding_is_falsified_by_a_control(claim):
    """An empty row of the table finding x control belongs to a finding that nothing could refute."""
    _, verdict = required(claim)
    rows = {finding.name for finding in verdict.findings if finding.about == "claim"}
    verdicts = [judged(claim, control)[1] for control in registry.load(claim).controls]
    findings = [finding for under in verdicts if under is not None for finding in under.findings]
    falsified = {finding.name for finding in findings if finding.outcome is Outcome.FAILS}
    assert rows - falsified == set(UNFALSIFIED.get(claim, "").split())


@pytest.mark.parametrize("claim", CLAIMS)
def test_the_claim_says_what_it_needs_to(claim):
    content = registry.load(claim)
    assert list(conformance.sentence_faults(content, None)) == []
    assert all(f"{{{key}," in icl.cite(claim) for key in content.sources)
    assert len(content.grid("medium")) >= FEWEST_CELLS


@pytest.mark.parametrize("claim", CLAIMS)
def test_medium_repeats_no_seed_of_small(claim):
    assert conformance.repeated_seeds(registry.load(claim)) == set()


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_control_is_simulated_by_an_argument_of_the_measurement(claim):
    assert list(conformance.measurement_faults(registry.load(claim), None)) == []


@pytest.mark.parametrize("claim", CLAIMS)
def test_the_figure_is_a_pure_function_of_the_results(claim, out):
    try:
        dataset = icl.recorded(claim)
    except CellsMissing:
        require_models(claim)
        dataset = icl.run(claim, "smoke", out=out)
    assert list(conformance.impurities(registry.load(claim), dataset)) == []


@pytest.mark.slow
@pytest.mark.parametrize("claim", CLAIMS)
def test_small_measures_the_recorded_numbers(claim, tmp_path):
    size, _ = required(claim)
    require_models(claim, size)
    icl.run(claim, size, out=tmp_path)
    measured, _ = read(Request(claim, size, out=str(tmp_path)), theory=False)
    assert regression.differences(records.data(claim, size), records.reduced(registry.load(claim), measured)) == []


@pytest.mark.slow
@pytest.mark.parametrize("claim", [c for c in CLAIMS if registry.load(c).block("medium")])
def test_a_seed_measures_the_same_in_any_block(claim, out):
    """What a seed measures beside others it measures alone, to the rounding of other shapes."""
    content = registry.load(claim)
    whole = icl.run(claim, "smoke", out=out)
    dataset = icl.run(claim, "smoke", out=out / "alone", axes={"seed": [1]})
    for name, alone in dataset.data_vars.items():
        if "seed" in alone.dims and name in {str(q) for q in content.vocabulary.quantities}:
            np.testing.assert_allclose(
                alone.values,
                whole[name].sel(seed=[1]).transpose(*alone.dims).values,
                rtol=1e-3,
                atol=1e-4,
                err_msg=name,
            )
