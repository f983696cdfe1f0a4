"""What is measured of a flag in fast weights, against closed forms; the prompts; and the check on made-up numbers."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from judging import judged

from icllab.claims.context_map import _flagged
from icllab.claims.context_map.flag_token import claim
from icllab.claims.context_map.flag_token.measure import contexts_of, measure, summary
from icllab.lab.checks import Outcome

POINT = SimpleNamespace(
    family="fast_weights", dim=2, length=4, contexts=2, queries=16, directions=2, draws=2, kind=claim.KINDS, seed=(0, 1)
)
FACTOR = -0.5


@pytest.fixture(scope="module")
def measured():
    found = measure(POINT, key=jax.random.key(0), factor=FACTOR)
    return {name: values for name, (_, values) in found.items()}


def drawn(seed):
    """The task of a seed, its queries and its contexts, as the measurement draws them."""
    _, of_maps = jax.random.split(jax.random.fold_in(jax.random.key(0), seed))
    rng = np.random.default_rng([seed, *np.asarray(jax.random.key_data(of_maps))])
    base = _flagged.base_task(rng, POINT.dim)
    queries = rng.normal(size=(2 * POINT.queries, POINT.dim))
    return base, queries, contexts_of(rng, base, POINT)


def test_norms_and_effects_are_those_of_the_closed_form(measured):
    """The change of b is (f - 1) b after the flag, and else the mean of y x; effects are on the second half."""
    for i, seed in enumerate(POINT.seed):
        base, queries, contexts = drawn(seed)
        for j, kind in enumerate(claim.KINDS):
            changes = np.array(
                [np.mean(np.asarray(c.y)[:-1, None] * np.asarray(c.x)[:-1, :2], axis=0) for c in contexts[kind]]
            )
            if kind == "flag":
                changes = np.array([(FACTOR - 1) * base])
            moved = np.mean(np.sum(changes**2, axis=1)) ** 0.5 / np.linalg.norm(base)
            effect = np.mean((queries[POINT.queries :] @ changes.T) ** 2) ** 0.5
            np.testing.assert_allclose(measured["moved"][i, j], moved, rtol=1e-4)
            np.testing.assert_allclose(measured["effect"][i, j], effect, rtol=1e-4)
    assert (measured["map_gap"] < 1e-8).all()
    assert (measured["map_derivative"] < 1e-8).all()
    assert not np.isclose(*measured["moved"][:, 1])


def test_scores_are_those_of_the_factor(measured):
    """The answers to -w0 . x are f w0 . x: a fraction 1 - (1 + f)^2 is explained."""
    np.testing.assert_allclose(measured["zero_shot"], 1.0, rtol=1e-6)
    np.testing.assert_allclose(measured["flipped"], 1 - (1 + FACTOR) ** 2, rtol=1e-5)


def test_a_summary_has_means_over_contexts_of_the_tests_and_of_the_least_nulls():
    def found(norm, divergence, gap, derivative, nulls, norms, converged):
        grid = ("null", "draw")
        rows = {"divergence": divergence, "gap": gap, "derivative": derivative, "converged": converged}
        rows |= {"null_gap": (grid, nulls), "null_derivative": (grid, 2 * nulls), "null_norm": (grid, norms)}
        return SimpleNamespace(norm=norm, dataset=xr.Dataset(rows, coords={"null": ["unrelated", "untrained"]}))

    first = found(3.0, 2.0, 0.1, 0.5, np.array([[0.4, 0.3], [0.2, 0.9]]), np.array([[1.0, 7.0], [9.0, 9.0]]), True)
    second = found(4.0, 6.0, 0.3, 0.7, np.array([[0.6, 0.8], [0.7, 0.5]]), np.array([[5.0, 5.0], [9.0, 9.0]]), False)
    expected = {
        "moved": 12.5**0.5,
        "effect": 8**0.5,
        "map_gap": 0.2,
        "null_gap": 0.35,
        "map_derivative": 0.6,
        "null_derivative": 0.7,
        "null_norm": 5.0,
        "unconverged": 0.5,
    }
    assert summary([first, second]) == pytest.approx(expected)


def test_contexts_are_of_their_tasks():
    base, _, contexts = drawn(0)
    for one in contexts["flipped"]:
        np.testing.assert_allclose(one.y, -np.asarray(one.x)[:, :2] @ base, rtol=1e-4, atol=1e-5)
    one, several = (
        np.linalg.lstsq(np.asarray(c.x)[:, :2], np.asarray(c.y), rcond=None)[0]
        for c in (contexts["one example"][0], contexts["ordinary"][0])
    )
    np.testing.assert_allclose(one, several, rtol=1e-3, atol=1e-4)
    lengths = {kind: {c.length for c in contexts[kind]} for kind in claim.KINDS}
    assert lengths == {"flag": {1}, "one example": {1}, "ordinary": {4}, "flipped": {4}}


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
    prompt = _flagged.examples(np.random.default_rng(0), np.ones(2), 3)
    assert network(prompt).shape == (1,)
    assert np.isfinite(np.asarray(network(prompt.alone(3)))).all()


def made_up(flag=0.1, flipped=0.1, effect=2.0, score=0.95, exact=2.0, gap=1e-3, zero_shot=0.9):
    """Eight seeds of both networks: ordinary contexts move the weights by 0.1 for an effect of 1."""
    rng = np.random.default_rng(0)
    dims, shape = ("family", "dim", "seed", "kind"), (2, 1, 8, 4)
    noise = np.exp(0.05 * rng.normal(size=shape))
    moved = np.array([flag, 0.1, 0.1, flipped]) * noise
    moved[1, ..., 0] = exact
    rows = {"moved": moved, "effect": np.array([effect, 1, 1, 2]) * np.ones(shape), "map_gap": gap * noise}
    rows |= {name: np.ones(shape) for name in ("null_gap", "map_derivative", "null_derivative")}
    scores = {"flipped": score + 0.01 * rng.normal(size=shape[:3]), "zero_shot": np.full(shape[:3], zero_shot)}
    variables = {name: (dims, values) for name, values in rows.items()}
    variables |= {name: (dims[:3], values) for name, values in scores.items()}
    coords = {"family": [claim.NETWORK, claim.EXACT], "dim": [2], "seed": range(8), "kind": list(claim.KINDS)}
    return claim.theory(xr.Dataset(variables, coords=coords))


_, failing, outcome = judged(claim.check)


def names(dataset):
    return {name.split("[")[0] for name in failing(dataset)}


def test_the_check_tells_each_part_of_the_claim():
    assert outcome(made_up()) is outcome(made_up(flipped=0.2)) is Outcome.HOLDS
    assert names(made_up(flag=0.2, effect=5.0)) == {"no_further"}
    assert names(made_up(flipped=0.05)) == {"no_further"}
    assert names(made_up(effect=0.7)) == {"per_effect"}
    assert names(made_up(score=0.5)) == {"flips"}
    assert names(made_up(exact=1.0)) == {"exact"}
    assert names(made_up(gap=0.3)) == {"gap"}


def test_the_check_is_undecided_where_the_data_do_not_tell():
    assert outcome(made_up(zero_shot=0.3)) is Outcome.UNDECIDED
    assert outcome(made_up(effect=1.02)) is Outcome.UNDECIDED
    assert outcome(made_up(flag=0.11)) is Outcome.UNDECIDED
