"""What is particular to this claim: its check on made-up networks, and what is held by which layer."""

import json

import numpy as np
import xarray as xr
from judging import judged

from iclbook.claims.descent.layers_are_steps import claim, measure
from icllab.lab.checks import Outcome
from icllab.theory import descent

LAYERS = np.array([1, 2, 3])


def made_up(ratio=1.002, spread=1e-3, error=1e-3, own=0.995, other=0.7, seeds=4, layers=LAYERS, exact=1.0):
    """Networks of every depth: the loss over that of the best steps, and what each step explains of the slots."""
    rng = np.random.default_rng(0)
    most = max(layers) + 1
    shape = (1, len(layers), 1, seeds)
    ratios = ratio + spread * rng.normal(size=shape)
    held = np.full((*shape, most, most), np.nan)
    free, tied = (
        np.array([formula(dim=5, length=20, layers=int(b)).loss for b in layers])[None, :, None, None]
        for formula in (descent.free_steps, descent.tied_steps)
    )
    for i, depth in enumerate(layers):
        inside = np.full((depth + 1, depth + 1), other)
        np.fill_diagonal(inside, own)
        held[0, i, 0, :, : depth + 1, : depth + 1] = inside + 1e-3 * rng.normal(size=(seeds, depth + 1, depth + 1))
    dims = ("dim", "layers", "step", "seed")
    variables = {
        "test_loss": ratios * free,
        "loss_ratio": ratios,
        "loss_ratio_error": np.full(shape, error),
        "tied_ratio": ratios * free / tied,
        "tied_ratio_error": np.full(shape, error),
        "heaviest": np.full(shape, 0.01),
        "reference_loss": exact * free * np.ones(shape),
        "reference_loss_error": 0.004 * free * np.ones(shape),
    }
    dataset = xr.Dataset(
        {name: (dims, values) for name, values in variables.items()}
        | {"r_squared": ((*dims, "layer", "algorithm_step"), held)},
        coords={
            "dim": [5],
            "layers": list(layers),
            "step": [3000],
            "seed": np.arange(seeds),
            "layer": np.arange(most),
            "algorithm_step": np.arange(most),
        },
        attrs={"configuration": json.dumps({"fixed": {"length": 20}})},
    )
    return claim.theory(dataset)


_, failing, outcome = judged(claim.check)


def test_it_holds_where_all_is_as_claimed():
    assert outcome(made_up()) is Outcome.HOLDS


def test_it_fails_where_the_loss_is_too_large_or_too_small():
    assert failing(made_up(ratio=1.2)) == [f"loss[dim=5,layers={layers}]" for layers in LAYERS]
    assert failing(made_up(ratio=0.98)) == [f"none_beats[dim=5,layers={layers}]" for layers in LAYERS]


def test_it_fails_where_the_best_steps_of_the_simulation_are_not_the_exact_ones():
    for exact in (0.98, 1.02):
        assert failing(made_up(exact=exact)) == [f"reference[dim=5,layers={layers}]" for layers in LAYERS]


def test_it_fails_where_a_layer_holds_little_of_its_step_or_more_of_another():
    assert failing(made_up(own=0.8)) == [f"slots[dim=5,layers={layers}]" for layers in LAYERS]
    assert failing(made_up(own=0.98, other=0.99)) == [f"slots_apart[dim=5,layers={layers}]" for layers in LAYERS]


def test_the_least_of_the_layers_counts_and_what_a_network_has_not_does_not():
    dataset = made_up(other=0.7)
    held = dataset["r_squared"].copy()
    held.loc[{"layers": 3, "layer": 2, "algorithm_step": 2}] = 0.75
    held.loc[{"layers": 2, "layer": 1, "algorithm_step": 0}] = 0.9
    own, above = claim.slots(dataset.assign(r_squared=held).isel(dim=0, step=0))
    np.testing.assert_allclose(own.mean("seed"), [0.995, 0.995, 0.75], atol=3e-3)
    np.testing.assert_allclose(above.mean("seed"), [0.295, 0.095, 0.05], atol=3e-3)
    held.loc[{"layers": 2, "layer": 1, "algorithm_step": 1}] = np.nan  # a layer of the network without an answer
    own, above = claim.slots(dataset.assign(r_squared=held).isel(dim=0, step=0))
    assert np.isnan(own.sel(layers=2)).all()
    assert np.isnan(above.sel(layers=2)).all()


def test_steps_of_one_size_are_refuted_from_two_layers_on():
    def beside_them(dataset):
        ratios = {"loss_ratio": dataset["tied_ratio"], "loss_ratio_error": dataset["tied_ratio_error"]}
        return dataset.assign(ratios)

    assert failing(beside_them(made_up())) == [f"none_beats[dim=5,layers={layers}]" for layers in (2, 3)]
    assert outcome(beside_them(made_up(layers=[1]))) is Outcome.UNDECIDED


def test_numbers_of_layers_are_placed_by_the_layer_s_number():
    np.testing.assert_array_equal(measure.align_layers([3.0, 4.0], (1, 2), (0, 2, 3)), [np.nan, 4.0, np.nan])
