"""Which maps are taken when, on which strings, and the check on made-up tests."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from first_updates import adam_rate
from judging import judged

from icllab.claims.routing import _small_transformers
from icllab.claims.routing.recognised_in_weights import claim, measure
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


def test_a_fifth_of_the_strings_is_held_out_and_asked_as_often(monkeypatch):
    tasks, family = _small_transformers.sample_family((0,), POINT, key=jax.random.key(1))
    network, task = family.network(family.weights[0]), tasks[0]
    strings = np.random.default_rng(0).permutation(measure.every_string(task))
    given = {}

    def mapped(network, task, program, *, queries, **how):
        given.update(how, tokens=np.asarray(queries.tokens), program=np.asarray(program.tokens))
        rows = {"gap": 0.1, "derivative": 0.2}
        nulls = {f"null_{name}": (("null", "draw"), np.array([[3.0, 2.0], [5.0, 4.0]])) for name in rows}
        return SimpleNamespace(dataset=xr.Dataset({**rows, **nulls}), weights=network, converged=False)

    monkeypatch.setattr(measure, "context_map", mapped)
    answered = ("program", "map", "neither")
    point = SimpleNamespace(**vars(POINT), directions=2, draws=2, answered_by=answered)
    row = measure.tested(network, task, 1, strings, point, key=jax.random.key(0))
    tokens = given["tokens"]
    assert tokens.shape == (16, 4)
    assert not {tuple(t) for t in tokens[:8].tolist()} & {tuple(t) for t in tokens[8:].tolist()}
    np.testing.assert_array_equal(tokens[8:, :2], np.tile(strings[-1], (8, 1)))
    assert (given["query_length"], given["subspace"]) == (3, None)
    np.testing.assert_array_equal(given["program"][0], task.program_tokens()[1])
    np.testing.assert_array_equal(row["null_prediction"][1], [2, 4])
    assert (row["prediction"][1], row["derivative"][1], row["converged"][1]) == (0.1, 0.2, 0.0)
    losses = row["answer_loss"][1]
    assert losses[1] == losses[2] != losses[0]
    # With the program: the loss of the first symbol of the answer to the whole prompt.
    (whole,) = [p for p in np.asarray(family.prompts[0, 1]) if (p[1:3] == strings[-1]).all()]
    ends = jax.nn.log_softmax(network(TokenPrompt(jnp.asarray(whole)))[-2])
    np.testing.assert_allclose(losses[0], -float(ends[whole[-2]]), rtol=1e-5)


def made_up(before=0.01, drift=1.0, rise=9.0, late=1.0, seeds=10, unknown=0, multiples=claim.MULTIPLES):
    """Tests of ``before`` the unrelated target, as far from untrained networks' by ``drift`` after as before."""
    rng, m = np.random.default_rng(0), np.array(multiples)
    shape = (1, 1, seeds, 2, len(m))
    noise = np.exp(0.2 * rng.normal(size=shape))
    own = 0.05 * noise * np.where(m > 1, drift, 1.0)
    null = np.stack([0.05 / before * np.ones(shape), 0.05 * np.ones(shape)], axis=-1)
    losses = np.stack([2 * np.log(5) / (1 + (1.2 * m / t) ** 4) * noise**0.1 for t in (1.0, late, 1e9)], axis=-1)
    effect = rise ** (np.log(m) / np.log(16)) * noise
    effect[:, :, :unknown] = np.nan
    dims = ("directions", "updates", "seed", "context", "multiple")
    rows = {"effect": (dims, effect), "answer_loss": ((*dims, "answered_by"), losses)}
    for name in claim.TESTS:
        rows |= {name: (dims, own), f"null_{name}": ((*dims, "null"), null)}
    coords = {"directions": [4], "updates": [4000], "seed": range(seeds), "context": ["a", "d"], "multiple": m}
    coords |= {"null": list(claim.NULLS), "answered_by": ["program", "map", "neither"]}
    attrs = {"configuration": json.dumps({"fixed": claim.claim.fixed})}
    return claim.theory(xr.Dataset(rows, coords=coords, attrs=attrs))


_, failing, outcome = judged(claim.check)


def names(dataset):
    return {name.split("[")[0] for name in failing(dataset)}


def test_the_check_tells_each_part_of_the_claim():
    assert outcome(made_up()) is Outcome.HOLDS
    assert names(made_up(drift=0.01)) == {"prediction_change", "derivative_change"}
    assert names(made_up(before=3.0)) == {"prediction_before", "derivative_before"}
    assert names(made_up(rise=1.0)) == {"effect"}
    assert outcome(made_up(unknown=4)) is Outcome.UNDECIDED


def test_fractions_below_the_resolution_are_all_one():
    found = made_up(drift=1e-9)
    np.testing.assert_allclose(found["prediction_ratio"].sel(multiple=4.0, null="untrained"), 0.02)
    np.testing.assert_allclose(
        claim.change(xr.where(found["multiple"] > 1, 3.0, 0.5) * found["ratio_line"].expand_dims(context=2)), 6.0
    )


def test_losses_halve_where_they_stay_below():
    found = made_up(late=1.7)["answer_time"].median(["seed", "context"])
    np.testing.assert_allclose(found.sel(answered_by="map") / found.sel(answered_by="program"), 1.7, rtol=0.1)
    m = np.array(claim.MULTIPLES)

    def time(*values):
        return float(claim.halved(xr.DataArray(np.array(values), coords={"multiple": m}, dims="multiple"), 1.0))

    np.testing.assert_allclose(time(2, 2, 1.5, 0.5, 0), 2**0.5)
    np.testing.assert_allclose(time(2, 0.5, 1.5, 0.5, 0), 2**0.5)
    assert np.isnan([time(0, 0, 0, 0, 0), time(2, 2, 2, 2, 2), time(2, 2, np.nan, 0, 0), time(2, 0, 0, 0, 2)]).all()
