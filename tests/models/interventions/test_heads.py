"""Heads of a transformer that are ablated, and read by some of the others only; against runs written out by hand."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from language_models import norm, turned

from icllab.core.errors import InputError
from icllab.core.prompt import TokenPrompt
from icllab.models import (
    BlockOptions,
    ItemLabelNetwork,
    Tokens,
    Transformer,
    ablated,
    edited,
    head_outputs,
    path_patched,
)
from icllab.models.interventions.heads import head_weights

HEADS, SHARED, DIM, BLOCKS, WIDTH = 4, 2, 8, 3, 32
PROMPT = TokenPrompt(jnp.asarray([3, 1, 4, 1, 5, 9, 2, 6]))
OTHER = TokenPrompt(jnp.asarray([2, 7, 1, 8, 2, 8, 1, 8]))
BLOCK = BlockOptions(heads=HEADS, kv_heads=SHARED, mlp=(16,), norm="pre", norm_kind="rms", nonlinearity="silu")


def transformer(block=BLOCK, layers=BLOCKS):
    arrangement = Tokens(13)
    return Transformer(
        arrangement, dim=13, width=WIDTH, layers=layers, block=block, positions="rotary", std=0.4, key=jax.random.key(0)
    )


MODEL = transformer()
OTHER_MODEL = ItemLabelNetwork(dim=4, position_dim=9, labels=4, depth=1, key=jax.random.key(0))
traced = eqx.filter_jit(lambda model, prompt: model.trace(prompt))


def numbers(model=MODEL, prompt=PROMPT):
    trace = traced(model, prompt)
    return {name: np.asarray(value, float) for name, value in trace.activations.items()}


PLAIN, FROM = numbers(), numbers(prompt=OTHER)
OUTPUTS = [FROM[f"block{i}.attention.heads"].astype(np.float32) for i in range(BLOCKS)]
NEAR = {"rtol": 2e-4, "atol": 2e-5}


def softmax_pattern(q, k):
    """The patterns [head, token, key] of turned queries and shared keys."""
    k = np.repeat(k, HEADS // SHARED, axis=1)
    scores = np.einsum("ihd,jhd->hij", q, k) / DIM**0.5
    scores = np.where(np.tri(len(q), dtype=bool), scores, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def received(sender, receiver, through):
    """The receiver's output [token, dim] by hand: the stream of its block, with another output of the sender."""
    (a, head), (b, reader) = sender, receiver
    change = (OUTPUTS[a] - PLAIN[f"block{a}.attention.heads"])[:, head] @ np.asarray(
        MODEL.blocks[a].attention.output[head]
    )
    attention, scale = MODEL.blocks[b].attention, np.asarray(MODEL.blocks[b].norms[0].scale)
    reads = {}
    for name, stream in (("plain", PLAIN[f"block{b - 1}"]), ("changed", PLAIN[f"block{b - 1}"] + change)):
        x = norm(stream, scale, epsilon=1e-5)
        q, k, v = (
            np.einsum("tw,whd->thd", x, np.asarray(w)) for w in (attention.query, attention.key, attention.value)
        )
        reads[name] = {"queries": turned(q, 10_000, DIM), "keys": turned(k, 10_000, DIM), "values": v}
    np.testing.assert_allclose(reads["plain"]["keys"], PLAIN[f"block{b}.attention.keys"], **NEAR)
    mixed = {name: reads["changed" if name in through else "plain"][name] for name in reads["plain"]}
    group = reader // (HEADS // SHARED)
    return softmax_pattern(mixed["queries"], mixed["keys"])[reader] @ mixed["values"][:, group]


@pytest.mark.parametrize("through", [("keys",), ("queries",), ("values",), ("queries", "keys", "values")])
def test_a_path_is_the_one_written_out_by_hand(through):
    sender, receiver = (0, 1), (2, 3)
    output = jnp.asarray(received(sender, receiver, through), jnp.float32)
    by_hand = edited(
        MODEL, lambda name, value: value.at[:, 3].set(output) if name == "block2.attention.heads" else value
    )
    patched = path_patched(MODEL, [sender], [receiver], through=through, outputs=OUTPUTS)
    wanted, result = numbers(by_hand), numbers(patched)
    np.testing.assert_allclose(result["prediction"], wanted["prediction"], **NEAR)
    assert np.abs(result["prediction"] - PLAIN["prediction"]).max() > 1e-3
    for shared in ("keys", "values", "pattern"):  # the heads of its group keep theirs
        np.testing.assert_array_equal(result[f"block2.attention.{shared}"], PLAIN[f"block2.attention.{shared}"])
    others = [0, 1, 2]
    np.testing.assert_array_equal(
        result["block2.attention.heads"][:, others], PLAIN["block2.attention.heads"][:, others]
    )


def test_senders_of_two_blocks_send_what_they_were_in_the_plain_run():
    """The later sender does not read the earlier one: their changes of the stream add up."""
    senders, weights = [(0, 1), (1, 2)], np.asarray(MODEL.blocks[2].attention.query)
    change = sum(
        (OUTPUTS[a] - PLAIN[f"block{a}.attention.heads"])[:, head] @ np.asarray(MODEL.blocks[a].attention.output[head])
        for a, head in senders
    )
    scale = np.asarray(MODEL.blocks[2].norms[0].scale)
    queries = turned(
        np.einsum("tw,whd->thd", norm(PLAIN["block1"] + change, scale, epsilon=1e-5), weights), 10_000, DIM
    )
    heads = softmax_pattern(queries, PLAIN["block2.attention.keys"])[3] @ PLAIN["block2.attention.values"][:, 1]
    patched = path_patched(MODEL, senders, [(2, 3)], through=("queries",), outputs=OUTPUTS)
    result = numbers(patched)["block2.attention.heads"]
    np.testing.assert_allclose(result[:, 3], heads, **NEAR)
    assert np.abs(heads - PLAIN["block2.attention.heads"][:, 3]).max() > 1e-3


def test_all_paths_of_a_head_make_up_its_replacement():
    """Without dense layers all readers of one block, and the stream itself, are all that a head acts by."""
    model = transformer(BlockOptions(heads=HEADS, kv_heads=SHARED, mlp=None, norm="pre"), layers=2)
    plain, other = numbers(model), numbers(model, OTHER)
    outputs = [other[f"block{i}.attention.heads"].astype(np.float32) for i in range(2)]
    change = (outputs[0] - plain["block0.attention.heads"])[:, 2] @ np.asarray(model.blocks[0].attention.output[2])
    paths = path_patched(model, [(0, 2)], [(1, i) for i in range(HEADS)], outputs=outputs)
    whole = numbers(ablated(model, heads=[(0, 2)], outputs=outputs))["block1"]
    np.testing.assert_allclose(numbers(paths)["block1"] + change, whole, **NEAR)
    assert np.abs(whole - plain["block1"] - change).max() > 1e-3


def test_a_path_from_a_head_to_itself_as_it_was_changes_nothing():
    outputs = head_outputs(MODEL, PROMPT)
    result = numbers(path_patched(MODEL, [(0, 0), (1, 3)], [(1, 0), (2, 1)], outputs=outputs))
    np.testing.assert_allclose(result["prediction"], PLAIN["prediction"], rtol=1e-5, atol=1e-6)


def test_ablated_heads_add_nothing_or_what_is_put_in_their_place():
    means = jnp.stack([jnp.mean(jnp.asarray(part), 0) for part in OUTPUTS])
    heads, kept = [(0, 1), (2, 3)], [0, 2, 3]
    for outputs, wanted in ((None, 0.0), (means, np.asarray(means[0, 1])[None]), (OUTPUTS, OUTPUTS[0][:, 1])):
        result = numbers(ablated(MODEL, heads=heads, outputs=outputs))["block0.attention.heads"]
        np.testing.assert_allclose(result[:, 1], np.broadcast_to(wanted, result[:, 1].shape), atol=1e-6)
        np.testing.assert_array_equal(result[:, kept], PLAIN["block0.attention.heads"][:, kept])
    silent = eqx.tree_at(
        lambda m: [m.blocks[i].attention.output for i in (0, 2)],
        MODEL,
        [MODEL.blocks[i].attention.output.at[h].set(0.0) for i, h in heads],
    )
    np.testing.assert_allclose(
        numbers(ablated(MODEL, heads=heads))["prediction"], numbers(silent)["prediction"], **NEAR
    )
    tokens = jnp.arange(len(PROMPT.tokens) - 1) == 4
    result = numbers(ablated(MODEL, heads=[(1, 0)], tokens=tokens))["block1.attention.heads"]
    changed = np.abs(result - PLAIN["block1.attention.heads"]).max(-1) > 0
    np.testing.assert_array_equal(np.argwhere(changed), [[4, 0]])


def test_other_heads_compile_nothing_again():
    compiled = []

    @jax.jit
    def prediction(weights, senders):
        compiled.append(1)
        return ablated(MODEL, heads=weights)(PROMPT), path_patched(MODEL, senders, weights)(PROMPT)

    for block, head in ((1, 0), (2, 3)):
        weights, senders = (np.zeros((BLOCKS, HEADS), np.float32) for _ in range(2))
        weights[block, head] = senders[0, 1] = 1
        results = prediction(weights, senders)
        models = ablated(MODEL, heads=[(block, head)]), path_patched(MODEL, [(0, 1)], [(block, head)])
        for result, model in zip(results, models, strict=True):
            np.testing.assert_allclose(result, numbers(model)["prediction"], rtol=1e-4, atol=1e-5)
    assert len(compiled) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ablated(MODEL, heads=[(3, 0)]), r"heads: expected a block below 3 and a head below 4, counted from 0"),
        (lambda: ablated(MODEL, heads=[(0, 4)]), r"heads: .* got \(0, 4\)"),
        (lambda: ablated(MODEL, heads=[(-1, 0)]), r"heads: .* got \(-1, 0\)"),
        (lambda: ablated(MODEL, heads=[]), r"heads: expected pairs \(block, head\)"),
        (lambda: ablated(MODEL, heads=(0, 1, 2)), r"heads: expected pairs \(block, head\)"),
        (lambda: ablated(MODEL, heads=[(0, True)]), r"heads: expected pairs \(block, head\)"),
        (lambda: ablated(MODEL, heads=np.zeros((4, 3))), r"heads: expected weights of shape \(3, 4\)"),
        (lambda: ablated(MODEL, heads=np.full((3, 4), 2.0)), r"heads: expected weights from 0 .kept. to 1 .replaced."),
        (lambda: ablated(MODEL), r"layer: expected 1 or 2, got None; or heads="),
        (lambda: ablated(MODEL, 1, heads=[(0, 0)]), r"layer: expected 1 or 2, got 1; or heads=.* without a layer"),
        (
            lambda: ablated(OTHER_MODEL, heads=[(0, 0)]),
            r"model: expected a Transformer, whose blocks have heads, got 'ItemLabelNetwork'",
        ),
        (lambda: path_patched(MODEL, [(1, 0)], [(1, 1)]), r"receivers: expected a head of a block after 1"),
        (lambda: path_patched(MODEL, [(0, 0)], [(1, 1)], through=("key",)), r"through.*key"),
        (lambda: path_patched(ablated(MODEL, heads=[(0, 0)]), [(0, 0)], [(1, 1)]), r"model: expected a Transformer"),
        (
            lambda: path_patched(transformer(BlockOptions(heads=4, mlp=None, norm="post")), [(0, 0)], [(1, 1)]),
            r"model: expected norm=\"pre\" or \"none\"",
        ),
    ],
)
def test_heads_and_paths_that_do_not_exist_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize("names", ["block1.0", ["a1.h0"], [(1, 0)]])
def test_a_head_has_three_names(names):
    weights = np.zeros((BLOCKS, HEADS))
    weights[1, 0] = 1
    assert np.array_equal(head_weights(transformer(), names), weights)


@pytest.mark.parametrize("names", ["layer1.0", ["a1h0"], ["block1"]])
def test_a_head_of_another_name_is_refused(names):
    with pytest.raises(InputError, match=r"expected a head such as 'block5\.1' or 'a5\.h1'"):
        head_weights(transformer(), names)
