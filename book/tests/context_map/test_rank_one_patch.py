"""What is measured of patches, against answers one by one; and the check on made-up errors."""

from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.context_map import _regression_transformers as shared
from iclbook.claims.context_map.rank_one_patch import claim
from iclbook.claims.context_map.rank_one_patch.measure import left_by_rank, measure
from icllab.lab.checks import Outcome
from icllab.models import best_patch, rank_one_patch
from icllab.models.contexts.weight_changes import best_change

POINT = SimpleNamespace(
    dim=2, length=3, layers=1, width=4, heads=2, contexts=2, queries=8, batch=4, step=(0,), seed=(1,)
)


@eqx.filter_jit
def answers(network, prompts, alone):
    """Of one context: with it, without it, with the patch of the first query, with the best affine patch of 1 to 8."""
    first, other = (jax.tree.map(lambda leaf: leaf[0], both) for both in (prompts, alone))
    some = [jax.tree.map(lambda leaf: leaf[1:9], both) for both in (prompts, alone)]
    patches = rank_one_patch(network, first, other), best_patch(network, *some, affine=True)
    return [
        jax.vmap(network)(prompts),
        *(jax.vmap(n)(alone) for n in (network, *(p.applied(network) for p in patches))),
    ]


@pytest.mark.slow
def test_errors_are_those_of_answers_at_the_queries_that_were_not_fitted():
    measured = measure(POINT, key=jax.random.key(0))
    found, left = measured["patch_error"][1][0, 0], measured["rank_left"][1][0, 0]
    of_networks, of_prompts = jax.random.split(jax.random.key(0))
    (network,) = shared.networks(1, (0,), POINT, key=of_networks)
    rng = np.random.default_rng([1, *np.asarray(jax.random.key_data(of_prompts))])
    with jax.enable_x64(True):
        prompts = shared.sample_prompts(rng, 2, 17, dim=2, length=3, examples=0)
        alone = jax.vmap(jax.vmap(lambda prompt: prompt.alone(3)))(prompts)
        each = [
            answers(shared.double(network), *(jax.tree.map(lambda x, i=i: x[i], p) for p in (prompts, alone)))
            for i in (0, 1)
        ]
    full, plain, patched, best = np.moveaxis(np.asarray(each)[..., 0], 1, 0)
    for at, with_patch in ((1, patched), (3, best)):
        squares = [np.mean((full - one)[:, 9:] ** 2) for one in (with_patch, plain)]
        np.testing.assert_allclose(found[at], (squares[0] / squares[1]) ** 0.5, rtol=1e-8)
    assert found[0] < 1e-10
    np.testing.assert_allclose(left[0], left[1])  # one block is the first and the last
    reversed_patches = measure(POINT, key=jax.random.key(0), sign=-1.0)["rank_left"][1][0, 0, 0]
    assert reversed_patches[3] > 1 > left[0, 3]


def test_what_a_rank_leaves_is_that_of_a_regression_of_reduced_rank():
    """Against NumPy: least squares on fitted rows, cut to the leading directions of what it gives there."""
    rng = np.random.default_rng(1)
    mean, scales = rng.normal(size=5), np.array([2.0, 1.0, 0.5, 0.2, 0.1])
    reads = mean + scales * rng.normal(size=(60, 5))
    targets = reads @ rng.normal(size=(5, 4)) + 0.3 * rng.normal(size=(60, 4)) + rng.normal(size=4)
    with jax.enable_x64(True):
        rows = [jnp.asarray(part) for part in (reads[:30], targets[:30], reads[30:], targets[30:])]
        left = left_by_rank(best_change(*rows[:2], affine=True), rows[0], *rows[2:])
    inputs, outputs = (part[:30] - part[:30].mean(axis=0) for part in (reads, targets))
    weight = np.linalg.lstsq(inputs, outputs, rcond=None)[0]
    directions = np.linalg.svd(inputs @ weight)[2]
    expected = []
    for rank in (0, 1, 2, 4):
        cut = weight @ directions[:rank].T @ directions[:rank]
        answers = targets[:30].mean(axis=0) + (reads[30:] - reads[:30].mean(axis=0)) @ cut
        expected.append(np.sum((targets[30:] - answers) ** 2) / np.sum(targets[30:] ** 2))
    np.testing.assert_allclose(left, expected, rtol=1e-8)


def test_prompts_of_a_context_share_its_examples_and_its_task():
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        prompts = shared.sample_prompts(rng, 40, 6, dim=2, length=30, examples=1)
    x, y = np.asarray(prompts.x), np.asarray(prompts.y)
    assert (x.shape, y.shape) == ((40, 6, 32, 2), (40, 6, 32))
    np.testing.assert_array_equal(x[:, :1, :30] - x[:, :, :30], 0)
    np.testing.assert_array_equal(y[:, :1, :30] - y[:, :, :30], 0)
    tasks = np.stack([np.linalg.lstsq(a[:, -1], b[:, -1], rcond=None)[0] for a, b in zip(x, y, strict=True)])
    noise = y - np.einsum("cqid,cd->cqi", x, tasks)
    np.testing.assert_allclose(noise[:, :, -1], 0, atol=1e-12)  # no noise at the query, and one task for all queries
    for part in (noise[:, 0, :30], noise[:, :, 30]):
        assert abs(np.mean(part**2) - shared.NOISE) < 4 * shared.NOISE * (2 / part.size) ** 0.5


@pytest.mark.slow
def test_networks_are_kept_at_the_steps_asked_for(getkey):
    key = getkey()
    (start,), kept = (shared.networks(1, steps, POINT, key=key) for steps in ((0,), (0, 2)))
    for one, other, later in zip(*(jax.tree.leaves(eqx.filter(n, eqx.is_array)) for n in (start, *kept)), strict=True):
        np.testing.assert_array_equal(one, other)
        assert np.abs(np.asarray(later - other)).max() <= 2.1 * shared.RATE
    assert kept[1].positions == "last"


def made_up(own=1e-14, other=1.0, best=0.7, rank=0.4, full=0.1, steps=(0, 2000)):
    rng = np.random.default_rng(0)
    shape = (3, len(steps), 4)
    errors = np.array([0, other, best, best]) + 0.01 * rng.normal(size=shape)
    errors[..., 0] = own
    left = np.array([0.9, rank, 0.3, full]) * np.exp(0.02 * rng.normal(size=(3, len(steps), 2, 4)))
    left[:, :, 1] = np.nan  # the last block is shown, not judged
    return xr.Dataset(
        {
            "patch_error": (("seed", "step", "patch"), errors),
            "rank_left": (("seed", "step", "block", "map_rank"), left),
        },
        coords={"seed": [0, 1, 2], "step": list(steps), "patch": list(claim.PATCHES)}
        | {"block": ["first", "last"], "map_rank": list(claim.RANKS)},
    )


_, failing, outcome = judged(claim.check)


def test_the_check_tells_each_part_of_the_claim():
    assert outcome(made_up()) is Outcome.HOLDS
    for changed, name in (
        ({"own": 1e-3}, "own"),
        ({"other": 0.5, "best": 0.2}, "other"),
        ({"rank": 0.1, "full": 0.01}, "rank"),
        ({"full": 0.35}, "full"),
    ):
        assert set(failing(made_up(**changed))) == {f"{name}[step={step}]" for step in (0, 2000)}
    assert set(failing(made_up(best=1.3))) == {"best[step=0]", "best[step=2000]"}
