"""The landscape that is tilted, against theory and tokens; leads of made-up curves; the check."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.routing.susceptibility_peaks import claim
from iclbook.claims.routing.susceptibility_peaks.measure import Landscape, attention
from icllab.lab.checks import Outcome
from icllab.theory import induction_landscape

SIZES = {"pairs": 3, "labels": 7}
PLACE = (0.7, 1.3, 2.1)


def by_tokens(beta, alpha, xi, pairs, labels):
    """Logits of all labels from the attention of a query to 2N + 1 tokens; the first label is the right one."""
    y = np.exp(beta) / (np.exp(beta) + pairs)
    scores = np.zeros(2 * pairs + 1)
    scores[0] = alpha * y
    weights = np.exp(scores) / np.exp(scores).sum()
    logits = np.zeros(labels)
    logits[:pairs] = xi * weights[:pairs]
    return logits, weights[0]


def test_the_tilted_loss_is_that_of_a_label_outside_the_context():
    logits, right = by_tokens(*PLACE, **SIZES)
    losses = np.log(np.exp(logits).sum()) - logits
    for share in (0.0, 0.3, 1.0):
        with jax.enable_x64(True):
            found = float(Landscape(jnp.asarray(share), **SIZES)(jnp.asarray(PLACE)))
        np.testing.assert_allclose(found, (1 - share) * losses[0] + share * losses[-1], rtol=1e-12)
    with jax.enable_x64(True):
        np.testing.assert_allclose(float(attention(jnp.asarray(PLACE), 3)), right, rtol=1e-12)
    np.testing.assert_allclose(induction_landscape.loss(*PLACE, **SIZES), losses[0], rtol=1e-12)


def test_times_of_extremes_are_found_between_the_points():
    times = np.linspace(0, 10, 101)
    assert abs(claim.extreme_time(times, np.exp(-((times - 4.03) ** 2))) - 4.03) < 1e-3
    assert abs(claim.steepest_time(times, -np.tanh(times - 6.02)) - 6.02) < 1e-3
    assert np.isnan(claim.extreme_time(times, times))
    assert np.isnan(claim.steepest_time(times, np.exp(-times)))


def made_up(stretch=(1.6, 4.5, 15.0), apart=0.05, height=10.0, error=0.001, dimension=100.0, warned=0.0):
    """A cliff at time 100, peaks before it by a lead for every reach, and posteriors' losses near them."""
    reach, nbeta, times = np.array([1.0, 2.0, 4.0]), [20.0, 50.0], np.linspace(60, 130, 281)
    leads = np.array(stretch)
    peaks = 100 - leads
    dims = ("reach", "nbeta", "time")

    def over(values):
        return dims, np.broadcast_to(values[:, None], (3, 2, len(times)))

    one = np.stack([height * np.exp(-((times - at) ** 2) / 8) + 1 for at in peaks])
    both = (*dims, "observable")
    falls = np.stack([-np.tanh(times - at - apart * lead) for at, lead in zip(peaks, leads, strict=True)])
    cliff = np.stack([-np.tanh(times - 100)] * 3)
    rows = {"label_loss": over(cliff), "posterior_loss": over(falls)}
    rows["effective_dimension"] = over(np.stack([np.tanh(times - dimension)] * 3))
    values = np.broadcast_to(one[:, None, :, None], (3, 2, len(times), 2))
    rows |= {"susceptibility": (both, values), "susceptibility_error": (both, np.full(values.shape, error))}
    rows["sampler_warnings"] = (dims[:2], np.full((3, 2), warned))
    coords = {"reach": reach, "nbeta": nbeta, "time": times, "observable": list(claim.OBSERVABLES)}
    return xr.Dataset(rows, coords=coords, attrs={"configuration": json.dumps({"fixed": {}})})


_, failing, outcome = judged(claim.check)


def names(dataset):
    return {name.split("[")[0] for name in failing(dataset)}


def test_leads_are_those_that_were_made():
    found = claim.leads(made_up())
    np.testing.assert_allclose(found["peak_lead"].values, np.array([[1.6, 4.5, 15.0]] * 2).T, atol=0.01)


def test_the_check_tells_each_part_of_the_claim():
    assert outcome(made_up()) is Outcome.HOLDS
    assert names(made_up(stretch=(0.3, 4.5, 15.0))) == {"lead"}
    assert names(made_up(stretch=(4.6, 4.5, 15.0), apart=0.01)) == {"grows"}
    assert names(made_up(apart=0.4)) == {"together"}
    assert names(made_up(height=2.0)) == {"peak"}
    assert names(made_up(dimension=96.0)) == {"dimension"}


@pytest.mark.parametrize("made", [{"error": 0.5}, {"warned": 1.0}])
def test_the_check_is_undecided_where_the_quadrature_is_not_accurate(made):
    assert outcome(made_up(**made)) is Outcome.UNDECIDED
    assert outcome(made_up().sel(reach=[1.0])) is Outcome.UNDECIDED
