"""The verdict on a map, from numbers alone."""

import numpy as np
import pytest

from icllab.diagnostics.contexts.verdicts import Comparison, MapOutcome, judge_map

NULLS = np.array([[0.6, 0.7], [0.4, 0.5]])


def outcome(gap=0.01, derivative=0.1, composition=0.1, norm=0.2, error=0.02, converged=True, nulls=NULLS, unmoved=1.0):
    def compared(value, error=error):
        return Comparison(value, error, nulls)

    cut = None if composition is None else compared(composition)
    options = {"unmoved": unmoved, "converged": converged}
    return judge_map(compared(gap), compared(derivative), cut, compared(norm, 0.0), **options).outcome


def test_a_law_passes_both_tests_against_both_nulls():
    assert outcome() is MapOutcome.LAW
    assert outcome(composition=None) is MapOutcome.LAW


@pytest.mark.parametrize("gap", [1e-12, 0.01, 0.4])
def test_the_gap_alone_decides_nothing(gap):
    assert outcome(gap=gap) is MapOutcome.LAW
    assert outcome(gap=gap, derivative=0.6) is MapOutcome.CAPACITY
    assert outcome(gap=gap, composition=0.45) is MapOutcome.CAPACITY


def test_one_null_that_does_as_well_is_capacity():
    """Only the smallest of all draws of both nulls counts."""
    nulls = np.array([[0.6, 0.7], [0.4, 0.05]])
    assert outcome(nulls=nulls) is MapOutcome.CAPACITY
    assert outcome(nulls=nulls, derivative=0.04) is MapOutcome.CAPACITY  # composition is still above


def test_what_is_within_errors_is_undecided():
    assert outcome(derivative=0.38) is MapOutcome.UNDECIDED
    assert outcome(error=0.3) is MapOutcome.UNDECIDED
    assert outcome(converged=False) is MapOutcome.UNDECIDED
    assert outcome(derivative=np.nan) is MapOutcome.UNDECIDED


def test_weights_that_move_farther_than_for_any_null_are_no_law():
    assert outcome(norm=0.69) is MapOutcome.LAW
    assert outcome(norm=0.71) is MapOutcome.UNDECIDED


def test_without_weights_there_is_no_map():
    assert outcome(gap=0.6) is MapOutcome.NONE
    assert outcome(gap=0.51) is MapOutcome.LAW  # within its errors of a half


def test_exact_tests_are_a_law_whatever_the_nulls_do():
    assert outcome(derivative=1e-9, composition=1e-9, nulls=np.zeros((2, 2)), norm=-1.0) is MapOutcome.LAW
    assert outcome(derivative=1e-9, composition=0.3, nulls=np.zeros((2, 2))) is MapOutcome.CAPACITY


def test_nulls_without_a_number_are_left_out():
    assert outcome(nulls=np.array([[np.nan, 0.7], [0.5, np.nan]])) is MapOutcome.LAW
    assert Comparison(0.1, 0.0, np.full((2, 2), np.nan)).least == np.inf


def test_what_the_weights_themselves_carry_is_no_law():
    """A context with hardly any effect: the identity passes the derivative test."""
    assert outcome(unmoved=0.15) is MapOutcome.LAW
    assert outcome(unmoved=0.13) is MapOutcome.UNDECIDED  # within two errors of .02 of .1
    assert outcome(unmoved=0.05) is MapOutcome.UNDECIDED
    assert outcome(unmoved=0.05, composition=0.6) is MapOutcome.CAPACITY
    exact = {"derivative": 1e-9, "composition": 1e-9, "error": 0.0, "norm": -1.0}
    assert outcome(**exact, unmoved=1e-7) is MapOutcome.UNDECIDED
    assert outcome(**exact, unmoved=1e-3) is MapOutcome.LAW
