"""What is measured of heads after frozen contexts, against NumPy; and the check on made-up errors."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
import xarray as xr
from judging import judged
from scipy.special import softmax

from icllab.claims.context_map import _regression_transformers as shared
from icllab.claims.context_map.frozen_entities import claim
from icllab.claims.context_map.frozen_entities.measure import measure
from icllab.lab.checks import Outcome

POINT = SimpleNamespace(
    dim=2, length=4, layers=1, width=4, heads=2, contexts=2, queries=3, batch=4, step=(0,), seed=(1,)
)
FROZEN = 2


@pytest.fixture(scope="module")
def measured():
    found = measure(POINT, key=jax.random.key(0))
    repeated = measure(POINT, key=jax.random.key(0), repeated=True)
    of_networks, of_prompts = jax.random.split(jax.random.key(0))
    (network,) = shared.networks(1, (0,), POINT, key=of_networks)
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
    squares = np.zeros(3)
    for context in range(2):
        for query in range(3, 6):
            both = heads(network, numbers(prompts.x[context, query]), numbers(prompts.y[context, query]))
            for q, k, v in zip(*both, strict=True):
                weights = softmax(k @ q)
                whole, rest = weights @ v, softmax(k[FROZEN:] @ q) @ v[FROZEN:]
                nearest = np.linalg.norm(v[:FROZEN, None] - v[None, FROZEN:], axis=2).argmin(axis=1)
                merged = weights @ np.concatenate([v[FROZEN:][nearest], v[FROZEN:]])
                squares += [np.sum((whole - one) ** 2) for one in (rest, merged, np.zeros(4))]
    error = found["reduction_error"][1][0, 0, 0]
    np.testing.assert_allclose(error[:2], [1, (squares[1] / squares[0]) ** 0.5], rtol=1e-6)
    np.testing.assert_allclose(found["context_effect"][1][0, 0, 0], (squares[0] / squares[2]) ** 0.5, rtol=1e-6)
    assert (error[:3] <= found["reduction_bound"][1][0, 0, 0][:3] + 1e-12).all()


def test_a_context_that_repeats_the_querys_own_example_has_shared_values(measured):
    _, repeated, *_ = measured
    assert repeated["reduction_error"][1][0, 0, 0, 1] < 1e-12
    assert repeated["context_effect"][1][0, 0, 0] > 0.01


def made_up(effect=1.2, left=0.9, error=0.8, steps=(0, 2000)):
    rng = np.random.default_rng(0)
    dims = ("seed", "step", "layer", "reduction")
    shape = (3, len(steps), 2, 4)
    errors = np.full(shape, left) + 0.01 * rng.normal(size=shape)
    errors[..., 0] = 1
    bound = np.where(np.arange(4) == 0, 1, errors / error) + np.where(np.arange(4) == 3, np.nan, 0)
    return xr.Dataset(
        {
            "reduction_error": (dims, errors),
            "reduction_bound": (dims, bound),
            "context_effect": (dims[:3], np.full(shape[:3], effect) + 0.01 * rng.normal(size=shape[:3])),
        },
        coords={"seed": [0, 1, 2], "step": list(steps), "layer": [1, 2], "reduction": list(claim.REDUCTIONS)},
    )


_, failing, outcome = judged(claim.check)


def test_the_check_tells_small_errors_and_small_effects():
    assert outcome(made_up()) is Outcome.HOLDS
    assert len(failing(made_up(left=0.3))) == 12
    assert len(failing(made_up(effect=0.3))) == 4
    assert outcome(made_up(error=1.1)) is Outcome.UNDECIDED
