"""Candidates that a verdict at the tolerance cannot tell apart: steps of descent with nearly one rate."""

import jax
import numpy as np
import pytest

from icllab.algorithms import GradientDescent
from icllab.diagnostics import PromptSplit, VerdictRule, identify
from icllab.tasks import LinearRegression

FEW = {"prompts": PromptSplit(400, fitting=40)}


def descent(rate):
    return GradientDescent(rate, layers=1, dim=3, normalised=True, half=True)


@pytest.fixture(scope="module")
def task():
    with jax.enable_x64(True):
        return LinearRegression.convention("ahn", dim=3, length=12)


def asked(task, *remainder, network=0.5, **options):
    """A network of one rate against candidates of others; the fraction between rates a and b is about (a/b - 1)^2."""
    with jax.enable_x64(True):
        candidates = {f"{rate:g}": descent(rate) for rate in remainder}
        return identify(descent(network), candidates, task, key=jax.random.key(0), **FEW, **options)


def test_what_is_nearer_than_intervals_are_wide_is_not_told_apart(task):
    """A fraction of 1e-4 is not seen at a tolerance of 1e-2 that is known to a fifth; with a rule of 1e-6 it is."""
    result = asked(task, 0.3, 0.5, 0.505)
    low, high = result["fraction_unexplained_interval"].sel(candidate="0.505").values
    width = 0.01 * (high - low) / float(result["fraction_unexplained"].sel(candidate="0.505"))
    between = float(result["mutual"].sel(candidate="0.5", other_candidate="0.505"))
    assert 1e-6 < between < width < 0.01
    assert result["verdict"].item() == "indistinguishable"
    assert result["among"].values.tolist() == [False, True, True]
    strict = asked(task, 0.3, 0.5, 0.505, rule=VerdictRule())
    assert strict["verdict"].item() == "0.5"
    assert strict["among"].values.tolist() == [False, True, False]
    for name in ("fraction_unexplained", "accepted", "gap_to_best_interval"):
        np.testing.assert_array_equal(result[name], strict[name])


def test_what_is_further_apart_is(task):
    """A fraction of 0.006 is accepted too, and is more than the intervals are wide."""
    result = asked(task, 0.5, 0.54)
    assert result["accepted"].all()
    assert result["verdict"].item() == "0.5"
    assert "lie between" not in result["warning"].item()


def test_what_is_refused_is_not_meant_however_near_it_is(task):
    """Fractions of 0.0091 and 0.0107 on both sides of the tolerance, with 6e-5 between the two."""
    result = asked(task, 0.548, 0.552)
    assert result["accepted"].values.tolist() == [True, False]
    assert float(result["fraction_unexplained_interval"].sel(candidate="0.552", bound="low")) > 0.01
    assert result["verdict"].item() == "0.548"


def test_between_two_that_are_one_it_is_told(task):
    result = asked(task, 0.4985, 0.502)
    assert result["verdict"].item() == "indistinguishable"
    assert result["warning"].item().count("the answers lie between") == 1


def test_none_stays_none(task):
    assert asked(task, 0.3, 0.301)["verdict"].item() == "none of these"


def test_a_rule_has_its_own_resolution(task):
    with jax.enable_x64(True):
        candidates = {"itself": descent(0.5), "near": descent(0.505)}
        default = identify(descent(0.5), candidates, task, key=jax.random.key(1), **FEW)
        strict = identify(descent(0.5), candidates, task, key=jax.random.key(1), rule=VerdictRule(), **FEW)
    assert default["verdict"].item() == "indistinguishable"
    assert strict["verdict"].item() == "itself"
