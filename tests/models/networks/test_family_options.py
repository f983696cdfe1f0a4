"""Options of blocks that published families need: each is its formula, and interventions honour it or name it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.core.prompt import TokenPrompt
from icllab.models import BlockOptions, Rotary, Tokens, Transformer, ablated, edited, path_patched, rank_one_patch
from icllab.models.contexts.frozen_entities import FrozenEntities
from icllab.models.contexts.prefixes import Prefixed, after
from icllab.models.interventions.heads import head_outputs
from icllab.models.interventions.recording import Recorder

IDS = np.array([3, 1, 4, 1, 5, 2, 0])
WIDTH, HEADS, DIM, VOCABULARY = 12, 3, 4, 7
FAMILIES = {
    "gemma": {"norm": "both", "norm_offset": 1.0, "qk_norm": "head", "score_cap": 2.0},
    "olmo": {"norm": "output", "qk_norm": "all"},
    "smollm": {"norm": "pre", "rotary": None},
}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def options(**fields):
    fields = {"norm_kind": "rms", "gated": True, "mlp": (10,), "nonlinearity": "silu", **fields}
    return BlockOptions(heads=HEADS, head_dim=DIM, kv_heads=1, **fields)


def transformer(*blocks, tokens=None):
    """A transformer all of whose arrays are random, norms included."""
    arrangement = Tokens(VOCABULARY, tied=True, scale=WIDTH**0.5, cap=3.0) if tokens is None else tokens
    fields = {"dim": VOCABULARY, "width": WIDTH, "layers": len(blocks), "positions": "rotary"}
    model = Transformer(arrangement, **fields, block=list(blocks), key=jax.random.key(0))
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda leaf: leaf + 0.5 * rng.normal(size=leaf.shape), model)


def prompt(ids=IDS):
    return TokenPrompt(jnp.asarray([*ids, 0], jnp.int32))


def rms(x, norm):
    return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + norm.epsilon) * (norm.scale + norm.offset)


def formula(model, ids):
    """Logits, every layer written out in NumPy."""
    model = jax.tree.map(np.asarray, model)
    arrangement, table = model.embedding.arrangement, model.embedding.projection.weight
    x = (table[ids] + model.embedding.projection.bias) * arrangement.scale
    places = np.arange(len(ids))
    for block in model.blocks:
        attention, norms = block.attention, block.norms
        reads, added = {
            "both": (norms[:2], norms[2:]),
            "output": (None, norms),
            "pre": (norms, None),
        }[block.norm]
        seen = x if reads is None else rms(x, reads[0])
        q, k, v = (np.einsum("tw,whd->thd", seen, w) for w in (attention.query, attention.key, attention.value))
        if attention.qk_norms is not None:
            shapes = [(-1, len(norm.scale)) for norm in attention.qk_norms]
            parts = zip((q, k), attention.qk_norms, shapes, strict=True)
            q, k = (rms(p.reshape(shape), norm).reshape(p.shape) for p, norm, shape in parts)
        if attention.rotary is not None:
            rates = attention.rotary.base ** (-2 * np.arange(DIM // 2) / DIM) / np.asarray(attention.rotary.factors)
            phases = np.exp(1j * places[:, None] * rates)[:, None]
            turned = [(p[..., : DIM // 2] + 1j * p[..., DIM // 2 :]) * phases for p in (q, k)]
            q, k = (np.concatenate([p.real, p.imag], -1) for p in turned)
        scores = np.einsum("ihd,jd->hij", q, k[:, 0]) / DIM**0.5
        cap = attention.score_cap
        scores = scores if cap is None else cap * np.tanh(scores / cap)
        seen_by = places[:, None] >= places
        if attention.window is not None:
            seen_by = seen_by & (places[:, None] - places < attention.window)
        weights = np.exp(scores) * seen_by
        weights /= weights.sum(-1, keepdims=True)
        out = np.einsum("hij,jd,hdw->iw", weights, v[:, 0], attention.output)
        x = x + (out if added is None else rms(out, added[0]))
        seen = x if reads is None else rms(x, reads[1])
        gate, first, last = block.mlp.gate, *block.mlp.layers
        gate = seen @ gate.weight + gate.bias
        out = gate / (1 + np.exp(-gate)) * (seen @ first.weight + first.bias) @ last.weight + last.bias
        x = x + (out if added is None else rms(out, added[1]))
    logits = rms(x, model.final_norm) @ table.T + model.readout.bias
    return arrangement.cap * np.tanh(logits / arrangement.cap)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_network_is_its_formula(name):
    rotary = Rotary(50.0, factors=(1.0, 3.0)) if "rotary" not in FAMILIES[name] else None
    model = transformer(
        options(**{**FAMILIES[name], "rotary": rotary}, window=3), options(**FAMILIES[name]), options(**FAMILIES[name])
    )
    np.testing.assert_allclose(model.logits(IDS), formula(model, IDS), rtol=1e-11)


def test_norms_begin_as_one():
    first = (
        Transformer(
            Tokens(5),
            dim=5,
            width=8,
            layers=1,
            block=options(norm="both", norm_offset=1.0),
            positions="none",
            key=jax.random.key(0),
        )
        .blocks[0]
        .norms[0]
    )
    np.testing.assert_array_equal(first.scale, 0)
    np.testing.assert_allclose(np.mean(np.square(first(jnp.ones((1, 8)) * 3))), 1, rtol=1e-5)


@pytest.mark.parametrize("name", [pytest.param("gemma", marks=pytest.mark.slow), "olmo", "smollm"])
def test_edits_heads_and_prefixes_are_honoured(name):
    """Replaced heads act through the norms after them, and a prefix of keys and values is the context."""
    model = transformer(options(**FAMILIES[name], window=3), options(**FAMILIES[name]))
    same = ablated(model, heads=[(0, 1)], outputs=head_outputs(model, prompt()))
    np.testing.assert_allclose(same(prompt()), model(prompt()), rtol=1e-12)
    removed = ablated(model, heads=[(0, 0), (0, 2)])
    output = model.blocks[0].attention.output.at[jnp.array([0, 2])].set(0)
    zero = eqx.tree_at(lambda m: m.blocks[0].attention.output, model, output)
    np.testing.assert_allclose(removed(prompt()), zero(prompt()), rtol=1e-12)
    assert float(jnp.abs(removed(prompt()) - model(prompt())).max()) > 1e-3
    doubled = edited(model, lambda name, value: 2 * value if name == "block0.attention.queries" else value)
    assert float(jnp.abs(doubled(prompt()) - model(prompt())).max()) > 1e-3
    context, query = prompt([3, 1, 4, 1]), prompt([5, 2, 0])
    prefixed, full = Prefixed.from_context(model, context)(query), model(after(context, query))
    np.testing.assert_allclose(prefixed, full[-len(prefixed) :], rtol=1e-11)


@pytest.mark.parametrize("name", ["gemma", "olmo"])
def test_what_is_exact_only_for_sums_of_heads_is_refused_by_name(name):
    model, norm = transformer(options(**FAMILIES[name]), options(**FAMILIES[name])), FAMILIES[name]["norm"]
    with pytest.raises(InputError, match=rf'^model: expected norm="pre" or "none", got {norm!r}; after a norm of what'):
        path_patched(model, [(0, 0)], [(1, 1)])
    with pytest.raises(InputError, match=rf"^model: expected dense layers whose output is added as it is.*{norm}"):
        rank_one_patch(model, prompt(), prompt([5, 2, 0]))
    with pytest.raises(InputError, match=r"^(score_cap|qk_norms): expected None"):
        FrozenEntities.heads(model, prompt(), frozen=3, layer=0)
    plain = transformer(options(norm=norm, rotary=None))
    with pytest.raises(InputError, match=rf"^norm: expected an output that is added as it is, got {norm!r}"):
        FrozenEntities.heads(plain, prompt(), frozen=3, layer=0)


def test_a_path_goes_through_norms_of_queries_caps_and_windows():
    """A receiver reads the stream without the sender, through all that its block does to queries and keys."""
    block = options(norm="pre", qk_norm="head", score_cap=1.0, window=4)
    model = transformer(block, block)
    activations, reader = model.trace(prompt()).activations, model.blocks[1]
    sent = activations["block0.attention.heads"][:, 1] @ model.blocks[0].attention.output[1]
    record = Recorder()
    reader.attention(reader.read(0, activations["block0"] - sent), model.embedding(prompt())[1], record)
    patched = path_patched(model, [(0, 1)], [(1, 2)]).trace(prompt()).activations["block1.attention.heads"]
    np.testing.assert_allclose(patched[:, 2], record.activations["heads"][:, 2], rtol=1e-12)
    np.testing.assert_array_equal(patched[:, :2], activations["block1.attention.heads"][:, :2])
    assert float(jnp.abs(patched - activations["block1.attention.heads"]).max()) > 1e-3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: options(norm="pre", norm_offset=1.0, norm_kind="layer"),
            "norm_offset: expected zero unless norm_kind",
        ),
        (lambda: transformer(options(norm="pre", qk_norm="heads")), "unknown qk_norm 'heads'; did you mean 'head'?"),
        (lambda: transformer(options(norm="pre", score_cap=0.0)), "score_cap: expected a finite number > 0"),
        (
            lambda: transformer(options(norm="pre", rotary=Rotary(factors=(1.0,)))),
            "factors: expected one for each of 2",
        ),
        (lambda: Rotary(factors=-1.0), "factors: expected a finite number > 0"),
        (lambda: Tokens(5, cap=-1.0), "cap: expected a finite number > 0"),
        (lambda: Tokens(5, scale=0.0), "scale: expected a finite number > 0"),
    ],
)
def test_bad_options_are_refused(make, message):
    with pytest.raises(InputError) as caught:
        make()
    assert str(caught.value).startswith(message), str(caught.value)
