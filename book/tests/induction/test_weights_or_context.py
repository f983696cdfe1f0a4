"""What is particular to this claim: its check on made-up accuracies, and its networks before training."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.induction.weights_or_context import claim, measure
from icllab.lab.checks import Outcome

CLASSES = (64, 128, 256, 512)
SETTINGS = (claim.PLAIN, claim.BURSTIER, claim.NOISIER, claim.SKEWED)
MOVES = {claim.PLAIN: 0.0, claim.BURSTIER: 1.5, claim.NOISIER: 1.0, claim.SKEWED: 0.0}
FIXED = {"label_count": 16, "pairs": 4, "prompts": 2048}


def made_up(moves=MOVES, both=0.4, centre=7.5, width=0.6, own=0.99, start=0.0625, noise=0.02, seeds=10):
    """Accuracies that cross at log2 K = ``centre``, earlier by what a setting ``moves``; ``both``: of Zipf's."""
    rng = np.random.default_rng(0)
    shape = (len(CLASSES), len(SETTINGS), len(claim.TESTS), 2, seeds)
    x = np.log2(CLASSES)[:, None] - centre + np.array([moves[name] for name in SETTINGS])
    share = 1 / (1 + np.exp(-x / width))
    skewed = np.array([name == claim.SKEWED for name in SETTINGS])
    last = {
        "training": np.full(share.shape, own),
        "IC": np.where(skewed, np.maximum(share - both / 2, both * share + 0.1), share),
        "swapped": np.where(skewed, both, share),
        "purged": np.where(skewed, np.maximum(1 - share, both), 1 - share),
    }
    values = np.full(shape, start)
    values[:, :, :, 1] = np.stack([last[name] for name in claim.TESTS], axis=2)[..., None]
    values = np.clip(values + noise * rng.normal(size=shape), 0, 1)
    dataset = xr.Dataset(
        {"accuracy": (("classes", "setting", "test_set", "step", "seed"), values)},
        coords={
            "classes": list(CLASSES),
            "setting": list(SETTINGS),
            "test_set": list(claim.TESTS),
            "step": [0, 6000],
            "seed": np.arange(seeds),
        },
        attrs={"configuration": json.dumps({"fixed": FIXED})},
    )
    return claim.theory(dataset)


outcomes, failing, outcome = judged(claim.check)


def test_it_holds_where_all_is_as_claimed():
    assert set(outcomes(made_up()).values()) == {Outcome.HOLDS}


def test_it_fails_where_the_context_wins_at_few_classes_or_never():
    assert {"in_weights[classes=64]", "swapped_in_weights[classes=64]"} <= set(failing(made_up(centre=4.0)))
    assert {"in_context[classes=512]", "swapped_in_context[classes=512]"} <= set(failing(made_up(centre=12.0)))


@pytest.mark.parametrize("setting", [claim.BURSTIER, claim.NOISIER])
def test_it_fails_where_a_setting_favours_the_weights(setting):
    assert failing(made_up(moves=MOVES | {setting: -1.0})) == [f"change[setting={setting}]"]


def test_it_fails_where_the_advantage_falls_with_the_classes():
    dataset = made_up()
    turned = dataset["context_advantage"].isel(classes=slice(None, None, -1)).assign_coords(classes=dataset.classes)
    assert "slope" in failing(dataset.assign(context_advantage=turned))


def test_it_fails_where_no_network_does_both():
    dataset = made_up()
    other = dataset["accuracy"].copy()
    other.loc[{"setting": claim.SKEWED, "test_set": "purged", "step": 6000}] = 0.0
    assert failing(claim.theory(dataset.assign(accuracy=other))) == ["both[classes=512,setting=Zipf 1]"]


def test_it_is_undecided_where_an_untrained_network_is_not_at_chance():
    """That networks begin at chance is a condition of the claim."""
    assert failing(made_up(start=0.25)) == []
    assert outcome(made_up(start=0.25)) is Outcome.UNDECIDED


def test_it_is_undecided_where_networks_have_not_learned_their_own_law():
    found = outcomes(made_up(own=0.6))
    assert [name for name, one in found.items() if one is Outcome.HOLDS] == ["untrained"]
    assert Outcome.FAILS not in found.values()


def test_it_is_undecided_where_the_data_cannot_tell():
    assert outcome(made_up(seeds=1)) is not Outcome.HOLDS


def test_the_slope_is_that_of_a_line():
    dataset = made_up(noise=0.0)
    line = 0.3 * np.log2(dataset.classes) - 2.0
    values = dataset.assign(context_advantage=dataset["context_advantage"] * 0 + line).isel(step=-1)
    (finding,) = claim._slope(values.sel(setting=claim.PLAIN))
    np.testing.assert_allclose([finding.measured, finding.standard_error], [0.3, 0.0], atol=1e-12)


def test_before_training_only_chance_is_looked_at():
    less = made_up().sel(test_set=["IC"]).drop_vars(["context_advantage", "lesser_accuracy"])
    assert outcomes(claim.theory(less)) == {"untrained": Outcome.HOLDS}


def test_every_setting_changes_one_number_at_most():
    assert [len(changes) for changes in claim.SETTINGS.values()] == [0] + [1] * (len(claim.SETTINGS) - 1)
    assert set(claim.claim.grid("small").traced["setting"]) == set(SETTINGS)


def test_a_seed_before_training_is_the_same_in_every_block_and_setting():
    """Other settings are other prompts of the same classes, answered by the same network."""
    known = {"label_count": 16, "pairs": 4, "prompts": 64, "loss": 0.05, "classes": 16, "step": (0,)}
    settings, tests = (claim.PLAIN, claim.BURSTIER), ("training", "IC", "purged")

    def accuracy(*seeds):
        point = SimpleNamespace(**known, setting=settings, test_set=tests, seed=seeds)
        axes, values = measure.measure(point, key=jax.random.key(3))["accuracy"]
        assert axes == ("seed", "setting", "test_set", "step")
        return values

    both = accuracy(0, 1)
    np.testing.assert_array_equal(both[1:], accuracy(1))
    # 64 prompts each, of which one in 16 is right.
    assert abs(both.mean() - 1 / 16) < 4 * (1 / 16 / both.size / 64) ** 0.5
