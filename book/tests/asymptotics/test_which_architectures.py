"""What is particular to this claim: its choice of learning rates, its check on synthetic data, its networks."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.asymptotics.which_architectures import claim
from iclbook.claims.asymptotics.which_architectures.measure import Blind, build_network
from icllab.core.prompt import RegressionPrompt
from icllab.lab import registry
from icllab.lab.checks import Outcome
from icllab.models.networks.parameters import parameter_count, width_for

BUDGETS = np.array([2048, 8192])
RATES = np.array([1e-3, 1e-2])
REACHED = {  # excess errors at few parameters, at the better rate
    "attention 1 layer": 0.3,
    "attention 2 layers": 0.1,
    "attention 4 layers": 0.09,
    "attention 1 head": 0.12,
    "attention 4 heads": 0.1,
    "MLP": 1.0,
    "recurrent": 0.6,
    "DeepSets": 0.3,
    "no examples": 3.0,
    "least squares": 0.1,
}


def made_up(seeds=10, noise=0.02, used=0.9, fall=0.6, steps=3000, **changed):
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


outcomes, failing, _ = judged(claim.check)


def worse(name, better):
    """The ids of a finding with few and with many parameters."""
    return [f"{name.lower()}_worse[dim=4,parameters={p},predictor={better}]" for p in BUDGETS]


def test_it_holds_where_all_is_as_claimed():
    assert set(outcomes(made_up()).values()) == {Outcome.HOLDS}


@pytest.mark.parametrize("name", ["recurrent", "DeepSets"])
def test_it_fails_where_another_network_is_better(name):
    found = failing(made_up(**{name: 0.05}))
    assert found == worse(name, "attention 2 layers")


def test_it_fails_where_one_layer_is_enough():
    found = failing(made_up(attention_1_layer=0.05))
    assert set(found) == {
        name for deeper in ("2", "4") for name in worse("attention_1_layer", f"attention {deeper} layers")
    }


def test_it_fails_where_the_mlp_is_better():
    found = failing(made_up(MLP=0.05))
    assert set(found) == {*worse("MLP", "attention 2 layers"), *worse("MLP", "DeepSets")}


def test_a_short_training_says_nothing_of_smaller_differences():
    whole, short = outcomes(made_up(recurrent=0.05)), outcomes(made_up(recurrent=0.05, steps=1500))
    assert set(short) < set(whole)
    assert set(short.values()) == {Outcome.HOLDS}


def test_it_fails_where_attention_learns_nothing():
    found = failing(made_up(attention_2_layers=3.0))
    assert "learned[dim=4,predictor=attention 2 layers,parameters=2048]" in found


def test_it_fails_where_more_parameters_harm():
    found = failing(made_up(fall=1.5))
    assert "larger[dim=4,predictor=attention 2 layers]" in found


def test_it_is_undecided_where_a_network_is_smaller_than_it_may_be():
    findings = {finding.id: finding.outcome for finding in claim.check(made_up(used=0.5))}
    assert findings["parameters_used"] is Outcome.UNDECIDED
    assert failing(made_up(used=0.5)) == []


def test_what_was_not_measured_is_not_judged():
    """Results of two grids have NaN where neither asked."""
    whole = made_up()
    part = whole.assign(
        excess=whole["excess"].where((whole.predictor != "attention 1 layer") | (whole.parameters > 5000))
    )
    gone = set(outcomes(whole)) - set(outcomes(part))
    assert gone == {
        worse("attention_1_layer", "attention 2 layers")[0],
        worse("attention_1_layer", "attention 4 layers")[0],
        "larger[dim=4,predictor=attention 1 layer]",
    }
    assert set(outcomes(part).values()) == {Outcome.HOLDS}


def test_a_learning_rate_is_chosen_by_the_other_seeds():
    """The seed that is lucky at a bad rate does not take it."""
    excess = xr.DataArray(
        np.array([[9.0, 9.0, 0.1], [1.0, 1.0, 1.0]])[:, None, :],
        dims=("rate", "position", "seed"),
        coords={"rate": RATES, "position": [8], "seed": range(3)},
    )
    assert claim.at_best_rate(excess).values.tolist() == [1.0, 1.0, 1.0]


def test_a_network_that_diverged_is_not_chosen():
    excess = xr.DataArray(
        np.array([[0.1, np.nan, 0.1], [1.0, 1.0, 1.0]])[:, None, :],
        dims=("rate", "position", "seed"),
        coords={"rate": RATES, "position": [8], "seed": range(3)},
    )
    # The diverged seed's own choice follows the others, and it is charged for it.
    assert claim.at_best_rate(excess).values.tolist() == [1.0, np.inf, 1.0]


@functools.cache
def shapes(name, width):
    """The network of a width, its arrays as shapes: one is asked for under several budgets."""
    return eqx.filter_eval_shape(lambda key: build_network(name, width, dim=4, length=8, key=key), jax.random.key(0))


@pytest.mark.parametrize("name", [*claim.BLOCKS, *claim.WITHOUT])
@pytest.mark.parametrize("budget", [2048, 32768])
def test_all_networks_have_nearly_as_many_parameters_as_they_may(name, budget):
    build = functools.partial(shapes, name)
    count = parameter_count(build(width_for(build, budget)))
    assert claim.USED * budget < count <= budget


def measured(name, key, **changes):
    experiment = registry.load("asymptotics/which_architectures").with_fixed({"prompts": [64], "batch": [4]})
    chosen = {"predictor": [name], "parameters": [400], "step": [4], "rate": [1e-3, 1e-2], "dim": [2]}
    chosen |= {"position": [0, 4]}
    grid = experiment.grid("smoke", chosen, seeds=2)
    return experiment.measure(experiment.point(next(grid.cells()), grid.traced), key=key, **changes)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["DeepSets", "least squares"])
def test_a_cell_has_an_excess_for_every_rate_and_position(name, getkey):
    dims, excess = measured(name, getkey())["excess"]
    assert dims == ("seed", "rate", "position")
    assert excess.shape == (2, 2, 2)
    assert (excess >= 0).all()
    assert np.isfinite(excess).all()
    assert (excess[:, 0, 1] != excess[:, 1, 1]).any() == (name == "DeepSets")


def test_without_examples_and_without_an_answer_the_excess_is_that_of_ridge(getkey):
    """Before any example ridge answers 0 too; after some, E ridge^2 is what it explains, below E (w'x)^2 = d = 2."""
    _, excess = measured("no examples", getkey())["excess"]
    assert (excess[..., 0] == 0).all()
    assert ((excess[..., 1] > 0.2) & (excess[..., 1] < 2 * 3)).all()


def test_a_blind_network_does_not_see_the_labels(getkey):
    x, y = np.random.default_rng(0).normal(size=(4, 2)), np.random.default_rng(1).normal(size=4)

    @jax.jit
    def answers(key, x, y, other):
        network = build_network(claim.STANDARD, 4, dim=2, length=3, key=key)
        prompts = [RegressionPrompt(x, y), RegressionPrompt(x, other)]
        return [[predictor(prompt) for prompt in prompts] for predictor in (Blind(network), network)]

    blind, seeing = np.asarray(answers(getkey(), *(jnp.asarray(part, float) for part in (x, y, y + 1))))
    assert (blind[0] == blind[1]).all()
    assert (seeing[0][1:] != seeing[1][1:]).any()
