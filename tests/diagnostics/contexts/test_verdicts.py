"""Verdicts on a law for contexts, from numbers alone."""

import numpy as np
import pytest
import xarray as xr
from scipy import stats

from icllab.core.errors import InputError
from icllab.diagnostics.contexts.laws import TESTS, WORLDS
from icllab.diagnostics.contexts.verdicts import (
    FALSE,
    LEVEL,
    SHARE,
    LawOutcome,
    LearningOutcome,
    compare,
    law,
    learned,
    log_ratios,
)


def measured(own=0.01, other=1.0, planted=0.01, *, spread=0.2, contexts=8, networks=None, seed=0, **changes):
    """Log-normal fractions; ``changes`` are those of one test of the context's own maps."""
    rng = np.random.default_rng(seed)
    shape = (networks or 1, contexts, len(WORLDS), len(TESTS))
    centre = np.log([[changes.get(test, own) for test in TESTS], [other] * 3, [planted] * 3])
    left = np.exp(centre + spread * rng.normal(size=shape) * np.array([1.0, 0.0, 1.0])[:, None])
    dims = ("network", "context", "world", "test")
    data = xr.Dataset({"left": (dims, left), "converged": (dims, np.ones(shape, bool))})
    data = data.assign_coords(world=list(WORLDS), test=list(TESTS))
    return data if networks else data.isel(network=0, drop=True)


def test_a_law_passes_all_three_tests_and_none_suffices():
    assert law(measured()).outcome is LawOutcome.LAW
    assert law(measured(effect=0.5)).outcome is LawOutcome.NONE
    for name in ("change", "composition"):
        verdict = law(measured(**{name: 0.5}))
        assert verdict.outcome is LawOutcome.CAPACITY
        assert name in verdict.sentence
        assert law(measured(0.5, **{name: 1e-6})).outcome is LawOutcome.NONE


def test_no_map_composes_and_is_no_law():
    """Where nothing moves, both compositions are exact: that test has nothing to tell apart."""
    still = measured(effect=1.07, change=1.07)
    still["left"].loc[{"test": "composition", "world": ["own", "other"]}] = 0.0
    verdict = law(still)
    assert verdict.outcome is LawOutcome.NONE
    assert np.isnan(float(verdict.numbers["ratio"].sel(test="composition")))
    still["left"].loc[{"test": ["effect", "change"], "world": "own"}] = 1e-9
    assert law(still).outcome is LawOutcome.UNDECIDED


def test_what_another_context_leaves_is_the_null_where_it_is_less_than_all():
    """A context that hardly matters: any map carries the changes."""
    assert law(measured(0.01, other=0.02)).outcome is not LawOutcome.LAW
    ratio = np.exp(log_ratios(measured(0.01, other=0.05, spread=0.0), "own"))
    np.testing.assert_allclose(ratio, 0.2)
    ratio = np.exp(log_ratios(measured(0.01, other=3.0, spread=0.0), "own"))
    np.testing.assert_allclose(ratio, 0.01)


def test_no_needs_a_planted_law_that_would_have_been_found():
    for outcome, changes in ((LawOutcome.CAPACITY, {"change": 0.5}), (LawOutcome.NONE, {"effect": 0.5})):
        assert law(measured(**changes, planted=0.03)).outcome is outcome
        verdict = law(measured(**changes, planted=0.3))
        assert verdict.outcome is LawOutcome.UNDECIDED
        assert "a planted law" in verdict.sentence
        assert law(measured(**changes, planted=0.05, contexts=5)).outcome is LawOutcome.UNDECIDED
    assert law(measured(planted=0.3)).outcome is LawOutcome.LAW  # "law" needs no power


@pytest.mark.parametrize("share", [0.7, 0.9])
def test_power_is_the_probability_that_a_law_is_found(share):
    """Of 4000 draws of planted laws of twenty contexts, a share of which obeys."""
    contexts = 20
    obey = np.random.default_rng(0).random((4000, contexts)) < share
    found = [stats.binomtest(int(row.sum()), contexts).proportion_ci(1 - 2 * FALSE).low > SHARE for row in obey]
    exact = measured(contexts=contexts)
    obeyed = np.arange(contexts) < share * contexts
    exact["left"].loc[{"world": "planted"}] = np.where(obeyed, 0.01, 0.5)[:, None]
    power = compare(exact)["power"]
    np.testing.assert_allclose(power, np.mean(found), atol=4 * 0.5 / 4000**0.5)


def test_the_interval_of_a_share_is_exact_and_a_network_counts_once():
    data = measured(contexts=10, spread=0.0)
    data["left"].loc[{"context": slice(0, 3), "world": "own", "test": "change"}] = 0.9
    row = compare(data).sel(test="change")
    expected = stats.binomtest(7, 10).proportion_ci(1 - 2 * FALSE)
    np.testing.assert_allclose([row["share"], row["low"], row["high"]], [0.7, expected.low, expected.high])
    several = measured(networks=6, contexts=10, spread=0.0)
    several["left"].loc[{"network": 0, "context": slice(0, 5), "world": "own", "test": "change"}] = 0.9
    several["left"].loc[{"network": 1, "context": slice(0, 4), "world": "own", "test": "change"}] = 0.9
    np.testing.assert_allclose(compare(several)["share"], [1, 5 / 6, 1])  # five of ten are not most


def test_one_context_without_a_limit_does_not_decide():
    """Student's interval of logarithms that are floored reached from 1e-6 to 14 here; fifteen of sixteen obey."""
    data = measured(1e-9, contexts=16, spread=0.0)
    data["left"].loc[{"context": 3, "world": "own"}] = 0.375
    assert law(data).outcome is LawOutcome.LAW


def test_contexts_whose_fits_have_not_converged_are_left_out_and_counted():
    data = measured()
    data["left"].loc[{"context": 0}] = 1e3
    assert law(data).outcome is not LawOutcome.LAW
    for world in ("own", "other"):
        left_out = data.copy(deep=True)
        left_out["converged"].loc[{"context": 0, "world": world}] = False
        verdict = law(left_out)
        assert verdict.outcome is LawOutcome.LAW
        assert verdict.numbers["left_out"].values.tolist() == [1, 1, 1]
        assert verdict.numbers["contexts"].values.tolist() == [7, 7, 7]
    data = measured()
    data["converged"].loc[{"context": slice(0, 5), "test": "composition", "world": "own"}] = False
    verdict = law(data)
    assert verdict.outcome is LawOutcome.UNDECIDED
    assert verdict.numbers["left_out"].values.tolist() == [0, 0, 5]


def test_six_contexts_or_networks_are_the_least_that_decide():
    for size in ({"contexts": 5}, {"networks": 5}):
        assert law(measured(**size)).outcome is LawOutcome.UNDECIDED
        assert law(measured(0.5, **size)).outcome is LawOutcome.UNDECIDED
    for size in ({"contexts": 6}, {"networks": 6}):
        assert law(measured(**size)).outcome is LawOutcome.LAW
        assert law(measured(0.5, **size)).outcome is LawOutcome.NONE


def test_a_law_is_learned_if_untrained_networks_have_none():
    exact, lawless, unclear = measured(), measured(composition=0.5), measured(composition=0.1, spread=1.0)
    expected = {
        LearningOutcome.LEARNED: (exact, lawless),
        LearningOutcome.GIVEN: (exact, exact),
        LearningOutcome.ABSENT: (lawless, exact),
    }
    for outcome, (trained, untrained) in expected.items():
        assert learned(trained, untrained).outcome is outcome
    assert learned(exact, unclear).outcome is LearningOutcome.UNDECIDED
    assert learned(unclear, lawless).outcome is LearningOutcome.UNDECIDED
    assert learned(lawless, unclear).outcome is LearningOutcome.ABSENT
    stages = learned(exact, lawless).numbers["ratio"].sel(test="composition")
    assert stages.sel(stage="trained") < LEVEL < stages.sel(stage="untrained")


def test_a_level_is_a_fraction():
    assert law(measured(0.01, planted=1e-4), level=0.005).outcome is LawOutcome.NONE
    with pytest.raises(InputError, match="level: expected a number between 0 and 1, got 1"):
        law(measured(), level=1)
