"""Copies of PyTorch transformers whose parts are named: answers, patterns and gradients equal those of the module."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.core.prompt import TokenPrompt
from icllab.models import FromTorch, Rotary, from_torch
from icllab.tasks import LinearRegression

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional
pytestmark = pytest.mark.slow
TASK = LinearRegression.convention("raventos", dim=3, length=5)
PROMPT = TASK.sample(key=jax.random.key(4))
WIDTH, HEADS = 8, 2


class Norm(nn.Module):
    """An RMS norm as it is written by hand."""

    def __init__(self, width, eps=1e-4):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.rand(width) + 0.5), eps

    def forward(self, h):
        return h * torch.rsqrt(h.square().mean(-1, keepdim=True) + self.eps) * self.weight


class Norms(Norm):
    def __init__(self, width):
        super().__init__(width)
        self.__class__.__name__ = "RMSNorm"


class Attention(nn.Module):
    def __init__(self, order, base=None):
        super().__init__()
        self.order, self.base = order, base
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH, bias=order != "separate"), nn.Linear(WIDTH, WIDTH)
        if order == "separate":
            del self.qkv
            self.wq, self.wk, self.wv = (
                nn.Linear(WIDTH, WIDTH),
                nn.Linear(WIDTH, WIDTH // 2),
                nn.Linear(WIDTH, WIDTH // 2),
            )

    def turned(self, t):
        if self.base is None:
            return t
        half = t.shape[-1] // 2
        angle = torch.arange(t.shape[-2])[:, None] * self.base ** (-torch.arange(half) / half)
        a, b = t[..., :half], t[..., half:]
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)

    def forward(self, h):
        if self.order == "separate":
            q, k, v = (
                part(h).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for part in (self.wq, self.wk, self.wv)
            )
            k, v = (part.repeat_interleave(HEADS, 1) for part in (k, v))
        elif self.order == "thirds":
            q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(h).chunk(3, -1))
        else:
            q, k, v = self.qkv(h).unflatten(-1, (HEADS, 3, -1)).permute(3, 0, 2, 1, 4)
        out = functional.scaled_dot_product_attention(self.turned(q), self.turned(k), v, is_causal=True)
        return self.proj(out.transpose(1, 2).flatten(-2))


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 12), nn.Linear(12, WIDTH)
        self.gate = nn.Linear(WIDTH, 12, bias=False)

    def forward(self, h):
        return self.down(functional.silu(self.gate(h)) * self.up(h))


class Block(nn.Module):
    def __init__(self, norm="pre", order="thirds", mlp="gelu", base=None, kind=nn.LayerNorm):
        super().__init__()
        self.norm, self.attn = norm, Attention(order, base)
        self.ln_1, self.ln_2 = (nn.Identity(), nn.Identity()) if norm == "none" else (kind(WIDTH), kind(WIDTH))
        acts = {"gelu": nn.GELU(), "tanh": nn.GELU(approximate="tanh"), "relu": nn.ReLU()}
        self.mlp = Gated() if mlp == "gated" else nn.Sequential(nn.Linear(WIDTH, 16), acts[mlp], nn.Linear(16, WIDTH))

    def forward(self, h):
        if self.norm == "post":
            h = self.ln_1(h + self.attn(h))
            return self.ln_2(h + self.mlp(h))
        if self.norm == "parallel":
            return h + self.attn(self.ln_1(h)) + self.mlp(self.ln_2(h))
        h = h + self.attn(self.ln_1(h))
        return h + self.mlp(self.ln_2(h))


class Words(nn.Module):
    """A GPT-2 of token ids."""

    def __init__(self, places=7, **options):
        super().__init__()
        torch.manual_seed(0)
        self.wte, self.wpe = nn.Embedding(11, WIDTH), nn.Parameter(torch.randn(1, places, WIDTH))
        self.h = nn.ModuleList(Block(**options) for _ in range(2))
        self.ln_f, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 11, bias=False)

    def forward(self, ids):
        h = self.wte(ids) + self.wpe[:, : ids.shape[1]]
        for block in self.h:
            h = block(h)
        return self.head(self.ln_f(h))


class Points(nn.Module):
    """A network of points in one of the layouts, without places or with learned ones."""

    def __init__(self, layout, places=False, causal=True, **options):
        super().__init__()
        torch.manual_seed(1)
        self.layout, self.read, self.query = layout, nn.Linear(5, WIDTH), nn.Linear(3, WIDTH)
        self.places = nn.Parameter(places * torch.randn(12, WIDTH))
        self.h, self.head = nn.ModuleList(Block(**options) for _ in range(2)), nn.Linear(WIDTH, 1)

    def forward(self, x, y):
        zeros, flag = 0 * y[..., None], torch.ones_like(y)[..., None]
        if self.layout == "interleaved":  # the label first, and a flag
            pairs = torch.stack([torch.cat([zeros, x, flag], -1), torch.cat([y[..., None], 0 * x, zeros], -1)], 2)
            h = self.read(pairs.flatten(1, 2)[:, :-1])
        elif self.layout == "shifted":
            first = flag * (torch.arange(x.shape[1]) == 0)[:, None]
            h = self.read(torch.cat([x, functional.pad(y, (1, 0))[:, :-1, None], first], -1))
        h = h + self.places[: h.shape[1]]
        for block in self.h:
            h = block(h)
        answers = self.head(h)[..., 0]
        return answers[:, 0::2] if self.layout == "interleaved" else answers


NAMES = {"blocks": "h", "readout": "head"}


def assert_same(model, predictor, prompt, tokens):
    answers = np.asarray(predictor(prompt))
    np.testing.assert_allclose(model(prompt), answers, atol=1e-5 * np.abs(answers).max())
    ours, theirs = (m.trace(prompt).activations["block0.attention.pattern"] for m in (model, predictor))
    np.testing.assert_allclose(ours[:, :tokens, :tokens], theirs[:, :tokens, :tokens], atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"order": "each head", "mlp": "tanh"},
        {"norm": "post", "mlp": "relu"},
        {"norm": "parallel", "order": "separate"},
        {"norm": "none", "mlp": "gated"},
        {"kind": Norms, "base": 1e4},
    ],
    ids=str,
)
def test_networks_of_tokens(options):
    module = Words(**options)
    model = from_torch(module, embedding="wte", **NAMES)
    tokens = jnp.asarray(np.random.default_rng(5).integers(11, size=8), jnp.int32)
    assert_same(model, FromTorch(module), TokenPrompt(tokens), 7)
    assert model.embedding.length == 6  # its table of seven places


@pytest.mark.parametrize("layout", ["interleaved", "shifted"])
@pytest.mark.parametrize("places", [False, True])
def test_networks_of_points_and_their_gradients(layout, places):
    module = Points(layout, places)
    model = from_torch(module, embedding="read", task=TASK, **NAMES)
    assert_same(model, FromTorch(module), PROMPT, 6)
    x = torch.tensor(np.array(PROMPT.x))[None].requires_grad_()
    module(x, torch.tensor(np.array(PROMPT.y))[None])[0, -1].backward()
    gradient = jax.grad(lambda prompt: model(prompt)[-1])(PROMPT).x
    np.testing.assert_allclose(gradient, x.grad[0], atol=1e-5 * float(x.grad.abs().max()))


def test_an_encoder_of_pytorch():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(2)
            layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, batch_first=True)
            self.read, self.body, self.answer = (
                nn.Linear(4, WIDTH),
                nn.TransformerEncoder(layer, 2),
                nn.Linear(WIDTH, 1),
            )

        def forward(self, x, y):
            h = self.read(torch.cat([x, functional.pad(y, (1, 0))[:, :-1, None]], -1))
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
            return self.answer(self.body(h, mask=mask, is_causal=True))[..., 0]

    module = Encoder()
    model = from_torch(module, embedding="read", blocks="body", readout="answer", task=TASK)
    assert_same(model, FromTorch(module), PROMPT, 6)
    assert [block.norm for block in model.blocks] == ["post", "post"]


def test_rotary_places_of_an_unusual_base_are_given():
    module = Points("shifted", base=77.0)
    with pytest.raises(InputError, match=r"h\.0: expected attention .*Rotary\(base"):
        from_torch(module, embedding="read", task=TASK, **NAMES)
    model = from_torch(module, embedding="read", task=TASK, parts={"rotary": Rotary(77.0)}, **NAMES)
    assert_same(model, FromTorch(module), PROMPT, 6)


class Odd(Block):
    def forward(self, h):
        return super().forward(h) * 1.01


def test_what_is_not_reproduced_is_named():
    module = Words()
    with pytest.raises(InputError, match=r"unknown module 'wtf'.*did you mean 'wte'"):
        from_torch(module, embedding="wtf", **NAMES)
    with pytest.raises(InputError, match="readout: expected a linear layer, got 'Block'"):
        from_torch(module, embedding="wte", blocks="h", readout="h.1")
    with pytest.raises(InputError, match="names of three parts"):
        from_torch(module, embedding="wte")
    with pytest.raises(InputError, match="unknown part 'query'"):
        from_torch(module, embedding="wte", parts={"query": "attn.qkv"}, **NAMES)
    with pytest.raises(InputError, match="task: expected the task"):
        from_torch(Points("shifted"), embedding="read", **NAMES)
    shuffled = FromTorch(Points("shifted"), lambda prompt: (prompt.x**2, prompt.y))
    with pytest.raises(InputError, match="embedding: expected tokens that are linear"):
        from_torch(shuffled, embedding="read", task=TASK, **NAMES)
    module.h[1].__class__ = Odd
    with pytest.raises(InputError, match=r"h\.1: expected attention and dense layers"):
        from_torch(module, embedding="wte", **NAMES)
    module = Words()
    module.head.register_forward_hook(lambda *arguments: arguments[-1] * 1.001)
    with pytest.raises(InputError, match=r"answers of its copy to 1e-05 .*assumed: Tokens"):
        from_torch(module, embedding="wte", **NAMES)
