"""Patches of rank one: exact at their own query in every kind of block, and what they are at others."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import language_models as files
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.core.prompt import RegressionPrompt, TokenPrompt
from icllab.models import BlockOptions, Interleaved, Joined, Transformer, best_patch, pretrained, rank_one_patch
from icllab.models.contexts.patches import block_inputs, patch_errors, rank_one

RNG = np.random.default_rng(5)
DIM, LENGTH = 3, 4


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def drawn(*shape):
    return jnp.asarray(RNG.normal(size=shape))


def prompt():
    return RegressionPrompt(x=drawn(LENGTH + 1, DIM), y=drawn(LENGTH + 1))


def asked(context, queries):
    """Prompts of one context and many queries, and the queries alone."""
    many = jax.vmap(lambda x: RegressionPrompt(x=context.x.at[-1].set(x), y=context.y))(queries)
    return many, jax.vmap(lambda one: one.alone(LENGTH))(many)


def transformer(norm="pre", mlp=(6,), layers=2, arrangement=None, positions="learned"):
    block = BlockOptions(heads=2, mlp=mlp, norm=norm, nonlinearity="gelu")
    fields = {"dim": DIM, "width": 8, "layers": layers, "positions": positions, "length": LENGTH}
    return Transformer(arrangement or Interleaved(), **fields, block=block, key=jax.random.key(1))


def test_a_layer_makes_of_one_input_what_it_made_of_another():
    """With and without a skip connection, as in the theorem."""
    weight, second, bias, offset = (RNG.normal(size=shape) for shape in ((5, 7), (7, 5), 7, 5))
    target, given = RNG.normal(size=(2, 5))
    change = np.asarray(rank_one(jnp.asarray(weight), jnp.asarray(target), jnp.asarray(given)))
    np.testing.assert_allclose(given @ (weight + change), target @ weight, rtol=1e-12)
    values = np.linalg.svd(change, compute_uv=False)
    assert values[1] < 1e-15 * values[0]
    # Least norm: it is orthogonal to all changes that do nothing to ``given``.
    nothing = RNG.normal(size=(5, 7))
    nothing = nothing - np.outer(given, given @ nothing) / np.sum(given**2)
    assert abs(np.sum(nothing * change)) < 1e-13

    def block(a, w, b2, skip):
        return skip * a + np.tanh(a @ w + bias) @ second + b2

    for skip in (0, 1):
        patched = block(given, weight + change, offset + skip * (target - given), skip)
        np.testing.assert_allclose(patched, block(target, weight, offset, skip), rtol=1e-12)


def test_patches_of_one_example_after_the_other_are_the_patch_of_all():
    weight, inputs = drawn(5, 7), drawn(4, 5)
    given = inputs[0]
    steps = [rank_one(weight, later - earlier + given, given) for earlier, later in itertools.pairwise(inputs)]
    np.testing.assert_allclose(sum(steps), rank_one(weight, inputs[-1], given), rtol=1e-11)


@eqx.filter_jit
def answers(fields, given, other):
    """The patch, its model's answer to ``other``, and the unpatched answers to ``given`` and to ``other``."""
    model = transformer(**dict(fields))
    patch = rank_one_patch(model, given, other)
    return patch, patch.applied(model)(other)[-1], model(given)[-1], model(other)[-1]


JOINED = Joined(answers="every", causal=True, query_is_key=True)


@pytest.mark.parametrize(
    ("fields", "other"),
    [
        ({"norm": "none", "layers": 1}, lambda given: given.alone(LENGTH)),
        pytest.param({"norm": "pre", "mlp": (6, 5)}, lambda given: given.alone(LENGTH, size=3), marks=pytest.mark.slow),
        ({"norm": "post", "mlp": (), "arrangement": JOINED, "positions": "rotary"}, lambda given: prompt()),
    ],
)
def test_the_patched_transformer_answers_the_query_as_it_did_after_the_context(fields, other):
    """All of the context is left out, or a part of it; or it is another prompt: the formula knows of no contexts."""
    given = prompt()
    patch, patched, wanted, plain = answers(tuple(fields.items()), given, other(given))
    np.testing.assert_allclose(patched, wanted, atol=1e-12)
    assert abs(float(plain - wanted)) > 1e-3
    for change in patch.first:
        values = np.linalg.svd(change.weight, compute_uv=False)
        assert values[1] < 1e-13 * values[0]
        np.testing.assert_array_equal(change.bias, np.zeros_like(change.bias))


@eqx.filter_jit
def _patches(full, alone):
    """The patch of the first query and the best one for it; the best for all; errors of the first, and what is read."""
    model = transformer(layers=1)
    one, alone_one = (jax.tree.map(lambda leaf: leaf[:1], prompts) for prompts in (full, alone))
    exact = rank_one_patch(model, *(jax.tree.map(lambda leaf: leaf[0], prompts) for prompts in (one, alone_one)))
    best = best_patch(model, full, alone, affine=True)
    inputs = block_inputs(model, full)[0], block_inputs(model, alone)[0]
    returned = exact, best_patch(model, one, alone_one, affine=False), best
    return returned, patch_errors(model, exact, full, alone), inputs, model.blocks[0].mlp.layers[0].weight


@pytest.fixture(scope="module")
def many():
    with jax.enable_x64(True):
        return _patches(*asked(prompt(), drawn(12, DIM)))


def test_at_another_query_a_patch_is_another(many):
    _, (patched, plain), *_ = many
    assert patched[0] < 1e-12
    assert (np.asarray(patched)[1:] > 1e-3).all()
    assert (np.asarray(plain) > 1e-3).all()


def test_the_best_patch_of_one_query_is_the_patch_of_rank_one(many):
    exact, alone, _ = many[0]
    for one, other in zip(jax.tree.leaves(alone), jax.tree.leaves(exact), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-11)


def test_the_best_patch_of_many_queries_is_a_regression_of_what_the_first_layer_gives(many):
    (*_, best), _, ((read, stream), (other, other_stream)), weight = many
    wanted, other = np.asarray(read - other) @ np.asarray(weight), np.asarray(other)
    design = np.concatenate([other, np.ones((len(other), 1))], axis=1)
    fitted = design @ np.linalg.lstsq(design, wanted, rcond=None)[0]
    change = best.first[0]
    np.testing.assert_allclose(other @ np.asarray(change.weight) + np.asarray(change.bias), fitted, atol=1e-9)
    np.testing.assert_allclose(best.last[0], np.mean(stream - other_stream, axis=0), atol=1e-13)


FAMILIES = {
    "llama": files.LLAMA,
    "parallel": files.NEOX,
    "biased gates": {**files.LLAMA, "mlp_bias": True},
    "gpt2": files.GPT2,
    "in turn": {**files.NEOX, "use_parallel_residual": False},
    "qwen2": files.QWEN2,
}


def language_model(config, folder):
    """A model of a family at random weights, in float64."""
    pytest.importorskip("safetensors")
    weights = files.drawn(config)
    if config.get("mlp_bias"):
        names = [name for name in weights if ".mlp." in name]
        weights |= {name.replace("weight", "bias"): RNG.normal(size=len(weights[name])) for name in names}
    weights = {name: value.astype(np.float64) for name, value in weights.items()}
    return pretrained.load(files.write_folder(folder / "model", config, weights))


def texts(*rows):
    """Stacked prompts of token ids; the last id of a prompt is no part of it."""
    return jax.vmap(TokenPrompt)(jnp.asarray(rows, jnp.int32))


@eqx.filter_jit
def _language(model, prompts, alone):
    """The patch of the first query; answers after the context, without a patch, with it, and with the best of all."""
    one, alone_one = (jax.tree.map(lambda leaf: leaf[0], batch) for batch in (prompts, alone))
    patches = rank_one_patch(model, one, alone_one), best_patch(model, prompts, alone, affine=False)
    models = model, *(patch.applied(model) for patch in patches)
    return patches[0], jax.vmap(model)(prompts)[:, -1], [jax.vmap(m)(alone)[:, -1] for m in models]


@pytest.mark.parametrize(
    "name", [name if i < 2 else pytest.param(name, marks=pytest.mark.slow) for i, name in enumerate(FAMILIES)]
)
def test_every_family_of_language_models_is_patched_exactly(name, tmp_path):
    """At its query the patch gives all logits after the context. The best patch of three queries does so at each of
    them where no bias stands for the change of the stream."""
    model = language_model(FAMILIES[name], tmp_path)
    rows = [[3, 1, 4, 1, 5, last, 0] for last in (7, 2, 9)]
    results = _language(model, texts(*rows), texts(*(row[4:] for row in rows)))
    exact, wanted, (plain, patched, fitted) = results
    scale = float(jnp.abs(wanted).max())
    np.testing.assert_allclose(patched[0], wanted[0], rtol=0, atol=1e-12 * scale)
    assert (np.abs(np.asarray(wanted - plain)).max(axis=1) > 1e-2 * scale).all()
    assert (np.abs(np.asarray(wanted - patched)).max(axis=1)[1:] > 1e-2 * scale).all()
    gated, biased = hasattr(model.blocks[0].mlp, "gate"), model.blocks[0].mlp.layers[-1].bias is not None
    assert len(exact.gates) == (len(model.blocks) if gated else 0)
    if not biased:
        np.testing.assert_allclose(fitted, wanted, rtol=0, atol=1e-9 * scale)
    changes = [change.weight for change in exact.first + exact.gates] + ([] if biased else list(exact.last))
    for change in changes:
        values = np.linalg.svd(change, compute_uv=False)
        assert values[1] < 1e-13 * values[0] or values[0] < 1e-13
    assert all((of.ndim == 1) == biased for of in exact.last)
    if name == "parallel":  # the first block reads the query's token alone, with the context and without
        np.testing.assert_array_equal(exact.first[0].weight, 0)


def test_attention_alone_is_refused():
    model = eqx.filter_eval_shape(transformer, mlp=None)
    with pytest.raises(InputError, match="model: expected dense layers in every block, got 'attention only'"):
        rank_one_patch(model, prompt(), prompt())
