"""What is particular to this claim: its wrong formula is wrong in one place only, and its check on synthetic data."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.asymptotics.double_descent import claim
from iclbook.claims.asymptotics.double_descent.measure import measure
from icllab.lab.checks import Outcome
from icllab.models import reduced
from icllab.tasks import LinearRegression
from icllab.tasks.attention_features import feature_moments
from icllab.theory import linear_attention

FIXED = {"alpha": 10.0, "kappa": 0.5, "rho": 0.01}


def test_the_slides_formula_is_right_once_both_symbols_are():
    tau = np.array([0.1, 0.5, 0.9, 1.2, 2.0, 10.0])
    exact = linear_attention.icl_error(tau=tau, **FIXED)
    np.testing.assert_allclose(claim.slide_formula(tau=tau, **FIXED), exact, rtol=1e-10)
    wrong_q = claim.slide_formula(tau=tau, **FIXED, printed=True)
    assert np.all(np.abs(wrong_q / exact - 1) > 0.2)
    wrong_ratio = claim.slide_formula(tau=tau, **FIXED, whole_pool=True)
    assert np.all(np.abs(wrong_ratio / exact - 1)[tau < 0.8] > 0.02)
    np.testing.assert_array_equal(wrong_ratio[tau > 1], claim.slide_formula(tau=tau, **FIXED)[tau > 1])


def made_up(shift=1.0, peak_at=1.0, noise=0.02, seeds=24, converged=1.0):
    """A Dataset that follows the closed form times ``shift`` at large d, with 1/d corrections and a peak of choice."""
    rng = np.random.default_rng(0)
    tau, dim = np.array([0.5, 0.9, 16 / 17, 1.0, 1.06, 2.0]), np.array([8, 16, 32])
    variables = {}
    for name, error in (("icl", linear_attention.icl_error), ("idg", linear_attention.idg_error)):
        limit = np.where(np.abs(tau - 1) < 0.2, 3.0, error(tau=tau, **FIXED)) * np.where(tau == peak_at, 10.0, 1.0)
        clean = shift * limit * (1 + 4 / dim[:, None] + 10 / dim[:, None] ** 2)
        draws = clean[..., None] * np.exp(noise * rng.normal(size=(dim.size, tau.size, seeds)))
        variables[f"{name}_error"] = (("dim", "tau", "seed"), draws)
    variables["converged"] = (("dim", "tau", "seed"), np.full((dim.size, tau.size, seeds), converged))
    dataset = xr.Dataset(variables, coords={"dim": dim, "tau": tau, "seed": np.arange(seeds)})
    return claim.theory(dataset.assign_attrs(configuration=json.dumps({"fixed": FIXED})))


_, failing, outcome = judged(claim.check)


@pytest.mark.parametrize("peak_at", [16 / 17, 1.06, 0.9])
def test_it_fails_where_the_peak_is_elsewhere(peak_at):
    """16/17 is n = d^2 at d = 16."""
    assert {f"peak[dim={dim}]" for dim in (8, 16, 32)} <= set(failing(made_up(peak_at=peak_at)))


def test_it_fails_where_the_error_is_a_quarter_too_large():
    compared = {f"{kind}_error[tau={tau:g}]" for kind in ("icl", "idg") for tau in (0.5, 2.0)}
    assert set(failing(made_up(shift=1.25))) == compared


def test_a_grid_without_the_peak_says_nothing_of_it():
    for taus in ([0.5, 2.0], [0.5], [0.5, 1.0]):
        assert outcome(made_up().sel(tau=taus)) is Outcome.UNDECIDED


@pytest.mark.parametrize("tau", [0.5, 2.0])
def test_what_is_measured_is_the_error_of_least_squares_of_least_norm_on_the_contexts(tau, getkey):
    key, point = getkey(), SimpleNamespace(dim=4, tau=tau, seed=(0, 3), **FIXED)
    found = measure(point, key=key)
    of_pool, of_contexts, _ = jax.random.split(jax.random.fold_in(key, 3), 3)
    task = LinearRegression.from_scaling(dim=4, **FIXED, key=of_pool)
    samples = reduced.sample(task, prompts=int(20 * tau), key=of_contexts)
    x, h, y = (
        np.asarray(part, float).reshape(-1, *part.shape[2:])[: int(20 * tau)]
        for part in (samples.query, samples.features, samples.label)
    )
    gamma = np.linalg.lstsq(np.einsum("ni,nj->nij", x, h).reshape(len(y), -1), y)[0].reshape(4, 5)
    for name, tested in (("icl_error", task.fresh()), ("idg_error", task)):
        dims, errors = found[name]
        assert dims == ("seed",)
        assert errors[1] == pytest.approx(feature_moments(tested).error(gamma), rel=1e-3)
    assert np.all(measure(point, key=key, shuffled=True)["idg_error"][1] > 1.2 * found["idg_error"][1])


@pytest.mark.parametrize(("tau", "dim", "name"), [(3.0, 8, "idg_error"), (0.25, 16, "icl_error")])
def test_the_label_noise_is_a_variance_and_is_seen_where_it_is_large(tau, dim, name, getkey):
    """At rho = 1/4, on either side of the peak: near the closed form, and far from that of rho^2 or of no noise.

    At the claim's rho of 0.01 the three are nearer to each other than its errors. Of finite size are 6 and 9 %.
    """
    law, formula = {"tau": tau, "alpha": 10.0, "kappa": 0.5}, getattr(linear_attention, name)
    found = measure(SimpleNamespace(dim=dim, seed=range(12), rho=0.25, **law), key=getkey())[name][1]
    error = np.std(found, ddof=1) / np.mean(found) / np.sqrt(12)
    assert error < 0.04
    assert abs(np.log(np.mean(found) / formula(**law, rho=0.25))) < 0.1 + 2 * error
    for rho in (0.25**2, 0.0):
        assert abs(np.log(np.mean(found) / formula(**law, rho=rho))) > 0.25 + 3 * error
