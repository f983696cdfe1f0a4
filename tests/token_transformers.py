"""Small transformers of token ids with the options of each family, and a tokenizer of words."""

import jax
import jax.numpy as jnp
import numpy as np

from icllab.models.networks.attention import Rotary
from icllab.models.networks.embedding import Tokens
from icllab.models.networks.transformer import BlockOptions, Transformer
from icllab.models.pretrained.generation import Sampling, written
from icllab.models.pretrained.language_model import LanguageModel

VOCABULARY, WIDTH = 19, 16
PRE = {"heads": 4, "mlp": (24,), "norm": "pre", "nonlinearity": "silu"}
LLAMA = {**PRE, "norm_kind": "rms", "gated": True, "mlp_bias": False, "kv_heads": 2}
FAMILIES = {
    "gpt2": ("learned", BlockOptions(**PRE, bias=True)),
    "neox": ("rotary", BlockOptions(**PRE, parallel=True, bias=True, rotary=Rotary(dim=2))),
    "llama": ("rotary", BlockOptions(**LLAMA)),
    "qwen": ("rotary", BlockOptions(**LLAMA, bias="qkv", qk_norm="head", head_dim=6)),
    "mistral": ("rotary", BlockOptions(**LLAMA, window=5)),
    "gemma": ("rotary", BlockOptions(**(LLAMA | {"norm": "both"}), norm_offset=1.0, score_cap=2.0, scale=0.5)),
    "olmo": ("rotary", BlockOptions(**(LLAMA | {"norm": "output"}), qk_norm="all", rotary=Rotary(pairs="adjacent"))),
    "smollm3": ("rotary", [BlockOptions(**LLAMA), BlockOptions(**LLAMA, rotary=None)]),
    "no positions": ("none", BlockOptions(**PRE)),
    "one-hot positions": ("one_hot", BlockOptions(**PRE)),  # for which the text is computed anew
    "linear": ("learned", BlockOptions(**PRE, weighting="linear", normalisation="examples")),  # likewise
}


def network(name, length=40):
    positions, block = FAMILIES[name]
    arrangement = Tokens(VOCABULARY, tied=name == "llama", scale=4.0 if name == "gemma" else 1.0)
    model = Transformer(
        arrangement,
        dim=VOCABULARY,
        width=WIDTH,
        layers=2,
        block=block,
        positions=positions,
        length=length,
        std=0.5,
        key=jax.random.key(1),
    )
    leaves, structure = jax.tree.flatten(model)  # biases and scales that act
    keys = jax.random.split(jax.random.key(2), len(leaves))
    noise = [0.1 * jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, [a + b for a, b in zip(leaves, noise, strict=True)])


def sampling(temperature, prompts):
    return Sampling(jnp.asarray(temperature), jax.random.split(jax.random.key(3), prompts))


def language_model(name):
    """A network whose words are w0 to w18; another word is unknown."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {f"w{i}": i for i in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return LanguageModel(network(name), tokenizer)


def require_written(model, module, prompts, *, tokens, at_least, near=1e-3):
    """Greedy tokens of a batch, those of transformers one by one up to a step whose two best logits are ``near``."""
    import torch

    keys = jax.random.split(jax.random.key(0), len(prompts))
    *_, rows = written(model, prompts, tokens, Sampling(jnp.zeros(()), keys), tokens)
    agreed = []
    for prompt, ours in zip(prompts, rows, strict=True):
        with torch.inference_mode():
            answer = module.generate(
                torch.tensor([prompt]),
                max_new_tokens=tokens,
                do_sample=False,
                output_logits=True,
                return_dict_in_generate=True,
                eos_token_id=-1,
                pad_token_id=0,
            )
        best = np.sort([row[0].numpy() for row in answer.logits], axis=1)
        end = np.append(np.flatnonzero(best[:, -1] - best[:, -2] < near), tokens)[0]
        np.testing.assert_array_equal(ours[:end], answer.sequences[0, len(prompt) :].numpy()[:end])
        agreed.append(end)
    assert np.mean(agreed) >= at_least, agreed
