"""Every claim at ``smoke``: it does not fail, and in each of its wrong worlds it does."""

import json

import numpy as np
import pytest
from contracts.cases import CLAIMS

import icllab as icl
from icllab.core.axes import AXES, QUANTITIES
from icllab.experiments import registry
from icllab.experiments.checks import Outcome
from icllab.experiments.experiment import SIZES
from icllab.experiments.results import fixed_values, judge


def worlds(claim):
    """The wrong worlds of a claim. Those that are simulated are slow, but for one where no other is to be had."""
    found = registry.load(claim).worlds
    there = [name for name, world in found.items() if world.measure is None] or list(found)[:1]
    for name in found:
        yield pytest.param(claim, name, marks=() if name in there else pytest.mark.slow)


TRAINED = {
    *(claim for claim in CLAIMS if claim.startswith(("descent/", "induction/"))),
    "asymptotics/synthetic_to_real",
    "asymptotics/transformer_double_descent",
    "asymptotics/transformer_task_diversity",
    "asymptotics/which_architectures",
    "singular/llc_along_training",
    "singular/per_length",
    "singular/toy_superposition",
}
WORLDS = [case for claim in CLAIMS for case in worlds(claim)]


@pytest.fixture(autouse=True)
def optimised(claim, request):
    """Claims that solve compute for seconds: what the rest of the suite leaves out of compilation pays here.

    Networks that train for a few steps are compiled for longer than they run.
    """
    import jax

    jax.config.update(
        "jax_disable_most_optimizations", claim in TRAINED and request.function is not test_the_claim_holds_at_small
    )
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Results shared by the tests of this file."""
    return tmp_path_factory.mktemp("results")


@pytest.mark.parametrize("claim", CLAIMS)
def test_the_claim_does_not_fail_at_smoke(claim, out):
    dataset = icl.run(claim, "smoke", out=out)
    verdict = icl.check(claim, "smoke", out=out)
    assert verdict.findings
    assert verdict.outcome is not Outcome.FAILS, [f for f in verdict.findings if f.outcome is Outcome.FAILS]
    assert set(map(str, dataset.dims)) <= set(AXES)
    assert set(map(str, dataset.data_vars)) <= set(QUANTITIES)
    assert set(fixed_values(dataset)) == set(registry.load(claim).fixed)
    for name in ("claim", "sources", "package_version", "git_commit", "jax_version", "device", "precision", "key"):
        assert name in dataset.attrs
    for finding in verdict.findings:
        assert np.isfinite([finding.predicted, finding.tolerance]).all()
    json.dumps(verdict.as_dict(), allow_nan=False)


@pytest.mark.parametrize(("claim", "world"), WORLDS)
def test_the_claim_fails_in_a_wrong_world(claim, world, out):
    experiment = registry.load(claim).in_world(world)
    if registry.load(claim).worlds[world].measure is None:  # another formula for what is measured already
        verdict = judge(experiment, experiment.theory(icl.run(claim, "smoke", out=out)))
    else:
        icl.run(claim, "smoke", out=out, world=world)
        verdict = icl.check(claim, "smoke", out=out, world=world)
    assert verdict.outcome is Outcome.FAILS, verdict.findings


@pytest.mark.parametrize("claim", CLAIMS)
def test_the_claim_has_at_least_one_wrong_world_and_a_citable_source(claim):
    experiment = registry.load(claim)
    assert experiment.worlds
    assert all(f"{{{key}," in icl.cite(claim) for key in experiment.sources)
    assert experiment.claim.endswith(".")


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
def test_the_claim_holds_at_small(claim, tmp_path):
    """Or, where a larger size is the first that shows the effect, is not refuted by it."""
    icl.run(claim, "small", out=tmp_path)
    outcome = icl.check(claim, "small", out=tmp_path).outcome
    shown = SIZES.index("small") >= SIZES.index(registry.load(claim).shows)
    assert outcome is Outcome.HOLDS if shown else outcome is not Outcome.FAILS
