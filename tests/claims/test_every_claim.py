"""Every claim at ``smoke``: it holds, as far as the size goes, and under each of its negative controls it fails."""

import ast
import json
import re

import numpy as np
import pytest
from contracts.cases import CLAIMS
from prompt_uses import watched

import icllab as icl
from icllab.experiments import records, registry
from icllab.experiments.checks import Outcome
from icllab.experiments.results import fixed_values, judge

pytestmark = pytest.mark.claims
FEWEST_CELLS = 8
"""Cells of a claim at ``medium``: a kill loses little, and workers are busy."""
CONTROLS = [
    pytest.param(claim, name, marks=[pytest.mark.slow] if control.size != "smoke" else [])
    for claim in CLAIMS
    for name, control in registry.load(claim).controls.items()
]


@pytest.fixture(autouse=True)
def _optimised(request):
    """What computes for minutes is worth its compilation."""
    import jax

    slow = request.node.get_closest_marker("slow") is not None
    jax.config.update("jax_disable_most_optimizations", not slow)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Results shared by the tests of this file."""
    return tmp_path_factory.mktemp("results")


@pytest.mark.parametrize("claim", CLAIMS)
def test_the_claim_holds_at_smoke(claim, out):
    with watched() as uses:
        dataset = icl.run(claim, "smoke", out=out)
    assert uses.faults() == []
    verdict = icl.check(claim, "smoke", out=out)
    assert verdict.findings
    assert verdict.outcome is Outcome.HOLDS, [f for f in verdict.findings if f.outcome is not Outcome.HOLDS]
    assert set(fixed_values(dataset)) == set(registry.load(claim).fixed)
    for name in ("claim", "sources", "package_version", "git_commit", "jax_version", "device", "precision", "key"):
        assert name in dataset.attrs
    for finding in verdict.findings:
        assert re.fullmatch(r"[a-z][a-z0-9_]*(\[.*\])?", finding.id), finding.id
        assert np.isfinite([finding.predicted, finding.tolerance]).all()
    assert len({finding.id for finding in verdict.findings}) == len(verdict.findings)
    json.dumps(verdict.as_dict(), allow_nan=False)


@pytest.mark.parametrize("claim", CLAIMS)
def test_no_seed_is_measured_twice(claim, out):
    """Whatever else a claim's seeds share, two of them are not alike in all that is measured."""
    dataset = icl.run(claim, "smoke", out=out)
    measured = [values for values in dataset.data_vars.values() if "seed" in values.dims]
    assert bool(measured) == ("seed" in dataset.dims)
    rows = [
        b"".join(one.isel(seed=i).values.tobytes() for one in measured) for i in range(dataset.sizes.get("seed", 0))
    ]
    assert len(set(rows)) == len(rows)


@pytest.mark.parametrize(("claim", "control"), CONTROLS)
def test_the_claim_fails_under_a_negative_control(claim, control, out):
    experiment = registry.load(claim).under(control)
    how = registry.load(claim).controls[control]
    if how.simulated or how.axes:
        icl.run(claim, how.size, out=out, control=control)
        verdict = icl.check(claim, how.size, out=out, control=control)
    else:  # another formula for what is measured already
        verdict = judge(experiment, experiment.theory(icl.run(claim, how.size, out=out)))
    assert verdict.outcome is Outcome.FAILS, verdict.findings


@pytest.mark.parametrize("claim", CLAIMS)
def test_the_claim_says_what_it_needs_to(claim):
    experiment = registry.load(claim)
    assert experiment.claim.endswith(".")
    assert experiment.conditions
    assert all(f"{{{key}," in icl.cite(claim) for key in experiment.sources)
    assert len(experiment.grid("medium")) >= FEWEST_CELLS


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_control_is_simulated_by_an_argument_of_the_measurement(claim):
    controls = registry.load(claim).controls.values()
    assert any(control.simulated for control in controls)
    tree = ast.parse(registry.measure_file(registry.claims()[claim]).read_text("utf-8"))
    (measure,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "measure"]
    known = {argument.arg for argument in measure.args.kwonlyargs + measure.args.args}
    for control in controls:
        assert set(control.measure) <= known - {"point", "key"}


@pytest.mark.parametrize("claim", CLAIMS)
def test_the_figure_is_a_pure_function_of_the_results(claim, out):
    from icllab.figures import png_bytes

    dataset = icl.run(claim, "smoke", out=out)
    before = dataset.copy(deep=True)
    first, second = png_bytes(icl.draw(dataset)), png_bytes(icl.draw(dataset))
    assert first == second
    assert dataset.identical(before)


@pytest.mark.slow
@pytest.mark.parametrize("claim", CLAIMS)
def test_the_claim_is_at_small_what_its_record_says(claim, tmp_path):
    """Or, where it has none since a larger size is the first that shows the effect, is not refuted."""
    icl.run(claim, "small", out=tmp_path)
    outcome, record = icl.check(claim, "small", out=tmp_path).outcome, records.read(claim)
    assert outcome.value == record["small"]["verdict"] if "small" in record else outcome is not Outcome.FAILS


@pytest.mark.slow
@pytest.mark.parametrize("claim", [c for c in CLAIMS if registry.load(c).block("medium")])
def test_a_seed_measures_the_same_in_any_block(claim, out):
    """What a seed measures beside others it measures alone, to the rounding of other shapes."""
    experiment = registry.load(claim)
    whole = icl.run(claim, "smoke", out=out)
    request = icl.run(claim, "smoke", out=out / "alone", axes={"seed": [1]})
    for name, alone in request.data_vars.items():
        if "seed" in alone.dims and name in {str(q) for q in experiment.vocabulary.quantities}:
            np.testing.assert_allclose(
                alone.values,
                whole[name].sel(seed=[1]).transpose(*alone.dims).values,
                rtol=1e-3,
                atol=1e-4,
                err_msg=name,
            )
