"""What is particular to this claim: how heads are chosen and drawn, and its check on made-up losses."""

from types import SimpleNamespace

import equinox as eqx
import jax
import numpy as np
import xarray as xr
from judging import judged

from iclbook.claims.language import _heads, _models
from iclbook.claims.language.induction_heads_in_a_real_model import claim, measure
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

BLOCKS = [[*range(1, 17)], [*range(12, 28)]]


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


def made_up(repeated=3.0, rise=8.0, random=0.3, blocks=BLOCKS, keys=8.0, queries=1.0, senders=0.0, receivers=0.0):
    rng = np.random.default_rng(0)
    values = {
        "half_loss": (("half",), [14.0, repeated]),
        "loss_rise": (("head_set",), [rise, random]),
        "path_rise": (("path",), [keys, queries, 0.5, senders, receivers]),
    }
    noisy = {
        name: (("seed", *dims), np.asarray(v) + 0.01 * rng.normal(size=(4, *np.shape(v))))
        for name, (dims, v) in values.items()
    }
    noisy["block"] = (("seed", "head_kind", "head_rank"), np.tile(np.asarray(blocks, float), (4, 1, 1)))
    return xr.Dataset(noisy, coords={name: list(points) for name, points in claim.OUTPUTS.items()})


_, failing, outcome = judged(claim.check)


def test_the_check_tells_each_part_of_the_claim():
    assert outcome(made_up()) is Outcome.HOLDS
    for changed, name in (
        ({"repeated": 9.0}, "copied"),
        ({"random": 6.0}, "rise"),
        ({"blocks": BLOCKS[::-1]}, "depth"),
        ({"queries": 6.0}, "keys"),
        ({"senders": 6.0}, "senders"),
        ({"receivers": 6.0}, "receivers"),
    ):
        assert failing(made_up(**changed)) == [name]


def test_equal_draws_of_heads_leave_an_error_of_depth_over_heads():
    rng = np.random.default_rng(3)
    shares, errors = [], []
    for _ in range(400):  # heads of a model drawn anew, for each of which all prompts choose the same heads
        result = claim.deeper(made_up(blocks=[rng.integers(0, 20, 16), rng.integers(6, 30, 16)])["block"])
        shares.append(float(result.value))
        errors.append(float(result.error))
    exact = np.mean([[(b > a) + 0.5 * (b == a) for a in range(20)] for b in range(6, 30)])
    np.testing.assert_allclose(np.mean(shares), exact, atol=0.015)
    np.testing.assert_allclose(np.mean(np.square(errors)), np.var(shares), rtol=0.2)


def test_a_head_of_the_same_block_is_deeper_by_half():
    assert float(claim.deeper(made_up(blocks=np.full((2, 16), 7))["block"]).value) == 0.5


def test_each_path_has_the_ends_of_its_name(monkeypatch):
    asked, drawn = [], []

    def path_losses(model, senders, receivers, through, outputs, task, prompts):
        asked.append((np.asarray(senders), np.asarray(receivers), through))
        return np.zeros((2, 2 * task.period))

    def others(model, rng, heads, excluded):
        drawn.append([(block, 3) for block, _ in heads])
        return drawn[-1]

    scores = {
        "previous_token_score": np.array([[0.9, 0.1, 0.0, 0.0], [0.2, 0.0, 0.0, 0.0]]),
        "induction_score": np.array([[0.1, 0.0, 0.2, 0.0], [0.0, 0.9, 0.0, 0.0]]),
    }
    monkeypatch.setattr(measure._models, "opened", lambda name, network: _models.Opened(MODEL, None, ""))
    monkeypatch.setattr(measure, "head_scores", lambda *args, **options: scores)
    monkeypatch.setattr(_heads, "path_losses", path_losses)
    monkeypatch.setattr(_heads, "others", others)
    point = SimpleNamespace(
        model="", period=3, choice=2, prompts=2, sets=1, chosen=1, seed=[0], head_rank=(0, 2), path=claim.PATHS
    )
    result = measure.measure(point, key=jax.random.key(0))
    wanted = [((0, 0), (1, 1), name) for name in ("keys", "queries", "values")]
    wanted += [((0, 3), (1, 1), "keys"), ((0, 0), (1, 3), "keys")]
    for (senders, receivers, through), (sender, receiver, name) in zip(asked, wanted, strict=True):
        assert through == name
        np.testing.assert_array_equal(np.argwhere(senders), [sender])
        np.testing.assert_array_equal(np.argwhere(receivers), [receiver])
    blocks = dict(zip(claim.KINDS, np.asarray(result["block"][1])[0], strict=True))
    np.testing.assert_array_equal(blocks["previous-token"], [0, 0])
    np.testing.assert_array_equal(blocks["induction"], [1, 0])
