"""What is particular to this claim: which network is chosen, and its check on made-up ones."""

import json

import numpy as np
import xarray as xr
from judging import judged

from iclbook.claims.descent.gd_plus_plus import claim
from icllab.lab.checks import Outcome

LAYERS = np.array([1, 2, 3])
LOSSES = [f"loss[dim=5,training={form},layers={layers}]" for form in ("full", "blocks") for layers in (1, 2, 3)]
FREE, PLUS = np.array([1.1538, 0.36124, 0.13361]), np.array([1.1538, 0.0575, 0.00075])


def made_up(ratio=1.02, stuck=1, error=0.01, seeds=4, layers=LAYERS, exact=1.0):
    """Of the networks of each depth and form the first ``stuck`` have a loss twenty times too large."""
    shape = (1, 2, len(layers), 1, seeds)
    factor = np.full(shape, ratio) * np.linspace(1.0, 1.01, seeds)
    factor[..., :stuck] *= 20.0
    plus, free = (line[np.searchsorted(LAYERS, layers)][None, None, :, None, None] for line in (PLUS, FREE))
    dims = ("dim", "training", "layers", "step", "seed")
    variables = {"test_loss": factor * plus, "chosen_loss": factor * plus * 1.1, "heaviest": np.full(shape, 0.05)}
    for name, value in (("loss", factor), ("free", factor * plus / free)):
        variables |= {f"{name}_ratio": value, f"{name}_ratio_error": error * value}
    variables |= {"free_loss": exact * free * np.ones(shape), "free_loss_error": 0.004 * free * np.ones(shape)}
    coords = {"dim": [5], "training": ["full", "blocks"], "layers": list(layers), "step": [9], "seed": np.arange(seeds)}
    dataset = xr.Dataset({name: (dims, values) for name, values in variables.items()}, coords=coords)
    dataset["free_line"] = (("dim", "layers"), free.reshape(1, -1))
    return dataset.assign_attrs(configuration=json.dumps({"fixed": {"length": 20}}))


_, failing, outcome = judged(claim.check)


def test_it_holds_where_the_best_network_arrives():
    assert outcome(made_up()) is Outcome.HOLDS
    assert outcome(made_up(stuck=3)) is Outcome.HOLDS


def test_the_network_is_chosen_by_other_prompts_than_it_is_judged_on():
    """Where the two disagree the choice stands, though another network would pass."""
    dataset = made_up()
    assert failing(dataset) == []
    wrong = dataset.assign(chosen_loss=1 / dataset["chosen_loss"])
    assert LOSSES[0] in failing(wrong)


def test_it_fails_where_none_arrives_and_where_the_loss_is_far_below():
    for dataset in (made_up(stuck=4), made_up(ratio=0.7, stuck=0)):
        assert [id for id in failing(dataset) if id.startswith("loss")] == LOSSES


def test_it_is_undecided_where_the_best_steps_are_not_the_exact_ones_or_few_prompts_carry_a_loss():
    for exact in (0.98, 1.02):
        assert failing(made_up(exact=exact)) == []
        assert outcome(made_up(exact=exact)) is Outcome.UNDECIDED
    heavy = made_up()
    heavy["heaviest"][:, 0, 2, :, 1] = 0.4  # of the network that is chosen
    assert outcome(heavy) is Outcome.UNDECIDED
    heavy = made_up()
    heavy["heaviest"][:, 0, 2, :, 0] = 0.4
    assert outcome(heavy) is Outcome.HOLDS


def test_gradient_descent_is_refuted_from_two_layers_on():
    dataset = made_up()
    beside = dataset.assign(loss_ratio=dataset["free_ratio"], loss_ratio_error=dataset["free_ratio_error"])
    assert failing(beside) == [id for id in LOSSES if "layers=1]" not in id]


def test_networks_that_reach_gradient_descent_only_are_not_below_it():
    dataset = made_up(stuck=0)
    found = failing(dataset.assign(free_ratio=xr.ones_like(dataset["free_ratio"])))
    assert found == [id.replace("loss", "below_descent") for id in LOSSES if "layers=1]" not in id]


def test_what_has_no_network_is_undecided():
    dataset = made_up()
    missing = dataset.where((dataset.training != "full") | (dataset.layers != 2))
    found = {finding.id: finding.outcome for finding in claim.check(missing)}
    assert found[LOSSES[1]] is Outcome.UNDECIDED
    assert set(found.values()) == {Outcome.HOLDS, Outcome.UNDECIDED}


def test_the_lines_are_the_exact_losses():
    """The reference rows for d = 5, n = 20."""
    lines = claim.theory(made_up()).isel(dim=0)
    np.testing.assert_allclose(lines["tied_line"], [1.153846, 0.499007, 0.268342], rtol=1e-5)
    np.testing.assert_allclose(lines["free_line"], [1.153846, 0.361240, 0.133608], rtol=1e-5)
    np.testing.assert_allclose(lines["plus_tied_line"], [1.153846, 0.118725, 0.0141689], rtol=1e-5)
    np.testing.assert_allclose(lines["plus_line"], [1.153846, 0.0575012, 9.61311e-4], rtol=1e-5)
