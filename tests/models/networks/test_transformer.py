"""The transformer is what its formula says, causal at every setting, and open to edits at every name."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from drawing import prompt_of, with_normal_weights

import icllab as icl
from icllab.core.errors import InputError
from icllab.core.prompt import RegressionPrompt, TokenPrompt
from icllab.diagnostics.contexts.lens import residual_stream
from icllab.models import BlockOptions, Interleaved, Joined, Prefixed, Tokens, Transformer, edited
from icllab.models.contexts.prefixes import after
from icllab.models.networks.attention import Rotary
from icllab.models.networks.dense import GatedPerceptron
from icllab.models.networks.norms import LayerNorm, RMSNorm
from icllab.models.networks.parameters import parameter_count
from icllab.models.networks.transformer import TiedReadout
from icllab.tasks import ItemLabel, RepeatedTokens

BLOCK = BlockOptions(heads=2, mlp=(5,), norm="pre")
SMALL = {"dim": 3, "width": 8, "layers": 2, "positions": "none"}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def prompt():
    return prompt_of(0, positions=4, dim=3)


def rearranged(prompt, index):
    return RegressionPrompt(jnp.asarray(np.asarray(prompt.x)[index]), jnp.asarray(np.asarray(prompt.y)[index]))


def initialised(arrangement=None, **fields):
    """Fields of the blocks and of the transformer, told apart by their names."""
    options = {field.name for field in dataclasses.fields(BlockOptions)}
    block = dataclasses.replace(BLOCK, **{name: value for name, value in fields.items() if name in options})
    others = {name: value for name, value in fields.items() if name not in options}
    return Transformer(arrangement or Interleaved(), **(SMALL | others), block=block, key=jax.random.key(0))


def small(arrangement=None, **fields):
    """No weight is zero, and no scale of a layer norm is one."""
    return with_normal_weights(lambda: initialised(arrangement, **fields), seed=1)


@eqx.filter_jit
def answers(model, prompt):
    return model(prompt)


@eqx.filter_jit
def embedded(model, prompt):
    return model.embedding(prompt)[0]


def joined(answers="every", causal=True, query_is_key=False):
    return Joined(answers=answers, causal=causal, query_is_key=query_is_key)


def numbers(x):
    return np.asarray(x, np.float64)


def normed(norm, x):
    if isinstance(norm, RMSNorm):
        return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + norm.epsilon) * numbers(norm.scale)
    x = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + norm.epsilon)
    return x * numbers(norm.scale) + numbers(norm.shift)


def turned(x, place, rotary):
    """Complex numbers times phases: pairs are real and imaginary parts."""
    size = rotary.dim or x.shape[-1]
    first, second = np.arange(size).reshape(2, -1) if rotary.pairs == "halves" else np.arange(size).reshape(-1, 2).T
    phases = np.exp(1j * place[:, None] * rotary.base ** (-2 * np.arange(size // 2) / size))
    pairs = (x[..., first] + 1j * x[..., second]) * phases[:, None]
    x = x.copy()
    x[..., first], x[..., second] = pairs.real, pairs.imag
    return x


def attended(a, layout, seen):
    q, k, v = (np.einsum("iw,whd->ihd", seen, numbers(w)) for w in (a.query, a.key, a.value))
    if a.biases:
        q, k, v = (part + numbers(bias) for part, bias in zip((q, k, v), a.biases[:3], strict=True))
    if a.rotary:
        q, k = (turned(part, layout.place, a.rotary) for part in (q, k))
    k, v = (part[:, np.arange(q.shape[1]) // (q.shape[1] // part.shape[1])] for part in (k, v))
    visible = layout.visible & (layout.place[:, None] - layout.place < (a.window or np.inf))
    pattern = np.where(visible, np.exp(a.scale * np.einsum("ihd,jhd->hij", q, k)), 0)
    pattern = pattern / np.maximum(pattern.sum(axis=2, keepdims=True), 1e-300)
    y = np.einsum("hij,jhd,hdw->iw", pattern, v, numbers(a.output))
    return y if a.biases is None or a.biases.output is None else y + numbers(a.biases.output)


def affine(layer, seen):
    return seen @ numbers(layer.weight) + (0 if layer.bias is None else numbers(layer.bias))


def dense(mlp, seen):
    *inner, last = mlp.layers
    if isinstance(mlp, GatedPerceptron):
        return affine(last, np.maximum(affine(mlp.gate, seen), 0) * affine(inner[0], seen))
    for layer in inner:
        seen = np.maximum(affine(layer, seen), 0)
    return affine(last, seen)


def by_formula(model, prompt):
    """Every token through every block in NumPy; nothing is left out of the last."""
    layout = model.embedding.arrangement.layout(prompt.positions)
    x = numbers(embedded(model, prompt))
    for block in model.blocks:
        before = x
        for part in ("attention", "mlp"):
            if part == "mlp" and block.mlp is None:
                continue
            norm = block.norms[part == "mlp"] if block.norms else None
            seen = before if block.parallel else x
            seen = normed(norm, seen) if block.norm == "pre" else seen
            x = x + (dense(block.mlp, seen) if part == "mlp" else attended(block.attention, layout, seen))
            x = normed(norm, x) if block.norm == "post" else x
    x = normed(model.final_norm, x) if model.final_norm else x
    return (x[layout.read] @ numbers(model.readout.weight) + numbers(model.readout.bias))[:, 0]


@pytest.mark.parametrize(
    "arrangement", [Interleaved(labels=4), pytest.param(joined(query_is_key=True), marks=pytest.mark.slow)]
)
def test_rotary_positions_and_layer_norm_train_on_item_label_prompts(arrangement):
    """Whatever the place of the first token, the answer is the same."""
    items = ItemLabel.init(
        classes=None, labels=4, pairs=2, dim=6, position_dim=9, no_repeats=True, key=jax.random.key(0)
    )
    arrangement = dataclasses.replace(arrangement, labels=4)
    block = BlockOptions(heads=2, mlp=None, norm="pre", rotary=Rotary(pairs="adjacent"))
    model = Transformer(arrangement, dim=6, width=16, layers=2, block=block, positions="rotary", key=jax.random.key(1))
    prompt = items.sample(key=jax.random.key(2))
    moved = dataclasses.replace(prompt, shift=prompt.shift + 1)
    np.testing.assert_array_equal(answers(model, moved), answers(model, prompt))
    assert answers(model, prompt).shape == (3, 4)
    run = icl.fit(model, items, steps=3, key=jax.random.key(3), batch=8, optimizer=optax.sgd(0.1), positions="last")
    assert np.isfinite(run.dataset.training_loss).all()
    assert not np.array_equal(answers(run.member(0), prompt), answers(model, prompt))


@pytest.mark.parametrize(
    ("arrangement", "fields"),
    [
        (Interleaved(), {"norm": "pre", "positions": "learned", "length": 5}),
        pytest.param(Interleaved(), {"norm": "none", "mlp": None}, marks=pytest.mark.slow),
        pytest.param(joined(), {"norm": "post", "mlp": ()}, marks=pytest.mark.slow),
        (joined(query_is_key=True), {"norm": "pre", "mlp": (5, 4)}),
        (joined("last", causal=False, query_is_key=True), {"norm": "post", "layers": 1, "mlp": None}),
        (joined("last"), {"norm": "none", "width": None, "head_dim": 3, "positions": "one_hot", "length": 4}),
        (
            Interleaved(),
            {"norm": "pre", "norm_kind": "rms", "epsilon": 0.1, "window": 3, "positions": "rotary", "head_dim": 6}
            | {"rotary": Rotary(base=100.0, dim=4, pairs="adjacent")},
        ),
        (
            Interleaved(),
            {"norm": "pre", "parallel": True, "bias": True, "positions": "rotary", "head_dim": 6}
            | {"rotary": Rotary(base=50.0, dim=4)},
        ),
        (
            Interleaved(),
            {"norm": "pre", "gated": True, "mlp_bias": False, "bias": "qkv", "heads": 4, "kv_heads": 2}
            | {"positions": "rotary", "head_dim": 4},
        ),
        (joined(), {"norm": "pre", "gated": True, "heads": 4, "kv_heads": 1, "width": 8}),
    ],
)
def test_it_is_its_formula(arrangement, fields, prompt):
    """Also where the last block skips tokens that are not read, and the numbers of layer norms are not 1 and 0."""
    model = small(arrangement, nonlinearity="relu", **fields)
    np.testing.assert_allclose(answers(model, prompt), by_formula(model, prompt), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("norm", "positions"),
    [
        pytest.param("none", "none", marks=pytest.mark.slow),
        pytest.param("pre", "learned", marks=pytest.mark.slow),
        ("post", "one_hot"),
        ("pre", "rotary"),
    ],
)
def test_the_last_answer_of_a_prefix_is_the_answer_at_that_position(norm, positions, prompt):
    """Interleaved and joined alike; joined models that answer the last position agree with those that answer all."""
    fields = {"norm": norm, "positions": positions, "length": 6, "mlp": None}
    for arrangement in (Interleaved(), joined(query_is_key=True)):
        model = small(arrangement, **fields)
        every = np.asarray(answers(model, prompt))
        prefix = rearranged(prompt, slice(3))
        np.testing.assert_allclose(np.asarray(answers(model, prefix))[-1], every[2], rtol=1e-11)
    last = eqx.tree_at(lambda m: m.embedding.arrangement, model, joined("last", query_is_key=True))
    np.testing.assert_allclose(np.asarray(answers(last, prompt))[-1], every[-1], rtol=1e-11)


@pytest.mark.parametrize("arrangement", [Interleaved(), joined(), joined(query_is_key=True)])
@pytest.mark.parametrize("fields", [{"norm": "post", "weighting": "exponential"}, {"positions": "rotary"}])
def test_causality_is_an_exactly_zero_gradient(arrangement, fields, prompt):
    model = small(arrangement, **fields)
    jacobian = jax.jit(jax.jacobian(lambda p: model(p)))(prompt)
    i = np.arange(prompt.positions)
    assert np.all(np.asarray(jacobian.x)[i[:, None] < i] == 0)
    assert np.all(np.asarray(jacobian.y)[i[:, None] <= i] == 0)
    assert np.all(np.abs(np.asarray(jacobian.y)[1:, 0]) > 0)


def test_without_positions_joined_examples_have_no_order(prompt):
    turned = rearranged(prompt, [2, 0, 1, 3])
    for positions, alike in (("none", True), ("rotary", False)):
        model = small(joined("last", causal=False), positions=positions)
        assert np.allclose(answers(model, prompt), answers(model, turned), rtol=1e-11) == alike


def test_the_layer_norm_of_equinox():
    """In value, both Jacobians and the second derivative."""
    x = 2 + np.random.default_rng(0).normal(size=(3, 7))

    def derivatives(norm):
        of = (norm, jax.jacfwd(norm), jax.jacrev(norm), jax.jacfwd(jax.jacrev(norm)))
        return jax.jit(lambda x: [f(x) for f in of])(x)

    ours, theirs = derivatives(LayerNorm(7)), derivatives(jax.vmap(eqx.nn.LayerNorm(7)))
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-12)
    for our, their in zip(ours[1:], theirs[1:], strict=True):
        np.testing.assert_allclose(our, their, atol=1e-12)


def test_a_head_that_is_ablated_is_a_head_without_output_weights(prompt):
    model = small()

    def ablate(name, value):
        return value.at[:, 1].set(0) if name == "block0.attention.heads" else value

    of = lambda m: m.blocks[0].attention.output  # noqa: E731
    weights = np.array(of(model))
    weights[1] = 0
    without = answers(eqx.tree_at(of, model, jnp.asarray(weights)), prompt)
    np.testing.assert_allclose(answers(edited(model, ablate), prompt), without, rtol=1e-12)
    assert not np.allclose(answers(model, prompt), without)


def test_a_pattern_can_be_clamped_and_a_stream_patched(prompt):
    """Clamped to nothing, attention adds nothing; with the stream of another prompt, the answer is the other's."""
    model, other = small(), rearranged(prompt, slice(None, None, -1))

    @jax.jit
    def patched(prompt, stream, patch):
        return model.trace(prompt, lambda name, value: jnp.where(patch, stream, value) if name == "block0" else value)

    others = patched(other, np.zeros((7, 8)), False)
    np.testing.assert_array_equal(patched(prompt, others.activations["block0"], True).prediction, others.prediction)
    clamped = edited(model, lambda name, value: jnp.zeros_like(value) if name.endswith("pattern") else value)
    assert not np.any(eqx.filter_jit(clamped.trace)(prompt).activations["block0.attention"])


def test_the_names_in_order(prompt):
    model, names = small(), []
    eqx.filter_eval_shape(lambda: names.extend(model.trace(prompt).activations))
    parts = [f"attention.{part}" for part in ("queries", "keys", "values", "scores", "pattern", "heads")]
    block = [*parts, "attention", "middle", "mlp.hidden0", "mlp"]
    blocks = [name for i in (0, 1) for name in [*(f"block{i}.{part}" for part in block), f"block{i}"]]
    assert names == ["embedding", *blocks, "readout", "prediction"]


def test_activations_that_nobody_reads_are_not_kept():
    """The memory of a compiled prediction is that of one block, however many there are."""
    prompt = RegressionPrompt(x=jnp.zeros((65, 3)), y=jnp.zeros(65))

    def memory(layers):
        model = small(layers=layers, mlp=None)
        return jax.jit(lambda p: model(p)).lower(prompt).compile().memory_analysis()

    few, many = memory(4), memory(8)
    assert many.temp_size_in_bytes < 1.1 * few.temp_size_in_bytes
    assert few.output_size_in_bytes == 65 * 8


def test_the_law_of_the_weights():
    """What writes into the stream is smaller by the root of the number of writers."""
    model = initialised(width=100, heads=4, mlp=(200,), std=0.05)
    for weight, std in (
        (model.blocks[1].attention.query, 0.05),
        (model.blocks[1].attention.output, 0.025),
        (model.blocks[0].mlp.layers[0].weight, 0.05),
        (model.blocks[0].mlp.layers[1].weight, 0.025),
    ):
        assert abs(np.var(weight) / std**2 - 1) < 4 * (2 / weight.size) ** 0.5
    fan_in = initialised(width=100, heads=4, mlp=(200,)).blocks[0].mlp.layers[1].weight
    assert abs(np.var(fan_in) * 200 * 4 - 1) < 4 * (2 / fan_in.size) ** 0.5


def test_published_configurations(prompt):
    key = jax.random.key(0)
    paper = eqx.filter_eval_shape(lambda: Transformer.raventos(dim=8, length=15, key=key))
    assert (len(paper.blocks), paper.embedding.width, paper.blocks[0].attention.query.shape) == (8, 128, (128, 2, 64))
    lu = eqx.filter_eval_shape(lambda: Transformer.lu(dim=3, layers=2, dense=True, key=key))
    assert (lu.positions, len(lu.blocks), len(lu.blocks[0].mlp.layers), lu.blocks[0].norm) == ("last", 2, 1, "post")
    assert eqx.filter_eval_shape(lambda: Transformer.lu(dim=3, key=key)(prompt)).shape == (1,)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"norm": "batch"}, "unknown norm 'batch'; did you mean 'both'"),
        ({"layers": 0}, "layers: expected an integer of at least 1, got 0"),
        ({"heads": 3}, "heads: expected a divisor of the width 8, got 3"),
        ({"heads": 4, "kv_heads": 3}, "kv_heads: expected a divisor of the 4 heads, got 3"),
        ({"gated": True, "mlp": (5, 4)}, r"mlp: expected one hidden layer with a gate, \(width,\), got \(5, 4\)"),
        ({"bias": "kv"}, "bias: expected True or False, got 'kv'"),
        ({"nonlinearity": "gelo"}, "unknown activation 'gelo'"),
    ],
)
def test_bad_fields_are_refused(fields, message):
    with pytest.raises(InputError, match=message):
        eqx.filter_eval_shape(lambda: initialised(**fields))


IDS = TokenPrompt(jnp.array([2, 0, 1, 1, 3], jnp.int32))


def of_ids(tied, positions="none", **fields):
    shape = {"dim": 4, "width": 6, "layers": 1, "block": BlockOptions(heads=1, mlp=(5,), norm="pre"), "length": 4}
    return Transformer(Tokens(4, tied=tied), **(shape | fields), positions=positions, key=jax.random.key(3))


@pytest.mark.parametrize("positions", ["none", "one_hot"])
def test_a_tied_readout_is_the_embedding_and_its_gradients_add(positions):
    tied, untied = of_ids(True, positions), of_ids(False, positions)
    table = tied.embedding.projection.weight
    assert isinstance(tied.readout, TiedReadout)
    assert parameter_count(untied) - parameter_count(tied) == 4 * 6  # the other matrix
    np.testing.assert_array_equal(table, untied.embedding.projection.weight)
    same = eqx.tree_at(lambda m: m.readout.weight, untied, table[:4].T)
    np.testing.assert_allclose(answers(tied, IDS), answers(same, IDS), rtol=1e-12)

    @eqx.filter_jit
    @eqx.filter_grad
    def gradient(model):
        return jnp.sum(RepeatedTokens(4, 3).loss(model(IDS), IDS))

    of_tied, of_same = gradient(tied), gradient(same)
    wanted = np.array(of_same.embedding.projection.weight)
    wanted[:4] += np.asarray(of_same.readout.weight).T
    np.testing.assert_allclose(of_tied.embedding.projection.weight, wanted, rtol=1e-10)
    np.testing.assert_allclose(of_tied.readout.bias, of_same.readout.bias, rtol=1e-10)


def test_a_tied_transformer_is_prefixed_and_read_by_the_lens_as_it_is():
    tied = of_ids(True, layers=1)
    context, query = TokenPrompt(jnp.array([1, 3, 0], jnp.int32)), TokenPrompt(jnp.array([2, 0, 1], jnp.int32))
    prefixed = eqx.filter_jit(Prefixed.from_context(tied, context))
    whole = eqx.filter_jit(tied)
    np.testing.assert_allclose(prefixed(query), whole(after(context, query))[-2:], rtol=1e-9)
    names, read = residual_stream(tied)
    trace = eqx.filter_jit(tied.trace)(IDS)
    np.testing.assert_allclose(read(trace.activations[names[-1]][-1])[0], trace.prediction[-1], rtol=1e-9)


def test_what_cannot_be_tied_is_refused():
    with pytest.raises(InputError, match="width: expected a width for the tied table, got None"):
        of_ids(True, width=None, block=BlockOptions(heads=1, mlp=None, norm="none"))


def test_a_tied_transformer_goes_on_from_its_store_to_the_same_bits(tmp_path):
    with jax.enable_x64(False):
        model, task = of_ids(True, block=BlockOptions(heads=1, mlp=None, norm="none")), RepeatedTokens(4, 3)
        options = {"key": jax.random.key(5), "batch": 2, "optimizer": optax.sgd(0.1)}
        straight = icl.fit(model, task, steps=4, **options)
        icl.fit(model, task, steps=2, store=tmp_path, **options)
        resumed = icl.fit(model, task, steps=4, store=tmp_path, **options)
        opened = icl.load(tmp_path, model)
    wanted = jax.tree.leaves(eqx.filter(straight.members.member(0), eqx.is_array))
    assert sum(leaf.size for leaf in wanted) == parameter_count(model)
    for run in (resumed, opened):
        leaves = jax.tree.leaves(eqx.filter(run.members.member(0), eqx.is_array))
        for leaf, value in zip(leaves, wanted, strict=True):
            np.testing.assert_array_equal(leaf, value)


@pytest.mark.parametrize("bias", [True, False])
def test_a_large_vocabulary_is_looked_up(monkeypatch, bias):
    """The same numbers as the product with unit vectors, and the same gradients; ids of another vocabulary are NaN."""
    model = with_normal_weights(lambda: initialised(Tokens(7, tied=True), dim=7, positions="rotary"), seed=1)
    if not bias:
        model = eqx.tree_at(lambda m: (m.embedding.projection.bias, m.readout.bias), model, (None, None))
    ids = np.array([3, 1, 3, 6, 0], np.int32)

    def answers(ids):
        prompt = TokenPrompt(jnp.asarray(ids))
        value, gradient = eqx.filter_jit(eqx.filter_value_and_grad(lambda m: jnp.sum(jnp.sin(m(prompt)))))(model)
        return [value, *jax.tree.leaves(gradient)]

    theirs = answers(ids)
    logits = model.logits(ids[:-1])
    monkeypatch.setattr("icllab.models.networks.embedding.LOOKED_UP", 7)
    for ours, other in zip(answers(ids), theirs, strict=True):
        np.testing.assert_allclose(ours, other, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(model.trace(TokenPrompt(jnp.asarray(ids))).prediction.shape, logits.shape)
    traced = jax.jit(lambda ids: model(TokenPrompt(ids)))(jnp.asarray([7, 1, 2], jnp.int32))
    assert np.isnan(traced).all(axis=1).tolist() == [True, True]


def test_logits_of_ids():
    model = small(Tokens(7), dim=7, positions="learned", length=4)
    ids = [3, 1, 6]
    np.testing.assert_allclose(model.logits(ids), model(TokenPrompt(jnp.array([*ids, 0], jnp.int32))), rtol=1e-12)
    with pytest.raises(InputError, match="ids at 1: expected an id from 0 to 6, a vocabulary of 7, got 7"):
        model.logits([0, 7])
    with pytest.raises(InputError, match="ids: expected a sequence of at least one token id, got 'float64 of shape"):
        model.logits([0.5])
    with pytest.raises(InputError, match="model: expected a model of token ids"):
        small().logits([0])
