"""Attention inside a PyTorch module: the patterns and outputs of its heads, read and replaced while it runs.

Attention in PyTorch is one of three functions: ``multi_head_attention_forward`` (of ``nn.MultiheadAttention`` and
``nn.TransformerEncoderLayer``), ``scaled_dot_product_attention``, or a softmax whose result multiplies the values. A
``TorchFunctionMode`` sees their calls, whatever the modules are named, and keeps PyTorch from faster paths around them.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from icllab.core.errors import expected, unknown
from icllab.core.prompt import ItemLabelPrompt
from icllab.core.protocols import Edit, Trace

ROUNDING = 1e-3  # of the sum of a pattern's row
AS_WEIGHTS = "models.from_torch copies its weights into a network of the library, which shows all activations"


def torch_trace(predictor: Any, prompt: Any, edit: Edit | None = None) -> Trace:
    """The trace of a FromTorch on one prompt.

    Its activations are, for each attention in the order of the calls, ``block0.attention.pattern`` [head, token, key]
    and ``block0.attention.heads`` [token, head, dim], and ``prediction``. On item-label prompts the patterns of single
    heads are ``attention1`` [token, key] and so on. An edit may replace outputs of heads, and the prediction; the
    module runs once more for each block whose heads change.

    Raises:
        InputError: No attention is seen, a named module is not called, or an edit replaces another activation.
    """
    if getattr(prompt, "stack_axes", 0) > 0:
        return jax.vmap(lambda single: torch_trace(predictor, single, edit))(prompt)
    replaced: dict[str, Array] = {}
    offered: set[str] = set()
    while True:
        activations = _run(predictor, prompt, replaced)
        for name in [name for name in activations if name not in offered]:
            offered.add(name)
            value = activations[name]
            activations[name] = value if edit is None else edit(name, value)
            if activations[name] is value or name == "prediction":
                continue
            if not name.endswith(".heads"):
                raise expected("edit", "a change of the outputs of heads, block0.attention.heads", name, AS_WEIGHTS)
            replaced[name] = activations[name]
            break  # what comes after it has changed
        else:
            return Trace(activations["prediction"], activations)


def _run(predictor: Any, prompt: Any, replaced: dict[str, Array]) -> dict[str, Array]:
    """Activations for one prompt; under transformations of JAX by a callback on stacked prompts."""
    axes = [leaf.ndim for leaf in jax.tree.leaves(prompt)]

    def on_host(prompt: Any, replaced: dict[str, Any]) -> dict[str, np.ndarray]:
        first = np.shape(jax.tree.leaves(prompt)[0])
        stacked = first[: len(first) - axes[0]]
        flat = jax.tree.map(lambda leaf: np.array(leaf).reshape(-1, *leaf.shape[len(stacked) :]), (prompt, replaced))
        values = _activations(predictor, *flat)
        return {name: value.reshape(*stacked, *value.shape[1:]) for name, value in values.items()}

    if not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((prompt, replaced))):
        return {name: jnp.asarray(value) for name, value in on_host(prompt, replaced).items()}
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), prompt)
    with jax.ensure_compile_time_eval():
        shapes = {name: jax.ShapeDtypeStruct(value.shape, value.dtype) for name, value in on_host(zeros, {}).items()}
    values = jax.pure_callback(  # of a list: JAX would sort a dictionary
        lambda *arguments: list(on_host(*arguments).values()),
        list(shapes.values()),
        prompt,
        replaced,
        vmap_method="broadcast_all",
    )
    return dict(zip(shapes, values, strict=True))


def _activations(predictor: Any, prompts: Any, replaced: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Activations for stacked prompts, with the prediction last."""
    count = len(jax.tree.leaves(prompts)[0])
    if not predictor.batched and count > 1:
        rows = [jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], (prompts, replaced)) for i in range(count)]
        runs = [_activations(predictor, *row) for row in rows]
        return {name: np.concatenate([run[name] for run in runs]) for name in runs[0]}
    watch = _Watch(count, replaced, dict(predictor.heads))
    with watch.named_heads(predictor.module), _mode_class()(watch):
        single = prompts if predictor.batched else jax.tree.map(lambda leaf: leaf[0], prompts)
        answer = predictor.on_host(single)
    prediction = np.asarray(answer if predictor.batched else answer[None])
    values = {name: tensor.detach().cpu() for name, tensor in watch.activations.items()}
    values = {
        name: np.asarray(tensor.float() if tensor.dtype.itemsize < 4 else tensor) for name, tensor in values.items()
    }
    patterns = {name: value for name, value in values.items() if name.endswith("pattern")}
    if not values:
        kind = type(predictor.module).__name__
        hint = f"the outputs of heads are named by heads=; {AS_WEIGHTS}"
        raise expected("module", "softmax attention in functions of PyTorch", kind, hint)
    if patterns and predictor.heads:
        counts = [pattern.shape[1] for pattern in patterns.values()]
        for i, (name, count) in enumerate(predictor.heads):
            if len(predictor.heads) != len(counts):
                raise expected("heads", f"a module for each of the {len(counts)} attentions", list(predictor.heads))
            if count != counts[i]:
                raise expected(f"heads[{name!r}]", f"{counts[i]}, the number in its pattern", count)
    for name, value in replaced.items():
        if name not in values or values[name].shape != value.shape:
            raise expected("edit", f"shape {np.shape(values.get(name, ()))[1:]} of {name}", value.shape[1:])
    if isinstance(prompts, ItemLabelPrompt) and all(pattern.shape[1] == 1 for pattern in patterns.values()):
        single = {f"attention{i + 1}": patterns[name][:, 0] for i, name in enumerate(patterns)}
        values = single | {name: value for name, value in values.items() if name not in patterns}
    values |= {"prediction": prediction}
    return {name: value.astype(jax.dtypes.canonicalize_dtype(value.dtype)) for name, value in values.items()}


@functools.cache
def _mode_class() -> Any:
    """A mode of PyTorch that gives every call of a function to a watch."""
    from torch.overrides import TorchFunctionMode  # pyright: ignore[reportMissingImports]

    class Mode(TorchFunctionMode):
        def __init__(self, watch: "_Watch") -> None:
            super().__init__()
            self.watch = watch

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            del types
            return self.watch.call(function, args, kwargs or {})

    return Mode


class _Watch:
    """A record of the patterns and heads of every attention, which replaces heads."""

    def __init__(self, batch: int, replaced: dict[str, np.ndarray], named: dict[str, int]) -> None:
        import torch  # pyright: ignore[reportMissingImports]

        self.torch, self.functional, tensor = torch, torch.nn.functional, torch.Tensor
        self.softmaxes = (torch.softmax, tensor.softmax, self.functional.softmax, torch.special.softmax)
        self.unchanging = (self.functional.dropout, torch.dropout, tensor.to, tensor.type_as, tensor.contiguous)
        self.products = (torch.matmul, tensor.matmul, tensor.__matmul__, torch.bmm, tensor.bmm, torch.einsum)
        self.batch, self.replaced, self.named = batch, replaced, named
        self.activations: dict[str, Any] = {}
        self.counts = {"pattern": 0, "heads": 0}
        self.patterns: list[Any] = []  # tensors whose product with values is awaited

    def call(self, function: Any, args: Any, options: Any) -> Any:
        """Call a function of PyTorch; functions within it are not seen."""
        if function is self.functional.multi_head_attention_forward:
            return self.layer(function, *args, **options)
        if function is self.functional.scaled_dot_product_attention:
            return self.fused(*args, **options)
        result = function(*args, **options)
        flat = [part for arg in args for part in (arg if isinstance(arg, list | tuple) else [arg])]
        known = [part for part in flat if any(part is pattern for pattern in self.patterns)]
        if function in self.softmaxes and self.is_pattern(result):
            self.patterns.append(result)
            self.record("pattern", result.reshape(self.batch, -1, *result.shape[-2:]))
        elif known and function in self.unchanging:
            self.patterns.append(result)
        elif known and function in self.products:
            return self.product(known[0], result)
        return result

    def is_pattern(self, values: Any) -> bool:
        """True if rows of [prompt, head, token, key], or of [prompt * head, token, token], sum to 1."""
        ends = values.shape[-2:]
        of_prompts = values.ndim >= 2 and values.numel() % (self.batch * ends.numel()) == 0
        if not of_prompts or not (values.ndim == 4 or (values.ndim < 4 and ends[0] == ends[1])):
            return False
        return bool(((values.sum(-1) - 1).abs() < ROUNDING).all())

    def product(self, pattern: Any, result: Any) -> Any:
        """The product of a pattern with values, which is the outputs of heads, after replacement."""
        tokens, heads = pattern.shape[-2], pattern.shape[:-2].numel() // self.batch
        if result.shape[:-1] == pattern.shape[:-1]:
            values = result.reshape(self.batch, heads, tokens, -1)
            return self.heads(values.transpose(1, 2)).transpose(1, 2).reshape(result.shape)
        if result.shape[:-1] == (self.batch, tokens, heads):
            return self.heads(result)
        return result

    def fused(
        self,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> Any:
        """``scaled_dot_product_attention``; its pattern is its result for unit vectors as values."""
        del dropout_p  # off in evaluation mode
        attend, tokens = self.functional.scaled_dot_product_attention, query.shape[-2]
        units = self.torch.eye(key.shape[-2], dtype=value.dtype, device=value.device).expand(*key.shape[:-1], -1)
        pattern = attend(query, key, units, attn_mask, is_causal=is_causal, **options)
        self.record("pattern", pattern.reshape(self.batch, -1, *pattern.shape[-2:]))
        result = attend(query, key, value, attn_mask, is_causal=is_causal, **options)
        heads = self.heads(result.reshape(self.batch, -1, tokens, result.shape[-1]).transpose(1, 2))
        return heads.transpose(1, 2).reshape(result.shape)

    def layer(
        self, function: Any, query: Any, key: Any, value: Any, width: int, heads: int, *parts: Any, **options: Any
    ) -> Any:
        """``multi_head_attention_forward``, whose output matrix is applied to the heads after replacement."""
        *others, weight, bias = parts
        asked = {name: options.pop(name, True) for name in ("need_weights", "average_attn_weights")}
        units = self.torch.eye(width, dtype=query.dtype, device=query.device)
        outputs, pattern = function(
            *(query, key, value, width, heads, *others, units, None),
            **options | {"need_weights": True, "average_attn_weights": False},
        )
        self.record("pattern", pattern.reshape(self.batch, -1, *pattern.shape[-2:]))
        rows = outputs.unsqueeze(1) if outputs.ndim == 2 else outputs  # [token, prompt, width]
        rows = self.heads(rows.transpose(0, 1).unflatten(-1, (heads, -1))).flatten(-2).transpose(0, 1)
        result = self.functional.linear(rows.reshape(outputs.shape), weight, bias)
        averaged = pattern.mean(-3) if asked["average_attn_weights"] else pattern
        return result, averaged if asked["need_weights"] else None

    def record(self, kind: str, values: Any) -> str:
        """Record values of the next attention; return their name."""
        name = f"block{self.counts[kind]}.attention.{kind}"
        self.counts[kind] += 1
        self.activations[name] = values
        return name

    def heads(self, values: Any, named: bool = False) -> Any:
        """Record outputs of heads [prompt, token, head, dim]; return them, or their replacement."""
        if self.named and not named:
            return values
        name = self.record("heads", values)
        if name in self.replaced:
            self.activations[name] = self.torch.from_numpy(self.replaced[name]).to(values)
        return self.activations[name]

    @contextmanager
    def named_heads(self, module: Any) -> Iterator[None]:
        """Read and replace the inputs of the named modules while they are called."""
        modules, called = dict(module.named_modules()), set()
        handles = []

        def hook_of(name: str, count: int) -> Any:
            def hook(module: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
                del module
                called.add(name)
                inputs = arguments[0]
                if inputs.shape[-1] % count:
                    raise expected(f"heads[{name!r}]", f"a divisor of {inputs.shape[-1]}, the width", count)
                first = inputs.shape[0] != self.batch and inputs.ndim == 3 and inputs.shape[1] == self.batch
                rows = inputs.transpose(0, 1) if first else inputs
                outputs = self.heads(rows.reshape(self.batch, -1, count, inputs.shape[-1] // count), named=True)
                return (
                    outputs.reshape(rows.shape).transpose(0, 1) if first else outputs.reshape(rows.shape),
                    *arguments[1:],
                )

            return hook

        for name, count in self.named.items():
            if name not in modules:
                raise unknown("module", name, modules, "heads= names modules")
            handles.append(modules[name].register_forward_pre_hook(hook_of(name, count)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        for name in self.named:
            if name not in called:
                hint = "attention of nn.MultiheadAttention is seen without heads="
                raise expected("heads", "modules that are called with the outputs of heads", name, hint)
