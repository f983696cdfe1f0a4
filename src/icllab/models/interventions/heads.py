r"""Interventions on the heads of a transformer: replace a head's output for all its readers, or for some of them.

Head h of a block adds :math:`o_h W_O^{(h)}` to the residual stream. With a weight :math:`m_h` from 0 to 1 and another
output :math:`r_h`, which is zero, a mean or that of another prompt, it adds instead

.. math:: \big[(1 - m_h)\, o_h + m_h\, r_h\big] W_O^{(h)}.

The weights of all heads are one array [block, head]: under ``jit`` other heads compile nothing again, and the gradient
of a loss by the weights at 0 is the effect of every head to first order.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any, TypeAlias

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float

from icllab.core.errors import expected, require_instance, require_known
from icllab.core.protocols import AbstractModel, Edit, Trace
from icllab.models.interventions.edits import AbstractEdited, of_language_models, unedited
from icllab.models.interventions.recording import Recorder
from icllab.models.networks.dense import wide
from icllab.models.networks.transformer import Transformer

Outputs: TypeAlias = Sequence[Array | np.ndarray] | Array | np.ndarray
"""Outputs of heads for each block, [token, head, dim], or [head, dim] for all tokens."""
INPUTS = ("queries", "keys", "values")


class HeadsReplaced(AbstractEdited):
    """``model`` with the outputs of some heads replaced; see :func:`~icllab.models.interventions.clamps.ablated`."""

    model: AbstractModel
    weights: Float[Array, "block head"]
    outputs: Outputs | None
    tokens: Bool[Array, " token"] | Callable[[Any], Array] | None

    def edit_of(self, prompt: Any) -> Edit:
        """The replacement of ``block0.attention.heads`` and so on."""
        tokens = self.tokens(prompt) if callable(self.tokens) else self.tokens
        blocks = {f"block{i}.attention.heads": i for i in range(len(self.weights))}

        def edit(name: str, value: Array) -> Array:
            if name not in blocks:
                return value
            weights: Array = self.weights[blocks[name], : value.shape[1]]
            weights = jnp.pad(weights, (0, value.shape[1] - len(weights)))
            change = _change(value, weights, _of_block(self.outputs, blocks[name]))
            if tokens is not None:
                change = jnp.where(jnp.broadcast_to(tokens[:, None, None], change.shape), change, 0)
            return value + change

        return edit

    def trace(self, prompt: Any, edit: Edit | None = None) -> Trace:
        """The trace under this ablation; raise unless its heads exist, which some models tell only now."""
        result = super().trace(prompt, edit)
        counts = heads_in(result.activations)
        pairs = [] if isinstance(self.weights, Tracer) else np.argwhere(np.asarray(self.weights)).tolist()
        for block, head in pairs:
            _require_head("heads", counts, block, head)
        return result


class PathPatched(AbstractEdited):
    """``model`` in which some heads read changed outputs of other heads; see :func:`path_patched`."""

    model: AbstractModel
    senders: Float[Array, "block head"]
    receivers: Float[Array, "block head"]
    outputs: Outputs | None
    through: tuple[str, ...] = eqx.field(static=True)

    def edit_of(self, prompt: Any) -> Edit:
        """The replacement of the receivers' outputs, from a run on the prompt without intervention."""
        assert isinstance(self.model, Transformer)  # others are refused
        activations, (_, layout) = self.model.trace(prompt).activations, self.model.embedding(prompt)
        stream = activations["embedding"]
        change, received = jnp.zeros_like(stream), []
        for i, block in enumerate(self.model.blocks):
            output = activations[f"block{i}.attention.heads"]
            rows = None if len(output) == len(stream) else layout.read
            plain, changed = (block.read(0, x) for x in (stream, stream + change))
            reads, run = Recorder(), Recorder()
            block.attention(changed, layout, reads, rows)
            run = Recorder(lambda name, value, reads=reads: reads.activations[name] if name in self.through else value)
            block.attention(plain, layout, run, rows)
            received.append(run.activations["heads"])
            if rows is None:
                sent = _change(output, self.senders[i], _of_block(self.outputs, i))
                change = change + jnp.einsum("thd,hdw->tw", sent, wide(block.attention.output))
                stream = activations[f"block{i}"]
        return HeadsReplaced(self.model, self.receivers, received, None).edit_of(prompt)


@of_language_models
def path_patched(
    model: AbstractModel,
    senders: Any,
    receivers: Any,
    *,
    through: Sequence[str] = INPUTS,
    outputs: Outputs | None = None,
) -> PathPatched:
    r"""``model`` in which only the ``receivers`` read changed outputs of the ``senders``.

    With all between them as it was, the stream that a receiver's block reads changes by

    .. math:: \sum_s m_s\,(r_s - o_s)\, W_O^{(s)}

    over the senders of earlier blocks. Of the changed stream, through the norm and the rotation of places, a receiver
    gets its queries, keys or values; from these its output, with which the rest of the model is run. Heads that share
    their keys with a receiver keep theirs. To first order the effects of all receivers and of the dense layers add up.

    Args:
        model: Transformer whose norms are of what is read (``norm="pre"``), if it has any.
        senders: Pairs (block, head), counted from 0; or weights [block, head] from 0, kept, to 1, replaced.
        receivers: Likewise.
        through: Some of ``"queries"``, ``"keys"``, ``"values"``.
        outputs: Other outputs of the senders; None: zeros.

    Raises:
        InputError: A head does not exist, no receiver is in a later block than a sender, or the model is no transformer
            or has norms of what is added to the stream, or of the sum.

    Source: [WangIOI23].
    """
    if not isinstance(model, Transformer):
        raise expected("model", "a Transformer, without other interventions", type(model).__name__)
    if (norm := next((block.norm for block in model.blocks if not block.adds_heads), None)) is not None:
        hint = "after a norm of what is added, or of the sum, the stream is not a sum of heads"
        raise expected("model", 'norm="pre" or "none"', norm, hint)
    for name in through:
        require_known("through", name, INPUTS)
    sent, received = head_weights(model, senders, "senders"), head_weights(model, receivers, "receivers")
    if not isinstance(sent, Tracer) and not isinstance(received, Tracer):
        first, reading = (np.flatnonzero(np.asarray(part).any(1)) for part in (sent, received))
        if len(first) and len(reading) and first[0] >= reading[-1]:
            raise expected(
                "receivers", f"a head of a block after {first[0]}, of a sender", f"blocks {reading.tolist()}"
            )
    return PathPatched(model, sent, received, outputs, tuple(through))


def head_outputs(model: AbstractModel, prompt: Any) -> list[Float[Array, "token head dim"]]:
    """Outputs of all heads on one prompt, for each block, before :math:`W_O`."""
    activations = model.trace(prompt).activations
    return [activations[f"block{i}.attention.heads"] for i in range(len(heads_in(activations)))]


def heads_in(activations: Mapping[str, Any]) -> list[int]:
    """Number of heads of each block, from the activations of a trace; raise unless it has outputs of heads."""
    counts = [v.shape[1] for name, v in activations.items() if re.fullmatch(r"block\d+\.attention\.heads", name)]
    if not counts:
        hint = "FromTorch(module, heads=...) names modules that read them; models.from_torch copies a network"
        raise expected("model", "one whose trace has block0.attention.heads", list(activations), hint)
    return counts


def head_weights(
    model: AbstractModel, heads: Any, name: str = "heads", counts: Sequence[int] | None = None
) -> Float[Array, "block head"]:
    """Weights [block, head] from pairs (block, head) or from given weights; raise if a head does not exist.

    ``counts`` are the numbers of heads of a model that tells them in a trace alone. Without them its heads are
    checked when it runs.
    """
    counts = _head_counts(model) if counts is None else counts
    if eqx.is_array_like(heads) and np.ndim(heads) == 2 and jnp.asarray(heads).dtype.kind in "bf":
        weights, stated = jnp.asarray(heads, float), not isinstance(heads, Tracer)
        shape = weights.shape if counts is None else (len(counts), max(counts))
        if weights.shape != shape:
            raise expected(name, f"weights of shape {shape}, [block, head]", weights.shape)
        if stated and not ((weights >= 0) & (weights <= 1)).all():
            raise expected(name, "weights from 0 (kept) to 1 (replaced)", weights)
        pairs = np.argwhere(np.asarray(weights)) if stated else []
    else:
        single = isinstance(heads, str) or (isinstance(heads, Sequence | np.ndarray) and all(map(_is_integer, heads)))
        heads = [heads] if single else heads
        pairs = [_named_head(name, pair) if isinstance(pair, str) else pair for pair in heads]
        pairs = [tuple(pair) if isinstance(pair, Sequence | np.ndarray) else () for pair in pairs]
        if not pairs or any(len(pair) != 2 or not all(map(_is_integer, pair)) for pair in pairs):
            raise expected(name, "pairs (block, head), such as [(0, 1)]", heads)
        blocks, most = np.max(np.asarray(pairs, int), axis=0) + 1
        counts = [max(int(most), 1)] * max(int(blocks), 1) if counts is None else counts
        weights = jnp.zeros((len(counts), max(counts))).at[tuple(np.asarray(pairs, int).T)].set(1)
    for block, head in np.asarray(pairs, int).reshape(-1, 2).tolist() if counts is not None else ():
        _require_head(name, counts or (), block, head)
    return weights


def _named_head(name: str, text: str) -> tuple[int, int]:
    """Block and head of ``block5.1``, or of ``a5.h1`` as the MIB circuit track writes it."""
    found = re.fullmatch(r"block(\d+)\.(\d+)|a(\d+)\.h(\d+)", text)
    if found is None:
        raise expected(name, "a head such as 'block5.1' or 'a5.h1'", text)
    block, head = (int(number) for number in found.groups() if number is not None)
    return block, head


def _require_head(name: str, counts: Sequence[int], block: int, head: int) -> None:
    if not (0 <= block < len(counts) and 0 <= head < counts[block]):
        sizes = f"a block below {len(counts)} and a head below {counts[min(max(block, 0), len(counts) - 1)]}"
        raise expected(name, f"{sizes}, counted from 0", (block, head))


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _head_counts(model: Any) -> list[int] | None:
    """Number of heads of each block; None for a model that tells it in a trace alone."""
    model = unedited(model)
    if getattr(model, "heads_in_trace", False):
        return None
    require_instance("model", model, Transformer, "a Transformer, whose blocks have heads")
    return [block.attention.query.shape[1] for block in model.blocks]


def _of_block(outputs: Outputs | None, block: int) -> Array | np.ndarray | None:
    return None if outputs is None else outputs[block]


def _change(outputs: Array, weights: Array, replacement: Array | np.ndarray | None) -> Array:
    """Change of head outputs [token, head, dim] if a fraction ``weights`` [head] is replaced; None replaces by zero."""
    by = jnp.broadcast_to(weights[: outputs.shape[1], None].astype(outputs.dtype), outputs.shape)
    if replacement is None:
        return -by * outputs
    replacement = replacement if replacement.ndim == 3 else replacement[None]
    return by * (jnp.broadcast_to(replacement, outputs.shape).astype(outputs.dtype) - outputs)
