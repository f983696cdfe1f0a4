"""What is particular to this claim: its choice of learning rates, its check on made-up worlds, its networks."""

import jax
import numpy as np
import pytest
import xarray as xr

from icllab.claims.asymptotics.which_architectures import claim
from icllab.experiments.checks import Outcome, worst
from icllab.models.networks.parameters import parameter_count, width_for

BUDGETS = np.array([2048, 8192])
RATES = np.array([1e-3, 1e-2])
REACHED = {  # excess errors at few parameters, at the better rate
    "attention 1 layer": 0.3,
    "attention 2 layers": 0.1,
    "attention 4 layers": 0.09,
    "attention 1 head": 0.12,
    "attention 4 heads": 0.1,
    "perceptron": 1.0,
    "recurrent": 0.6,
    "DeepSets": 0.3,
    "no examples": 3.0,
    "least squares": 0.1,
}


def made_up(seeds=3, noise=0.02, used=0.9, fall=0.6, steps=3000, **changed):
    """Excess errors that fall by the factor ``fall``; ``changed`` replaces some (names with underscores)."""
    rng = np.random.default_rng(0)
    reached = REACHED | {name.replace("_", " "): value for name, value in changed.items()}
    assert set(reached) == set(REACHED)
    mean = np.array(list(reached.values()))[:, None] * np.array([1.0, fall])
    mean[-2:] = mean[-2:, :1]
    excess = mean[:, :, None, None, None] * np.array([2.0, 1.0])[:, None, None] * np.array([5.0, 1.0])[:, None]
    excess = excess * np.exp(noise * rng.normal(size=(*excess.shape[:-1], seeds)))
    count = np.broadcast_to(used * BUDGETS, mean.shape) * (np.arange(len(mean)) < len(mean) - 2)[:, None]
    return xr.Dataset(
        {
            "excess": (("dim", "step", "predictor", "parameters", "rate", "position", "seed"), excess[None, None]),
            "parameter_count": (("dim", "step", "predictor", "parameters"), count[None, None]),
        },
        coords={
            "dim": [4],
            "step": [steps],
            "predictor": list(reached),
            "parameters": BUDGETS,
            "rate": RATES,
            "position": [0, 8],
            "seed": np.arange(seeds),
        },
    )


def outcomes(dataset):
    return {finding.what: finding.outcome for finding in claim.check(dataset)}


def failing(dataset):
    return [what for what, found in outcomes(dataset).items() if found is Outcome.FAILS]


def test_it_holds_where_all_is_as_claimed():
    assert set(outcomes(made_up()).values()) == {Outcome.HOLDS}


@pytest.mark.parametrize("name", ["recurrent", "DeepSets"])
def test_it_fails_where_another_network_is_better(name):
    found = failing(made_up(**{name.replace(" ", "_"): 0.05}))
    assert found == [f"log excess error of {name} above attention 2 layers, {p} parameters, d=4" for p in BUDGETS]


def test_it_fails_where_one_layer_is_enough():
    found = failing(made_up(attention_1_layer=0.05))
    deeper = ("attention 2 layers", "attention 4 layers")
    assert set(found) == {
        f"log excess error of attention 1 layer above {name}, {p} parameters, d=4" for name in deeper for p in BUDGETS
    }


def test_it_fails_where_the_perceptron_is_better():
    found = failing(made_up(perceptron=0.05))
    sets = ("attention 2 layers", "DeepSets")
    assert set(found) == {
        f"log excess error of perceptron above {name}, {p} parameters, d=4" for name in sets for p in BUDGETS
    }


def test_a_short_training_says_nothing_of_smaller_differences():
    whole, short = outcomes(made_up(recurrent=0.05)), outcomes(made_up(recurrent=0.05, steps=1500))
    assert set(short) < set(whole)
    assert set(short.values()) == {Outcome.HOLDS}


def test_it_fails_where_attention_learns_nothing():
    found = failing(made_up(attention_2_layers=3.0))
    assert "share of the way to ridge, attention 2 layers, 2048 parameters, d=4" in found


def test_it_fails_where_more_parameters_harm():
    found = failing(made_up(fall=1.5))
    assert "fall of the log excess error of attention 2 layers from 2048 to 8192 parameters, d=4" in found


def test_it_fails_where_a_network_is_smaller_than_it_may_be():
    assert failing(made_up(used=0.5)) == ["share of the parameters allowed that a network has, least"]


def test_it_is_undecided_where_the_data_cannot_tell():
    assert worst(outcomes(made_up(seeds=1)).values()) is Outcome.UNDECIDED
    assert worst(outcomes(made_up(noise=1.5)).values()) is not Outcome.HOLDS
    assert worst(outcomes(made_up().drop_sel(predictor="DeepSets")).values()) is Outcome.UNDECIDED


def test_what_was_not_measured_is_not_judged():
    """Results of two grids have NaN where neither asked."""
    whole = made_up()
    part = whole.assign(
        excess=whole["excess"].where((whole.predictor != "attention 1 layer") | (whole.parameters > 5000))
    )
    gone = set(outcomes(whole)) - set(outcomes(part))
    assert gone == {
        "log excess error of attention 1 layer above attention 2 layers, 2048 parameters, d=4",
        "log excess error of attention 1 layer above attention 4 layers, 2048 parameters, d=4",
        "fall of the log excess error of attention 1 layer from 2048 to 8192 parameters, d=4",
    }
    assert set(outcomes(part).values()) == {Outcome.HOLDS}


def test_exchanged_names_exchange_the_errors():
    there, back = made_up(), claim.exchanged(made_up())
    one, other = (d["excess"].sel(predictor=n) for d, n in ((there, "perceptron"), (back, claim.STANDARD)))
    assert (one.values == other.values).all()


def test_a_learning_rate_is_chosen_by_the_other_seeds():
    """The seed that is lucky at a bad rate does not take it."""
    excess = xr.DataArray(
        np.array([[9.0, 9.0, 0.1], [1.0, 1.0, 1.0]])[:, None, :],
        dims=("rate", "position", "seed"),
        coords={"rate": RATES, "position": [8], "seed": range(3)},
    )
    assert claim.chosen(excess).values.tolist() == [1.0, 1.0, 1.0]


def test_a_network_that_diverged_is_not_chosen():
    excess = xr.DataArray(
        np.array([[0.1, np.nan, 0.1], [1.0, 1.0, 1.0]])[:, None, :],
        dims=("rate", "position", "seed"),
        coords={"rate": RATES, "position": [8], "seed": range(3)},
    )
    # The diverged seed's own choice follows the others, and it is charged for it.
    assert claim.chosen(excess).values.tolist() == [1.0, np.inf, 1.0]


@pytest.mark.parametrize("name", [*claim.BLOCKS, *claim.WITHOUT])
@pytest.mark.parametrize("budget", [2048, 32768])
def test_all_networks_have_nearly_as_many_parameters_as_they_may(name, budget):
    def build(width):
        return claim.built(name, width, dim=4, length=8, key=jax.random.key(0))

    count = parameter_count(jax.eval_shape(lambda: build(width_for(build, budget))))
    assert claim.USED * budget < count <= budget


@pytest.mark.slow
@pytest.mark.parametrize("name", ["DeepSets", "least squares"])
def test_a_cell_has_an_excess_for_every_rate_and_position(name, getkey):
    experiment = claim.experiment.with_fixed({"prompts": [64], "batch": [4]})
    chosen = {"predictor": [name], "parameters": [200], "step": [4], "rate": [1e-3, 1e-2]}
    grid = experiment.grid("smoke", chosen, seeds=2)
    found = experiment.measure(experiment.point(next(grid.cells()), grid.traced), key=getkey())
    dims, excess = found["excess"]
    assert dims == ("rate", "position", "seed")
    assert excess.shape == (2, 2, 2)
    assert (excess >= 0).all()
    assert np.isfinite(excess).all()
    assert (excess[0, 1] != excess[1, 1]).any() == (name == "DeepSets")
