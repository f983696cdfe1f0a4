"""Each family against transformers: layer by layer in 64 bits, and in 32 bits as the module is."""

import sys

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")
pytest.importorskip("safetensors")

from token_transformers import require_written  # noqa: E402

from icllab.core.prompt import TokenPrompt  # noqa: E402
from icllab.models import from_torch, pretrained  # noqa: E402

pytestmark = pytest.mark.slow

SIZES = {"vocab_size": 23, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3}
SIZES |= {"num_attention_heads": 6, "attn_implementation": "eager"}
GROUPED = {**SIZES, "num_key_value_heads": 2}
GEMMA = {**GROUPED, "head_dim": 8, "query_pre_attn_scalar": 5, "sliding_window": 4}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 32, "rope_theta": 500.0}
LINEAR = {"rope_type": "linear", "factor": 3.0, "rope_theta": 100.0}
BASES = {"full_attention": {**LINEAR}, "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}
IN_TURN = ["sliding_attention", "full_attention", "sliding_attention"]
NEO = {"vocab_size": 23, "max_position_embeddings": 17, "hidden_size": 24, "num_layers": 3, "num_heads": 3}
NEO |= {"attention_types": [[["global", "local"], 1], [["local"], 1]], "window_size": 5, "attn_implementation": "eager"}
GPT2 = {"vocab_size": 23, "n_positions": 17, "n_embd": 24, "n_layer": 3, "n_head": 3, "attn_implementation": "eager"}
HALF = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}
CASES = {
    "gpt2": ("GPT2LMHead", GPT2),
    "gpt2, scaled by layer": ("GPT2LMHead", {**GPT2, "scale_attn_by_inverse_layer_idx": True}),
    "gpt_neo": ("GPTNeoForCausalLM", NEO),
    "gpt_neox": ("GPTNeoXForCausalLM", {**SIZES, "num_attention_heads": 3, "rope_parameters": HALF}),
    "gpt_neox, linear": (
        "GPTNeoXForCausalLM",
        {**SIZES, "num_attention_heads": 3, "rope_parameters": {**HALF, **LINEAR}},
    ),
    "gpt_neox in turn": (
        "GPTNeoXForCausalLM",
        {**SIZES, "num_attention_heads": 3, "use_parallel_residual": False, "attention_bias": False},
    ),
    "llama": ("LlamaForCausalLM", {**GROUPED, "rope_theta": 500.0, "tie_word_embeddings": True}),
    "llama, biases": ("LlamaForCausalLM", {**GROUPED, "attention_bias": True, "mlp_bias": True, "head_dim": 6}),
    "llama 3": ("LlamaForCausalLM", {**GROUPED, "head_dim": 16, "rope_parameters": LLAMA3}),
    "llama, linear": ("LlamaForCausalLM", {**GROUPED, "rope_parameters": LINEAR}),
    "mistral": ("MistralForCausalLM", {**GROUPED, "sliding_window": 5, "head_dim": 8}),
    "mistral, no window": ("MistralForCausalLM", {**GROUPED, "sliding_window": None}),
    "qwen2": ("Qwen2ForCausalLM", {**GROUPED, "rms_norm_eps": 1e-5}),
    "qwen2, windows": (
        "Qwen2ForCausalLM",
        {**GROUPED, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3ForCausalLM", {**GROUPED, "head_dim": 8, "tie_word_embeddings": True}),
    "qwen3, biases and windows": (
        "Qwen3ForCausalLM",
        {**GROUPED, "head_dim": 4, "attention_bias": True, "use_sliding_window": True, "sliding_window": 3}
        | {"layer_types": IN_TURN},
    ),
    "gemma2": ("Gemma2ForCausalLM", {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma2, no caps": (
        "Gemma2ForCausalLM",
        {**GEMMA, "attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": True}
        | {"tie_word_embeddings": False},
    ),
    "gemma3": ("Gemma3ForCausalLM", {**GEMMA, "layer_types": IN_TURN, "rope_parameters": BASES}),
    "gemma3, cap": ("Gemma3ForCausalLM", {**GEMMA, "num_hidden_layers": 7, "final_logit_softcapping": 4.0}),
    "phi3": ("Phi3ForCausalLM", {**GROUPED, "rope_parameters": HALF, "pad_token_id": 0, "hidden_act": "relu"}),
    "phi3, window": ("Phi3ForCausalLM", {**GROUPED, "sliding_window": 6, "pad_token_id": 0}),
    "olmo2": ("Olmo2ForCausalLM", {**GROUPED, "pad_token_id": 0}),
    "olmo2, biases": ("Olmo2ForCausalLM", {**SIZES, "attention_bias": True, "rms_norm_eps": 1e-4, "pad_token_id": 0}),
    "smollm3": ("SmolLM3ForCausalLM", {**GROUPED, "no_rope_layers": [1, 0, 1], "pad_token_id": 0}),
    "smollm3, windows": (
        "SmolLM3ForCausalLM",
        {**GROUPED, "no_rope_layer_interval": 2, "pad_token_id": 0, "attention_bias": True, "mlp_bias": True}
        | {"use_sliding_window": True, "sliding_window": 4, "tie_word_embeddings": False},
    ),
}


def drawn(name):
    """A module with random weights whose norms and logits are far from their start."""
    kind, fields = CASES[name]
    kind = f"{kind}Model" if kind == "GPT2LMHead" else kind
    config = getattr(transformers, kind).config_class(**fields)
    model = getattr(transformers, kind)(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator) + (parameter.ndim == 1) * 0.5)
    return model.eval()


class Wide:
    """PyTorch whose 32 bits are 64: softmax of transformers and norms are computed in float32."""

    float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


def rates(rope, dim):
    """Angles of one step, in 64 bits."""
    turned = int(dim * rope.get("partial_rotary_factor", 1.0))
    slow = rope["rope_theta"] ** (-torch.arange(0, turned, 2, dtype=torch.float64) / turned)
    if rope["rope_type"] == "linear":
        return slow / rope["factor"]
    if rope["rope_type"] == "llama3":
        length, low, high = (
            rope[name] for name in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
        )
        waves = 2 * np.pi / slow
        share = (length / waves - low) / (high - low)
        between = (1 - share) * slow / rope["factor"] + share * slow
        slow = torch.where(
            waves > length / low, slow / rope["factor"], torch.where(waves < length / high, slow, between)
        )
    return slow


def in_64_bits(model, monkeypatch):
    """The model with norms, angles, softmax and the scale of the embedding in 64 bits, which it computes in 32."""
    model = model.double()
    monkeypatch.setattr(sys.modules[type(model).__module__], "torch", Wide())
    softmax = torch.nn.functional.softmax
    monkeypatch.setattr(torch.nn.functional, "softmax", lambda x, dim, dtype=None: softmax(x, dim=dim))
    config = model.config

    def angles(x, position_ids, layer_type=None):
        rope = config.rope_parameters if layer_type is None else config.rope_parameters[layer_type]
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        turns = position_ids[0].double()[:, None] * rates(rope, dim)
        turns = torch.cat([turns, turns], -1)[None]
        return turns.cos(), turns.sin()

    def norm(part):
        offset, epsilon = (1, part.eps) if "Gemma" in type(part).__name__ else (0, part.variance_epsilon)

        def forward(x):
            return x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt() * (part.weight + offset)

        return forward

    for part in model.modules():
        if type(part).__name__.endswith("RotaryEmbedding"):
            part.forward = angles
        elif type(part).__name__.endswith("RMSNorm"):
            part.forward = norm(part)
        elif hasattr(part, "embed_scale"):
            part.embed_scale = torch.tensor(part.scalar_embed_scale, dtype=torch.float64)
    return model


@pytest.mark.parametrize("name", CASES)
def test_every_layer_is_theirs(name, tmp_path, monkeypatch):
    model = drawn(name).double()
    model.save_pretrained(tmp_path)
    model = in_64_bits(model, monkeypatch)
    ids = np.random.default_rng(0).integers(0, 23, 17)
    with torch.no_grad():
        theirs = model(torch.tensor(ids)[None], output_hidden_states=True)
    with jax.enable_x64(True):
        ours = pretrained.load(tmp_path)
        hidden = [state[0].numpy() for state in theirs.hidden_states]
        result = pretrained.verify(ours, ids, theirs.logits[0].numpy(), hidden=hidden, tolerance=1e-10)
        copy = from_torch(model).logits(ids)
        np.testing.assert_array_equal(copy, ours.logits(ids))
    assert result.attrs["parts_at"] == "", result.difference.to_series().to_string()
    assert len(result.activation) == len(ours.blocks) + 2


@pytest.mark.parametrize("name", CASES)
def test_logits_are_theirs_in_32_bits(name, tmp_path):
    model = drawn(name)
    model.save_pretrained(tmp_path)
    ids = np.random.default_rng(1).integers(0, 23, 17)
    with torch.no_grad():
        theirs = model(torch.tensor(ids)[None]).logits[0].numpy()
    ours = pretrained.load(tmp_path)
    assert np.abs(ours.logits(ids) - theirs).max() <= 2e-5 * np.abs(theirs).max()
    np.testing.assert_array_equal(from_torch(model).logits(ids), ours.logits(ids))
    trace = ours.trace(TokenPrompt(jax.numpy.asarray([*ids, 0], jax.numpy.int32)))
    with torch.no_grad():
        patterns = model(torch.tensor(ids)[None], output_attentions=True).attentions
    for i, pattern in enumerate(patterns):
        np.testing.assert_allclose(trace.activations[f"block{i}.attention.pattern"], pattern[0].numpy(), atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_greedy_tokens_are_those_of_transformers(name):
    module = drawn(name)
    prompts = [[3, 1, 4, 1, 5], [9], [2, 6, 5, 3, 5, 8]]
    require_written(from_torch(module), module, prompts, tokens=9, at_least=7)
