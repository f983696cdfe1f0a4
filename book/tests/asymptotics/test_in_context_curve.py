"""What is particular to this claim: its check on synthetic data, and its measurement on a tiny network."""

import json

import jax
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.asymptotics.in_context_curve import claim
from icllab.lab import registry
from icllab.lab.checks import Outcome

FIXED = {"alpha": 3.0, "rho": 0.25}
POSITIONS = np.array([0, 1, 2, 4, 8, 12, 16, 20, 24])
ALL = [*claim.ESTIMATORS, "no positions", "learned positions", "linear attention"]


def made_up(seeds=4, noise=0.01, **changed):
    """Errors like those measured at d = 4; ``changed`` replaces the curve of a predictor (names with underscores)."""
    rng = np.random.default_rng(0)
    bayes = np.array([4.3, 2.6, 1.45, 0.8, 0.42, 0.36, 0.33, 0.32, 0.3])
    curves = {
        "least squares": np.array([4.3, 3.5, 2.5, 1000.0, 0.6, 0.39, 0.35, 0.33, 0.31]),
        "ridge": np.array([4.3, 3.4, 2.3, 1.3, 0.5, 0.38, 0.34, 0.33, 0.31]),
        "Bayes": bayes,
        "no positions": bayes * np.array([1, 1.03, 1.1, 1.2, 1.4, 1.4, 1.4, 1.4, 1.4]),
        "learned positions": bayes * np.array([1, 1.03, 1.1, 1.2, 1.4, 1.4, 2.0, 2.2, 2.5]),
        "linear attention": bayes * np.array([1, 1.7, 2.0, 2.5, 4.0, 4.5, 5.0, 5.0, 5.0]),
    }
    curves |= {name.replace("_", " "): np.asarray(values) * bayes for name, values in changed.items()}
    mean = np.stack([curves[name] for name in ALL])
    draws = mean[..., None] * np.exp(noise * rng.normal(size=(*mean.shape, seeds)))
    return xr.Dataset(
        {"loss": (("dim", "width", "step", "predictor", "position", "seed"), draws[None, None, None])},
        coords={
            "dim": [4],
            "width": [32],
            "step": [1500],
            "predictor": ALL,
            "position": POSITIONS,
            "seed": np.arange(seeds),
        },
        attrs={"configuration": json.dumps({"fixed": FIXED})},
    )


outcomes, failing, _ = judged(claim.check)


def test_it_holds_where_all_is_as_claimed():
    assert set(outcomes(made_up()).values()) == {Outcome.HOLDS}


def test_it_fails_where_the_network_answers_as_ridge_does():
    ridge = made_up()["loss"].sel(predictor="ridge").mean("seed").values.ravel()
    bayes = made_up()["loss"].sel(predictor="Bayes").mean("seed").values.ravel()
    found = failing(made_up(no_positions=1.1 * ridge / bayes, least_squares=1.5 * ridge / bayes))
    assert found == ["few_examples[dim=4,other_predictor=ridge,predictor=no positions]"]


def test_it_fails_where_a_network_is_better_than_the_best():
    assert failing(made_up(no_positions=[0.9] * 9)) == ["above_bayes[dim=4,predictor=no positions]"]


def test_it_fails_where_no_network_learns_in_context():
    flat = 4.3 / np.array([4.3, 2.6, 1.45, 0.8, 0.42, 0.36, 0.33, 0.32, 0.3])
    found = failing(made_up(no_positions=flat, linear_attention=flat))
    assert "progress[dim=4,predictor=no positions,position=12]" in found
    assert "linear_progress[dim=4,position=12]" in found


def test_it_fails_where_linear_attention_is_as_good_as_ridge():
    assert failing(made_up(linear_attention=[1.1] * 9)) == ["linear_excess[dim=4,position=12]"]


def test_it_fails_where_longer_contexts_do_the_opposite():
    worse = [1, 1.03, 1.1, 1.2, 1.4, 1.4, 2.0, 2.2, 2.5]
    better = [1, 1.03, 1.1, 1.2, 1.4, 1.4, 1.2, 1.2, 1.1]
    assert failing(made_up(no_positions=worse)) == ["falls_beyond[dim=4,predictor=no positions]"]
    assert failing(made_up(learned_positions=better)) == ["departs_beyond[dim=4,predictor=learned positions]"]


def measured(chosen, *, fixed, key, seeds=2, **changes):
    experiment = registry.load("asymptotics/in_context_curve").with_fixed(fixed)
    grid = experiment.grid("smoke", chosen, seeds=seeds)
    with jax.enable_x64(False):
        return experiment.measure(experiment.point(next(grid.cells()), grid.traced), key=key, **changes)["loss"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*claim.TRANSFORMERS, "linear attention"])
def test_every_network_is_measured_beside_the_estimators(name, getkey):
    """And the numbers of one seed do not depend on which others are measured with it."""
    chosen = {"dim": [2], "width": [4], "step": [20], "predictor": ["Bayes", name], "position": [0, 6, 12]}
    fixed, key = {"prompts": [8], "batch": [4]}, getkey()
    dims, loss = measured(chosen, fixed=fixed, key=key)
    assert dims == ("seed", "predictor", "position")
    assert loss.shape == (2, 2, 3)
    assert np.isfinite(loss).all()
    assert (loss[:, 1] != loss[:, 0]).any()
    _, alone = measured(chosen | {"seed": [1]}, fixed=fixed, key=key, seeds=None)
    np.testing.assert_allclose(alone[0], loss[1], rtol=1e-4)


@pytest.mark.slow
def test_networks_of_another_prior_are_tested_on_the_claims_own(getkey):
    """Bayes is the same in every control, and the network another; without a task it learns to answer 0.

    After 300 steps some networks have learned nothing; after 1000 all four that were tried had losses of at most 0.85.
    """
    chosen = {"dim": [1], "width": [4], "step": [1000], "predictor": ["Bayes", "no positions"], "position": [0, 3]}
    fixed, key = {"prompts": [256], "batch": [16], "ratio": [4.0]}, getkey()
    found = {prior: measured(chosen, fixed=fixed, key=key, prior=prior)[1] for prior in ("anisotropic", "noise")}
    np.testing.assert_array_equal(found["noise"][:, 0], found["anisotropic"][:, 0])
    assert (found["noise"][:, 1, 1] > found["anisotropic"][:, 1, 1]).all()
    # Squares of labels have mean 1.25, variance 9.1 and, of one prompt, covariance 2.0: the means of 4096 differ by a
    # relative standard error of (2 * 7.1 / 4096)^0.5 / 1.25 = 0.047. Six of them.
    _, many = measured(chosen, fixed=fixed | {"prompts": [4096]}, key=key, prior="noise")
    np.testing.assert_allclose(many[:, 1, 1], many[:, 0, 0], rtol=0.3)


def test_the_prior_of_tasks_has_the_variance_it_says(getkey):
    """With no example the Bayes answer is 0, and its mean loss the variance of a label: tr C + rho = d + rho."""
    chosen = {"predictor": ["Bayes"], "position": [0, 1]}
    _, loss = measured(chosen, fixed={"prompts": [20000]}, key=getkey(), seeds=4)
    first = loss[:, 0, 0]  # standard errors of 0.03 for each seed: the loss has a standard deviation of about 6
    error = first.std(ddof=1) / 2
    assert error < 0.1
    assert abs(first.mean() - 3.25) < 6 * error
