"""Networks of TransformerLens 4 with random weights, and the same weights here: activations, edits, heads, patches.

Each network is a ``TransformerBridge`` with the weights as they were made, and again after
``enable_compatibility_mode()``, which folds norms and value biases into matrices and centres what writes to the stream.
"""

import warnings
from importlib.metadata import version

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformer_lens
import transformers
from transformer_lens import head_detector, patching
from transformer_lens.model_bridge.sources import boot_native, build_bridge_from_module

from icllab import diagnostics, models
from icllab.core.prompt import TokenPrompt
from icllab.diagnostics.behaviour import heads

PEER = "transformer-lens"
VOCABULARY, HALF, WIDTH, HEADS = 23, 12, 24, 3
LENGTH = 2 * HALF + 1
SIZES = {"n_layers": 2, "d_model": WIDTH, "d_head": 8, "n_heads": HEADS, "d_vocab": VOCABULARY, "n_ctx": LENGTH}
MLP = {"d_mlp": 40, "act_fn": "gelu_new"}
NATIVE = {
    "learned positions": MLP | {"normalization_type": "LN", "positional_embedding_type": "standard"},
    "rotary positions, RMS": MLP
    | {"normalization_type": "RMS", "positional_embedding_type": "rotary", "rotary_dim": 4},
    "attention only": {"normalization_type": None, "positional_embedding_type": "standard", "attn_only": True},
}
HF = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "max_position_embeddings": LENGTH, "attn_implementation": "eager"}
LAYERS = {"num_hidden_layers": 2, "num_attention_heads": HEADS, "intermediate_size": 40}
WINDOWS = {"num_layers": 2, "num_heads": HEADS, "attention_types": [[["global", "local"], 1]], "window_size": 4}
WRAPPED = {
    "parallel blocks": ("GPTNeoX", LAYERS | {"use_parallel_residual": True}),
    "windows": ("GPTNeo", WINDOWS),
    "gated, shared keys": ("Llama", LAYERS | {"num_key_value_heads": 1}),
}
NETWORKS = [*NATIVE, *WRAPPED]
TURNED = ("rotary positions, RMS", "parallel blocks", "gated, shared keys")
PATTERNS = ("learned positions", "rotary positions, RMS", "attention only", "windows")  # as cache["attn_scores", 0]
PATCHED = [name for name in NETWORKS if name != "attention only"]
LOGITS = "TransformerBridge, bridge.run_with_cache(tokens)"
HOOKS = "bridge.run_with_hooks(tokens, fwd_hooks=[(name, hook)])"
FOLDED = "bridge.enable_compatibility_mode()"
# There -> here, within a block.
ACTIVATIONS = {
    'cache["pattern", 0]': ("attn.hook_pattern", "attention.pattern"),
    'cache["q", 0]': ("attn.hook_q", "attention.queries"),
    'cache["k", 0]': ("attn.hook_k", "attention.keys"),
    'cache["v", 0]': ("attn.hook_v", "attention.values"),
    'cache["attn_scores", 0]': ("attn.hook_attn_scores", "attention.scores"),
    'cache["z", 0]': ("attn.hook_z", "attention.heads"),
    'cache["resid_mid", 0]': ("hook_resid_mid", "middle"),
    'cache["resid_post", 0]': ("hook_resid_post", ""),
}
ROTARY = {
    'cache["q", 0]': ("attn.hook_q", "attention.unrotated_queries"),
    'cache["k", 0]': ("attn.hook_k", "attention.unrotated_keys"),
    'cache["rot_q", 0]': ("attn.hook_rot_q", "attention.queries"),
    'cache["rot_k", 0]': ("attn.hook_rot_k", "attention.keys"),
}
# Ours -> theirs.
PATCHES = {
    "residual": "resid_pre",
    "attention": "attn_out",
    "mlp": "mlp_out",
    "heads": "attn_head_out_all_pos",
}
NOTES = {
    "logits": "theirs have mean zero over the vocabulary, ours are those of the weights as they were made",
    "streams": "theirs have mean zero over coordinates in networks with LayerNorm, ours keep the mean",
}
REMOVED = {"HookedTransformer": "models.Transformer", "HookedTransformerConfig": "models.BlockOptions"}


def VERSION():
    """The versions of the package, of PyTorch and of transformers."""
    return f"{version('transformer-lens')}, PyTorch {torch.__version__}, transformers {transformers.__version__}"


def network(name):
    """Random weights in a bridge: no bias is 0 and no scale is 1."""
    if name in NATIVE:
        module = bridge = boot_native(SIZES | NATIVE[name])
    else:
        kind, fields = WRAPPED[name]
        module = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**HF | fields))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator) + (parameter.ndim == 1) * 0.5)
    if name in WRAPPED:
        bridge = build_bridge_from_module(module, type(module).__name__, hf_config=module.config)
    return bridge.eval()


def relative(ours, theirs):
    """The largest difference over the largest finite number of theirs; what is masked there does not count."""
    theirs = np.asarray(theirs.detach())
    ours = np.asarray(ours)
    seen = np.isfinite(theirs) & (theirs > -1e4)
    return np.abs(ours - theirs)[seen].max() / np.abs(theirs[seen]).max()


def case(name, theirs, ours, difference, **fields):
    """A row of a relative difference in 32 bits."""
    row = {"case": name, "theirs": theirs, "ours": ours, "difference": difference}
    return row | {"unit": "relative", "tolerance": 1e-5, "note": ""} | fields


def differences(name, prompt, ids):
    """Names there -> the largest difference: logits, every activation of the cache, logits with a head at zero."""
    bridge = network(name)
    model = models.from_torch(bridge)
    logits, cache = bridge.run_with_cache(ids)
    trace = model.trace(prompt)
    found = {LOGITS: relative(trace.prediction, logits[0])}
    for theirs, (there, here) in (ACTIVATIONS | (ROTARY if name in TURNED else {})).items():
        names = [(f"blocks.{i}.{there}", f"block{i}.{here}".rstrip(".")) for i in (0, 1)]
        if names[0][0] in cache:  # else the network has no such activation
            found[theirs] = max(relative(trace.activations[ours], cache[name][0]) for name, ours in names)

    def hook(value, hook):
        value[:, :, 1] = 0.0
        return value

    def edit(name, value):
        return value.at[:, 1].set(0.0) if name == "block0.attention.heads" else value

    ablated = bridge.run_with_hooks(ids, fwd_hooks=[("blocks.0.attn.hook_z", hook)])
    return found | {HOOKS: relative(model.trace(prompt, edit).prediction, ablated[0])}


def folded(name, prompt, ids):
    """What is compared -> the largest difference of folded weights there from the weights as they were made."""
    trace = models.from_torch(network(name)).trace(prompt)
    bridge = network(name)
    bridge.enable_compatibility_mode(disable_warnings=True)
    logits, cache = bridge.run_with_cache(ids)
    ours, theirs = trace.prediction, logits[0]
    return {
        "log-probabilities": relative(jax.nn.log_softmax(ours), theirs.log_softmax(-1)),
        "patterns": relative(trace.activations["block1.attention.pattern"], cache["pattern", 1][0]),
        "logits": relative(ours, theirs),
        "streams": relative(trace.activations["block1"], cache["resid_post", 1][0]),
    }


def patches(name, prompt, ids):
    """Names there -> the largest difference of metrics with one clean activation in the corrupted run, over logits."""
    bridge, other = network(name), ids.clone()
    model, other[0, -3] = models.from_torch(bridge), 3

    def metric(logits):
        return logits[0, -1, 1] - logits[0, -1, 2]

    with torch.no_grad():
        logits, cache = bridge.run_with_cache(ids)
        values = {
            site: getattr(patching, f"get_act_patch_{kind}")(bridge, other, cache, metric)
            for site, kind in PATCHES.items()
        }
    tokens = (ids[0].tolist(), other[0].tolist())
    result = diagnostics.patch(model, *tokens, metric=diagnostics.logit_difference(1, 2))
    ours = {site: result[f"{site}_metric"].values for site in PATCHES}
    ours["residual"], values["residual"] = ours["residual"][:-1], values["residual"][1:]  # after a block, before it
    largest = float(logits.abs().max())
    return {kind: np.abs(ours[site] - np.asarray(values[site])).max() / largest for site, kind in PATCHES.items()}


def scores(pattern, tokens):
    """Scores of the heads of a pattern [head, token, token], on repeated tokens after a first one."""
    ours = jnp.asarray(pattern)
    ids = jnp.asarray(tokens, jnp.int32)
    detected = {
        "previous_token": (heads.previous_token_score(ours), LENGTH - 1),
        "duplicate_token": (heads.duplicate_token_score(ours, ids), HALF),
        "induction": (heads.prefix_matching_score(ours, ids), HALF),
    }
    names = {"previous_token": "previous_token_score", "duplicate_token": "duplicate_token_score"}
    for kind, (score, rows) in detected.items():
        function = getattr(head_detector, f"get_{kind}_head_detection_pattern")
        wanted = function(torch.tensor(tokens)[None])
        theirs = np.array(
            [
                head_detector.compute_head_attention_similarity_score(
                    torch.tensor(one), wanted, exclude_bos=False, exclude_current_token=False, error_measure="mul"
                )
                for one in pattern
            ]
        )
        text = f"{function.__name__}(tokens), compute_head_attention_similarity_score"
        here = f"diagnostics.behaviour.heads.{names.get(kind, 'prefix_matching_score')}"
        note = "theirs divides by the number of all tokens, ours by the number of those with such an earlier token"
        yield case(f"{kind} head", text, here, np.abs(score - theirs).max(), unit="absolute", note=note)
        yield case(
            f"{kind} head, theirs times tokens over rows that have one",
            text,
            here,
            np.abs(score - theirs * LENGTH / rows).max(),
            unit="absolute",
        )
    diagonal = torch.tensor(pattern).diagonal(-HALF + 1, dim1=-2, dim2=-1).mean(-1).numpy()
    difference = np.abs(heads.diagonal_induction_score(ours, ids) - diagonal).max()
    yield case(
        "induction score of ARENA's exercises",
        "pattern.diagonal(-period + 1).mean()",
        "diagnostics.behaviour.heads.diagonal_induction_score",
        difference,
        unit="absolute",
    )


def cases(checkout):
    """Six networks on one sequence of repeated tokens, and their heads."""
    warnings.filterwarnings("ignore", module="transformer_lens")
    half = np.random.default_rng(0).permutation(VOCABULARY - 1)[:HALF]
    tokens = np.array([VOCABULARY - 1, *half, *half])
    prompt, ids = TokenPrompt.from_ids(jnp.asarray(tokens, jnp.int32)), torch.tensor(tokens)[None]
    for name, ours in REMOVED.items():
        try:
            getattr(transformer_lens, name)
        except ImportError as error:
            yield case(name, name, ours, None, note=f"theirs says: {str(error).partition('. ')[2].split(' See ')[0]}")
    found = {name: differences(name, prompt, ids) for name in NETWORKS}
    for name, values in found.items():
        yield case(f"logits, {name}", LOGITS, "models.from_torch(bridge)", values[LOGITS])
    for theirs in [*(ACTIVATIONS | ROTARY), HOOKS]:
        what = "logits with a head at zero" if theirs == HOOKS else theirs.split('"')[1]
        values = {name: row[theirs] for name, row in found.items() if theirs in row}
        if what == "attn_scores":
            wrong = max(values.pop(name) for name in PATTERNS)
            note = "theirs are the pattern, after the softmax, in a bridge of a native network and of GPT-Neo"
            yield case(f"{what}, {len(PATTERNS)} networks", theirs, "models.Transformer.trace", wrong, note=note)
        text = f"{what}, {', '.join(values) if len(values) < 3 else f'{len(values)} networks'}"
        yield case(text, theirs, "models.Transformer.trace", max(values.values()))
    found = {name: folded(name, prompt, ids) for name in NETWORKS}
    for what in ("log-probabilities", "patterns", "logits", "streams"):
        worst = max(values[what] for values in found.values())
        text, ours = f"{what} of folded weights, {len(found)} networks", "models.from_torch(bridge), copied before that"
        yield case(text, FOLDED, ours, worst, note=NOTES.get(what, ""))
    found = [patches(name, prompt, ids) for name in PATCHED]
    for kind in PATCHES.values():
        function = f"patching.get_act_patch_{kind}(bridge, corrupted_tokens, clean_cache, metric)"
        worst = max(values[kind] for values in found)
        yield case(f"patches of {kind}, {len(found)} networks", function, "diagnostics.patch", worst)
    pattern = network("attention only").run_with_cache(ids)[1]["pattern", 0]
    yield from scores(pattern[0].detach().numpy(), tokens)
