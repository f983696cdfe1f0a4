"""What is measured of heads after frozen contexts, against NumPy; and the check on made-up errors."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
import xarray as xr
from judging import judged
from scipy.special import softmax

from iclbook.claims.context_map import _regression_transformers as shared
from iclbook.claims.context_map.frozen_entities import claim
from iclbook.claims.context_map.frozen_entities.measure import _errors, measure
from icllab.lab.checks import Outcome

FROZEN = 2
POINT = SimpleNamespace(
    dim=2, frozen=FROZEN, own=2, layers=1, width=4, heads=2, contexts=2, queries=3, batch=4, step=(0,), seed=(1,)
)
POINT.inputs = claim.NORMAL


@pytest.fixture(scope="module")
def measured():
    found = measure(POINT, key=jax.random.key(0))
    repeated = measure(POINT, key=jax.random.key(0), repeated=True)
    of_networks, of_prompts = jax.random.split(jax.random.key(0))
    (network,) = shared.networks(1, (0,), SimpleNamespace(**vars(POINT), length=4), key=of_networks)
    rng = np.random.default_rng([1, *np.asarray(jax.random.key_data(of_prompts))])
    with jax.enable_x64(True):
        prompts = shared.sample_prompts(rng, 2, 6, dim=2, length=FROZEN, examples=2)
    return found, repeated, network, prompts


def numbers(x):
    return np.asarray(x, np.float64)


def heads(network, x, y):
    """Queries with their scale, keys and values in the stream of both heads of the only layer."""
    tokens = np.concatenate([np.column_stack([x[:-1], y[:-1]]), [[*x[-1], 0]]])
    projection, block = network.embedding.projection, network.blocks[0]
    stream = tokens @ numbers(projection.weight) + numbers(projection.bias)
    stream = (stream - stream.mean(axis=1, keepdims=True)) / np.sqrt(stream.var(axis=1, keepdims=True) + 1e-5)
    q, k, v = (
        np.einsum("iw,whd->hid", stream, numbers(getattr(block.attention, n))) for n in ("query", "key", "value")
    )
    return q[:, -1] * 2**-0.5, k, v @ numbers(block.attention.output)


def test_errors_are_those_of_attention_by_its_formula(measured):
    """In the only layer there is one query. The second half of the prompts of each context is tested."""
    found, _, network, prompts = measured
    squares, points = np.zeros(3), []
    for context in range(2):
        for query in range(3, 6):
            both = heads(network, numbers(prompts.x[context, query]), numbers(prompts.y[context, query]))
            for q, k, v in zip(*both, strict=True):
                weights = softmax(k @ q)
                whole, rest = weights @ v, softmax(k[FROZEN:] @ q) @ v[FROZEN:]
                nearest = np.linalg.norm(v[:FROZEN, None] - v[None, FROZEN:], axis=2).argmin(axis=1)
                merged = weights @ np.concatenate([v[FROZEN:][nearest], v[FROZEN:]])
                squares += [np.sum((whole - one) ** 2) for one in (rest, merged, np.zeros(4))]
                bound = weights[:FROZEN] @ np.linalg.norm(v[:FROZEN] - v[FROZEN:][nearest], axis=1)
                points.append([*(np.linalg.norm(whole - one) for one in (rest, merged)), bound])
    error = found["reduction_error"][1][0, 0, 0]
    np.testing.assert_allclose(error[:2], [1, (squares[1] / squares[0]) ** 0.5], rtol=1e-6)
    np.testing.assert_allclose(found["context_effect"][1][0, 0, 0], (squares[0] / squares[2]) ** 0.5, rtol=1e-6)
    assert (error[:3] <= found["reduction_bound"][1][0, 0, 0][:3] + 1e-12).all()
    without, merged, bound = np.array(points).T
    excess = found["bound_excess"][1][0, 0, 0]
    np.testing.assert_allclose(excess[1], max(merged - bound) / (squares[0] / 3) ** 0.5, rtol=1e-6)
    assert np.isnan(excess[3])
    np.testing.assert_allclose(found["recovered"][1][0, 0, 0][:2], [0, np.mean(merged <= without / 2)])


def test_the_one_matrix_is_fitted_on_the_first_half_and_all_are_judged_on_the_second(measured):
    """Other prompts in the first half give another matrix, and leave the other reductions as they are."""
    *_, network, prompts = measured
    with jax.enable_x64(True):
        rng = np.random.default_rng(3)
        others = shared.sample_prompts(rng, 2, 6, dim=2, length=FROZEN, examples=2)
        mixed = jax.tree.map(lambda new, old: jax.numpy.concatenate([new[:, :3], old[:, 3:]], axis=1), others, prompts)
        model = shared.double(network)
        before, after = (np.asarray(_errors(model, part, FROZEN)[0])[0] for part in (prompts, mixed))
    np.testing.assert_allclose(after[:3], before[:3], rtol=1e-9)
    assert abs(after[3] / before[3] - 1) > 0.01


def test_a_context_that_repeats_the_querys_own_example_has_shared_values(measured):
    _, repeated, *_ = measured
    assert repeated["reduction_error"][1][0, 0, 0, 1] < 1e-12
    assert repeated["context_effect"][1][0, 0, 0] > 0.01


def test_discrete_tokens_that_recur_have_shared_values_and_others_do_not():
    """Four inputs with exact labels: after twelve examples of its own nearly every token of a context has a copy."""
    rng = np.random.default_rng(0)
    prompts = shared.sample_discrete_prompts(rng, 3, 5, dim=2, length=2, examples=12)
    x, y = numbers(prompts.x), numbers(prompts.y)
    assert x.shape == (3, 5, 15, 2)
    np.testing.assert_array_equal(x[:, :1, :2] - x[:, :, :2], 0)
    assert set(np.unique(x.round(4)).tolist()) == {-1.4142, 0.0, 1.4142}
    assert ((x != 0).sum(axis=3) == 1).all()
    for i in range(3):
        w = np.linalg.lstsq(x[i].reshape(-1, 2), y[i].ravel(), rcond=None)[0]
        np.testing.assert_allclose(x[i] @ w, y[i], atol=1e-5)
    drawn = numbers(
        jax.vmap(lambda k: shared.SignedBasis().sample(2, key=k))(jax.random.split(jax.random.key(0), 4000))
    )
    np.testing.assert_allclose(drawn.T @ drawn / 4000, np.eye(2), atol=4 * (1 / 4000) ** 0.5)
    point = SimpleNamespace(**{**vars(POINT), "inputs": claim.DISCRETE, "own": 40})
    found, distinct = (measure(point, key=jax.random.key(0), distinct=flag) for flag in (False, True))
    assert found["reduction_error"][1][0, 0, 0, 1] < 1e-6
    assert found["recovered"][1][0, 0, 0, 1] == 1
    assert distinct["reduction_error"][1][0, 0, 0, 1] > 0.01


def made_up(effect=1.2, left=0.9, keys=1.0, shared=0.02, recovered=0.99, excess=0.0):
    """Eight seeds of both inputs, with few tokens of the query's own and with many."""
    rng = np.random.default_rng(0)
    dims = ("inputs", "own", "seed", "step", "layer", "reduction")
    shape = (2, 2, 8, 2, 2, 4)
    errors = np.full(shape, left)
    errors[:, 1, ..., 1], errors[:, 1, ..., 2:] = shared, keys
    errors *= np.exp(0.02 * rng.normal(size=shape))
    errors[..., 0] = 1
    rates = np.clip(recovered + 0.002 * rng.normal(size=shape), 0, 1)
    rows = {"reduction_error": (dims, errors), "recovered": (dims, rates)}
    rows["bound_excess"] = dims, np.where(np.arange(4) == 3, np.nan, excess) + np.zeros(shape)
    rows["context_effect"] = dims[:-1], np.full(shape[:-1], effect) + 0.01 * rng.normal(size=shape[:-1])
    coords = {"inputs": list(claim.INPUTS), "own": [claim.FEW, claim.MANY], "seed": range(8), "step": [0, 1000]}
    return xr.Dataset(rows, coords=coords | {"layer": [1, 2], "reduction": list(claim.REDUCTIONS)})


_, failing, outcome = judged(claim.check)


def names(dataset):
    return {name.split("[")[0] for name in failing(dataset)}


def test_the_check_tells_each_part_of_the_claim():
    assert outcome(made_up()) is Outcome.HOLDS
    assert outcome(made_up(effect=0.3)) is Outcome.UNDECIDED  # a condition
    assert len(failing(made_up(left=0.3))) == 2 * 2 * 2 * 3  # inputs, steps, layers, reductions
    assert len(failing(made_up(keys=0.3))) == 2 * 2 * 2 * 2
    assert names(made_up(shared=0.4)) == {"shared"}
    assert names(made_up(recovered=0.8)) == {"recovered"}
    assert outcome(made_up(excess=1e-3)) is Outcome.UNDECIDED
