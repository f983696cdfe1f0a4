"""The error of a mean accuracy, and findings of networks that have not learned."""

import numpy as np
import pytest
import xarray as xr

from iclbook.claims.induction._learned import LEARNED, if_learned, mean_accuracy
from icllab.lab import checks
from icllab.lab.checks import Outcome
from icllab.lab.estimates import Estimate


def test_the_error_of_an_accuracy_is_at_least_that_of_the_prompts():
    alike, apart = (xr.DataArray(values, dims="seed") for values in ([0.2, 0.2, 0.2, 0.2], [0.0, 0.4, 0.0, 0.4]))
    assert float(mean_accuracy(alike, 100).error) == pytest.approx((0.2 * 0.8 / 400) ** 0.5)
    assert float(mean_accuracy(apart, 100).error) == pytest.approx(np.std([0.0, 0.4, 0.0, 0.4], ddof=1) / 2)
    assert np.isnan(float(mean_accuracy(alike[:1], 100).error))


@pytest.mark.parametrize(("least", "outcome"), [(LEARNED, Outcome.HOLDS), (LEARNED - 0.01, Outcome.UNDECIDED)])
def test_findings_of_networks_that_have_not_learned_are_undecided(least, outcome):
    findings = checks.above("more", "more", Estimate(1.0, 0.1))
    (found,) = if_learned(findings, xr.DataArray([1.0, least], dims="seed"))
    assert found.outcome is outcome
