"""Copy a PyTorch transformer whose parts are named into a network of the library.

The module runs once on prompts, and what its blocks receive, return and attend to is recorded. Each part of the copy is
the candidate that reproduces these numbers: tokens and places, the order of fused projections, norms, nonlinearity,
rotary places. So the source of the module is not read, and a part that nothing reproduces is named.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from icllab.core.errors import expected, require_known, unknown
from icllab.core.prompt import ItemLabelPrompt, TokenPrompt
from icllab.models.interventions.recording import Recorder
from icllab.models.networks.attention import Attention, Rotary
from icllab.models.networks.dense import ACTIVATIONS, Dense, GatedPerceptron, Perceptron
from icllab.models.networks.embedding import Concatenated, Interleaved, Joined, Layout, Tokens
from icllab.models.networks.norms import LayerNorm, RMSNorm
from icllab.models.networks.transformer import Block, BlockOptions, Transformer
from icllab.models.pretrained.assembly import Affine
from icllab.models.pytorch import FromTorch

PROBES, TRIED, TOLERANCE, SIMILAR = 10, 4, 1e-5, 1e-3
PARTS = ("qkv", "q", "k", "v", "out", "dense", "rotary")
ROTARIES = [Rotary(base, pairs=pairs) for base in (1e4, 1e3, 1e2, 5e5) for pairs in ("halves", "adjacent")]
LEAF = r"(to|w|proj|lin|linear|fc)?_?({0}|{1}|{1}s|{2})_?(proj|lin|linear|layer|net)?$"
SINGLE = {part[0]: re.compile(LEAF.format(part[0], part, part[:-1])) for part in ("query", "key", "value")}


class Probe(NamedTuple):
    """One run of the module: streams [prompt, token, width], heads [prompt, token, head, dim], and answers."""

    streams: list[np.ndarray]  # before each block, and after the last
    heads: list[np.ndarray]
    answers: np.ndarray


def copied(
    predictor: FromTorch, names: tuple[str, str | Sequence[str], str], causal: bool, parts: Mapping[str, Any], task: Any
) -> Transformer:
    """The transformer with the weights of the named parts; see :func:`~icllab.models.torch_weights.from_torch`."""
    for name in parts:
        require_known("part", name, PARTS)
    modules = dict(predictor.module.named_modules())
    embedding, blocks, readout = names
    for name in (embedding, *([blocks] if isinstance(blocks, str) else blocks), readout):
        if name not in modules:
            raise unknown("module", name, modules)
    if not _is_linear(modules[readout]):
        raise expected("readout", "a linear layer", type(modules[readout]).__name__)
    if isinstance(blocks, str):
        blocks = f"{blocks}.layers" if f"{blocks}.layers" in modules else blocks  # nn.TransformerEncoder
        blocks = [f"{blocks}.{child}" for child, _ in modules[blocks].named_children()]
    layers = [modules[name] for name in blocks]
    inside = tuple(f"{block}." for block in blocks)
    outer = [module for name, module in modules.items() if not name.startswith(inside)]
    prompts = _prompts(modules[embedding], outer, task)
    probe = _probed(predictor, layers, prompts)
    tokens = Tokens(modules[embedding].num_embeddings) if isinstance(prompts, TokenPrompt) else None
    table = None if tokens is None else _array(modules[embedding].weight)
    model, kept = _embedded(probe.streams[0], prompts, tokens, table, causal, task)
    layout = model.embedding.arrangement.layout(prompts.positions)
    streams, heads = ([values[:, kept] for values in part] for part in (probe.streams, probe.heads))
    copies = [
        _block(blocks[i], layers[i], streams[i], streams[i + 1], heads[i], layout, parts) for i in range(len(blocks))
    ]
    norms = [None, *(norm for module in outer if (norm := _norm(module, streams[0].shape[-1])) is not None)]

    def cases() -> Iterator[tuple[float, Transformer]]:
        last = _affine(modules[readout])
        for final in norms:
            case = eqx.tree_at(
                lambda m: (m.blocks, m.final_norm, m.readout),
                model,
                (tuple(copies), final, _dense(last.weight.T, last.bias)),
                is_leaf=lambda leaf: leaf is None,
            )
            answers = jax.vmap(case)(prompts)
            yield _error(answers[:, -probe.answers.shape[1] :], probe.answers), case

    error, best = _best(cases())
    if not error <= TOLERANCE:
        first, kind = best.blocks[0], type(best.embedding.arrangement).__name__
        hint = f"assumed: {kind}, places {best.embedding.positions}, norms {first.norm}, {first.attention.rotary}"
        raise expected("module", f"the answers of its copy to {TOLERANCE:g} of their size", f"{error:.2g}", hint)
    return best


def _prompts(embedding: Any, outer: Iterable[Any], task: Any) -> Any:
    """Prompts of the task; or tokens, as many as a table of places has, where the module has a table of tokens."""
    if task is not None:
        return task.sample_many(PROBES, key=jax.random.key(0))
    if not hasattr(embedding, "num_embeddings"):
        raise expected("task", "the task of the module, whose prompts it answers", None)
    rows, width = embedding.weight.shape
    shapes = (tuple(p.shape) for module in outer for p in module.parameters(recurse=False))
    places = [shape[-2] for shape in shapes if shape[-1:] == (width,) and len(shape) in (2, 3) and shape[-2] != rows]
    size = (PROBES, min(places, default=16) + 1)
    return jax.vmap(TokenPrompt)(jnp.asarray(np.random.default_rng(0).integers(rows, size=size), jnp.int32))


def _probed(predictor: FromTorch, layers: list[Any], prompts: Any) -> Probe:
    """Streams, heads and answers on the prompts."""
    seen: list[Any] = []

    def before(module: Any, arguments: Any, keywords: Any) -> None:
        del module
        seen.append(next(part for part in (*arguments, *keywords.values()) if hasattr(part, "detach")))

    def after(module: Any, arguments: Any, value: Any) -> None:
        del module, arguments
        seen[len(layers) :] = [value[0] if isinstance(value, tuple) else value]

    activations = predictor.trace(prompts).activations
    heads = [np.asarray(value) for name, value in activations.items() if name.endswith(".heads")]
    handles = [layer.register_forward_pre_hook(before, with_kwargs=True) for layer in layers]
    handles.append(layers[-1].register_forward_hook(after))
    try:
        answers = np.asarray(predictor(prompts))
    finally:
        for handle in handles:
            handle.remove()
    streams = [_array(values) for values in seen]
    streams = [values if len(values) == PROBES else values.swapaxes(0, 1) for values in streams]
    if len(heads) != len(layers) or len({values.shape for values in streams}) != 1 or len(streams) != len(layers) + 1:
        shapes = [list(values.shape) for values in streams]
        raise expected("blocks", f"{len(heads)} blocks with one attention each, on one stream", f"streams {shapes}")
    return Probe(streams, heads, answers)


def _embedded(
    stream: np.ndarray, prompts: Any, tokens: Tokens | None, table: Any, causal: bool, task: Any
) -> tuple[Transformer, np.ndarray]:
    """A transformer with the embedding of the module, and the tokens of the module that it has."""
    labels = task.labels if isinstance(prompts, ItemLabelPrompt) else None
    positions = prompts.positions
    if tokens is not None:
        arrangements: list[Any] = [tokens]
    elif not causal:
        arrangements = [Concatenated(shifted=False, causal=False, labels=labels)]
    else:
        joined = Joined(answers="every", causal=True, query_is_key=True, labels=labels, separate=True)
        arrangements = [
            Interleaved(labels),
            joined,
            Concatenated(labels=labels),
            Concatenated(shifted=False, labels=labels),
        ]
    best: tuple[float, Any, Any, Any, Any] | None = None
    for arrangement in arrangements:
        count, places = stream.shape[1], len(arrangement.layout(positions).place)
        if count not in (places, places + 1):
            continue
        unread = positions - 1 if isinstance(arrangement, Joined) else places
        kept = np.delete(np.arange(count), unread) if count > places else np.arange(count)
        contents = np.asarray(jax.vmap(arrangement.tokens)(prompts), np.float64)
        values = stream[:, kept].astype(np.float64)
        if table is None:
            centred = contents - contents.mean(0), values - values.mean(0)
            weight = np.linalg.lstsq(*(part.reshape(-1, part.shape[-1]) for part in centred), rcond=1e-9)[0]
        else:
            weight = table.astype(np.float64)
        constant = (values - contents @ weight).mean(0)
        error = float(np.abs(contents @ weight + constant - values).max() / np.abs(values).max())
        if best is None or error < best[0]:
            best = error, arrangement, weight, constant, kept
    if best is None or not best[0] <= SIMILAR:
        names = ", ".join(type(arrangement).__name__ for arrangement in arrangements)
        actual = f"{stream.shape[1]} tokens for {positions} positions"
        raise expected("embedding", f"tokens that are linear in the prompt, in a layout of {names}", actual)
    _, arrangement, weight, constant, kept = best
    if isinstance(arrangement, Joined):  # its last feature is 1 at a query
        shift = constant[-positions:-1] - constant[: positions - 1]
        weight[-1] = shift.mean(0)
        constant = constant[-positions:] - weight[-1]
    placed = np.abs(constant - constant[0]).max() > 1e-6 * np.abs(stream).max()
    vectors: Any = None if tokens is not None else getattr(prompts, "items" if labels else "x")
    dim = arrangement.vocabulary if isinstance(arrangement, Tokens) else vectors.shape[-1]
    model = _shell(
        Transformer,
        arrangement,
        dim=dim,
        width=stream.shape[-1],
        layers=1,
        block=BlockOptions(heads=1, mlp=None, norm="none", head_dim=1),
        positions="learned" if placed else "none",
        length=prompts.length if placed else None,
    )
    arrays = _dense(weight, None if placed else constant[0]), jnp.asarray(constant, jnp.float32) if placed else None
    where = lambda m: (m.embedding.projection, m.embedding.table)  # noqa: E731
    return eqx.tree_at(where, model, arrays, is_leaf=lambda leaf: leaf is None), kept


def _shell(kind: Any, *arguments: Any, **options: Any) -> Any:
    """A module whose arrays are shapes, to be replaced."""
    return eqx.filter_eval_shape(lambda: kind(*arguments, **options, key=jax.random.key(0)))


def _block(
    name: str, layer: Any, x: np.ndarray, out: np.ndarray, heads: np.ndarray, layout: Layout, parts: Mapping[str, Any]
) -> Block:
    """The block that reproduces the heads and the stream after it."""
    width, modules = x.shape[-1], dict(layer.named_modules())
    norms = [norm for module in modules.values() if (norm := _norm(module, width)) is not None]
    attending = _attention_names(name, modules, width, parts)
    stream, out, heads = jnp.asarray(x[:TRIED]), out[:TRIED], heads[:TRIED]

    orders = _projections(modules, attending, heads.shape[2])

    def best_attention(norm: Any, rotary: Rotary | None) -> tuple[float, Any]:
        inputs = stream if norm is None else jax.vmap(norm)(stream)
        candidates = (part for order in orders for part in _attentions(order, heads.shape[2], rotary))
        return _best((_error(_heads(part, inputs, layout), heads), (norm, part)) for part in candidates)

    fitting: list[tuple[Any, Attention]] = []  # with several norms if the stream is normal already
    errors = []
    for rotary in [parts["rotary"]] if "rotary" in parts else [None, *ROTARIES]:
        cases = [best_attention(norm, rotary) for norm in (None, *norms)]
        errors += [error for error, _ in cases]
        if fitting := [case for error, case in cases if error <= SIMILAR]:
            break
    if not fitting:
        requirement = "attention by linear layers and softmax, without rotary places or with usual ones"
        hint = 'parts={"q": "attn.to_q", ..., "rotary": Rotary(base=500.0)} names parts of a block'
        raise expected(name, requirement, f"other outputs of heads, by {min(errors):.2g}; {attending}", hint)
    owners = tuple(f"{part}." for part in attending)
    rest = [part for part in modules if part not in attending and not part.startswith(owners)]
    dense = parts.get("dense", [part for part in rest if _is_linear(modules[part])])
    layers = [_affine(modules[part]) for part in dense]
    blocks = [block for first, attention in fitting for block in _blocks(attention, first, norms, layers)]
    error, block = _best((_error(_stream(block, stream, layout), out), block) for block in blocks)
    if not error <= SIMILAR:
        hint = f"tried were {len(blocks)} orders of {len(norms)} norms and of {dense}, with {', '.join(ACTIVATIONS)}"
        raise expected(name, "attention and dense layers, added to the stream", f"another, by {error:.2g}", hint)
    return block


def _best(cases: Iterable[tuple[float, Any]]) -> tuple[float, Any]:
    """The case of the smallest error; the first that is right to rounding."""
    best: tuple[float, Any] = (np.inf, (None, None))
    for case in cases:
        best = min(case, best, key=lambda pair: pair[0])
        if best[0] <= TOLERANCE:
            break
    return best


def _attention_names(name: str, modules: Mapping[str, Any], width: int, parts: Mapping[str, Any]) -> list[str]:
    """Names of an ``nn.MultiheadAttention``, or of the layers of queries, keys, values (or all in one) and output."""
    if whole := [part for part, module in modules.items() if type(module).__name__ == "MultiheadAttention"]:
        return whole[:1]
    shapes = {part: _affine(module)[0].shape for part, module in modules.items() if _is_linear(module)}
    leaves = {part: part.rpartition(".")[2].lower() for part in shapes}
    names = [parts.get(k) or next((p for p in shapes if SINGLE[k].match(leaves[p])), "") for k in SINGLE]
    fused = parts.get("qkv") or next((p for p in shapes if shapes[p] == (3 * width, width)), "")
    names = [fused] if not all(names) else names
    if names[0] in shapes:
        inner, parent = shapes[names[0]][0] // (3 if len(names) == 1 else 1), names[0].rpartition(".")[0]
        others = [part for part in shapes if part not in names and shapes[part] == (width, inner)]
        others.sort(key=lambda part: not part.startswith(parent))
        if outputs := [parts["out"]] if "out" in parts else others[:1]:
            return [*names, *outputs]
    hint = 'parts={"q": "attn.to_q", "k": ..., "v": ..., "out": ...}, or with "qkv", names them within a block'
    raise expected(name, "linear layers of queries, keys, values and output of attention", list(shapes), hint)


def _projections(modules: Mapping[str, Any], names: list[str], heads: int) -> list[tuple[Affine, ...]]:
    """Queries, keys, values and output as [outer, inner], in each order that a fused matrix may have."""
    first = modules[names[0]]
    if hasattr(first, "in_proj_bias"):  # nn.MultiheadAttention
        bias = [None] * 3 if first.in_proj_bias is None else np.split(_array(first.in_proj_bias), 3)
        single = [getattr(first, f"{part}_proj_weight") for part in "qkv"]
        weights = np.split(_array(first.in_proj_weight), 3) if single[0] is None else map(_array, single)
        return [(*map(Affine, weights, bias), _affine(first.out_proj))]
    *given, out = (_affine(modules[part]) for part in names)
    if len(given) == 3:
        return [(*given, out)]
    (weight, bias), cases = given[0], []
    for shape, axis in (((3, heads, -1), 0), ((heads, 3, -1), 1), ((heads, -1, 3), 2)):

        def split(part: Any, shape: tuple[int, ...] = shape, axis: int = axis) -> list[Any]:
            if part is None:
                return [None] * 3
            thirds = np.moveaxis(part.reshape(*shape, *part.shape[1:]), axis, 0)
            return [third.reshape(-1, *part.shape[1:]) for third in thirds]

        cases.append((*map(Affine, split(weight), split(bias)), out))
    return cases


def _attentions(projections: tuple[Affine, ...], heads: int, rotary: Rotary | None) -> Iterator[Attention]:
    """Candidates of an attention, with the usual scales of its scores."""
    q, k, v, out = projections
    dim, width = len(q.weight) // heads, q.weight.shape[1]
    shared, biased = len(k.weight) // dim, any(part.bias is not None for part in projections)
    weights = [part.weight.T.reshape(width, -1, dim) for part in (q, k, v)]
    weights.append(out.weight.T.reshape(heads, dim, width))
    biases = [jnp.zeros(len(part.weight)) if part.bias is None else part.bias for part in projections]
    biases = [*(bias.reshape(-1, dim) for bias in biases[:3]), biases[3]] if biased else []
    for scale in (dim**-0.5, 1.0, width**-0.5):
        shell = _shell(Attention, width, heads, dim=dim, scale=scale, rotary=rotary, bias=biased, kv_heads=shared)
        where = lambda a: [a.query, a.key, a.value, a.output, *(a.biases or [])]  # noqa: E731
        yield eqx.tree_at(where, shell, list(map(jnp.asarray, weights + biases)))


def _blocks(attention: Attention, first: Any, norms: list[Any], dense: list[Affine]) -> Iterator[Block]:
    """Candidates of a block around its attention, whose norm is ``first`` if there is one before it."""
    for mlp in _perceptrons(dense, attention.output.shape[-1]) if dense else [None]:
        if first is None:
            yield Block(attention, mlp, (), "none", False)
            for pair in itertools.permutations(norms, 1 if mlp is None else 2):
                yield Block(attention, mlp, pair, "post", False)
        elif mlp is None:
            yield Block(attention, mlp, (first,), "pre", False)
        else:
            for second, parallel in itertools.product(norms, (False, True)):
                yield Block(attention, mlp, (first, second), "pre", parallel)


def _perceptrons(layers: list[Affine], outputs: int) -> Iterator[Perceptron | GatedPerceptron]:
    """Candidates of dense layers: in their order, and with one of two equal ones as a gate."""
    dense = [_dense(layer.weight.T, layer.bias) for layer in layers]
    width = dense[0].weight.shape[0]
    gated = [pair for pair in itertools.permutations(dense, 2) if pair[0].weight.shape == pair[1].weight.shape]
    last = next((layer for layer in dense if layer.weight.shape[1] == width), dense[-1])
    inner = [layer.weight.shape[0] for layer in dense[1:]]
    chained = [layer.weight.shape[1] for layer in dense] == [*inner, outputs]
    for name in ACTIVATIONS:
        if chained:
            plain = _shell(Perceptron, width, (1,) * (len(dense) - 1), 1, nonlinearity=name)
            yield eqx.tree_at(lambda m: m.layers, plain, tuple(dense))
        for gate, hidden in gated:
            shell = _shell(GatedPerceptron, width, 1, width, nonlinearity=name)
            yield eqx.tree_at(lambda m: (m.gate, m.layers), shell, (gate, (hidden, last)))


def _norm(module: Any, width: int) -> LayerNorm | RMSNorm | None:
    """A norm over the width; None for a module of another kind."""
    kind = type(module).__name__.lower()
    weight = getattr(module, "weight", None)
    if "norm" not in kind or (weight is not None and tuple(weight.shape) != (width,)):
        return None
    given = (getattr(module, name, None) for name in ("eps", "epsilon", "variance_epsilon"))
    epsilon = float(next((value for value in given if value is not None), np.finfo(np.float32).eps))
    scale = jnp.ones(width) if weight is None else jnp.asarray(_array(weight))
    bias = getattr(module, "bias", None)
    norm = (RMSNorm if "rms" in kind else LayerNorm)(width, epsilon=epsilon)
    norm = eqx.tree_at(lambda n: n.scale, norm, scale)
    return norm if bias is None else eqx.tree_at(lambda n: n.shift, norm, jnp.asarray(_array(bias)))


def _is_linear(module: Any) -> bool:
    weight = getattr(module, "weight", None)
    return weight is not None and weight.ndim == 2 and not hasattr(module, "num_embeddings")


def _affine(module: Any) -> Affine:
    """Weight [outer, inner] and bias; a Conv1D of transformers has its weight transposed."""
    weight = _array(module.weight)
    bias = getattr(module, "bias", None)
    return Affine(weight.T if type(module).__name__ == "Conv1D" else weight, None if bias is None else _array(bias))


def _dense(weight: Any, bias: Any) -> Dense:
    arrays = jnp.asarray(weight, jnp.float32), None if bias is None else jnp.asarray(bias, jnp.float32)
    return eqx.tree_at(lambda d: (d.weight, d.bias), _shell(Dense, 1, 1), arrays)


def _array(tensor: Any) -> np.ndarray:
    return tensor.detach().cpu().float().numpy()


def _heads(attention: Attention, inputs: Any, layout: Layout) -> Any:
    def outputs(x: Any) -> Any:
        attention(x, layout, record := Recorder())
        return record.activations["heads"]

    return jax.vmap(outputs)(inputs)


def _stream(block: Block, x: Array, layout: Layout) -> Any:
    return jax.vmap(lambda rows: block(rows, layout, Recorder(), "block", None))(x)


def _error(values: Any, reference: np.ndarray) -> float:
    """Largest difference over the largest number; infinite for other shapes."""
    if values.shape != reference.shape:
        return np.inf
    return float(np.abs(np.asarray(values) - reference).max() / np.abs(reference).max())
