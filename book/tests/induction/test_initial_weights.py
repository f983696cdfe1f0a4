"""Times against the scale of the initial weights: the check on made-up runs, and what is scaled before training."""

import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.induction import _networks
from iclbook.claims.induction.initial_weights import claim, measure
from icllab.lab.checks import Outcome

STEPS = np.arange(50, 6001, 50)
SPREAD = np.array([0.8, 0.85, 0.9, 0.95, 1.0, 1.0, 1.05, 1.1, 1.15, 1.2])
TIMES = {1.0: 800.0, 0.5: 1600.0, 0.25: 4400.0}


def made_up(times=TIMES, of_first=1.0, strengths=(1.0, 1.0), last=6000, scales=claim.SCALES):
    """Runs that are at chance until a time, and right from then on; the first layer's scale multiplies it."""
    first, rng = (0.25, 1.0), np.random.default_rng(0)
    when = (
        np.array([[times[s] * (of_first if f < 1 else 1.0) for s in claim.SCALES] for f in first])[..., None] * SPREAD
    )
    learned = when[..., None] <= STEPS
    accuracy = np.where(learned, 0.99, 1 / 4 + 0.013 * rng.normal(size=learned.shape))
    dims = ("first_scale", "second_scale", "seed", "step")
    ones = np.ones((2, 3, len(SPREAD)))
    squares = (np.square(first)[:, None, None] * ones, np.square(claim.SCALES)[:, None] * ones)
    dataset = xr.Dataset(
        {"accuracy": (dims, accuracy)}
        | {
            f"{name}_strength": (dims[:3], factor * square)
            for name, factor, square in zip(("first", "second"), strengths, squares, strict=True)
        },
        coords={
            "first_scale": list(first),
            "second_scale": list(claim.SCALES),
            "seed": np.arange(len(SPREAD)),
            "step": STEPS,
        },
        attrs={"configuration": json.dumps({"fixed": {"pairs": 4, "prompts": 512}})},
    )
    return dataset.sel(step=slice(0, last), second_scale=list(scales))


_, failing, outcome = judged(claim.check)


def test_it_holds_where_all_is_as_claimed():
    assert outcome(made_up()) is Outcome.HOLDS


def test_it_holds_where_runs_of_the_smallest_scale_do_not_end():
    assert outcome(made_up(TIMES | {0.25: 6000.0})) is Outcome.HOLDS


def test_it_fails_where_the_first_layer_delays_as_much():
    assert failing(made_up(of_first=2.4)) == ["layers"]


def test_it_does_not_hold_where_time_goes_with_the_logarithm_and_fails_where_it_bends_down():
    assert outcome(made_up({1.0: 800.0, 0.5: 2000.0, 0.25: 3160.0})) is Outcome.UNDECIDED
    assert failing(made_up({1.0: 800.0, 0.5: 2000.0, 0.25: 3120.0 - 100.0})) == ["not_logarithmic"]


def test_it_fails_where_smaller_weights_learn_as_soon():
    found = failing(made_up(dict.fromkeys(claim.SCALES, 800.0)))
    assert {"second", "layers"} <= set(found)


def test_it_fails_where_scales_are_exchanged():
    dataset = made_up()
    turned = dataset.isel(second_scale=slice(None, None, -1)).assign_coords(second_scale=dataset.second_scale)
    found = failing(turned)
    assert {"log_rank", "second"} <= set(found)
    assert "scaled" in found


@pytest.mark.parametrize("layer", [0, 1])
def test_it_fails_where_a_layer_is_not_scaled_so(layer):
    wrong = [1.0, 1.0]
    wrong[layer] = 0.5
    assert failing(made_up(strengths=wrong)) == ["scaled"]
    below = made_up()
    below[f"{claim.LAYERS[layer]}_strength"][..., 3] *= 0.9
    assert failing(below) == ["scaled"]


def test_it_is_undecided_where_times_cannot_be_seen():
    assert outcome(made_up(scales=(0.5, 1.0))) is Outcome.UNDECIDED
    # Twice a lower bound, subtracted, is no bound.
    assert outcome(made_up(TIMES | {0.5: 5800.0, 0.25: 7000.0})) is Outcome.UNDECIDED


def point(**changes):
    fields = {"seed": (0, 1), "first_scale": 0.5, "second_scale": 0.25, "pairs": 2, "label_count": 4, "dim": 5}
    return types.SimpleNamespace(**fields | {"learning_rate": 0.3, "batch": 4, "prompts": 8, "step": (2,)} | changes)


@pytest.fixture(scope="module")
def network():
    return _networks.start(0, key=jax.random.key(0), labels=4, pairs=2, dim=5).network


def test_queries_and_keys_are_scaled_and_nothing_else(network):
    found = measure.with_attention_scaled(network, (2.0, 3.0))
    for layer, scale in enumerate((2.0, 3.0)):
        for name in ("query", "key"):
            before, after = (getattr(one.layers[layer], name) for one in (network, found))
            np.testing.assert_allclose(after, scale * before, rtol=1e-6)
        assert jnp.array_equal(found.layers[layer].value, network.layers[layer].value)
    same = jax.tree.map(jnp.array_equal, found.classifier, network.classifier)
    assert jax.tree.all(same)


def test_the_strength_is_that_of_scores(network):
    """The norm of a matrix of scores between the basis vectors."""
    wanted = [np.sqrt(np.sum(np.square(np.einsum("ik,jk", one.query, one.key)))) for one in network.layers]
    np.testing.assert_allclose(measure.attention_strengths(network), wanted, rtol=1e-5)


def test_the_scaled_network_is_trained_and_the_others_of_a_seed_are_as_without(monkeypatch, network):
    key, begun = jax.random.key(0), []
    real = _networks.train
    monkeypatch.setattr(_networks, "train", lambda task, net, **how: begun.append(net) or real(task, net, **how))
    found = measure.measure(point(), key=key)
    wanted = measure.with_attention_scaled(network, (0.5, 0.25))
    assert jax.tree.all(jax.tree.map(np.array_equal, begun[0], wanted))
    for name, square in (("first_strength", 0.25), ("second_strength", 0.0625)):
        np.testing.assert_allclose(found[name][1], square, rtol=1e-5)
    reverse = measure.measure(point(), key=key, reverse=True)
    np.testing.assert_allclose(reverse["first_strength"][1], 0.25, rtol=1e-5)
    np.testing.assert_allclose(
        reverse["second_strength"][1], (claim.SCALES[0] * claim.SCALES[-1] / 0.25) ** 2, rtol=1e-5
    )
    limited = measure.measure(point(), key=key, least=0.5)
    np.testing.assert_allclose(limited["second_strength"][1], 0.25, rtol=1e-5)
    begun.clear()
    plain = measure.measure(point(), key=key, scaled=False)
    assert jax.tree.all(jax.tree.map(np.array_equal, begun[0], network))
    np.testing.assert_allclose(plain["second_strength"][1], 1.0, rtol=1e-6)
    assert plain["accuracy"][1].shape == (2, 1)
