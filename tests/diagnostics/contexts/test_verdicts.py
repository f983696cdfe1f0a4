"""Verdicts on a law for contexts, from numbers alone."""

import numpy as np
import pytest
import xarray as xr
from scipy import stats

from icllab.core.errors import InputError
from icllab.diagnostics.contexts.laws import TESTS, WORLDS
from icllab.diagnostics.contexts.verdicts import (
    LEVEL,
    SIGMAS,
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
        assert law(measured(**changes, planted=0.05, contexts=3)).outcome is LawOutcome.UNDECIDED
    assert law(measured(planted=0.3)).outcome is LawOutcome.LAW  # "law" needs no power


@pytest.mark.parametrize("centre", [0.02, 0.07])
def test_power_is_the_probability_that_a_law_is_found(centre):
    """Of 2000 draws of planted laws of four contexts, against the noncentral distribution of Student."""
    spread, contexts = 0.5, 4
    rng = np.random.default_rng(0)
    logs = np.log(centre) + spread * rng.normal(size=(2000, contexts))
    quantile = stats.t.ppf(stats.norm.cdf(SIGMAS), contexts - 1)
    found = logs.mean(1) + quantile * logs.std(1, ddof=1) / contexts**0.5 < np.log(LEVEL)
    exact = measured(planted=centre, contexts=contexts)
    values = spread * np.array([-1.0, -1.0, 1.0, 1.0]) * (3 / 4) ** 0.5  # of the spread given
    exact["left"].loc[{"world": "planted"}] = centre * np.exp(values)[:, None]
    error = (found.mean() * (1 - found.mean()) / 2000) ** 0.5
    assert error < 0.012
    np.testing.assert_allclose(compare(exact)["power"], found.mean(), atol=4 * error)


def test_intervals_are_students_over_contexts_and_over_networks():
    """Six networks of a common shift each: contexts of one network do not count as independent."""
    rng = np.random.default_rng(1)
    data = measured(0.02, networks=6)
    data["left"] = data["left"] * np.exp(rng.normal(size=6)).reshape(-1, 1, 1, 1)
    data["left"].loc[{"world": "other"}] = 1.0
    logs = np.log(np.maximum(data["left"].sel(world="own", test="change"), 1e-3)).values
    means = logs.mean(1)
    numbers = compare(data).sel(test="change")
    low, high = stats.t.interval(1 - 2 * stats.norm.sf(SIGMAS), 5, means.mean(), stats.sem(means))
    np.testing.assert_allclose([numbers["low"], numbers["high"]], np.exp([low, high]))
    one = compare(data.isel(network=0)).sel(test="change")
    low, high = stats.t.interval(1 - 2 * stats.norm.sf(SIGMAS), 7, means[0], stats.sem(logs[0]))
    np.testing.assert_allclose([one["low"], one["high"]], np.exp([low, high]))


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


def test_one_context_decides_nothing():
    assert law(measured(contexts=1)).outcome is LawOutcome.UNDECIDED
    assert law(measured(0.5, contexts=1)).outcome is LawOutcome.UNDECIDED


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
