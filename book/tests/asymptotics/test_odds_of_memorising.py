"""What is particular to this claim: fits and scores on planted grids, their power and false alarms, and its check."""

import json

import numpy as np
import pytest
import xarray as xr
from judging import judged
from scipy.special import expit

from iclbook.claims.asymptotics import _held_out
from iclbook.claims.asymptotics.odds_of_memorising import claim, measure
from icllab.lab.checks import Outcome

TASKS = np.array([2, 4, 8, 16, 32, 64, 128])
STEPS = np.array([50, 100, 200, 400, 800, 1600])
GAPS = np.array([0.135, 0.117, 0.098, 0.085, 0.067, 0.05, 0.032])
K, N, GAP = (x.astype(float) for x in np.broadcast_arrays(TASKS[:, None], STEPS, GAPS[:, None]))


_, failing, outcome = judged(claim.check)


def planted(name):
    """Probabilities by the formulas of the documentation, written out anew, with numbers as networks have them."""
    odds = {
        "posterior": 1.9 * N**0.39 * GAP - np.log(2) * ((4000 + 224 * K) ** 0.215 - 4000**0.215),
        "pool alone": 8.7 * N**0.23 * GAP - np.log(2) * (224 * K) ** 0.13,
        "free energy": 0.96 * N**0.47 * GAP - 0.001 * 3.5 * K * np.log(N),
        "boundary": (np.log(N / 0.64) - 1.79 * np.log(K)) / 1.7,
        "race": np.log(GAP + (1.7 / N) ** 0.77) - 0.77 * np.log(0.41 * K / N),
    }
    return expit(odds[name])


def made_up(weight, fresh=None, noise=0.03, seeds=6, seed=0):
    """Results of networks with these weights [tasks, step] on the pool and on fresh tasks, 0.3 off the line."""
    rng = np.random.default_rng(seed)
    weights = np.stack([weight, weight if fresh is None else fresh], axis=-1)[..., None]
    weights = weights + noise * rng.normal(size=(*weights.shape[:-1], seeds))
    scale = np.ones((len(TASKS), 2, seeds))
    s = scale[:, None]
    distance = np.stack([(1 - weights) ** 2 * s + 0.3, weights**2 * s + 0.3])
    return xr.Dataset(
        {
            "strategy_distance": (("predictor", "tasks", "step", "test_set", "seed"), distance),
            "strategy_gap": (("tasks", "test_set", "seed"), scale),
            "loss_gap": (("tasks", "seed"), np.tile(GAPS[:, None], seeds)),
        },
        coords={
            "predictor": list(claim.STRATEGIES),
            "tasks": TASKS,
            "step": STEPS,
            "test_set": list(claim.TEST_SETS),
            "seed": range(seeds),
        },
        attrs={"configuration": json.dumps({"fixed": {"dim": 4, "colours": 8}})},
    ).expand_dims(setting=["urns"])


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    monkeypatch.setattr(claim, "RESAMPLES", 12)


def scored(dataset, **options):
    return claim.theory(dataset, **options).isel(setting=0)


def test_the_weight_is_the_place_on_the_line_between_the_predictors():
    result = scored(made_up(planted("race"), noise=0.0, seeds=2))
    np.testing.assert_allclose(result.memorising_weight.sel(test_set="fresh", seed=0), planted("race"), atol=1e-12)


@pytest.mark.parametrize("name", _held_out.THEORIES)
def test_a_planted_theory_is_recognised_on_held_out_cells(name):
    """With these numbers it explains them but for the noise, and scores above every other."""
    result = scored(made_up(planted(name)))
    scores = result.isel(replicate=0).sel(test_set="pool")
    assert (scores.explained.sel(theory=name) > 0.97).all()
    best = scores.log_density.mean("part").to_series().sort_values()
    assert best.index[-1] == name
    assert np.abs(result.predicted_weight.sel(theory=name) - planted(name)).mean() < 0.03


@pytest.mark.parametrize("name", _held_out.THEORIES)
def test_a_theory_wins_no_grid_of_another(name, monkeypatch):
    """Over repetitions of noise, the winner by the log density of held-out cells is the planted one."""
    monkeypatch.setattr(claim, "RESAMPLES", 0)
    grids = [scored(made_up(planted(name), seeds=4, seed=seed)) for seed in range(10)]
    winners = [grid.log_density[:, 0, :, 0].mean("part").to_series().idxmax() for grid in grids]
    assert winners.count(name) >= 9


def test_cells_that_are_scored_are_not_fitted():
    """Other weights in held-out cells change scores, and no prediction."""
    weight, changed = planted("boundary"), planted("boundary")
    changed[1::2] = 0.5
    changed[:, STEPS > claim.LATE] = 0.5
    results = [scored(made_up(values, noise=0.0, seeds=1)) for values in (weight, changed)]
    np.testing.assert_array_equal(*(result.predicted_weight for result in results))
    assert (results[1].explained.sel(test_set="pool").isel(theory=slice(4), replicate=0) < 0.9).all()


def test_theories_are_fitted_on_the_pool_and_scored_on_fresh_tasks_with_the_same_numbers():
    dataset = made_up(planted("posterior"), fresh=1 - planted("posterior"))
    result = scored(dataset.sortby("test_set"))  # as results are read from files
    first = result.isel(replicate=0).sel(theory="posterior").explained
    assert (first.sel(test_set="pool") > 0.97).all()
    assert (first.sel(test_set="fresh") < -1).all()


def test_parts_are_the_other_pools_early_and_all_pools_late():
    weight = planted("posterior")
    weight[1::2, STEPS <= claim.LATE] = np.linspace(0, 1, 12).reshape(3, 4)
    result = scored(made_up(weight)).isel(replicate=0).sel(theory="posterior", test_set="pool").explained
    assert result.sel(part="steps") > 0.97 > 0.5 > result.sel(part="tasks")


def test_permuted_pools_and_a_gap_of_zero_are_no_explanation():
    weight = planted("posterior")
    for options in ({"permuted": True}, {"evidence": False}):
        result = scored(made_up(weight), **options).isel(replicate=0).sel(test_set="pool", theory="posterior")
        assert (result.explained < 0.8).any(), options


def test_nulls_are_the_mean_and_the_nearest_cell_that_is_fitted():
    result = scored(made_up(planted("race"), noise=0.0, seeds=1)).predicted_weight
    early = STEPS <= claim.LATE
    np.testing.assert_allclose(result.sel(theory="constant"), planted("race")[::2][:, early].mean())
    nearest = result.sel(theory="nearest").values
    np.testing.assert_allclose(nearest[::2][:, early], planted("race")[::2][:, early])
    np.testing.assert_allclose(nearest[::2, -1], planted("race")[::2, np.flatnonzero(early)[-1]])


def test_errors_are_those_of_seeds():
    """The bootstrap error of an R² falls with the noise of seeds."""
    errors = [
        scored(made_up(planted("race"), noise=noise)).explained.isel(replicate=slice(1, None)).std("replicate")
        for noise in (0.1, 0.01)
    ]
    ratio = (errors[0] / errors[1]).sel(test_set="pool").isel(theory=slice(4))
    assert (ratio > 3).all()


def small(weight, **options):
    return claim.theory(made_up(weight), **options)


def test_the_claim_holds_where_a_boundary_is_planted():
    assert outcome(small(planted("boundary"))) is Outcome.HOLDS


@pytest.mark.parametrize("planting", ["measured", "control"])
def test_the_claim_fails_where_the_posterior_is_planted(planting):
    grid = small(planted("posterior")) if planting == "measured" else small(planted("boundary"), planted="posterior")
    assert failing(grid) == ["boundary[setting=urns]"]


def test_the_claim_fails_where_free_energies_are_planted():
    assert "coefficients[setting=urns]" in failing(small(planted("free energy")))


@pytest.mark.parametrize("options", [{"permuted": True}, {"evidence": False}])
def test_the_claim_fails_under_other_sizes_and_without_evidence(options):
    assert "explains[setting=urns]" in failing(small(planted("boundary"), **options))


def test_the_gap_in_nats_is_the_divergence_of_the_two_predictions():
    """Of Gaussians of one variance (a - b)^2 / (2 v), of probabilities sum p log(p / q); means over prompts."""
    a, b = np.array([[[0.3]], [[-1.0]]]), np.array([[[0.1]], [[0.5]]])
    assert measure._nats(a, b, 0.25) == pytest.approx((0.2**2 + 1.5**2) / 2 / (2 * 0.25), rel=1e-12)
    p, q = np.array([[[0.5, 0.5]], [[0.9, 0.1]]]), np.array([[[0.25, 0.75]], [[0.9, 0.1]]])
    by_hand = (0.5 * np.log(2) + 0.5 * np.log(2 / 3)) / 2
    assert measure._nats(p, q, None) == pytest.approx(by_hand, rel=1e-12)
