"""Networks of TransformerLens 2 with random weights, and the same weights here: activations, edits, scores of heads."""

from importlib.metadata import version

import jax.numpy as jnp
import numpy as np
import torch
from transformer_lens import HookedTransformer, HookedTransformerConfig, head_detector

from icllab import models
from icllab.core.prompt import TokenPrompt
from icllab.diagnostics.behaviour import heads

PEER = "transformer-lens"
VOCABULARY, HALF, WIDTH, HEADS = 23, 12, 24, 3
LENGTH = 2 * HALF + 1
SIZES = {"n_layers": 2, "d_model": WIDTH, "d_head": 8, "n_heads": HEADS, "d_vocab": VOCABULARY, "n_ctx": LENGTH}
MLP = {"d_mlp": 40, "act_fn": "gelu_new"}
NETWORKS = {
    "learned positions": MLP | {"normalization_type": "LN", "positional_embedding_type": "standard"},
    "rotary positions, RMS": MLP
    | {"normalization_type": "RMS", "positional_embedding_type": "rotary", "rotary_dim": 4},
    "parallel, folded norms": MLP
    | {"normalization_type": "LNPre", "positional_embedding_type": "rotary", "rotary_dim": 8, "parallel_attn_mlp": True}
    | {"rotary_adjacent_pairs": True},
    "attention only": {"normalization_type": None, "positional_embedding_type": "standard", "attn_only": True},
    "windows": MLP
    | {"normalization_type": "RMSPre", "positional_embedding_type": "standard", "use_local_attn": True}
    | {"attn_types": ["global", "local"], "window_size": 4},
}
LOGITS = "HookedTransformer, model.run_with_cache(tokens)"
HOOKS = "model.run_with_hooks(tokens, fwd_hooks=[(name, hook)])"
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


def VERSION():
    """The versions of the package and of PyTorch."""
    return f"{version('transformer-lens')}, PyTorch {torch.__version__}"


def network(options):
    """Random weights: no bias is 0 and no scale is 1."""
    module = HookedTransformer(HookedTransformerConfig(**SIZES, **options, device="cpu"))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator) + (parameter.ndim == 1) * 0.5)
    return module.eval()


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


def differences(options, prompt, ids):
    """Names there -> the largest difference: logits, every activation of the cache, logits with a head at zero."""
    module = network(options)
    model = models.from_torch(module)
    logits, cache = module.run_with_cache(ids)
    trace = model.trace(prompt)
    found = {LOGITS: relative(trace.prediction, logits[0])}
    for theirs, (there, here) in (ACTIVATIONS | (ROTARY if "rotary_dim" in options else {})).items():
        if here == "middle" and (options.get("attn_only") or options.get("parallel_attn_mlp")):
            continue  # there is no stream between attention and dense layers
        names = [(f"blocks.{i}.{there}", f"block{i}.{here}".rstrip(".")) for i in (0, 1)]
        found[theirs] = max(relative(trace.activations[ours], cache[name][0]) for name, ours in names)

    def hook(value, hook):
        value[:, :, 1] = 0.0
        return value

    def edit(name, value):
        return value.at[:, 1].set(0.0) if name == "block0.attention.heads" else value

    ablated = module.run_with_hooks(ids, fwd_hooks=[("blocks.0.attn.hook_z", hook)])
    return found | {HOOKS: relative(model.trace(prompt, edit).prediction, ablated[0])}


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
    """Five networks on one sequence of repeated tokens, and their heads."""
    half = np.random.default_rng(0).permutation(VOCABULARY - 1)[:HALF]
    tokens = np.array([VOCABULARY - 1, *half, *half])
    prompt = TokenPrompt(jnp.asarray([*tokens, 0], jnp.int32))
    found = {name: differences(options, prompt, torch.tensor(tokens)[None]) for name, options in NETWORKS.items()}
    for name, values in found.items():
        yield case(f"logits, {name}", LOGITS, "models.from_torch(module)", values[LOGITS])
    for theirs in [*(ACTIVATIONS | ROTARY), HOOKS]:
        networks = [values[theirs] for values in found.values() if theirs in values]
        what = "logits with a head at zero" if theirs == HOOKS else theirs.split('"')[1]
        yield case(f"{what}, {len(networks)} networks", theirs, "models.Transformer.trace", max(networks))
    pattern = network(NETWORKS["attention only"]).run_with_cache(torch.tensor(tokens)[None])[1]["pattern", 0]
    yield from scores(pattern[0].detach().numpy(), tokens)
