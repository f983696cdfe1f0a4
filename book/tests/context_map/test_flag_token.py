"""Norms of flags and of targets of equal effect, in closed form for fast weights; and the check on made-up norms."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.context_map import _flagged
from iclbook.claims.context_map.flag_token import claim
from iclbook.claims.context_map.flag_token import measure as module
from iclbook.claims.context_map.flag_token.measure import measure
from icllab.lab.checks import Outcome

POINT = SimpleNamespace(
    family="fast_weights", target=claim.TARGETS, scale=(0.5, 1.0), dim=2, length=4, queries=16, seed=(0, 1)
)
CASES = ((-1.0, 1.0), (0.5, 1.0), (-1.0, 0.5))  # factor of the flag, effect of the targets


@pytest.fixture(scope="module")
def measured():
    worlds = {case: measure(POINT, key=jax.random.key(0), factor=case[0], effect=case[1]) for case in CASES}
    return {case: {name: values for name, (_, values) in found.items()} for case, found in worlds.items()}


def drawn(seed):
    """The task of a seed and its held-out and fitted queries, as the measurement draws them."""
    _, of_maps = jax.random.split(jax.random.fold_in(jax.random.key(0), seed))
    rng = np.random.default_rng([seed, *np.asarray(jax.random.key_data(of_maps))])
    base = _flagged.base_task(rng, POINT.dim)
    x = rng.normal(size=(2 * POINT.queries, POINT.dim))
    return base, x[: POINT.queries], x[POINT.queries :]


def test_norms_and_effects_are_those_of_the_closed_form(measured):
    """The change of b is (f - 1) b after the flag, and a u for a target of the flag's effect on fitted queries."""
    for (flag, share), found in measured.items():
        for i, seed in enumerate(POINT.seed):
            base, fitted, held_out = drawn(seed)
            change = (flag - 1) * base
            size = np.linalg.norm(base)
            np.testing.assert_allclose(found["flag_moved"][i], np.linalg.norm(change) / size, rtol=1e-4)
            np.testing.assert_allclose(found["flag_effect"][i], np.mean((held_out @ change) ** 2) ** 0.5, rtol=1e-4)
            directions = (-base, np.array([-base[1], base[0]]))
            for j, direction in enumerate(directions):
                for k, scale in enumerate(POINT.scale):
                    factor = (
                        share * scale * (np.mean((fitted @ change) ** 2) / np.mean((fitted @ direction) ** 2)) ** 0.5
                    )
                    moved = factor * np.linalg.norm(direction) / size
                    np.testing.assert_allclose(found["moved"][i, j, k], moved, rtol=1e-4)
                    effect = factor * np.mean((held_out @ direction) ** 2) ** 0.5
                    np.testing.assert_allclose(found["effect"][i, j, k], effect, rtol=1e-4)
        assert (found["map_gap"] < 1e-8).all()
        assert not found["unconverged"].any()
        assert not found["flag_unconverged"].any()


def test_scores_are_those_of_the_flag(measured):
    """The answers to -w0 . x are f w0 . x: a fraction 1 - (1 + f)^2 is explained."""
    for (factor, _), found in measured.items():
        np.testing.assert_allclose(found["zero_shot"], 1.0, rtol=1e-6)
        np.testing.assert_allclose(found["flipped"], 1 - (1 + factor) ** 2, rtol=1e-5, atol=1e-6)


def test_what_is_across_is_as_long_as_the_task_and_orthogonal():
    for dim in (2, 3, 4):
        base = _flagged.base_task(np.random.default_rng(dim), dim)
        across = _flagged.across(base)
        assert np.linalg.norm(across) == pytest.approx(np.linalg.norm(base))
        assert across @ base == pytest.approx(0, abs=1e-12)


def test_a_fit_that_has_not_converged_is_left_out_and_counted(monkeypatch):
    monkeypatch.setattr(module, "SOLVER", module.MapSolver(method="gauss_newton", steps=1, products=1, tolerance=1e-6))
    found = measure(SimpleNamespace(**{**vars(POINT), "seed": (0,)}), key=jax.random.key(0))
    assert np.isnan(found["flag_moved"][1]).all()
    assert np.isnan(found["moved"][1]).all()
    assert (found["unconverged"][1] == 1).all()
    assert (found["flag_unconverged"][1] == 1).all()


def test_half_of_the_prompts_begin_with_a_flag_that_turns_their_labels():
    rng = np.random.default_rng(0)
    base = _flagged.base_task(rng, 2)
    assert base @ base == pytest.approx(2)
    task = _flagged.FlaggedRegression(jnp.asarray(base, jnp.float32), jnp.asarray(-3.0), 4)
    prompts = task.sample_many(2000, key=jax.random.key(0))
    x, y = np.asarray(prompts.x, np.float64), np.asarray(prompts.y, np.float64)
    flagged = x[:, 0, 2] == 1
    assert abs(flagged.mean() - 0.5) < 4 * 0.5 / 2000**0.5
    np.testing.assert_array_equal(x[:, 1:, 2], 0)
    np.testing.assert_array_equal(x[flagged, 0, :2], 0)
    np.testing.assert_array_equal(y[flagged, 0], _flagged.FLAG_LABEL)
    np.testing.assert_array_equal(_flagged.flag(2).x[0], x[flagged][0, 0])
    seen = slice(1, None)
    w = np.stack([np.linalg.lstsq(a[seen, :2], b[seen], rcond=None)[0] for a, b in zip(x, y, strict=True)])
    left = y[:, seen] - np.einsum("pid,pd->pi", x[:, seen, :2], w)
    np.testing.assert_allclose(left, 0, atol=1e-3)
    w[flagged] /= -3
    for rows in (w[flagged], w[~flagged]):
        error = len(rows) ** -0.5
        np.testing.assert_allclose(rows.mean(axis=0), base, atol=4 * error)
        np.testing.assert_allclose(rows.var(axis=0), 1, atol=4 * 2**0.5 * error)


@pytest.mark.slow
def test_a_trained_transformer_answers_the_last_query_without_a_context():
    point = SimpleNamespace(heads=1, width=4, layers=1, batch=8, updates=2)
    task = _flagged.FlaggedRegression(jnp.ones(2), jnp.asarray(-1.0), 3)
    network = _flagged.transformer(task, point, key=jax.random.key(0))
    prompt = task.sample(key=jax.random.key(1))
    assert network(prompt).shape == (1,)
    assert np.isfinite(np.asarray(network(prompt.alone(3)))).all()


def made_up(flag=0.1, across=0.11, half=0.07, score=0.95, exact=2.0, gap=1e-3, zero_shot=0.9, lost=0.0):
    """Sixteen seeds of both networks: the flip costs 0.1 for an effect of 2."""
    rng = np.random.default_rng(0)
    dims, shape = ("family", "dim", "seed", "target", "scale"), (2, 1, 16, 2, 3)
    moved = np.array([[half / 2, half, 0.1], [0.6 * across, 0.8 * across, across]]) * np.exp(
        0.03 * rng.normal(size=shape)
    )
    rows = {"moved": (dims, moved), "map_gap": (dims, np.full(shape, gap)), "unconverged": (dims, np.full(shape, lost))}
    rows["effect"] = dims, np.array([0.5, 1.0, 2.0]) * np.ones(shape)
    of_flag = flag * np.exp(0.03 * rng.normal(size=shape[:3]))
    of_flag[1] = exact
    rows |= {"flag_moved": (dims[:3], of_flag), "flag_effect": (dims[:3], np.full(shape[:3], 2.0))}
    rows |= {
        name: (dims[:3], np.full(shape[:3], value))
        for name, value in (("flag_map_gap", gap), ("flag_unconverged", lost))
    }
    rows["flipped"] = dims[:3], score + 0.01 * rng.normal(size=shape[:3])
    rows["zero_shot"] = dims[:3], np.full(shape[:3], zero_shot)
    coords = {"family": [claim.NETWORK, claim.EXACT], "dim": [2], "seed": range(16), "target": list(claim.TARGETS)}
    return claim.theory(xr.Dataset(rows, coords=coords | {"scale": list(claim.SCALES)}))


_, failing, outcome = judged(claim.check)


def names(dataset):
    return {name.split("[")[0] for name in failing(dataset)}


def test_the_check_tells_each_part_of_the_claim():
    assert outcome(made_up()) is Outcome.HOLDS
    assert outcome(made_up(flag=0.14, across=0.14)) is Outcome.HOLDS  # what the flag asks for is no other target
    assert failing(made_up(across=0.16)) == failing(made_up(across=0.06)) == ["as_others[dim=2,target=across]"]
    assert names(made_up(half=0.04)) == {"grows_slower"}
    assert names(made_up(score=0.5)) == {"flips"}
    assert names(made_up(exact=1.0)) == {"exact"}


def test_the_check_is_undecided_where_the_data_do_not_tell():
    assert outcome(made_up(zero_shot=0.3)) is Outcome.UNDECIDED
    assert outcome(made_up(across=0.134)) is Outcome.UNDECIDED
    assert outcome(made_up(gap=0.3)) is outcome(made_up(lost=0.5)) is Outcome.UNDECIDED
