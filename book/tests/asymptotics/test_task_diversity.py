"""What is particular to this claim: the numbers it derives from gaps, and its check on synthetic data."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.asymptotics.task_diversity import claim
from iclbook.claims.asymptotics.task_diversity import measure as measured
from icllab.lab.checks import Outcome
from icllab.theory import dmmse

RHO = 0.01
DIMS, ALPHAS, KAPPAS = np.array([10, 20, 40]), np.array([4.0, 8.0, 16.0]), np.array([0.3, 0.5, 1.0, 1.5, 3.0])
# What dMMSE has at every d: a slow decrease, without a bend.
SLOW = 1.4 - 0.1 * np.log(KAPPAS)


def made_up(gaps=None, knowing=SLOW, noise=0.01, seeds=48, converged=1.0):
    """Gaps that follow ``gaps`` [alpha, kappa] (the closed form) at large d with 1/d corrections, and dMMSE's."""
    rng = np.random.default_rng(0)
    gaps = claim.gap(ALPHAS[:, None], KAPPAS, RHO) if gaps is None else gaps
    clean = gaps * (1 + 2 / DIMS[:, None, None] + 5 / DIMS[:, None, None] ** 2)
    shape, dims = (*clean.shape, seeds), ("dim", "alpha", "kappa", "seed")

    def scattered(values):
        return dims, np.broadcast_to(values[..., None], shape) + noise * rng.normal(size=shape)

    variables = {
        "icl_error": scattered(RHO + clean),
        "idg_error": (dims, np.full(shape, RHO)),
        "dmmse_gap": scattered(np.broadcast_to(knowing, clean.shape)),
        "converged": (dims, np.full(shape, converged)),
    }
    coords = {"dim": DIMS, "alpha": ALPHAS, "kappa": KAPPAS, "seed": np.arange(seeds)}
    dataset = xr.Dataset(variables, coords=coords)
    return claim.theory(dataset.assign_attrs(configuration=json.dumps({"fixed": {"rho": RHO}})))


_, failing, outcome = judged(claim.check)


def test_the_closed_form_tends_to_the_limit_with_its_corner():
    """From above, and like alpha^(-1/2) at the corner, 1/alpha before it."""
    for kappa, order in ((0.5, 1.0), (1.0, 0.5)):
        above = [claim.gap(alpha, kappa, RHO) - claim.limit(kappa, RHO) for alpha in (1e6, 1e8)]
        assert np.log(above[0] / above[1]) / np.log(100) == pytest.approx(order, abs=0.01)
    assert claim.limit(1.0, RHO) == claim.limit(2.0, RHO) == 0
    assert claim.limit(0.5, RHO) == pytest.approx(0.5 * 1.02 / 1.01)


def test_left_and_bend_go_to_0_and_1_with_the_corner_and_have_the_errors_of_their_samples():
    before, at, beyond = (claim.limit(kappa, RHO) for kappa in (claim.BEFORE, claim.AT, claim.BEYOND))
    assert beyond / before == 0
    assert 1 - 2 * at / before + beyond / before == 1
    rng = np.random.default_rng(1)
    means, spreads = np.array([[0.6, 0.3, 0.15], [0.05, 0.04, 0.03]])[:, :, None]
    samples = means + spreads * rng.normal(size=(2000, 3, 50))
    gaps = xr.DataArray(samples, dims=("dim", "kappa", "seed"), coords={"kappa": [0.5, 1.0, 1.5]})
    (left, of_left), (bend, of_bend) = ((made.value, made.error) for made in claim.corner(gaps))
    assert abs(left.mean() - 0.25) < 0.001
    assert abs(bend.mean() - 0.25) < 0.001
    assert float(of_left.mean()) == pytest.approx(float(left.std()), rel=0.05)
    assert float(of_bend.mean()) == pytest.approx(float(bend.std()), rel=0.05)


def test_it_fails_where_the_corner_is_there_before_the_limit():
    corner = np.broadcast_to(claim.limit(KAPPAS, RHO), (3, 5))
    said = failing(made_up(gaps=corner))
    assert "gap[alpha=16,kappa=1]" in said


def test_it_fails_where_the_corner_does_not_sharpen():
    same = np.broadcast_to(claim.gap(8.0, KAPPAS, RHO), (3, 5))
    assert outcome(made_up(gaps=same)) is Outcome.FAILS
    blunter = claim.gap(ALPHAS[::-1, None], KAPPAS, RHO)
    said = failing(made_up(gaps=blunter))
    assert {"left_falls[dim=40]", "bend_grows[dim=40]"} <= set(said)


def test_it_fails_where_the_posterior_mean_over_the_pool_has_a_corner_too():
    said = failing(made_up(knowing=claim.limit(KAPPAS, RHO)))
    assert said == [f"{name}[dim={dim}]" for name in ("dmmse_left", "dmmse_bend") for dim in DIMS]


def test_a_pool_is_its_first_tasks_each_as_often_as_every_other(getkey):
    law = {"dim": 4, "alpha": 2.0, "rho": RHO}
    few, of_few = measured._with_pool({**law, "kappa": 0.5}, key=(key := getkey()))
    _, of_many = measured._with_pool({**law, "kappa": 3.0}, key=key)
    np.testing.assert_array_equal(of_few, of_many[:2])
    rows, counts = np.unique(np.asarray(few.weights.weights), axis=0, return_counts=True)
    assert rows.shape == (2, 4)
    np.testing.assert_array_equal(counts, measured.ROWS * 4 // 2)


def test_what_is_measured_is_of_the_cells_pool_and_of_fresh_tasks_unless_said_otherwise(getkey):
    key = getkey()

    def errors(pool, seeds=(0, 5), alpha=4.0, **changes):
        point = SimpleNamespace(dim=4, alpha=alpha, kappa=pool, rho=RHO, seed=seeds)
        return {name: values for name, (_, values) in measured.measure(point, key=key, **changes).items()}

    few, many = errors(0.5), errors(1.5)
    assert few["icl_error"].mean() > many["icl_error"].mean()
    assert np.all(few["icl_error"] > few["idg_error"])
    for name, values in errors(1.5, kappa=0.5).items():
        np.testing.assert_array_equal(values, few[name])
    np.testing.assert_array_equal(errors(0.5, seeds=(5,))["dmmse_gap"], few["dmmse_gap"][1:])
    for name, values in errors(0.5, alpha=2.0, inverse=8.0).items():
        np.testing.assert_array_equal(values, few[name])
    of_pool = errors(0.5, fresh=False)
    np.testing.assert_array_equal(of_pool["idg_error"], few["idg_error"])
    assert np.all(of_pool["icl_error"] < few["icl_error"])


def test_the_gap_of_dmmse_is_that_of_the_formula_on_draws_of_its_own(getkey):
    """At two sizes of the pool, by the predictor and by the formula's own posterior mean."""
    key = getkey()
    for kappa in (0.5, 1.5):
        law = {"dim": 6, "alpha": 2.0, "kappa": kappa, "rho": 0.25}
        samples = np.array([measured._dmmse_gap(law, key=jax.random.fold_in(key, seed)) for seed in range(250)])
        error, formula = samples.std(ddof=1) / len(samples) ** 0.5, dmmse.task_gap(**law, draws=4000)
        assert np.hypot(error, formula.standard_error) < 0.04
        assert abs(samples.mean() - formula.mean) < 3.5 * np.hypot(error, formula.standard_error)


def test_contexts_of_dmmse_have_the_length_and_the_noise_of_the_law(getkey, monkeypatch):
    """What the predictor is given, and that its last answer's gradient is the posterior mean of the formula."""
    law, given, found = {"dim": 5, "alpha": 3.0, "kappa": 0.8, "rho": 0.25}, [], measured._posterior_means

    def watching(*values):
        given.append([np.asarray(one, float) for one in values])
        return found(*values)

    monkeypatch.setattr(measured, "_posterior_means", watching)
    measured._dmmse_gap(law, key=getkey())
    ((pools, rho, x, y),) = given
    assert rho == 0.25
    assert x.shape == (measured.DRAWS, 16, 5)
    assert y.shape == (measured.DRAWS, 2, 16)
    assert [len(np.unique(pool, axis=0)) for pool in pools] == [4] * measured.DRAWS
    answers = found(*(jax.numpy.asarray(one) for one in given[0]))
    for draw in (0, 3):
        for task in (0, 1):
            exact = dmmse.posterior_mean(x[draw, :-1], y[draw, task, :-1], pools[draw], 0.25)
            np.testing.assert_allclose(answers[draw, task], exact, atol=2e-5)
    residuals = [y[draw, 0] - x[draw] @ pools[draw, 0] for draw in range(measured.DRAWS)]
    for values, variance in ((np.stack(residuals), 0.25), (x, 1 / 5), (pools[:, :4], 1.0)):
        error = variance * np.sqrt(2 / values.size)
        assert abs(np.mean(values**2) - variance) < 4 * error < variance
    # The noise of both tasks is the same.
    fresh = np.stack([np.linalg.lstsq(x[draw], y[draw, 1] - residuals[draw])[1] for draw in range(measured.DRAWS)])
    assert np.max(np.abs(fresh)) < 1e-10


def test_the_gap_is_judged_from_three_dimensions_on():
    found = {finding.id.split("[")[0]: finding.about for finding in claim.check(made_up().isel(dim=[-1]))}
    judged = dict.fromkeys(("left_falls", "bend_grows", "dmmse_left", "dmmse_bend"), "claim")
    assert found == {"dimensions": "data", **judged, "solved": "data"}
