"""What is particular to this claim: how heads are chosen and drawn, and its check on made-up losses."""

import equinox as eqx
import jax
import numpy as np
import xarray as xr
from judging import judged

from iclbook.claims.language import _heads
from iclbook.claims.language.induction_heads_in_a_real_model import claim
from icllab.lab.checks import Outcome
from icllab.models import BlockOptions, Tokens, Transformer
from icllab.models.interventions.heads import head_weights
from icllab.tasks import RepeatedTokens

MODEL = Transformer(
    Tokens(7),
    dim=7,
    width=8,
    layers=2,
    block=BlockOptions(heads=4, mlp=None, norm="pre"),
    positions="rotary",
    key=jax.random.key(0),
)


def test_heads_are_the_best_by_their_scores_and_others_are_of_the_same_blocks():
    scores = np.array([[0.1, 0.9, 0.3, 0.2], [0.8, 0.0, 0.5, 0.4]])
    assert _heads.best(scores, 3) == [(0, 1), (1, 0), (1, 2)]
    assert _heads.best(scores, 2, excluded=[(0, 1)]) == [(1, 0), (1, 2)]
    chosen, rng = [(1, 0), (1, 2), (0, 1)], np.random.default_rng(0)
    draws = [_heads.others(MODEL, rng, chosen, [*chosen, (0, 2)]) for _ in range(40)]
    for drawn in draws:
        assert len(set(drawn)) == 3
        assert [block for block, _ in drawn] == [1, 1, 0]
        assert not set(drawn) & {*chosen, (0, 2)}
    assert {head for drawn in draws for head in drawn} == {(1, 1), (1, 3), (0, 0), (0, 3)}


def test_losses_and_means_are_those_of_the_heads_named():
    task, key = RepeatedTokens(7, 3), jax.random.key(1)
    prompts = task.sample_many(3, key=key)
    means = _heads.mean_outputs(MODEL, prompts)
    outputs = jax.jit(jax.vmap(lambda prompt: MODEL.trace(prompt).activations["block1.attention.heads"]))(prompts)
    np.testing.assert_allclose(means[1], np.mean(outputs, axis=(0, 1)), rtol=1e-4, atol=1e-6)
    cut = eqx.tree_at(lambda m: m.blocks[1].attention.output, MODEL, replace_fn=lambda w: w.at[2].set(0.0))
    wanted = jax.jit(jax.vmap(lambda prompt: task.loss(cut(prompt), prompt)))(prompts)
    result = _heads.losses(MODEL, head_weights(MODEL, [(1, 2)]), 0 * means, task, prompts)
    np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)


def test_queries_are_permuted_and_nothing_else_is():
    permuted = _heads.with_permuted_queries(MODEL, np.random.default_rng(0))
    for before, after in zip(MODEL.blocks, permuted.blocks, strict=True):
        assert np.abs(before.attention.query - after.attention.query).max() > 0
        np.testing.assert_array_equal(*(np.sort(block.attention.query, axis=None) for block in (before, after)))
        assert eqx.tree_equal(*(eqx.tree_at(lambda b: b.attention.query, block, 0) for block in (before, after)))


def made_up(repeated=3.0, rise=8.0, random=0.3, depths=(11.0, 19.0), keys=8.0, queries=1.0, random_path=0.0):
    rng = np.random.default_rng(0)
    paths = np.array([[keys, random_path], [queries, 0.0], [0.5, 0.0]])
    values = {
        "half_loss": (("half",), [14.0, repeated]),
        "loss_rise": (("head_set",), [rise, random]),
        "depth": (("head_kind",), list(depths)),
        "path_rise": (("through", "head_set"), paths),
    }
    noisy = {
        name: (("seed", *dims), np.asarray(v) + 0.01 * rng.normal(size=(4, *np.shape(v))))
        for name, (dims, v) in values.items()
    }
    return xr.Dataset(noisy, coords={name: list(points) for name, points in claim.OUTPUTS.items()})


_, failing, outcome = judged(claim.check)


def test_the_check_tells_each_part_of_the_claim():
    assert outcome(made_up()) is Outcome.HOLDS
    for changed, name in (
        ({"repeated": 9.0}, "copied"),
        ({"random": 6.0}, "rise"),
        ({"depths": (19.0, 11.0)}, "depth"),
        ({"random_path": 6.0}, "path"),
        ({"queries": 6.0}, "keys"),
    ):
        assert failing(made_up(**changed)) == [name]
