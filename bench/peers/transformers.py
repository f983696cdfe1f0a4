"""Causal language models of transformers with random weights, and these weights here: logits, patterns, gradients."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers

from icllab import models
from icllab.core.prompt import TokenPrompt

PEER = "transformers"
VOCABULARY, LENGTH, WIDTH, HEADS = 23, 17, 24, 3
SHARED = {"vocab_size": VOCABULARY, "attn_implementation": "eager"}


def VERSION():
    """The versions of the package and of PyTorch."""
    return f"{transformers.__version__}, PyTorch {torch.__version__}"


def gpt2(**options):
    """A GPT-2."""
    sizes = {"n_positions": LENGTH, "n_embd": WIDTH, "n_layer": 2, "n_head": HEADS}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **SHARED | options))


def gpt_neo(**options):
    """A GPT-Neo, whose second layer sees a window of four tokens."""
    sizes = {"max_position_embeddings": LENGTH, "hidden_size": WIDTH, "num_layers": 2, "num_heads": HEADS}
    window = {"attention_types": [[["global", "local"], 1]], "window_size": 4}
    return transformers.GPTNeoForCausalLM(transformers.GPTNeoConfig(**sizes, **window, **SHARED | options))


def gpt_neox(**options):
    """A GPT-NeoX, as Pythia is: rotary positions, parallel blocks."""
    sizes = {"max_position_embeddings": LENGTH, "hidden_size": WIDTH, "intermediate_size": 2 * WIDTH}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": HEADS}
    return transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**sizes, **SHARED | options))


SOURCES = {
    "GPT2LMHeadModel": (gpt2, {}),
    "GPT2LMHeadModel, ReLU, untied": (gpt2, {"activation_function": "relu", "tie_word_embeddings": False}),
    "GPTNeoForCausalLM": (gpt_neo, {}),
    "GPTNeoXForCausalLM": (gpt_neox, {}),
    "GPTNeoXForCausalLM, blocks in turn": (gpt_neox, {"use_parallel_residual": False, "hidden_act": "gelu_new"}),
}


def with_normal_weights(module, dtype):
    """Every parameter normal, so that no bias is 0 and no scale is 1."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator) + (parameter.ndim == 1) * 0.5)
    return module.to(dtype).eval()


def relative(ours, theirs):
    """The largest difference over the largest number of theirs."""
    theirs = np.asarray(theirs.detach())
    return np.abs(np.asarray(ours) - theirs).max() / np.abs(theirs).max()


def gradients(model, ids):
    """The gradient of the mean cross-entropy here, for the weights of the first block's dense layers."""

    def loss(model):
        logits = jax.nn.log_softmax(model(TokenPrompt(jnp.asarray([*ids, 0], jnp.int32)))[:-1])
        return -jnp.mean(logits[jnp.arange(LENGTH - 1), ids[1:]])

    layers = eqx.filter_grad(loss)(model).blocks[0].mlp.layers
    return [(layer.weight, layer.bias) for layer in layers]


def first_dense(module):
    """The gradients there, of the same weights [inputs, outputs]."""
    blocks = module.gpt_neox.layers if hasattr(module, "gpt_neox") else module.transformer.h
    mlp = blocks[0].mlp
    layers = (mlp.c_fc, mlp.c_proj) if hasattr(mlp, "c_fc") else (mlp.dense_h_to_4h, mlp.dense_4h_to_h)
    turned = isinstance(layers[0], torch.nn.Linear)
    return [(layer.weight.grad.T if turned else layer.weight.grad, layer.bias.grad) for layer in layers]


def cases(checkout):
    """Logits, patterns and gradients of every source, in both precisions."""
    ids = np.random.default_rng(0).integers(0, VOCABULARY, LENGTH)
    for precision, tolerance in (("float32", 1e-5), ("float64", 1e-10)):
        for name, (build, options) in SOURCES.items():
            # GPT-Neo's scores and GPT-NeoX's angles have 32 bits there in either precision.
            bound = max(tolerance, 1e-6 if "Neo" in name else 0)
            inside = "theirs has scores or angles of 32 bits within" if bound > tolerance else ""
            with jax.enable_x64(precision == "float64"):
                module = with_normal_weights(build(**options), getattr(torch, precision))
                model = models.from_torch(module)
                theirs = module(torch.tensor(ids)[None], output_attentions=True)
                torch.nn.functional.cross_entropy(theirs.logits[0, :-1], torch.tensor(ids[1:])).backward()
                trace = model.trace(TokenPrompt(jnp.asarray([*ids, 0], jnp.int32)))
                patterns = [
                    relative(trace.activations[f"block{i}.attention.pattern"], pattern[0])
                    for i, pattern in enumerate(theirs.attentions)
                ]
                pairs = zip(gradients(model, ids), first_dense(module), strict=True)
                slopes = [relative(a, b) for ours, there in pairs for a, b in zip(ours, there, strict=True)]
            kind = name.partition(",")[0]
            common = {"ours": "models.from_torch(module)", "unit": "relative", "note": inside}
            yield common | {
                "case": f"{name}, {precision}: logits",
                "theirs": kind,
                "difference": relative(trace.prediction, theirs.logits[0]),
                "tolerance": bound,
            }
            yield common | {
                "case": f"{name}, {precision}: attention patterns",
                "theirs": f"{kind}, output_attentions=True",
                "difference": max(patterns),
                "tolerance": bound,
            }
            yield common | {
                "case": f"{name}, {precision}: gradients of a block's dense layers",
                "theirs": f"{kind}, loss.backward()",
                "difference": max(slopes),
                "tolerance": bound,
            }
