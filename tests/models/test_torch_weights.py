"""Networks of PyTorch libraries, copied, are the same functions: logits, patterns and gradients."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import icllab as icl
from icllab.core.errors import InputError
from icllab.core.prompt import RegressionPrompt, TokenPrompt

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

VOCABULARY, LENGTH, WIDTH, HEADS = 23, 17, 24, 3
SHARED = {"vocab_size": VOCABULARY, "attn_implementation": "eager"}


def gpt2(**options):
    config = transformers.GPT2Config(n_positions=LENGTH, n_embd=WIDTH, n_layer=2, n_head=HEADS, **SHARED | options)
    return transformers.GPT2LMHeadModel(config)


def gpt_neo(**options):
    config = transformers.GPTNeoConfig(
        max_position_embeddings=LENGTH,
        hidden_size=WIDTH,
        num_layers=2,
        num_heads=HEADS,
        attention_types=[[["global", "local"], 1]],
        window_size=4,
        **SHARED | options,
    )
    return transformers.GPTNeoForCausalLM(config)


def gpt_neox(**options):
    config = transformers.GPTNeoXConfig(
        max_position_embeddings=LENGTH,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        **SHARED | options,
    )
    return transformers.GPTNeoXForCausalLM(config)


def llama(kind="Llama", **options):
    config = getattr(transformers, f"{kind}Config")(
        max_position_embeddings=LENGTH,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        **SHARED | options,
    )
    return getattr(transformers, f"{kind}ForCausalLM")(config)


SOURCES = {
    "gpt2": gpt2,
    "gpt2, other options": functools.partial(
        gpt2, activation_function="relu", n_inner=7, layer_norm_epsilon=1e-3, tie_word_embeddings=False
    ),
    "gpt_neo": gpt_neo,
    "gpt_neox": gpt_neox,
    "gpt_neox in turn": functools.partial(gpt_neox, use_parallel_residual=False, rotary_pct=0.5, hidden_act="gelu_new"),
    "llama": llama,
    "llama, other options": functools.partial(llama, tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
    "qwen2": functools.partial(llama, "Qwen2", tie_word_embeddings=True),
}


def with_normal_weights(module, dtype):
    """Every parameter normal, so that no bias is 0 and no scale is 1."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator) + (parameter.ndim == 1) * 0.5)
    return module.to(dtype).eval()


@pytest.fixture(params=["float32", "float64"])
def precision(request):
    """The dtype there, and the largest relative difference of two correct answers."""
    with jax.enable_x64(request.param == "float64"):
        yield getattr(torch, request.param), {"float32": 1e-5, "float64": 1e-10}[request.param]


def require_close(ours, theirs, tolerance):
    theirs = np.asarray(theirs)
    np.testing.assert_allclose(np.asarray(ours), theirs, rtol=0, atol=tolerance * np.abs(theirs).max())


@pytest.mark.parametrize("name", SOURCES)
def test_logits_patterns_and_gradients_are_theirs(name, precision):
    dtype, tolerance = precision
    tolerance = max(tolerance, 1e-6 if "gpt2" not in name else 0)  # theirs has scores or angles of 32 bits within
    module = with_normal_weights(SOURCES[name](), dtype)
    model = icl.models.from_torch(module)
    ids = np.random.default_rng(0).integers(0, VOCABULARY, LENGTH)
    prompt = TokenPrompt(jnp.asarray([*ids, 0], jnp.int32))

    theirs = module(torch.tensor(ids)[None], output_attentions=True)
    trace = model.trace(prompt)
    require_close(trace.prediction, theirs.logits[0].detach(), tolerance)
    for i, pattern in enumerate(theirs.attentions):
        require_close(trace.activations[f"block{i}.attention.pattern"], pattern[0].detach(), tolerance)

    loss = torch.nn.functional.cross_entropy(theirs.logits[0, :-1], torch.tensor(ids[1:]))
    loss.backward()
    theirs_flat = np.concatenate([parameter.grad.numpy().ravel() for parameter in module.parameters()])

    def ours(model):
        logits = jax.nn.log_softmax(model(prompt)[:-1])
        return -jnp.mean(logits[jnp.arange(LENGTH - 1), ids[1:]])

    gradient = eqx.filter_grad(ours)(model)
    total = sum(float(jnp.sum(leaf**2)) for leaf in jax.tree.leaves(eqx.filter(gradient, eqx.is_array)))
    if name == "gpt_neo":
        total -= sum(float(jnp.sum(b**2)) for block in gradient.blocks for b in block.attention.biases[:3])
    assert model.embedding.projection.bias is model.readout.bias is None
    assert total == pytest.approx(float(np.sum(theirs_flat**2)), rel=20 * tolerance)
    if gradient.blocks[0].mlp.layers[0].bias is not None:
        require_close(gradient.blocks[0].mlp.layers[0].bias, _first_bias(module), 20 * tolerance)


def _first_bias(module):
    names = ("transformer.h.0.mlp.c_fc.bias", "gpt_neox.layers.0.mlp.dense_h_to_4h.bias")
    names += ("model.layers.0.mlp.up_proj.bias",)
    parameters = dict(module.named_parameters())
    return next(parameters[name].grad for name in names if name in parameters)


class TransformerModel(torch.nn.Module):
    """As Garg et al. have it: GPT-2 between a linear read-in and read-out, labels in the first coordinate."""

    def __init__(self, n_dims, n_positions):
        super().__init__()
        config = transformers.GPT2Config(n_positions=2 * n_positions, n_embd=WIDTH, n_layer=2, n_head=HEADS)
        self._read_in = torch.nn.Linear(n_dims, WIDTH)
        self._backbone = transformers.GPT2Model(config)
        self._read_out = torch.nn.Linear(WIDTH, 1)

    def forward(self, xs, ys):
        wide = torch.cat([ys[..., None], torch.zeros(*ys.shape, xs.shape[-1] - 1, dtype=ys.dtype)], -1)
        tokens = torch.stack([xs, wide], 2).reshape(len(xs), -1, xs.shape[-1])
        return self._read_out(self._backbone(inputs_embeds=self._read_in(tokens)).last_hidden_state)[:, ::2, 0]


def test_a_network_of_garg_et_al_answers_regression_prompts(precision):
    dtype, tolerance = precision
    module = with_normal_weights(TransformerModel(4, 9), dtype)
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(8, 4)), rng.normal(size=8)
    theirs = module(torch.tensor(x, dtype=dtype)[None], torch.tensor(y, dtype=dtype)[None])[0].detach()
    model = icl.models.from_torch(module)
    prompt = (
        RegressionPrompt(jnp.asarray(x), jnp.asarray(y))
        if tolerance < 1e-6
        else RegressionPrompt(jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32))
    )
    require_close(model(prompt), theirs, tolerance)
    assert model.embedding.length == 8


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            lambda: gpt2(scale_attn_by_inverse_layer_idx=True),
            "scale_attn_by_inverse_layer_idx: expected False, got True",
        ),
        (lambda: gpt2(scale_attn_weights=False), "scale_attn_weights: expected True, got False"),
        (lambda: gpt_neox(hidden_act="mish"), "hidden_act: expected gelu_new"),
        (lambda: torch.nn.Linear(2, 2), "module: expected one of GPT2LMHeadModel"),
    ],
)
def test_what_no_field_here_says_is_refused_by_name(module, message):
    with pytest.raises(InputError, match=message):
        icl.models.from_torch(module())
