"""What is particular to this claim: its check on made-up drops, and the values that a softmax makes cancel."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from judging import judged, theory_under

from iclbook.claims.descent import _heads
from iclbook.claims.descent.softmax_saddles import claim
from icllab.lab.checks import Outcome
from icllab.models.linear.low_rank import LowRankAttention

SEEDS = np.arange(4)


def made_up(theory=claim.theory, later=(900, 1100), level=1.05, left=0.05, order=1):
    """Networks of a larger and a smaller start: times from the first drop to the last, and levels."""
    noise = np.exp(0.02 * np.random.default_rng(0).normal(size=(2, len(SEEDS))))
    times = np.array([300, 1100])[:, None, None] + np.array(later)[:, None, None] * np.array([0, 0.1, 0.3, 1])[::order]
    levels = np.array([1.0, 0.640580, 0.377372, 0.209805, 0.135995])
    axes = ("start_std", "seed")
    dataset = xr.Dataset(
        {
            "learned_step": ((*axes, "component"), times * noise[..., None]),
            "plateau_loss": ((*axes, "plateau"), level * levels * noise[..., None]),
            "value_sum": ((*axes, "plateau"), left * noise[..., None] * np.ones(5)),
        },
        coords={"start_std": [0.01, 0.0025], "seed": SEEDS, "component": range(4), "plateau": range(5)},
        attrs={"configuration": json.dumps({"fixed": {}})},
    )
    return theory(dataset)


_, failing, outcome = judged(claim.check)


def names(dataset):
    return {name.split("[")[0] for name in failing(dataset)}


def test_it_holds_where_all_is_as_claimed():
    assert outcome(made_up()) is Outcome.HOLDS


@pytest.mark.parametrize(
    ("changes", "failed"),
    [
        ({"later": (900, 3600)}, "later"),
        ({"level": 1.3}, "levels"),
        ({"left": 0.9}, "cancelled"),
        ({"order": -1}, "order"),
    ],
)
def test_it_fails_where_something_is_otherwise(changes, failed):
    assert names(made_up(**changes)) == {failed}


def test_networks_are_told_apart_by_their_start_wherever_it_stands():
    assert outcome(made_up().isel(start_std=[1, 0])) is Outcome.HOLDS


def test_it_fails_under_another_order():
    assert {"order", "levels"} <= names(made_up(theory_under(claim, "smallest_first")))


def test_a_component_that_is_never_learned_leaves_it_undecided():
    dataset = made_up()
    dataset["learned_step"] = dataset["learned_step"].where(dataset.component < 2, np.inf)
    assert outcome(claim.theory(dataset)) is Outcome.UNDECIDED


def test_the_mean_of_labels_drives_values_of_a_softmax_to_cancel():
    """The gradient of the loss to the value of a zero head beside a head that has learned, in both kinds of attention.

    For small scores it is 2 v tr Λ / n: what the derivation says.
    """
    task = _heads.task_of("authors")
    prompts = jax.vmap(lambda key: task.sample(key=key))(jax.random.split(jax.random.key(0), 40000))
    keys = jnp.zeros((2, 1, 4)).at[0, 0, 0].set(0.02)

    def force(softmax):
        def loss(values):
            network = LowRankAttention(values, keys, keys, softmax=softmax)
            answers = jax.vmap(lambda prompt: network(prompt)[-1])(prompts)
            return jnp.mean((answers - prompts.y[:, -1]) ** 2)

        return float(jax.grad(loss)(jnp.array([1.5, 0.0]))[1])

    assert force(True) == pytest.approx(2 * 1.5 / task.length, rel=0.05)
    assert abs(force(False)) < 1e-6
