"""Which maps are taken when, on which strings, and the check on made-up tests."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from first_updates import adam_rate
from judging import judged

from iclbook.claims.routing import _small_transformers
from iclbook.claims.routing.recognised_in_weights import claim, measure
from icllab.core.prompt import TokenPrompt
from icllab.lab.checks import Outcome

SIZES = {"symbols": 3, "length": 2, "width": 2, "layers": 1, "heads": 1, "zipf_exponent": 1.0, "batch": 4}
POINT = SimpleNamespace(**SIZES, updates=40, every=2, program="ab", context=("b", "a"), seed=(0, 4))
TIMES = np.array([[8.0, 20.0], [12.0, np.nan]])  # [seed, program]


@pytest.fixture(scope="module")
def taken():
    """What is measured with made-up times; program, strings, weights and key of every map; and paths of training."""
    made, paths, descended = [], [], _small_transformers.descended

    def kept(family, batches, **how):
        paths.append((family, descended(family, batches, **how), how["optimizer"]))
        return paths[-1][1]

    def noted(network, task, context, strings, point, *, key):
        made.append((context, strings, np.asarray(network.readout.weight), jax.random.key_data(key).tolist()))
        return {"effect": ((), float(len(made)))}

    point = SimpleNamespace(**vars(POINT), multiple=(0.25, 4.0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "tested", noted)
        patch.setattr(_small_transformers, "descended", kept)
        patch.setattr(measure, "learned", lambda losses, point: TIMES)
        found = [measure.measure(point, key=jax.random.key(0), trained=trained) for trained in (True, False)]
    return found, made, paths


def test_maps_are_taken_at_multiples_of_the_programs_own_time(taken):
    found, made, _ = taken
    dims, effect = found[0]["effect"]
    assert dims == ("seed", "context", "multiple")
    # Four times 20 updates are more than there are, and the second program of the second seed has no time.
    np.testing.assert_array_equal(np.isnan(effect), [[[False, True], [False, False]], [[True, True], [False, True]]])
    np.testing.assert_array_equal(found[0]["transition_time"][1], [[20, 8], [np.nan, 12]])
    assert [context for context, *_ in made[:4]] == [1, 0, 0, 0]
    first = {row[3][0] == made[0][3][0] and row[3] == made[0][3] for row in made[:3]}
    assert first == {True}
    assert made[3][3] != made[0][3]


def test_they_are_of_networks_along_training_or_before_it(taken):
    """At 5, 2, 32 and 3 updates, of which every second is kept; or at none."""
    _, made, ((family, path, optimizer), _) = taken
    weights = [weight for _, _, weight, _ in made]
    for found, (seed, updates) in zip(weights[:4], ((0, 4), (0, 2), (0, 32), (1, 4)), strict=True):
        wanted = family.network(path[seed, updates // 2 - 1])
        np.testing.assert_array_equal(found, wanted.readout.weight)
    for found, seed in zip(weights[4:], (0, 0, 0, 1), strict=True):
        np.testing.assert_array_equal(found, family.network(family.weights[seed]).readout.weight)
    assert adam_rate(optimizer) == pytest.approx(0.005, rel=1e-4)


def test_a_fifth_of_the_strings_is_held_out_and_the_null_is_the_next_program(monkeypatch):
    tasks, family = _small_transformers.sample_family((0,), POINT, key=jax.random.key(1))
    network, task = family.network(family.weights[0]), tasks[0]
    strings = np.random.default_rng(0).permutation(measure.every_string(task))
    asked_for = {}

    def fractions(problem, programs, queries, directions, key):
        asked_for.update(fitted=queries.fitted.tokens, held_out=queries.held_out.tokens, programs=programs.tokens)
        asked_for.update(mask=problem.mask, directions=directions)
        values = jnp.arange(18.0).reshape(2, 3, 3)
        return values, values < 4

    monkeypatch.setattr(measure, "_fractions_left", fractions)
    point = SimpleNamespace(**vars(POINT), directions=2, answered_by=("program", "neither"))
    row = measure.tested(network, task, 1, strings, point, key=jax.random.key(0))
    fitted, held_out = (np.asarray(asked_for[name]) for name in ("fitted", "held_out"))
    assert (fitted.shape, held_out.shape) == ((2, 8, 4), (2, 1, 4))
    np.testing.assert_array_equal(fitted[0, :, :2], strings[:8])
    np.testing.assert_array_equal(held_out[:, 0, :2], [strings[8]] * 2)
    np.testing.assert_array_equal(np.asarray(asked_for["programs"])[:, 0], task.program_tokens()[[1, 0], 0])
    assert all(jax.tree.leaves(asked_for["mask"]))
    assert asked_for["directions"] == 2
    np.testing.assert_array_equal(row["left"][1], [[0, 1], [3, 4], [6, 7]])
    np.testing.assert_array_equal(row["converged"][1], [[1, 1], [1, 0], [0, 0]])
    np.testing.assert_array_equal(measure.mistaken(row)["left"][1], [[3, 4], [3, 4], [6, 7]])
    # With the program: the loss of the first symbol of the answer to the whole prompt.
    (whole,) = [p for p in np.asarray(family.prompts[0, 1]) if (p[1:3] == strings[-1]).all()]
    ends = jax.nn.log_softmax(network(TokenPrompt(jnp.asarray(whole)))[-2])
    np.testing.assert_allclose(row["answer_loss"][1][0], -float(ends[whole[-2]]), rtol=1e-5)


@pytest.mark.slow
def test_a_map_of_a_small_network_leaves_what_it_does_at_held_out_strings():
    """Of the own map and of the other's: the divergence from the answers with the program, over that without it."""
    with jax.enable_x64(True):
        tasks, family = _small_transformers.sample_family((0,), POINT, key=jax.random.key(1))
        network, task = family.network(family.weights[0].astype("float64")), tasks[0]
        strings = np.random.default_rng(0).permutation(measure.every_string(task))
        point = SimpleNamespace(**vars(POINT), directions=2, answered_by=("program", "neither"))
        rows = [measure.tested(network, task, c, strings, point, key=jax.random.key(0)) for c in (0, 1)]
    for row in rows:
        left, converged = (np.asarray(row[name][1]) for name in ("left", "converged"))
        assert left.shape == converged.shape == (3, 2)
        assert np.isfinite(left).all()
        assert left[0, 0] < left[1, 0]


def made_up(effects=(0.01, 0.02), changes=(0.01, 0.6), planted=0.01, rise=9.0, seeds=24, unknown=0, lost=0.0):
    """What is left at T/4 and at 4T of effects and changes; other programs' maps leave everything."""
    rng, m = np.random.default_rng(0), np.array(claim.MULTIPLES)
    shape = (1, 1, seeds, 2, len(m))
    noise = np.exp(0.5 * rng.normal(size=(*shape, 3, 2)))
    weight = (m > 1)[:, None, None]
    own = np.stack([np.where(weight[..., 0], pair[1], pair[0]) for pair in (effects, changes)], axis=-1)
    left = np.concatenate([own, np.ones_like(own), planted * np.ones_like(own)], axis=-2) * noise
    met = rng.random(left.shape) >= lost
    effect = rise ** (np.log(m) / np.log(16)) * noise[..., 0, 0]
    effect[:, :, :unknown] = np.nan
    dims = ("directions", "updates", "seed", "context", "multiple")
    rows = {"effect": (dims, effect), "left": ((*dims, "world", "test"), left)}
    rows["converged"] = (*dims, "world", "test"), met.astype(float)
    coords = {"directions": [4], "updates": [4000], "seed": range(seeds), "context": ["a", "d"], "multiple": m}
    return claim.theory(xr.Dataset(rows, coords=coords | {"world": list(claim.WORLDS), "test": list(claim.TESTS)}))


_, failing, outcome = judged(claim.check)


def names(dataset):
    return {name.split("[")[0] for name in failing(dataset)}


def test_the_check_tells_each_part_of_the_claim():
    assert outcome(made_up()) is Outcome.HOLDS
    assert names(made_up(effects=(0.5, 0.02))) == {"effect_before"}
    assert names(made_up(effects=(0.01, 0.5))) == {"effect_after"}
    assert names(made_up(changes=(0.5, 0.6))) == {"change_before"}
    assert names(made_up(changes=(0.01, 0.02))) == {"change_after"}
    assert names(made_up(rise=1.0)) == {"effect"}


def test_the_check_is_undecided_where_a_law_would_not_be_found():
    assert outcome(made_up(planted=0.5)) is Outcome.UNDECIDED
    assert outcome(made_up(unknown=8)) is Outcome.UNDECIDED
    assert outcome(made_up(lost=0.6)) is Outcome.UNDECIDED
    assert outcome(made_up(changes=(0.01, 0.09))) is Outcome.UNDECIDED
