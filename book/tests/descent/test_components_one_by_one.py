"""What is particular to this claim: its check on made-up networks, and how curves are read."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import xarray as xr
from judging import judged, theory_under

from iclbook.claims.descent import _plateaus
from iclbook.claims.descent.components_one_by_one import claim, measure
from icllab.lab.checks import Outcome
from icllab.theory import preconditioners, saddles

SETTINGS = (*claim.RANK_ONE, *claim.RANKS)
SEEDS = np.arange(4)


def made_up(
    theory=claim.theory,
    level=1.0,
    late=1.0,
    swapped=False,
    gap=1.0,
    inside=0.0,
    settings=SETTINGS,
):
    """Networks that learn a component every 400 steps, ``gap`` times; heads of a rank R learn R of them at once."""
    rng = np.random.default_rng(0)
    shape = len(settings), len(SEEDS)
    learned = np.zeros((*shape, 4))
    plateau = np.zeros((*shape, 5))
    for i, setting in enumerate(settings):
        name, rank = claim.rank_of(setting)
        law = _plateaus.law(name)
        plateau[i] = saddles.plateau_losses(**law) * level
        rank = min(rank, 4)
        learned[i] = 400 * (1 + gap * (np.arange(4) // rank)) + (2 + inside) * np.arange(4)
    learned += rng.normal(size=(*shape, 1))
    plateau *= 1 + 1e-4 * rng.normal(size=plateau.shape)
    predicted = learned / late * np.exp(0.01 * rng.normal(size=learned.shape))
    if swapped:
        learned[0, 0] = learned[0, 0][[1, 0, 2, 3]]
    axes = ("setting", "seed")
    dataset = xr.Dataset(
        {
            "loss_curve": ((*axes, "step"), np.ones((*shape, 3))),
            "learned_step": ((*axes, "component"), learned),
            "start_step": ((*axes, "component"), predicted),
            "plateau_loss": ((*axes, "plateau"), plateau),
        },
        coords={"setting": list(settings), "seed": SEEDS, "step": [0, 1, 2]}
        | {k: list(v) for k, v in claim.ROWS.items()},
        attrs={"configuration": json.dumps({"fixed": {"rate": 0.7}})},
    )
    return theory(dataset)


outcomes, failing, outcome = judged(claim.check)


def names(dataset):
    return {name.split("[")[0] for name in failing(dataset)}


def test_it_holds_where_all_is_as_claimed():
    assert outcome(made_up()) is Outcome.HOLDS
    assert sum(name.startswith("drops") for name in outcomes(made_up())) == 4


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"level": 1.02}, {"levels"}),
        ({"late": 1.4}, {"times"}),
        ({"swapped": True}, {"order"}),
        ({"inside": 200.0}, {"drops"}),
    ],
)
def test_it_fails_where_one_thing_is_otherwise(changes, found):
    assert names(made_up(**changes)) == found


def test_it_fails_under_other_formulas():
    assert "levels" in names(made_up(theory_under(claim, "without_length")))
    assert names(made_up(theory_under(claim, "smallest_first"))) == {"levels", "order"}


def test_plateaus_that_do_not_last_are_not_judged():
    short = made_up(gap=0.01)
    assert outcomes(short)["plateaus"] is Outcome.UNDECIDED
    assert names(short) == {"drops"}


def test_a_component_is_learned_between_records_and_the_flattest_record_is_on_a_plateau():
    step, spectrum = np.arange(0, 101, 10), np.array([0.5, 0.25])
    along = np.stack([np.clip((step - 20) / 10, 0, 2), np.clip((step - 61) / 10, 0, 4)], axis=1)
    learned = _plateaus.learned_steps(along, step, spectrum)
    np.testing.assert_allclose(learned, [25, 71])
    np.testing.assert_array_equal(_plateaus.learned_steps(along, step, spectrum / 100), [np.inf, np.inf])
    loss = 3 - np.clip((step - 20) / 10, 0, 1) - np.clip((step - 61) / 10, 0, 1)
    np.testing.assert_array_equal(step[_plateaus.flattest(loss, step, learned)], [0, 40, 90])
    assert _plateaus.flattest(loss, step, np.array([25, np.inf]))[-1] == -1
    rest, begun = _plateaus.longest_rest(loss, step)
    assert (rest, begun) == (30, 30)
    assert _plateaus.longest_rest(3.0 - step, step)[0] == 0


def test_the_networks_of_a_plateau_are_identified_on_it(monkeypatch):
    """The network that is compared with candidates has the loss of the plateau that its row stands for."""
    identified = []

    def unidentified(networks, candidates, task, key, prompts):
        identified.extend(networks)
        return np.zeros((len(networks), len(candidates)))

    monkeypatch.setattr(measure, "identified", unidentified)
    sizes = {"heads": 6, "std": 0.05, "rate": 0.7, "prompts": 400, "judged": 40, "seed": (0,), "setting": "authors"}
    point = SimpleNamespace(**sizes, step=tuple(range(0, 601, 50)), **claim.ROWS)
    plateaus = measure.measure(point, key=jax.random.key(0))["plateau_loss"][1][0]
    law, rows = _plateaus.law("authors"), []
    for network in identified:
        values, keys, queries = (np.asarray(part, float) for part in (network.values, network.keys, network.queries))
        rows.append(preconditioners.loss(np.einsum("h,hri,hrj->ij", values, keys, queries).T, **law))
    lasting = np.isfinite(plateaus[1:])
    assert lasting.sum() >= 2
    np.testing.assert_allclose(np.asarray(rows)[lasting], plateaus[1:][lasting], rtol=1e-4)
    assert len(np.unique(np.round(plateaus[np.isfinite(plateaus)], 6))) == lasting.sum() + 1
