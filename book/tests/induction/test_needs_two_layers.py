"""What is particular to this claim: its check on made-up runs of one layer and two."""

import dataclasses
import json

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.induction import _transitions
from iclbook.claims.induction.needs_two_layers import claim
from icllab.lab.checks import Outcome
from icllab.models import ItemLabelNetwork
from icllab.tasks import ItemLabel

STEPS, RATES = np.arange(50, 4001, 50), (0.1, 0.3)


def made_up(one=0.25, two=0.99, excess=0.03, last=4000, layers=(1, 2)):
    """Runs of both depths: each at its accuracy, those of two layers from step 2000 on."""
    rng = np.random.default_rng(0)
    shape = (1, 2, 3, len(STEPS))
    later = STEPS >= 2000
    accuracy = [np.full(shape, one), np.broadcast_to(np.where(later, two, 0.25), shape)]
    loss = [np.full(shape, np.log(4) + excess), np.broadcast_to(np.where(later, 0.02, 1.9), shape)]
    dims = ("layers", "dim", "rate", "seed", "step")
    dataset = xr.Dataset(
        {
            "accuracy": (dims, np.array(accuracy) + 0.01 * rng.normal(size=(2, *shape))),
            "label_loss": (dims, np.array(loss) + 0.005 * rng.normal(size=(2, *shape))),
        },
        coords={"layers": [1, 2], "dim": [31], "rate": list(RATES), "seed": np.arange(3), "step": STEPS},
        attrs={"configuration": json.dumps({"fixed": {"pairs": 4, "prompts": 1024}})},
    )
    return _transitions.guessing(dataset.sel(step=slice(0, last), layers=list(layers)))


_, failing, outcome = judged(claim.check)


def at(name, layers):
    """The finding of a name at both rates."""
    return {f"{name}[layers={layers},dim=31,rate={rate}]" for rate in RATES}


def test_it_holds_where_all_is_as_claimed():
    assert outcome(made_up()) is Outcome.HOLDS


def test_it_fails_where_one_layer_learns_or_does_better_than_guessing():
    assert {name for name in failing(made_up(one=0.9)) if name.startswith("looked_up")} == at("looked_up", 1)
    assert set(failing(made_up(one=0.36))) == at("above_guessing", 1)
    assert set(failing(made_up(excess=-0.05))) == at("below_guessing", 1)


def test_a_network_that_is_still_at_chance_is_no_better_than_one_in_n():
    asleep = made_up()
    asleep["accuracy"][0, 0, 0, 0] = 1 / 16
    asleep["label_loss"][0, 0, 0, 0] = np.log(16)
    assert outcome(asleep) is Outcome.HOLDS


def test_it_fails_where_two_layers_do_not_learn():
    assert set(failing(made_up(two=0.3))) == at("looked_up", 2)


@pytest.mark.parametrize("last", [150, 4000])
def test_it_fails_where_one_layer_looks_labels_up_in_the_end(last):
    dataset = made_up(last=last, layers=(1,))
    dataset["accuracy"] = dataset["accuracy"].where(dataset.step < 0.8 * last, 1.0)
    assert at("looked_up", 1) <= set(failing(dataset))


@pytest.mark.parametrize("layers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_without_places_one_layer_cannot_tell_which_label_belongs_to_which_item(layers, getkey):
    """Its answer is the same when labels change positions: it is right in one of N; two layers see the order."""
    turned = jnp.array([1, 2, 0])

    @eqx.filter_jit
    def answers(key):
        task = ItemLabel.init(classes=None, labels=4, pairs=3, dim=5, no_repeats=True, key=key)
        prompt = task.sample(key=key)
        labels = jnp.append(prompt.labels[turned], prompt.labels[-1])
        other = dataclasses.replace(prompt, label_vectors=prompt.label_vectors[turned], labels=labels)
        network = ItemLabelNetwork.from_task(task, layers=layers, depth=1, key=key)
        blind = eqx.tree_at(
            lambda m: [w for head in m.layers for w in (head.query, head.key, head.value)],
            network,
            replace_fn=lambda w: w.at[: task.position_dim].set(0.0),
        )
        return blind(prompt), blind(other)

    one, other = answers(getkey())
    assert np.abs(one).max() > 0.1
    assert (np.abs(one - other).max() < 1e-5) == (layers == 1)
