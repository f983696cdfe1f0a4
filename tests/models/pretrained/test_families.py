"""Each family against transformers, in 64 bits on both sides, layer by layer."""

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("safetensors")

from icllab.models import pretrained  # noqa: E402

pytestmark = pytest.mark.slow

SIZES = {"vocab_size": 23, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3}
SIZES |= {"num_attention_heads": 6, "attn_implementation": "eager"}
GROUPED = {**SIZES, "num_key_value_heads": 2}
CASES = {
    "gpt2": ("GPT2", "LMHeadModel", {"vocab_size": 23, "n_positions": 17, "n_embd": 24, "n_layer": 3, "n_head": 3}),
    "gpt_neox": ("GPTNeoX", "ForCausalLM", {**SIZES, "num_attention_heads": 3, "rotary_pct": 0.5}),
    "gpt_neox in turn": (
        "GPTNeoX",
        "ForCausalLM",
        {**SIZES, "num_attention_heads": 3, "use_parallel_residual": False, "attention_bias": False},
    ),
    "llama": ("Llama", "ForCausalLM", {**GROUPED, "rope_theta": 500.0, "tie_word_embeddings": True}),
    "llama, biases": ("Llama", "ForCausalLM", {**GROUPED, "attention_bias": True, "mlp_bias": True, "head_dim": 6}),
    "qwen2": ("Qwen2", "ForCausalLM", {**GROUPED, "rms_norm_eps": 1e-5}),
}


class Wide:
    """PyTorch whose 32 bits are 64: norms and softmax of transformers are computed in float32."""

    float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


def in_64_bits(model, monkeypatch):
    """The model with every intermediate number, angles too, in 64 bits."""
    import sys

    module = sys.modules[type(model).__module__]
    monkeypatch.setattr(module, "torch", Wide())
    softmax = torch.nn.functional.softmax
    monkeypatch.setattr(torch.nn.functional, "softmax", lambda x, dim, dtype=None: softmax(x, dim=dim))
    base = next((part.rotary_emb for part in model.modules() if hasattr(part, "rotary_emb")), None)
    if base is not None:
        rope, dim = model.config.rope_parameters, 2 * len(base.inv_freq)

        def forward(x, position_ids):
            rates = rope["rope_theta"] ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
            angles = position_ids[0].double()[:, None] * rates
            angles = torch.cat([angles, angles], -1)[None]
            return angles.cos(), angles.sin()

        base.forward = forward
    return model.double().eval()


@pytest.mark.parametrize("name", CASES)
def test_every_layer_is_theirs(name, tmp_path, monkeypatch):
    kind, head, fields = CASES[name]
    model = getattr(transformers, f"{kind}{head}")(getattr(transformers, f"{kind}Config")(**fields))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator) + (parameter.ndim == 1) * 0.5)
    model.double().save_pretrained(tmp_path)
    model = in_64_bits(model, monkeypatch)
    ids = np.random.default_rng(0).integers(0, 23, 17)
    with torch.no_grad():
        theirs = model(torch.tensor(ids)[None], output_hidden_states=True)
    with jax.enable_x64(True):
        ours = pretrained.load(tmp_path)
        hidden = [state[0].numpy() for state in theirs.hidden_states]
        result = pretrained.verify(ours, ids, theirs.logits[0].numpy(), hidden=hidden, tolerance=1e-10)
    assert result.attrs["parts_at"] == "", result.difference.to_series().to_string()
    assert len(result.activation) == 5
