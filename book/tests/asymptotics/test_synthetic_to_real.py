"""What is particular to this claim: its check on synthetic data, and its measurement on a tiny network."""

import jax
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.asymptotics._tables import FITTED
from iclbook.claims.asymptotics.synthetic_to_real import claim, measure
from icllab.core.grid import cell_key
from icllab.lab import registry
from icllab.lab.checks import Outcome

LENGTHS = np.array([5, 6, 8, 20])
AHEAD = dict.fromkeys(FITTED, 0.05) | {
    "ridge": 0.01,
    "context mean": 0.2,
    "least squares": np.array([10.0, 900.0, 4.0, 0.2]),
}


def made_up(members=4, draws=900, spread=0.005, **ahead):
    """Errors like those measured; ``ahead`` is by how much a predictor's exceed the transformer's."""
    rng = np.random.default_rng(0)
    own = np.array([1.05, 1.0, 0.9, 0.8])
    ahead = AHEAD | {name.replace("_", " "): value for name, value in ahead.items()}
    rows = {name: own + ahead.get(name, 0.0) for name in claim.PREDICTORS}
    common = rng.gamma(2.0, 0.5, size=(LENGTHS.size, 1, draws))  # all answer the same draws
    values = []
    for name in claim.PREDICTORS:
        scatter = common * rng.gamma(20.0, 1 / 20, size=(LENGTHS.size, 1, draws))
        among = spread * rng.normal(size=(1, members, 1)) if name == "transformer" else np.zeros((1, members, 1))
        values.append(rows[name][:, None, None] * scatter + among)
    return xr.Dataset(
        {
            "table_error": (
                ("dim", "width", "layers", "step", "predictor", "length", "member", "seed"),
                np.stack(values)[None, None, None, None],
            )
        },
        coords={
            "dim": [5],
            "width": [32],
            "layers": [2],
            "step": [2000],
            "predictor": list(claim.PREDICTORS),
            "length": LENGTHS,
            "member": np.arange(members),
            "seed": np.arange(draws),
        },
    )


outcomes, failing, _ = judged(claim.check)


def test_it_holds_where_all_is_as_claimed():
    found = outcomes(made_up())
    assert set(found.values()) == {Outcome.HOLDS}
    assert len(found) == 5 + len(FITTED) + 1


@pytest.mark.parametrize("name", FITTED)
def test_it_fails_where_a_predictor_of_scikit_learn_is_better(name):
    ahead = {name.replace(" ", "_"): -0.05}
    assert failing(made_up(**ahead)) == [f"fitted[dim=5,predictor={name}]"]


def test_it_fails_where_ridge_is_far_better():
    assert failing(made_up(ridge=-0.1)) == ["ridge[dim=5]"]
    assert outcomes(made_up(ridge=-0.02))["ridge[dim=5]"] is Outcome.HOLDS


def test_it_fails_where_the_network_has_the_peak_too():
    found = failing(made_up(least_squares=np.array([0.0, 0.0, 0.0, 0.2])))
    assert found == ["peak[dim=5,length=6]"]


def test_it_fails_where_the_network_rises_at_the_peak_of_least_squares():
    dataset = made_up()
    errors = dataset["table_error"].copy()
    errors.loc[{"length": 6}] += 0.4  # of all predictors, so that comparisons stay as they are
    assert failing(dataset.assign(table_error=errors)) == ["no_peak[dim=5,length=6]"]


def test_it_fails_where_least_squares_is_better_in_the_end():
    found = failing(made_up(least_squares=np.array([10.0, 900.0, 4.0, -0.2])))
    assert found == ["in_the_end[dim=5,length=20]"]


def test_it_fails_where_one_network_alone_does_no_better_than_the_mean():
    dataset = made_up()
    errors = dataset["table_error"].copy()
    at = {"predictor": "transformer", "member": 2}
    errors.loc[at] = errors.sel(predictor="context mean", member=2)
    assert outcomes(dataset.assign(table_error=errors))["every_network[dim=5]"] is Outcome.FAILS


def test_the_spread_of_the_networks_counts_beside_that_of_the_draws():
    def error(spread):
        return {finding.id: finding.standard_error for finding in claim.check(made_up(spread=spread))}

    name = "fitted[dim=5,predictor=forest]"
    assert error(0.1)[name] > 3 * error(0.0)[name]


class Keys:
    """In a table's place: a prompt is the key by which its rows are drawn, and that by which targets are shuffled."""

    def __init__(self, *args, **how):
        self.of_shuffle = jax.random.key(0)

    def shuffled(self, *, key):
        other = Keys()
        other.of_shuffle = key
        return other

    def sample(self, *, key):
        return jax.random.key_data(key), jax.random.key_data(self.of_shuffle)


def test_rows_are_drawn_and_targets_shuffled_by_keys_of_their_own(monkeypatch):
    """Of every draw, and the same rows whether targets are shuffled or not."""
    monkeypatch.setattr(measure, "Table", Keys)
    drawn = (measure._draws.__wrapped__(2, (5,), (0, 1, 2), 7, shuffled)[1] for shuffled in (True, False))
    (rows, order), (same, none) = (tuple(np.asarray(one) for one in prompt) for prompt in drawn)
    np.testing.assert_array_equal(rows, same)
    assert (none == 0).all()
    assert len(np.unique(np.concatenate([rows, order]), axis=0)) == 6


@pytest.mark.slow
def test_every_predictor_is_measured_on_the_same_draws():
    """Finite, no two alike; only networks differ between members, and further draws leave the first as they are."""
    experiment = registry.load("asymptotics/synthetic_to_real").with_fixed({"batch": [4]})
    chosen = {"dim": [2], "width": [4], "layers": [1], "step": [3], "length": [5, 6], "member": [0, 1]}

    def measured(seeds, control=None):
        grid = experiment.grid("small", chosen, seeds=seeds)
        with jax.enable_x64(False):
            found = [
                experiment.under(control).measure(
                    experiment.point(cell, grid.inside(cell)), key=cell_key(jax.random.key(1), cell)
                )["table_error"]
                for cell in grid.cells()
            ]
        assert {dims for dims, _ in found} == {("predictor", "length", "seed")}
        return np.stack([errors for _, errors in found], axis=2)

    errors = measured(3)
    assert errors.shape == (len(claim.PREDICTORS), 2, 2, 3)
    assert np.isfinite(errors).all()
    assert len({tuple(row.ravel()) for row in errors}) == len(claim.PREDICTORS)
    network = claim.PREDICTORS.index("transformer")
    assert (errors[network, :, 0] != errors[network, :, 1]).any()
    same = np.delete(errors, network, axis=0)
    np.testing.assert_array_equal(same[:, :, 0], same[:, :, 1])
    np.testing.assert_allclose(measured(4)[..., :3], errors, rtol=2e-4, atol=1e-5)
    shuffled = measured(3, "shuffled_targets")
    assert (shuffled != errors).any(axis=(1, 2, 3)).all()
