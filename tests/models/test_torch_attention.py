"""Heads of PyTorch modules: patterns and ablations against what the modules compute themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.diagnostics import head_effects, head_scores, per_length
from icllab.diagnostics.behaviour.item_label_heads import progress_measures
from icllab.models import FromTorch, Interleaved, Joined, ablated, edited, head_outputs
from icllab.tasks import ItemLabel, LinearRegression

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional
TASK, KEY = LinearRegression.convention("raventos", dim=3, length=5), jax.random.key(1)
PROMPT, PROMPTS = TASK.sample(key=KEY), TASK.sample_many(6, key=KEY)
HEADS, WIDTH, TOKENS = 2, 8, 6


class Own(nn.Module):
    """Attention as strangers write it, of one kind."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.inputs, self.outputs = kind, nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.normalise, self.drop = nn.Softmax(dim=-1), nn.Dropout(0.3)

    def forward(self, h):
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.inputs(h).chunk(3, -1))
        later = torch.ones(h.shape[1], h.shape[1], dtype=torch.bool).triu(1)
        scores = (q @ k.mT / 2).masked_fill(later, -torch.inf)
        if self.kind == "fused":
            out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        elif self.kind == "masked":
            out = functional.scaled_dot_product_attention(q, k, v, attn_mask=~later, scale=0.5)
        elif self.kind == "einsum":
            out = torch.einsum("bhij,bhjd->bihd", scores.softmax(-1), v).transpose(1, 2)
        elif self.kind == "three axes":
            out = torch.bmm(scores.flatten(0, 1).softmax(-1), v.flatten(0, 1)).unflatten(0, (-1, HEADS))
        elif self.kind == "linear":
            out = scores.masked_fill(later, 0) @ v
        else:
            out = self.drop(self.normalise(scores)) @ v
        return self.outputs(out.transpose(1, 2).flatten(-2))


class Network(nn.Module):
    def __init__(self, kind="softmax", layers=2):
        super().__init__()
        torch.manual_seed(0)
        self.read, self.answer = nn.Linear(4, WIDTH), nn.Linear(WIDTH, 1)
        self.blocks = nn.ModuleList(Own(kind) for _ in range(layers))

    def forward(self, x, y):
        h = self.read(torch.cat([x, functional.pad(y, (1, 0))[:, :-1, None]], -1))
        for block in self.blocks:
            h = h + block(h)
        return self.answer(h)[..., 0]


class Encoder(nn.Module):
    def __init__(self, batch_first=True, **options):
        super().__init__()
        torch.manual_seed(1)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, batch_first=batch_first, **options)
        self.read, self.body, self.answer = (
            nn.Linear(4, WIDTH),
            nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
            nn.Linear(WIDTH, 1),
        )
        self.first = batch_first

    def forward(self, x, y):
        h = self.read(torch.cat([x, functional.pad(y, (1, 0))[:, :-1, None]], -1))
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        h = self.body(h if self.first else h.transpose(0, 1), mask=mask, is_causal=True)
        return self.answer(h if self.first else h.transpose(0, 1))[..., 0]


KINDS = ["softmax", "fused", "masked", "einsum", "three axes"]
SOURCES = {kind: lambda kind=kind: Network(kind) for kind in KINDS}
SOURCES |= {"encoder": Encoder, "encoder, time first": lambda: Encoder(False, norm_first=True, bias=False)}


def output_layers(module):
    if isinstance(module, Encoder):
        return [layer.self_attn.out_proj for layer in module.body.layers]
    return [block.outputs for block in module.blocks]


@pytest.mark.parametrize("kind", SOURCES)
def test_ablation_equals_weights_set_to_zero(kind):
    module, model = SOURCES[kind](), FromTorch(SOURCES[kind]())
    trace = model.trace(PROMPT)
    np.testing.assert_allclose(trace.prediction, model(PROMPT), atol=2e-6)
    pattern = np.asarray(trace.activations["block1.attention.pattern"])
    assert pattern.shape == (HEADS, TOKENS, TOKENS)
    np.testing.assert_allclose(pattern.sum(-1), 1, atol=1e-5)
    assert not np.triu(pattern, 1).any()
    with torch.no_grad():
        output_layers(module)[0].weight[:, WIDTH // HEADS :] = 0
        output_layers(module)[1].weight[:, : WIDTH // HEADS] = 0
    without = ablated(model, heads=[(0, 1), (1, 0)])
    np.testing.assert_allclose(without(PROMPT), FromTorch(module)(PROMPT), atol=2e-6)
    np.testing.assert_allclose(without(PROMPTS), FromTorch(module)(PROMPTS), atol=2e-6)
    compiled = jax.jit(jax.vmap(without))(PROMPTS)
    np.testing.assert_allclose(compiled, FromTorch(module)(PROMPTS), atol=2e-6)


def test_patterns_are_those_of_the_module_itself():
    module = Encoder(norm_first=False).eval()
    model, layer = FromTorch(module), module.body.layers[0].self_attn
    hidden = []
    layer.register_forward_pre_hook(lambda _, arguments: hidden.append(arguments[0]))
    trace = model.trace(PROMPT)
    mask = nn.Transformer.generate_square_subsequent_mask(TOKENS)
    with torch.no_grad():
        pattern = layer(*3 * hidden[:1], attn_mask=mask, average_attn_weights=False)[1][0]
    np.testing.assert_allclose(trace.activations["block0.attention.pattern"], pattern, atol=1e-6)


def test_attention_between_other_widths_and_with_padding():
    class Cross(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(2)
            self.layer = nn.MultiheadAttention(4, 2, kdim=3, vdim=1, add_bias_kv=True, batch_first=True)

        def forward(self, x, y):
            padding = torch.zeros(x.shape[:2], dtype=torch.bool)
            padding[:, 4:] = True
            query = torch.cat([x, 0 * x[..., :1]], -1)
            out, weights = self.layer(query, x, 0 * x[..., :1] + y[:, :1, None], key_padding_mask=padding)
            self.weights = weights
            return out[..., 0]

    module = Cross()
    model = FromTorch(module)
    plain = model(PROMPT)
    own = module.weights[0]
    pattern = model.trace(PROMPT).activations["block0.attention.pattern"]
    np.testing.assert_allclose(np.mean(pattern, axis=0), own, atol=1e-6)
    np.testing.assert_allclose(module.weights[0], own, atol=1e-6)  # the caller gets what it asked for
    np.testing.assert_allclose(model.trace(PROMPT).prediction, plain, atol=1e-6)


def test_heads_by_name_where_no_softmax_is_seen():
    module = Network("linear")
    with pytest.raises(InputError, match=r"softmax attention.*heads=.*from_torch"):
        FromTorch(module).trace(PROMPT)
    model = FromTorch(module, heads={"blocks.0.outputs": HEADS, "blocks.1.outputs": HEADS})
    assert list(model.trace(PROMPT).activations) == ["block0.attention.heads", "block1.attention.heads", "prediction"]
    without = ablated(model, heads=[(1, 1)])(PROMPTS)
    with torch.no_grad():
        module.blocks[1].outputs.weight[:, WIDTH // HEADS :] = 0
    np.testing.assert_allclose(without, model(PROMPTS), atol=2e-6)
    with pytest.raises(InputError, match="patterns of tokens"):
        head_scores(model, TASK, key=KEY, prompts=4)


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ({"blocks.0.output": 2, "blocks.1.outputs": 2}, "did you mean 'blocks.0.outputs'"),
        ({"blocks.0.outputs": 3, "blocks.1.outputs": 3}, "divisor of 8, the width, got 3"),
        ({"blocks.0.outputs": 2}, "module for each of the 2 attentions"),
        ({"blocks.0.outputs": 4, "blocks.1.outputs": 4}, "2, the number in its pattern, got 4"),
        ({"blocks.0.outputs": 0}, "integer of at least 1"),
        ({"blocks.0.unused": 2, "blocks.1.outputs": 2}, "that are called"),
    ],
)
def test_wrong_names_of_heads_are_refused(heads, message):
    module = Network()
    module.blocks[0].unused = nn.Linear(WIDTH, WIDTH)
    with pytest.raises(InputError, match=message):
        FromTorch(module, heads=heads).trace(PROMPT)


def test_heads_that_do_not_exist_are_refused():
    model = FromTorch(Network())
    for pair in [(0, 2), (2, 0), (-1, 0)]:
        with pytest.raises(InputError, match="counted from 0"):
            ablated(model, heads=[pair])(PROMPT)


def test_edits_of_one_head_reach_later_blocks_and_others_are_refused():
    model = FromTorch(Network())
    other = head_outputs(model, TASK.sample(key=jax.random.key(8)))
    seen = {}

    def edit(name, value):
        seen[name] = value
        return other[0] if name == "block0.attention.heads" else value

    trace = edited(model, edit).trace(PROMPT)
    later = "block1.attention.pattern"
    assert np.abs(trace.activations[later] - model.trace(PROMPT).activations[later]).max() > 1e-4
    np.testing.assert_array_equal(seen[later], trace.activations[later])
    replaced = ablated(model, heads=jnp.array([[1.0, 1.0], [0, 0]]), outputs=other)(PROMPT)
    np.testing.assert_allclose(trace.prediction, replaced, atol=2e-6)
    with pytest.raises(InputError, match=r"outputs of heads.*from_torch"):
        edited(model, lambda name, value: 0 * value if name.endswith("pattern") else value)(PROMPT)


def test_effects_and_losses_of_ablated_heads():
    model = FromTorch(Network("fused"))
    effects = head_effects(model, TASK, key=KEY, prompts=20, positions=slice(-1, None))
    losses = per_length({"all": model, "less": ablated(model, heads=[(1, 0)])}, TASK, key=KEY, prompts=20).loss.isel(
        position=-1
    )
    change = float(losses.sel(predictor="less") - losses.sel(predictor="all"))
    assert float(effects.ablation_effect.sel(attention_head="block1.0")) == pytest.approx(change, rel=1e-4)
    assert np.isfinite(effects.ablation_effect).all()
    assert np.isnan(effects.first_order_effect).all()


class Laid(nn.Module):
    """A network whose tokens are examples and queries, or x and y in turn."""

    def __init__(self, turn):
        super().__init__()
        self.network, self.turn = Network(layers=1), turn

    def forward(self, x, y):
        tokens = torch.cat([x, y[..., None]], -1)
        queries = torch.cat([x, 0 * y[..., None]], -1)
        pairs = (
            torch.stack([queries, tokens - queries], 2).flatten(1, 2) if self.turn else torch.cat([tokens, queries], 1)
        )
        h = self.network.read(pairs)
        h = self.network.answer(h + self.network.blocks[0](h))[..., 0]
        return h[:, 0::2] if self.turn else h[:, x.shape[1] :]


@pytest.mark.parametrize("turn", [True, False])
def test_scores_refer_to_the_tokens_of_an_arrangement(turn):
    with pytest.raises(InputError, match=r"pattern of 6 tokens, or an arrangement, got 12.*Interleaved"):
        head_scores(FromTorch(Laid(turn)), TASK, key=KEY, prompts=4)
    arrangement = Interleaved() if turn else Joined(answers="every", causal=True, query_is_key=True)
    model = FromTorch(Laid(turn), arrangement=arrangement)
    scores = head_scores(model, TASK, key=KEY, prompts=4).previous_token_score
    prompts = jax.vmap(lambda key: TASK.sample(key=key))(jax.random.split(KEY, 4))
    patterns = np.asarray(jax.vmap(model.trace)(prompts).activations["block0.attention.pattern"])
    # tokens x_0 y_0 x_1 ...; or examples 0 to 4, one that nobody sees, and queries 0 to 5, of which 1 to 5 see some
    before = [(i, i - 1) for i in range(1, 11)] if turn else [(i, i - 1) for i in range(1, 5)]
    before += [] if turn else [(6 + i, i - 1) for i in range(1, 6)]
    expected = np.mean([patterns[:, :, i, j] for i, j in before], axis=(0, 1))
    np.testing.assert_allclose(scores, expected, atol=1e-6)
    wrong = FromTorch(Laid(turn), arrangement=Joined(answers="last", causal=True, query_is_key=True))
    with pytest.raises(InputError, match="arrangement"):
        head_scores(wrong, TASK, key=KEY, prompts=4)


def test_item_label_measures_of_two_layers():
    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.first, self.second = (nn.MultiheadAttention(12, 1, batch_first=True) for _ in range(2))
            self.answer = nn.Linear(12, 4)

        def forward(self, tokens):
            later = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1)
            h = tokens
            for layer in (self.first, self.second):
                h = h + layer(h, h, h, attn_mask=later, need_weights=False)[0]
            return self.answer(h[:, -1:])

    def tokens(prompt):
        items = prompt.items
        return torch.cat([items, items], 1)[:, :7]

    task = ItemLabel.init(classes=8, labels=4, pairs=3, dim=12, key=KEY)
    model = FromTorch(Layers(), tokens, positions="last")
    trace = model.trace(task.sample(key=KEY))
    assert list(trace.activations)[:2] == ["attention1", "attention2"]
    measures = progress_measures(model, task, key=KEY, prompts=8)
    assert 0 < measures.item_label_attention < 1
    assert ablated(model, heads=[(0, 0)])(task.sample(key=KEY)).shape == (1, 4)
