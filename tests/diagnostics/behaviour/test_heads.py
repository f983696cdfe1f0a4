"""Measures of patterns that are known, and the same ones on a network, a head of strengths and a stated head."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.core.protocols import Trace
from icllab.diagnostics import StatedHead, head_scores, item_label_measures, progress_measures
from icllab.diagnostics.behaviour import heads, item_label_heads
from icllab.diagnostics.behaviour.answers import answers, sample_prompts
from icllab.models import (
    BlockOptions,
    DeepSets,
    Interleaved,
    ItemLabelNetwork,
    Joined,
    MinimalHead,
    Tokens,
    Transformer,
)
from icllab.tasks import ItemLabel, LinearRegression, RepeatedTokens
from icllab.theory import induction_landscape

PAIRS, LABELS = 4, 9
KEY = jax.random.key(5)

# Each of them is one program, not one for every operation.
context_labels = jax.jit(item_label_heads.context_labels)
diagonal_induction_score = jax.jit(heads.diagonal_induction_score)
duplicate_token_score = jax.jit(heads.duplicate_token_score)
induction_score = jax.jit(heads.induction_score)
item_label_attention = jax.jit(item_label_heads.item_label_attention)
label_attention = jax.jit(item_label_heads.label_attention)
prefix_matching_score = jax.jit(heads.prefix_matching_score)
previous_token_score = jax.jit(heads.previous_token_score)
target_attention = jax.jit(item_label_heads.target_attention)
target_induction_score = jax.jit(item_label_heads.target_induction_score)


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


@eqx.filter_jit
def task(key, dim=6):
    return ItemLabel.init(classes=None, labels=LABELS, pairs=PAIRS, dim=dim, no_repeats=True, key=key)


@eqx.filter_jit
def drawn(law, key):
    """One prompt."""
    return law.sample(key=key)


def even(tokens):
    positions = np.tril(np.ones((tokens, tokens)))
    return jnp.asarray(positions / positions.sum(1, keepdims=True))


def test_previous_token_score(float64):
    assert previous_token_score(jnp.asarray(np.eye(5, k=-1))) == 1
    np.testing.assert_allclose(previous_token_score(even(4)), np.mean([1 / 2, 1 / 3, 1 / 4]), rtol=1e-12)
    pair = jnp.asarray([np.eye(5), np.eye(5, k=-1)])
    np.testing.assert_array_equal(previous_token_score(pair), [0, 1])


def test_item_label_attention_counts_labels_only(float64):
    """Attention of items to the label before them does not count."""
    pattern = np.zeros((5, 5))
    pattern[1, 0], pattern[2, 1], pattern[3, 2], pattern[4, 3] = 0.5, 1.0, 0.7, 1.0
    np.testing.assert_allclose(item_label_attention(jnp.asarray(pattern)), 0.6, rtol=1e-12)


def test_prefix_matching_counts_what_followed(float64):
    """Tokens 3 1 3 1 2: the third was seen first, so it is to attend to the second, and the fourth to the third."""
    tokens = jnp.array([3, 1, 3, 1, 2])
    pattern = np.zeros((5, 5))
    pattern[2, 1], pattern[3, 2], pattern[3, 1], pattern[4, 4] = 0.75, 0.5, 0.5, 1.0
    np.testing.assert_allclose(prefix_matching_score(jnp.asarray(pattern), tokens), (0.75 + 0.5) / 2, rtol=1e-12)
    # One of three and one of four keys are right; what is on the others counts for each of them.
    above = [0.75 - 0.0 / 2, 0.5 - 0.5 / 3]
    np.testing.assert_allclose(induction_score(jnp.asarray(pattern), tokens), np.mean(above), rtol=1e-12)
    assert np.isnan(prefix_matching_score(even(3), jnp.array([0, 1, 2])))


@pytest.mark.parametrize("first", [3, 9])
def test_the_diagonal_score_is_that_of_one_period_less_one(first, float64):
    """As ARENA has it; the first token may be one of beginning, which does not come again."""
    tokens = jnp.array([first, *[1, 2, 1, 5] * 2])
    pattern = np.random.default_rng(0).uniform(size=(9, 9))
    known = np.diagonal(pattern, 1 - 4).mean()
    np.testing.assert_allclose(diagonal_induction_score(jnp.asarray(pattern), tokens), known, rtol=1e-12)
    assert np.isnan(diagonal_induction_score(jnp.asarray(pattern), tokens.at[7].set(4)))


def test_duplicate_tokens_are_the_earlier_ones(float64):
    """Tokens 3 1 3 3: the third has one earlier occurrence, the fourth two; no token counts for itself."""
    pattern = np.arange(16.0).reshape(4, 4)
    known = (pattern[2, 0] + pattern[3, 0] + pattern[3, 2]) / 2
    np.testing.assert_allclose(duplicate_token_score(jnp.asarray(pattern), jnp.array([3, 1, 3, 3])), known, rtol=1e-12)
    assert np.isnan(duplicate_token_score(even(3), jnp.array([0, 1, 2])))


def test_an_even_attention_has_an_induction_score_of_zero_and_a_perfect_one_of_one(float64):
    tokens = np.random.default_rng(0).integers(0, 6, 20)
    np.testing.assert_allclose(induction_score(even(20), jnp.asarray(tokens)), 0, atol=1e-15)
    follows = np.array([[j >= 1 and j <= i and tokens[j - 1] == tokens[i] for j in range(20)] for i in range(20)])
    perfect = np.where(
        follows.any(1, keepdims=True), follows / np.maximum(follows.sum(1, keepdims=True), 1), np.eye(20)
    )
    np.testing.assert_allclose(induction_score(jnp.asarray(perfect), jnp.asarray(tokens)), 1, rtol=1e-12)
    np.testing.assert_allclose(prefix_matching_score(jnp.asarray(perfect), jnp.asarray(tokens)), 1, rtol=1e-12)


def test_attention_to_labels(float64):
    row = jnp.array([0.1, 0.2, 0.0, 0.3, 0.4])
    matches = jnp.array([False, True])
    np.testing.assert_allclose([target_attention(row, matches), label_attention(row)], [0.3, 0.5], rtol=1e-12)
    np.testing.assert_allclose(target_induction_score(row, matches), 0.1, rtol=1e-12)
    on_two = jnp.array([0.0, 0.8, 0.0, 0.2, 0.0])
    np.testing.assert_allclose(target_induction_score(on_two, jnp.array([True, False])), 2 * 0.8 - 1, rtol=1e-12)


def test_labels_of_the_context(float64):
    logits = jnp.asarray(np.log([0.1, 0.2, 0.3, 0.4]))
    np.testing.assert_allclose(context_labels(logits, jnp.array([1, 2, 2])), [0, 0.5], rtol=1e-12)
    np.testing.assert_allclose(context_labels(logits, jnp.array([3, 0, 3])), [1, 0.5], rtol=1e-12)


@pytest.mark.parametrize("beta2", [pytest.param(0.0, marks=pytest.mark.slow), 1.5])
def test_a_stated_head_is_the_landscape(beta2, float64, getkey):
    """With y, z and z' of the landscape it has these measures, and the landscape's loss on every prompt."""
    beta, alpha, xi = 1.2, 2.5, 7.0
    y = induction_landscape.previous_token_attention(beta, pairs=PAIRS)
    weights = np.exp([alpha * y + beta2, beta2, 0.0])
    z, second = weights[:2] / (weights @ [1, PAIRS - 1, PAIRS + 1])
    law, head = task(getkey()), StatedHead(y, z, second, xi, LABELS)
    result = progress_measures(head, law, key=getkey(), prompts=16)
    stated_head = {"item_label_attention": y, "target_attention": z, "label_attention": z + (PAIRS - 1) * second}
    for name, value in (stated_head | {"induction_score": z - second, "context_label_accuracy": 1.0}).items():
        np.testing.assert_allclose(result[name], value, rtol=1e-12)
        np.testing.assert_allclose(result[f"{name}_error"], 0, atol=1e-12)
    loss = induction_landscape.loss(beta, alpha, xi, beta2=beta2, pairs=PAIRS, labels=LABELS)
    prompt = drawn(law, getkey())
    trace, single = eqx.filter_jit(lambda p: (trace := head.trace(p), law.loss(trace.prediction, p)))(prompt)
    np.testing.assert_allclose(single, [loss], rtol=1e-12)
    np.testing.assert_allclose(np.asarray(trace.activations["attention1"]).sum(axis=1), 1, rtol=1e-12)


def test_a_head_of_strengths_has_the_measures_of_its_strengths(float64, getkey):
    """Its first layer exactly: a label sees 2k tokens; its second in the limit of a strong match."""
    law = task(getkey(), dim=64)
    beta = 2.0
    result = progress_measures(MinimalHead.reading(labels=LABELS, beta1=beta, xi=1.0), law, key=getkey(), prompts=8)
    positions = 2 * np.arange(1, PAIRS + 1)
    np.testing.assert_allclose(result["item_label_attention"], np.mean(np.exp(beta) / (np.exp(beta) + positions - 1)))
    np.testing.assert_allclose(result["label_attention"], PAIRS / (2 * PAIRS + 1), rtol=1e-12)
    strong = MinimalHead.reading(labels=LABELS, beta1=30.0, alpha=100.0, beta2=100.0, xi=1.0)
    result = progress_measures(strong, law, key=getkey(), prompts=8)
    np.testing.assert_allclose([result["target_attention"], result["induction_score"]], 1, atol=1e-6)


@eqx.filter_jit
def measured(model, prompt):
    trace = model.trace(prompt)
    return trace.activations, item_label_measures(trace, prompt)


@pytest.mark.parametrize("layers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_measures_of_networks_of_one_and_two_layers(layers, getkey):
    law = task(getkey())
    model = eqx.filter_jit(lambda key: ItemLabelNetwork.from_task(law, layers=layers, key=key))(getkey())
    activations, result = measured(model, drawn(law, getkey()))
    result = np.asarray(result)
    row = np.asarray(activations[f"attention{layers}"])
    np.testing.assert_allclose(result[item_label_heads.MEASURES.index("label_attention")], row[1::2].sum(), rtol=1e-6)
    assert np.isnan(result[item_label_heads.MEASURES.index("item_label_attention")]) == (layers == 1)


def test_scores_of_all_heads_of_a_transformer(getkey):
    task = RepeatedTokens(vocabulary=6, period=4)
    block = BlockOptions(heads=2, mlp=None, norm="none")
    shape = {"dim": 6, "width": 8, "layers": 2, "block": block, "positions": "learned", "length": 8}
    model = eqx.filter_jit(lambda key: Transformer(Tokens(6), **shape, key=key))(getkey())
    result = head_scores(model, task, key=getkey(), prompts=64)
    assert list(result.attention_head.values) == ["block0.0", "block0.1", "block1.0", "block1.1"]
    assert result.attrs["warnings"] == []
    for name in heads.SCORES:
        assert np.isfinite(result[name]).all()
        assert (result[f"{name}_error"] < 0.1).all()
    assert (abs(result["induction_score"]) < 0.4).all()  # untrained


def test_every_column_is_the_score_of_the_patterns_in_the_trace(getkey):
    """Keys after a token count neither as right nor as wrong keys."""
    sequences, key = RepeatedTokens(vocabulary=6, period=4), getkey()
    block = BlockOptions(heads=2, mlp=None, norm="none")
    shape = {"dim": 6, "width": 8, "layers": 1, "block": block, "positions": "learned", "length": 8, "std": 1.0}
    model = eqx.filter_jit(lambda key: Transformer(Tokens(6), **shape, key=key))(getkey())
    result = head_scores(model, sequences, key=key, prompts=4)
    prompts = sample_prompts(sequences, key=key, prompts=4)
    trace = eqx.filter_jit(jax.vmap(lambda prompt: model.trace(prompt).activations["block0.attention.pattern"]))
    patterns, tokens = trace(prompts), prompts.tokens[:, :-1]
    for name in heads.SCORES:
        score = globals()[name]
        rows = [
            score(pattern, *([] if name == "previous_token_score" else [t]))
            for pattern, t in zip(patterns, tokens, strict=True)
        ]
        np.testing.assert_allclose(result[name], np.mean(rows, axis=0), rtol=2e-5, atol=1e-6)


@pytest.mark.slow
def test_other_prompts_have_the_previous_token_score_alone(getkey):
    law = task(getkey())
    result = head_scores(ItemLabelNetwork.from_task(law, key=getkey()), law, key=getkey(), prompts=4)
    assert list(result.attention_head.values) == ["attention1.0", "attention2.0"]
    assert result.attrs["warnings"] == [
        "attention2: 1 of 9 tokens attend, those that answer; its scores are means over these"
    ]
    assert "induction_score" not in result


def patterns_of(task, model, count=4):
    """Patterns of both blocks on the prompts of the scores."""
    prompts = sample_prompts(task, key=KEY, prompts=count)
    rows = []
    for i in range(count):
        activations = model.trace(jax.tree.map(lambda leaf, i=i: leaf[i], prompts)).activations
        rows.append([np.asarray(activations[f"block{b}.attention.pattern"]) for b in range(2)])
    return rows


def test_the_last_block_of_interleaved_examples_is_scored_on_its_queries():
    task = LinearRegression.convention("garg", dim=2, length=3)
    block = BlockOptions(heads=2, mlp=None, norm="none")
    shape = {"dim": 2, "width": 4, "layers": 2, "block": block, "positions": "none", "std": 1.0}
    model = Transformer(Interleaved(), **shape, key=KEY)
    result = head_scores(model, task, key=KEY, prompts=4)
    assert list(result.attention_head.values) == ["block0.0", "block0.1", "block1.0", "block1.1"]
    assert result.attrs["warnings"] == [
        "block1: 4 of 7 tokens attend, those that answer; its scores are means over these"
    ]
    first, last = zip(*patterns_of(task, model), strict=True)
    wanted = np.mean([np.diagonal(pattern, -1, 1, 2).mean(axis=1) for pattern in first], axis=0)
    np.testing.assert_allclose(result.previous_token_score[:2], wanted, rtol=1e-5)
    # Query i is token 2i, and the token before it is 2i - 1.
    wanted = np.mean([[[p[h, i, 2 * i - 1] for i in (1, 2, 3)] for h in (0, 1)] for p in last], axis=(0, 2))
    np.testing.assert_allclose(result.previous_token_score[2:], wanted, rtol=1e-5)


@pytest.mark.parametrize("query_is_key", [True, False])
def test_the_token_before_a_joined_query_is_the_example_before_it(query_is_key):
    task = LinearRegression.convention("garg", dim=2, length=3)
    block = BlockOptions(heads=2, mlp=None, norm="none")
    shape = {"dim": 2, "width": 4, "layers": 2, "block": block, "positions": "none", "std": 1.0}
    model = Transformer(Joined(answers="every", causal=True, query_is_key=query_is_key), **shape, key=KEY)
    result = head_scores(model, task, key=KEY, prompts=4)
    assert [note[:16] for note in result.attrs["warnings"]] == ["block1: 4 of 7 t"]
    first, last = zip(*patterns_of(task, model), strict=True)
    # Examples 0 to 2, then queries 0 to 3.
    pairs = [(1, 0), (2, 1), (4, 0), (5, 1), (6, 2)]
    wanted = np.mean([[[p[h, i, j] for i, j in pairs] for h in (0, 1)] for p in first], axis=(0, 2))
    np.testing.assert_allclose(result.previous_token_score[:2], wanted, rtol=1e-5)
    wanted = np.mean([[[p[h, i - 3, j] for i, j in pairs[2:]] for h in (0, 1)] for p in last], axis=(0, 2))
    np.testing.assert_allclose(result.previous_token_score[2:], wanted, rtol=1e-5)


def test_traces_without_patterns_are_refused():
    with pytest.raises(InputError, match="model: expected one whose trace has attention1, got \\[\\]"):
        item_label_measures(Trace(jnp.zeros((1, 3)), {}), None)


@pytest.mark.slow
def test_models_without_patterns_are_refused(getkey):
    regression = LinearRegression.convention("raventos", dim=2, length=3)
    model = DeepSets(dim=2, width=3, hidden=(3,), pool="mean", key=getkey())
    with pytest.raises(InputError, match="model: expected one whose trace has patterns"):
        head_scores(model, regression, key=getkey())


def test_scores_of_few_prompts_at_once_are_those_of_all(monkeypatch, getkey):
    law, fields = RepeatedTokens(vocabulary=5, period=3), {"positions": "rotary", "key": getkey()}
    block = BlockOptions(heads=2, mlp=None, norm="pre")
    model, key, blocks = Transformer(Tokens(5), dim=5, width=8, layers=2, block=block, **fields), getkey(), []
    whole = head_scores(model, law, key=key, prompts=5)
    monkeypatch.setattr(heads, "PATTERN_NUMBERS", 2 * 2 * 5 * 5)
    monkeypatch.setattr(
        heads, "answers", lambda *args, block, **kw: blocks.append(block) or answers(*args, block=block, **kw)
    )
    few = head_scores(model, law, key=key, prompts=5)
    assert blocks == [2]
    for name in few:
        np.testing.assert_allclose(few[name], whole[name], rtol=1e-5, atol=1e-6)


def test_heads_of_more_than_ten_blocks_have_their_own_names(getkey):
    """The one head with large queries and keys is named by its block; block10 does not stand before block2."""
    fields = {"positions": "rotary", "std": 1e-3, "key": getkey()}
    block = BlockOptions(heads=1, mlp=None, norm="pre")
    model = Transformer(Tokens(5), dim=5, width=8, layers=12, block=block, **fields)
    model = eqx.tree_at(lambda m: m.blocks[2].attention, model, replace_fn=lambda a: jax.tree.map(lambda w: 1e4 * w, a))
    scores = head_scores(model, RepeatedTokens(vocabulary=5, period=3), key=getkey(), prompts=2)
    assert list(scores.attention_head.values) == [f"block{i}.0" for i in range(12)]
    even = np.mean([1 / i for i in range(2, 6)])
    uneven = np.abs(scores.previous_token_score - even) > 1e-2
    assert list(scores.attention_head.values[uneven]) == ["block2.0"]
