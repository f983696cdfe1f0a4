"""Comparison of a language model with logits and hidden states that another program computed."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Array

from icllab.core.domains import Domain
from icllab.core.errors import expected
from icllab.core.prompt import TokenPrompt
from icllab.models.networks.transformer import Transformer
from icllab.models.pretrained.ignored_fields import names_ignored


@names_ignored
def verify(model: Transformer, ids: Any, logits: Any, *, hidden: Any = None, tolerance: float = 1e-3) -> xr.Dataset:
    r"""Differences of a model from another program's values for the same ids, from the first layer to the last.

    .. math:: \text{difference} = \max_i \frac{\|h_i - h'_i\|}{\|h'_i\|}, \qquad
              \text{cosine} = \min_i \frac{\langle h_i, h'_i \rangle}{\|h_i\| \|h'_i\|}

    over positions i, for the embedding, the stream after each block, the stream that is read, and the logits.

    Args:
        model: Model, such as :func:`~icllab.models.pretrained.load` returns.
        ids: Token ids.
        logits: Logits that the other program computed, [position, vocabulary].
        hidden: Hidden states of the other program, [layer + 1, position, width], as ``output_hidden_states`` of
            transformers: the embedding, the stream after each block but the last, the stream that is read. Or None.
        tolerance: Largest difference that is rounding.

    Returns:
        ``difference`` and ``cosine`` over ``activation``; ``attrs["parts_at"]`` is the first activation whose
        difference exceeds the tolerance, or "".

    Raises:
        InputError: Shapes differ from the model's.
    """
    Domain(above=0, text="a positive number").require("tolerance", tolerance)
    ids = np.asarray(ids)
    model.logits(ids)  # which refuses what are no ids
    trace = model.trace(TokenPrompt.from_ids(ids))
    names = ["embedding", *(f"block{i}" for i in range(len(model.blocks) - 1)), "readout"]
    pairs: list[tuple[str, Array, Any]] = []
    if hidden is not None:
        if len(hidden) != len(names):
            raise expected("hidden", f"{len(names)} states, one of the embedding and one of each block", len(hidden))
        pairs = [(name, trace.activations[name], state) for name, state in zip(names, hidden, strict=True)]
    rows = [_compared(name, *pair) for name, *pair in [*pairs, ("prediction", trace.prediction, logits)]]
    activations = [name for name, *_ in pairs] + ["prediction"]
    return _dataset(activations, rows, float(tolerance))


def _compared(name: str, ours: Any, theirs: Any) -> tuple[float, float]:
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    if ours.shape != theirs.shape:
        raise expected("logits" if name == "prediction" else f"hidden ({name})", f"shape {ours.shape}", theirs.shape)
    sizes = [np.linalg.norm(part, axis=1) for part in (ours, theirs)]
    tiny = np.finfo(float).tiny
    difference = np.linalg.norm(ours - theirs, axis=1) / np.maximum(sizes[1], tiny)
    cosine = np.sum(ours * theirs, axis=1) / np.maximum(sizes[0] * sizes[1], tiny)
    return float(difference.max()), float(cosine.min())


def _dataset(names: Sequence[str], rows: Sequence[tuple[float, float]], tolerance: float) -> xr.Dataset:
    difference, cosine = np.array(rows).T
    apart = [name for name, value in zip(names, difference, strict=True) if not value <= tolerance]  # NaN parts too
    return xr.Dataset(
        {"difference": ("activation", difference), "cosine": ("activation", cosine)},
        coords={"activation": list(names)},
        attrs={"parts_at": apart[0] if apart else "", "tolerance": tolerance},
    )
