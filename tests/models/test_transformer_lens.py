"""Models of TransformerLens are copied as the same function, or refused by the name of an option or a tensor.

Stand-ins have the configuration and the arrays, and NumPy computes their function; the package itself is slow.
"""

import functools
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from refusals import assert_refused

from icllab.core.errors import InputError
from icllab.core.prompt import TokenPrompt
from icllab.models import from_torch

VOCABULARY, LENGTH, WIDTH, HEADS, DIM, INNER = 11, 9, 12, 4, 4, 10
IDS = np.random.default_rng(0).integers(0, VOCABULARY, LENGTH)
OPTIONS = {
    **{"n_layers": 2, "d_model": WIDTH, "n_ctx": LENGTH, "d_head": DIM, "n_heads": HEADS, "d_mlp": INNER, "eps": 1e-5},
    **{"d_vocab": VOCABULARY, "d_vocab_out": VOCABULARY, "act_fn": "relu", "normalization_type": "LN"},
    **{"positional_embedding_type": "standard", "rotary_dim": None, "rotary_base": 10_000, "rotary_base_local": None},
    **{"use_attn_scale": True, "attn_scale": DIM**0.5, "scale_attn_by_inverse_layer_idx": False, "attn_only": False},
    **{"use_local_attn": False, "attn_types": None, "window_size": None, "n_key_value_heads": None, "gated_mlp": False},
    **{"parallel_attn_mlp": False, "rotary_adjacent_pairs": False, "final_rms": False, "attention_dir": "causal"},
    **{"attn_scores_soft_cap": -1.0, "output_logits_soft_cap": -1.0, "rotary_scaling_factor": 1.0, "clip_qkv": None},
    **{"use_qk_norm": False, "num_experts": None, "post_embedding_ln": False, "use_yarn_rope": False, "seed": 3},
    **{"device": "cpu", "init_mode": "gpt2", "yarn_factor": 1.0, "NTK_by_parts_factor": 8.0, "n_devices": 1},
    **{"model_name": "custom", "original_architecture": None, "use_hook_tokens": False, "default_prepend_bos": True},
}
ROTARY = {"positional_embedding_type": "rotary"}
LOCAL = {"use_local_attn": True, "attn_types": ["global", "local"], "window_size": 3}
COPIED = [
    {},
    {"use_attn_scale": False, "act_fn": "gelu_new"},
    {"scale_attn_by_inverse_layer_idx": True, "attn_scale": 1.5},
    {"gated_mlp": True, "act_fn": "silu", "normalization_type": "RMS", "n_key_value_heads": 2, "final_rms": True},
    {**ROTARY, "normalization_type": "LNPre", "rotary_dim": 2, "parallel_attn_mlp": True},
    {**ROTARY, **LOCAL, "rotary_adjacent_pairs": True, "rotary_base_local": 50, "n_key_value_heads": 1},
    {**LOCAL, "normalization_type": None, "attn_only": True},
    {"normalization_type": "RMSPre", "attn_scale": -1.0, "d_vocab_out": -1, "attn_scores_soft_cap": 0},
]


class Tensor:
    """An array with the methods of a tensor of PyTorch that are used."""

    def __init__(self, value):
        self.value, self.dtype, self.shape = value, value.dtype, value.shape

    def detach(self):
        return self

    cpu = detach

    def __array__(self, dtype=None, copy=None):
        return self.value


def stand_in(kind, arrays, **attributes):
    """A module of the class ``kind`` with these tensors."""
    state = {name: Tensor(np.asarray(value, np.float32)) for name, value in arrays.items()}
    return type(kind, (), {"state_dict": lambda self: state, **attributes})()


def shapes(options):
    """Shapes of the tensors of a HookedTransformer."""
    shared, mark = options["n_key_value_heads"] or HEADS, "_" if options["n_key_value_heads"] else ""
    norm = {"LN": "wb", "RMS": "w"}.get(options["normalization_type"], "")
    table = {"embed.W_E": (VOCABULARY, WIDTH), "unembed.W_U": (WIDTH, VOCABULARY), "unembed.b_U": (VOCABULARY,)}
    table |= {} if options["positional_embedding_type"] == "rotary" else {"pos_embed.W_pos": (LENGTH, WIDTH)}
    table |= {f"ln_final.{part}": (WIDTH,) for part in norm}
    for i in range(options["n_layers"]):
        at = f"blocks.{i}."
        for part, count in (
            (f"{'' if part == 'Q' else mark}{{}}_{part}", HEADS if part == "Q" else shared) for part in "QKV"
        ):
            table |= {f"{at}attn.{part.format('W')}": (count, WIDTH, DIM), f"{at}attn.{part.format('b')}": (count, DIM)}
        table |= {f"{at}attn.W_O": (HEADS, DIM, WIDTH), f"{at}attn.b_O": (WIDTH,)}
        table |= {f"{at}attn.mask": (LENGTH, LENGTH), f"{at}attn.IGNORE": ()}
        table |= {f"{at}ln{j}.{part}": (WIDTH,) for j in (1, 2)[: 1 if options["attn_only"] else 2] for part in norm}
        if not options["attn_only"]:
            table |= {f"{at}mlp.W_in": (WIDTH, INNER), f"{at}mlp.b_in": (INNER,)}
            table |= {f"{at}mlp.W_out": (INNER, WIDTH), f"{at}mlp.b_out": (WIDTH,)}
            table |= {f"{at}mlp.W_gate": (WIDTH, INNER)} if options["gated_mlp"] else {}
    return table


def hooked(**change):
    options = {**OPTIONS, **change}
    rng = np.random.default_rng(1)
    tensors = {name: 0.5 * rng.normal(size=shape) + (len(shape) == 1) for name, shape in shapes(options).items()}
    return stand_in("HookedTransformer", tensors, cfg=SimpleNamespace(**options), tensors=tensors)


def rotated(x, options, base):
    """Each pair of the first coordinates, as complex numbers, times a phase."""
    dim = options["rotary_dim"] or DIM
    phases = np.exp(1j * np.arange(LENGTH)[:, None] * base ** (-np.arange(dim // 2) * 2 / dim))[:, None]
    x = x.copy()
    a, b = (
        (slice(0, dim, 2), slice(1, dim, 2))
        if options["rotary_adjacent_pairs"]
        else (slice(0, dim // 2), slice(dim // 2, dim))
    )
    turned = (x[..., a] + 1j * x[..., b]) * phases
    x[..., a], x[..., b] = turned.real, turned.imag
    return x


def logits(options, tensors):
    """The function of a HookedTransformer, as the package states it."""
    options = {**OPTIONS, **options}
    tensors = {name.replace("._", "."): value for name, value in tensors.items()}
    kind = options["normalization_type"]

    def norm(x, name):
        if kind is None:
            return x
        x = x - x.mean(-1, keepdims=True) if kind.startswith("LN") else x
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + options["eps"])
        return x * tensors.get(f"{name}.w", 1) + tensors.get(f"{name}.b", 0)

    def attention(x, i):
        at, local = f"blocks.{i}.attn.", options["use_local_attn"] and options["attn_types"][i] == "local"
        q, k, v = (np.einsum("tw,hwd->thd", x, tensors[f"{at}W_{p}"]) + tensors[f"{at}b_{p}"] for p in "QKV")
        if options["positional_embedding_type"] == "rotary":
            base = (local and options["rotary_base_local"]) or options["rotary_base"]
            q, k = rotated(q, options, base), rotated(k, options, base)
        k, v = (np.repeat(part, HEADS // part.shape[1], axis=1) for part in (k, v))
        scale = (DIM**0.5 if options["attn_scale"] == -1 else options["attn_scale"]) if options["use_attn_scale"] else 1
        scale *= i + 1 if options["scale_attn_by_inverse_layer_idx"] else 1
        scores = np.einsum("ihd,jhd->hij", q, k) / scale
        age = np.arange(LENGTH)[:, None] - np.arange(LENGTH)
        scores = np.where((age >= 0) & (age < (options["window_size"] if local else LENGTH)), scores, -np.inf)
        pattern = np.exp(scores - scores.max(-1, keepdims=True))
        pattern /= pattern.sum(-1, keepdims=True)
        return np.einsum("hij,jhd,hdw->iw", pattern, v, tensors[f"{at}W_O"]) + tensors[f"{at}b_O"]

    def dense(x, i):
        at, relu = f"blocks.{i}.mlp.", {"relu": lambda x: np.maximum(x, 0), "silu": lambda x: x / (1 + np.exp(-x))}
        tanh = lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))  # noqa: E731
        phi = relu.get(options["act_fn"], tanh)
        first = x @ tensors[f"{at}W_in"]
        hidden = (
            phi(x @ tensors[f"{at}W_gate"]) * first + tensors[f"{at}b_in"]
            if options["gated_mlp"]
            else phi(first + tensors[f"{at}b_in"])
        )
        return hidden @ tensors[f"{at}W_out"] + tensors[f"{at}b_out"]

    x = tensors["embed.W_E"][IDS] + tensors.get("pos_embed.W_pos", 0)
    for i in range(options["n_layers"]):
        start, x = x, x + attention(norm(x, f"blocks.{i}.ln1"), i)
        if not options["attn_only"]:
            x = x + dense(norm(start if options["parallel_attn_mlp"] else x, f"blocks.{i}.ln2"), i)
    return norm(x, "ln_final") @ tensors["unembed.W_U"] + tensors["unembed.b_U"]


def require_close(ours, theirs, tolerance=1e-5):
    theirs = np.asarray(theirs)
    np.testing.assert_allclose(np.asarray(ours), theirs, rtol=0, atol=tolerance * np.abs(theirs).max())


@pytest.mark.parametrize("options", COPIED)
def test_the_copy_is_the_same_function(options):
    module = hooked(**options)
    require_close(from_torch(module).logits(IDS), logits(options, module.tensors))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *[("attn_scores_soft_cap", 0.5), ("output_logits_soft_cap", 1.0), ("post_embedding_ln", True)],
        *[("attention_dir", "bidirectional"), ("use_qk_norm", True), ("num_experts", 2), ("clip_qkv", 0.1)],
        *[("use_normalization_before_and_after", True), ("use_NTK_by_parts_rope", True), ("use_yarn_rope", True)],
        *[
            ("use_attention_sinks", True),
            ("use_logn_attn", True),
            ("use_dynamic_ntk_rope", True),
            ("load_in_4bit", True),
        ],
        *[("rotary_scaling_factor", 8.0), ("final_rms", True), ("rmsnorm_uses_offset", True), ("act_fn", "solu_ln")],
        *[("positional_embedding_type", "shortformer"), ("normalization_type", "BN"), ("d_vocab_out", 5)],
        *[("original_architecture", "Olmo2ForCausalLM"), ("rope_scaling", {"factor": 2.0}), ("attn_scale", 0.0)],
        *[("n_key_value_heads", 2.5), ("rotary_base", None), ("gated_mlp", "yes"), ("n_layers", None), ("d_head", -1)],
    ],
)
def test_an_option_that_no_field_here_says_is_refused_by_name(option, value):
    module = hooked()
    setattr(module.cfg, option, value)
    with pytest.raises(InputError, match=f"^{option}: expected"):
        from_torch(module)


@pytest.mark.parametrize("change", [{"attn_types": ["local"]}, {"attn_types": None}, {"attn_types": ["near", "far"]}])
def test_kinds_of_attention_that_are_not_understood_are_refused(change):
    with pytest.raises(InputError, match=r"^attn_types: expected global or local for each of 2 layers"):
        from_torch(hooked(**{**LOCAL, **change}))
    with pytest.raises(InputError, match=r"^window_size: expected an integer"):
        from_torch(hooked(**{**LOCAL, "window_size": None}))


def test_options_that_change_nothing_change_nothing():
    other = {
        "seed": None,
        "device": "cuda",
        "init_mode": "xavier_normal",
        "yarn_factor": 4.0,
        "NTK_by_parts_factor": 2.0,
    }
    other |= {"dtype": "bfloat16", "use_attn_result": True, "ungroup_grouped_query_attention": True, "n_params": 10**6}
    other |= {"use_split_qkv_input": True, "original_architecture": "GPT2LMHeadModel", "attn_types": ["local"] * 2}
    np.testing.assert_array_equal(from_torch(hooked(**other)).logits(IDS), from_torch(hooked()).logits(IDS))


SIZES = {
    "GPT2LMHeadModel": ("config", {"vocab_size": 5, "n_positions": 4, "n_embd": 4, "n_layer": 1, "n_head": 2}),
    "GPTNeoForCausalLM": (
        "config",
        {"vocab_size": 5, "max_position_embeddings": 4, "hidden_size": 4, "num_layers": 1, "num_heads": 2},
    ),
    **dict.fromkeys(
        ("GPTNeoXForCausalLM", "LlamaForCausalLM", "Qwen2ForCausalLM"),
        (
            "config",
            {
                "vocab_size": 5,
                "hidden_size": 4,
                "intermediate_size": 4,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
            },
        ),
    ),
    **dict.fromkeys(("HookedTransformer", "NativeModel"), ("cfg", OPTIONS)),
}
MODULES = [*SIZES, "TransformerModel", "TransformerBridge", "a bridge of GPT2LMHeadModel"]


def with_option(kind, name, value):
    """A module of a class, without tensors, whose configuration has one more attribute."""
    if kind == "TransformerModel":
        inner = with_option("GPT2LMHeadModel", name, value)
        return stand_in(kind, {}, _backbone=SimpleNamespace(config=inner.config))
    if kind == "TransformerBridge":
        inner = with_option("NativeModel", name, value)
        return stand_in(kind, {}, original_model=stand_in("NativeModel", {}), cfg=inner.cfg)
    if kind.startswith("a bridge"):
        return stand_in("TransformerBridge", {}, original_model=with_option("GPT2LMHeadModel", name, value))
    attribute, sizes = SIZES[kind]
    return stand_in(kind, {}, **{attribute: SimpleNamespace(**sizes, **{name: value})})


@pytest.mark.parametrize("kind", MODULES)
def test_an_unknown_attribute_is_refused_by_name_unless_it_is_off(kind):
    rng = np.random.default_rng()
    name = "".join(rng.choice(list("abcdefghij"), 12))
    for value in (True, 1, 0, 0.0, -1.0, float(rng.normal()), "on", ["x"], {"factor": 2.0}):
        with pytest.raises(InputError, match=rf"^{name}: expected only known attributes, got"):
            from_torch(with_option(kind, name, value))
    for value in (None, False, "", [], {}):
        with pytest.raises(InputError, match="a number of layers for 0 tensors"):
            from_torch(with_option(kind, name, value))


@pytest.mark.parametrize("options", [{}, {"gated_mlp": True, "n_key_value_heads": 2, "normalization_type": "RMS"}])
def test_each_tensor_is_needed(options):
    module = hooked(**options, n_layers=1)
    for name in module.tensors:
        if name.endswith(("mask", "IGNORE")):
            continue
        tensors = {other: value for other, value in module.tensors.items() if other != name}
        with pytest.raises(InputError, match=f"^{name}: expected a tensor of shape"):
            from_torch(stand_in("HookedTransformer", tensors, cfg=module.cfg))
        tensors[name] = np.ones((2, 2, 2, 2))
        with pytest.raises(InputError, match=f"^{name}: expected a tensor of shape .* got \\(2, 2, 2, 2\\)"):
            from_torch(stand_in("HookedTransformer", tensors, cfg=module.cfg))


def test_a_tensor_that_is_not_understood_is_refused():
    module = hooked()
    for name in ("blocks.0.attn.lora_A", "blocks.0.attn.q_norm.w", "blocks.2.attn.W_Q"):
        tensors = {**module.tensors, name: np.ones(3)}
        assert_refused(
            lambda tensors=tensors: from_torch(stand_in("HookedTransformer", tensors, cfg=module.cfg)),
            f"{name}: expected only known tensors, got (3,)",
        )


NATIVE_NAMES = {"embed.W_E": "tok_embed.weight", "pos_embed.W_pos": "pos.weight", "unembed.W_U": "head.weight"}
NATIVE_NAMES |= {"unembed.b_U": "head.bias", "ln_final.w": "ln_out.weight", "ln_final.b": "ln_out.bias"}


def native(options, module, wrap=""):
    """The tensors of a HookedTransformer with the names and shapes of a NativeModel."""
    tensors = {}
    for name, value in module.tensors.items():
        *path, last = name.replace("blocks.", "layers.").replace("._", ".").split(".")
        weight = "weight" if last[0] in "Ww" else "bias"
        if name in NATIVE_NAMES:
            value = value.T if name == "unembed.W_U" else value
            tensors[NATIVE_NAMES[name].replace(".", f"{wrap}.")] = value
        elif "attn" in path and last[-1] in "QKV":
            value = np.moveaxis(value, 1, 2).reshape(-1, WIDTH) if weight == "weight" else value.reshape(-1)
            tensors[".".join([*path, last[-1].lower()]) + f"{wrap}.{weight}"] = value
        elif last in ("W_O", "b_O"):
            tensors[".".join([*path, "o"]) + f"{wrap}.{weight}"] = (
                value.reshape(-1, WIDTH).T if weight == "weight" else value
            )
        elif "mlp" in path:
            part = last[2:] if options.get("gated_mlp") else f"fc_{last[2:]}"
            if weight == "weight" or not options.get("gated_mlp"):
                tensors[".".join([*path, part]) + f"{wrap}.{weight}"] = value.T
        elif path[-1].startswith("ln"):
            tensors[".".join(path) + f"{wrap}.{weight}"] = value
    return tensors


NATIVE = [
    {},
    {**ROTARY, "normalization_type": "RMS", "n_key_value_heads": 2, "gated_mlp": True, "act_fn": "silu"},
    {"normalization_type": "LNPre", "attn_only": True, "attn_scale": 1.5},
    {"normalization_type": None, "use_attn_scale": False},
]


@pytest.mark.parametrize("options", NATIVE)
def test_the_model_of_a_bridge_is_read_by_the_bridges_configuration(options):
    """It pairs neighbours whatever it is told, and its scores are always divided by a root."""
    module = hooked(**options)
    if options.get("gated_mlp"):
        module.tensors.update({name: 0 * value for name, value in module.tensors.items() if "mlp.b_" in name})
    inner = stand_in("NativeModel", native(options, module, "._original_component"))
    bridge = stand_in("TransformerBridge", {}, original_model=inner, cfg=SimpleNamespace(**{**OPTIONS, **options}))
    scale = {"attn_scale": DIM**0.5} if not options.get("use_attn_scale", True) else {}
    told = {**options, "rotary_adjacent_pairs": True, "use_attn_scale": True, **scale}
    require_close(from_torch(bridge).logits(IDS), logits(told, module.tensors))
    with pytest.raises(
        InputError, match="expected the TransformerBridge itself, got 'its original_model, a NativeModel'"
    ):
        from_torch(stand_in("NativeModel", native(options, module, "._original_component"), cfg=bridge.cfg))
    bridge._weights_processed = True
    with pytest.raises(InputError, match=r"processed ones.*copy it before enable_compatibility_mode\(\)"):
        from_torch(bridge)


@pytest.mark.parametrize("option", ["parallel_attn_mlp", "scale_attn_by_inverse_layer_idx", "use_local_attn"])
def test_an_option_that_the_model_of_a_bridge_ignores_is_refused(option):
    with pytest.raises(InputError, match=f"^{option}: expected only known attributes, got True"):
        from_torch(stand_in("NativeModel", {}, cfg=SimpleNamespace(**{**OPTIONS, option: True})))


def test_a_module_of_another_shape_is_refused_in_a_line():
    for kind in SIZES:
        with pytest.raises(InputError, match=f"^module: expected a {kind} with .* and state_dict"):
            from_torch(type(kind, (), {})())
    with pytest.raises(InputError, match=r"expected a TransformerModel with _backbone\.config and state_dict"):
        from_torch(stand_in("TransformerModel", {}))


def package():
    """TransformerLens, without its warnings that it changes."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    return pytest.importorskip("transformer_lens", reason="TransformerLens is not installed")


def with_normal_weights(module):
    """Every parameter normal, so that no bias is 0 and no scale is 1."""
    import torch

    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator) + (parameter.ndim == 1) * 0.5)
    return module.eval()


def theirs(module):
    """The logits of a module on the tokens."""
    import torch

    with torch.no_grad():
        answer = module(torch.tensor(IDS)[None])
    return getattr(answer, "logits", answer)[0].numpy()


def drawn_options(rng, *, bridge):
    """Options that both libraries compute."""
    options = {"n_layers": int(rng.integers(1, 4)), "d_model": WIDTH, "d_head": DIM, "n_heads": HEADS, "n_ctx": LENGTH}
    options |= {"d_vocab": VOCABULARY, "device": "cpu", "d_mlp": INNER, "attn_only": bool(rng.random() < 0.2)}
    options["normalization_type"] = [*COPIED_NORMS][rng.integers(5)]
    options["act_fn"] = ["relu", "gelu", "silu", "gelu_new"][rng.integers(4)]
    options |= {"gated_mlp": bool(rng.integers(2)), "use_attn_scale": bool(rng.integers(2))}
    options |= {"attn_scale": [-1.0, 2.5][rng.integers(2)], "n_key_value_heads": [None, 1, 2, 4][rng.integers(4)]}
    if rng.integers(2):
        options |= {**ROTARY, "rotary_dim": [None, 2][rng.integers(2)], "rotary_base": [10_000, 50][rng.integers(2)]}
        options["rotary_adjacent_pairs"] = bool(rng.integers(2))
    if not bridge:
        options["scale_attn_by_inverse_layer_idx"] = bool(rng.integers(2))
        options["parallel_attn_mlp"] = bool(rng.integers(2)) and not options["attn_only"]
    if not bridge and rng.integers(2):
        kinds = [["local", "global"][kind] for kind in rng.integers(2, size=options["n_layers"])]
        options |= {"use_local_attn": True, "window_size": 3, "attn_types": kinds}
    return options


COPIED_NORMS = ("LN", "LNPre", "RMS", "RMSPre", None)


def hooked_transformer(**options):
    lens = package()
    try:
        kind, config = lens.HookedTransformer, lens.HookedTransformerConfig
    except ImportError:
        pytest.skip("TransformerLens 4 has no HookedTransformer")
    return with_normal_weights(kind(config(**options)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(12))
def test_a_hooked_transformer_of_the_package_is_the_same_function(seed):
    module = hooked_transformer(**drawn_options(np.random.default_rng(seed), bridge=False))
    require_close(from_torch(module).logits(IDS), theirs(module))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [{"act_fn": "gelu_new"}, {"act_fn": "relu", **ROTARY, "rotary_dim": 2}])
def test_activations_of_a_hooked_transformer_are_theirs(options):
    import torch

    sizes = {"n_layers": 2, "d_model": WIDTH, "d_head": DIM, "n_heads": HEADS, "d_vocab": VOCABULARY, "n_ctx": LENGTH}
    module = hooked_transformer(**sizes, **options, device="cpu")
    _, cache = module.run_with_cache(torch.tensor(IDS)[None])
    trace = from_torch(module).trace(TokenPrompt(jnp.asarray([*IDS, 0], jnp.int32)))
    rotary = "rotary_dim" in options
    pairs = {"pattern": "attn.hook_pattern", "queries": "attn.hook_rot_q" if rotary else "attn.hook_q"}
    pairs |= {"unrotated_keys": "attn.hook_k"} if rotary else {"keys": "attn.hook_k"}
    for mine, hook in pairs.items():
        require_close(trace.activations[f"block1.attention.{mine}"], cache[f"blocks.1.{hook}"][0].detach())


def bridge_of(module):
    package()
    sources = pytest.importorskip("transformer_lens.model_bridge.sources", reason="it has no TransformerBridge")
    return sources.build_bridge_from_module(module, architecture=type(module).__name__, hf_config=module.config)


def language_model(kind):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    shared = {"vocab_size": VOCABULARY, "attn_implementation": "eager", "bos_token_id": 0, "eos_token_id": 0}
    if kind == "GPT2":
        config = transformers.GPT2Config(n_positions=LENGTH, n_embd=WIDTH, n_layer=2, n_head=3, **shared)
        return with_normal_weights(transformers.GPT2LMHeadModel(config))
    sizes = {"hidden_size": 2 * WIDTH, "intermediate_size": INNER, "num_hidden_layers": 2, "num_attention_heads": 3}
    sizes |= {} if kind == "GPTNeoX" else {"num_key_value_heads": 3}
    config = getattr(transformers, f"{kind}Config")(**sizes, max_position_embeddings=LENGTH, **shared)
    return with_normal_weights(getattr(transformers, f"{kind}ForCausalLM")(config))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["GPT2", "GPTNeoX", "Llama", "Qwen2"])
def test_a_bridge_is_the_same_function_or_refused(kind):
    """After its weights were processed it is refused, by its own word or by its logits."""
    bridge = bridge_of(language_model(kind))
    require_close(from_torch(bridge).logits(IDS), theirs(bridge))
    bridge.enable_compatibility_mode(disable_warnings=True)
    with pytest.raises(InputError, match="processed ones"):
        from_torch(bridge)
    bridge._weights_processed = False
    if kind == "Llama":  # what was processed is where it was read
        require_close(from_torch(bridge).logits(IDS), theirs(bridge))
    else:
        with pytest.raises(InputError, match="a TransformerBridge with the same logits as the copy"):
            from_torch(bridge)
    unprocessed = bridge_of(language_model(kind))
    unprocessed.enable_compatibility_mode(disable_warnings=True, no_processing=True)
    require_close(from_torch(unprocessed).logits(IDS), theirs(unprocessed))


@functools.cache
def boot():
    package()
    sources = pytest.importorskip("transformer_lens.model_bridge.sources", reason="it has no TransformerBridge")
    if not hasattr(sources, "boot_native"):
        pytest.skip("TransformerLens 3 has no boot_native")
    return sources.boot_native


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(12))
def test_a_native_bridge_of_the_package_is_the_same_function(seed):
    bridge = with_normal_weights(boot()(drawn_options(np.random.default_rng(seed), bridge=True)))
    require_close(from_torch(bridge).logits(IDS), theirs(bridge))
    bridge.cfg.zeal = 2
    with pytest.raises(InputError, match=r"^zeal: expected only known attributes, got 2"):
        from_torch(bridge)
