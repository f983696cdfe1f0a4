"""The check on made-up numbers; what is measured, against the formula; and a model without such weights."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
import scipy.special
import xarray as xr
from judging import judged

from iclbook.claims.context_map.exact_family import claim
from iclbook.claims.context_map.exact_family import measure as measuring
from iclbook.claims.context_map.exact_family.measure import measure, sample_model
from icllab.lab.checks import Outcome

OUTCOMES, FAILING, OUTCOME = judged(claim.check)


def made_up(**changes):
    """Numbers as rounding leaves them, with the rank min(k, d), for two seeds and k = 2 and 6."""
    dims, shape = ("hidden", "length", "seed"), (2, 1, 2)
    rows = dict.fromkeys(claim.VANISH, 1e-14) | {"unrelated_composition_gap": 0.8, "step_cosine": 1 - 1e-13}
    rows |= {"law": 1.0} | changes
    variables = {name: (dims, np.full(shape, value)) for name, value in rows.items()}
    variables["map_rank"] = (dims, np.broadcast_to(np.array([2.0, 4.0])[:, None, None], shape).copy())
    coords = {"hidden": [2, 6], "length": [4], "seed": [0, 1]}
    return claim.theory(xr.Dataset(variables, coords=coords, attrs={"configuration": '{"fixed": {"dim": 4}}'}))


def test_it_holds_where_all_is_exact():
    assert OUTCOME(made_up()) is Outcome.HOLDS


@pytest.mark.parametrize("name", [*claim.VANISH, "unrelated_composition_gap", "step_cosine"])
def test_one_number_of_one_seed_is_enough_to_fail(name):
    dataset = made_up()
    dataset[name][1, 0, 1] = 1e-3
    assert [found.split("[")[0] for found in FAILING(dataset)] == [name]


def test_a_wrong_rank_fails():
    dataset = made_up()
    dataset["map_rank"][1, 0, 0] = 3.0
    assert FAILING(dataset) == ["map_rank[hidden=6,length=4]"]


def test_one_seed_without_a_law_fails():
    dataset = made_up()
    dataset["law"][1, 0, 1] = 0.0
    assert FAILING(dataset) == ["law[hidden=6,length=4]"]


def test_a_number_that_is_none_does_not_hold():
    assert OUTCOME(made_up(map_gap=np.nan)) is not Outcome.HOLDS


def test_a_cell_has_the_numbers_of_the_formula():
    """With the mean, composition misses by exactly 1: halves weigh twice as much as in the whole."""
    point = SimpleNamespace(dim=2, hidden=1, length=2, queries=8, seed=(3,))
    with jax.enable_x64(True):
        found = {
            name: float(values[0]) for name, (_, values) in measure(point, key=jax.random.key(0), kind="mean").items()
        }
        model, contexts, queries = sample_model(np.random.default_rng(0), point, "sum")
        assert queries.x.shape == (16, 1, 2)
        np.testing.assert_allclose(np.asarray(queries.x[:8]).mean(0), 0.0, atol=1e-15)
        assert {context.length for context in contexts} == {2}
        assert not model.normalised
    assert found["composition_gap"] == pytest.approx(1.0, abs=1e-6)
    assert max(found[name] for name in ("map_gap", "derivative_gap", "unrelated_gap", "step_gap")) < 1e-10
    assert found["step_cosine"] == pytest.approx(1.0, abs=1e-10)
    assert (found["law"], found["map_rank"]) == (0.0, 1.0)


def test_a_direction_is_counted_however_weak_it_is():
    """With as many hidden units as dimensions the least eigenvalue is below 1e-3 of the largest for this seed."""
    point = SimpleNamespace(dim=4, hidden=4, length=4, queries=16, seed=(3,))
    with jax.enable_x64(True):
        numbers = measure(point, key=jax.random.key(0))
    assert [numbers[name][1].tolist() for name in ("map_rank", "law")] == [[4.0], [1.0]]


def test_softmax_attends_to_the_examples_before_a_query_and_to_nothing():
    """Every example and nothing have a share of the attention, and the shares are one."""
    point = SimpleNamespace(dim=3, hidden=2, length=4, queries=4)
    with jax.enable_x64(True):
        model, (context, *_), _ = sample_model(np.random.default_rng(0), point, "softmax")
        found = np.asarray(model(context))
    x, y, down, up, slow = (np.asarray(a) for a in (context.x, context.y, model.down, model.up, model.slow))
    for i, answer in enumerate(found):
        shares = scipy.special.softmax([0.0, *(x[i] @ up @ down @ x[j] for j in range(i))])
        np.testing.assert_allclose(answer, x[i] @ slow + shares @ [0.0, *y[:i]], rtol=1e-12)


def test_a_seed_has_a_key_of_its_own_whatever_the_others(monkeypatch):
    """By which the directions and the unrelated targets of its maps are drawn."""
    keys = {}

    def noted(point, seed, key, kind, signs):
        keys.setdefault(seed, set()).add(tuple(jax.random.key_data(key).tolist()))
        return {"map_gap": 0.0}

    monkeypatch.setattr(measuring, "measure_seed", noted)
    for seeds in ((0, 1, 2), (2, 1)):
        measure(SimpleNamespace(seed=seeds), key=jax.random.key(0))
    assert [len(own) for own in keys.values()] == [1, 1, 1]
    assert len(set.union(*keys.values())) == 3
