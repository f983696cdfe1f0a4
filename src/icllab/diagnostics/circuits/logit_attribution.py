r"""Direct attribution of a logit difference: what every head, dense layer and bias adds to it.

The stream that is read is a sum of the embedding, the outputs of heads :math:`o_h W_O^{(h)}`, of dense layers, and
biases. With the scale s of the final norm held, the difference of two logits is linear in it,

.. math:: y_a - y_b = \sum_p \Big\langle \frac{x_p - \bar x_p}{s} \odot g,\; u_a - u_b \Big\rangle
          + \langle b, u_a - u_b\rangle + c_a - c_b

with the unembeddings u and biases c of the two answers; :math:`\bar x_p` is zero in an RMS norm. A part that acts
through later parts has no term for that.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray as xr

from icllab.core.errors import expected, require_instance
from icllab.diagnostics.behaviour.answers import mean_over_prompts
from icllab.diagnostics.circuits.block_runs import embedded, read_out, recorded
from icllab.diagnostics.circuits.patching import LogitDifference
from icllab.diagnostics.circuits.texts import prompt_ids, prompt_list, transformer_of
from icllab.models.networks.dense import wide
from icllab.models.networks.norms import LayerNorm
from icllab.models.networks.transformer import TiedReadout, Transformer
from icllab.models.pretrained.ignored_fields import names_ignored


@names_ignored
def logit_terms(lm: Any, prompts: Any, metric: Any) -> xr.Dataset:
    """Terms of a difference of two logits after the last token of a prompt, which sum to it.

    Args:
        lm: Language model of :func:`~icllab.models.pretrained.language_model.open`, or a
            :class:`~icllab.models.networks.transformer.Transformer` of token ids.
        prompts: Text or ids of a prompt, or a list of prompts.
        metric: :func:`~icllab.diagnostics.circuits.patching.logit_difference` of two answers of one token.

    Returns:
        ``heads`` over ``block`` and ``head``, ``mlp`` over ``block`` (zero in a block without dense layers),
        ``embedding`` and ``biases`` (of attention's outputs, the final norm and the readout), and the
        ``logit_difference`` that the model answers; each with an ``_error`` over prompts, NaN for one prompt.

    Raises:
        InputError: Norms follow what a block adds, or the logits have a soft cap, so that the difference is not a sum
            of parts; or an answer has several tokens.

    Source: [WangIOI23].
    """
    model = transformer_of(lm)
    require_instance("metric", metric, LogitDifference, 'diagnostics.logit_difference(" Paris", " Rome")')
    require_sums(model)
    texts = prompt_list(prompts)
    answers = metric.ids(lm, len(texts))
    rows = [_terms(model, prompt_ids(lm, text), pair) for text, pair in zip(texts, answers, strict=True)]
    dims = {"heads": ("block", "head"), "mlp": ("block",)}
    dataset = xr.Dataset(coords={"block": np.arange(len(model.blocks)), "head": np.arange(rows[0]["heads"].shape[1])})
    for name in rows[0]:
        samples = np.stack([row[name] for row in rows])
        single = samples[0], np.full(samples.shape[1:], np.nan)
        for suffix, values in zip(
            ("", "_error"), single if len(rows) == 1 else mean_over_prompts(samples), strict=True
        ):
            dataset[f"{name}{suffix}"] = dims.get(name, ()), values
    return dataset.assign_attrs(prompts=len(rows))


def require_sums(model: Transformer) -> None:
    """Raise unless the logits, with the scale of the final norm held, are a sum over the heads."""
    norm = next((block.norm for block in model.blocks if not block.adds_heads), None)
    if norm is not None:
        hint = "a norm of what a block adds, or of the sum, is not linear in its heads"
        raise expected("lm", 'a model with norm="pre" or "none"', norm, hint)
    cap = getattr(model.embedding.arrangement, "cap", None)
    if cap is not None:
        raise expected("lm", "logits without a soft cap, which is not linear", f"cap={cap}")


def _terms(model: Transformer, ids: np.ndarray, pair: np.ndarray) -> dict[str, np.ndarray]:
    x = embedded(model, jnp.asarray(ids)[None])
    count = max(block.attention.query.shape[1] for block in model.blocks)
    embedding, bias = np.asarray(x[0, -1], np.float64), np.zeros(x.shape[-1])
    heads, dense = np.zeros((len(model.blocks), count, x.shape[-1])), np.zeros((len(model.blocks), x.shape[-1]))
    for i, block in enumerate(model.blocks):
        sites = recorded(block, model.embedding.arrangement, x)
        weights = np.asarray(wide(block.attention.output), np.float64)
        outputs = np.asarray(sites["heads"][0, -1], np.float64)
        heads[i, : len(outputs)] = np.einsum("hd,hdw->hw", outputs, weights)
        if block.attention.biases is not None and block.attention.biases.output is not None:
            bias += np.asarray(wide(block.attention.biases.output), np.float64)
        if "mlp" in sites:
            dense[i] = np.asarray(sites["mlp"][0, -1], np.float64)
        x = sites["residual"]
    difference, constant = _unembedding(model, pair)
    held = _held(model, np.asarray(x[0, -1], np.float64))
    norm = model.final_norm
    if isinstance(norm, LayerNorm):
        constant += np.asarray(norm.shift, np.float64) @ difference
    logits = np.asarray(read_out(model, x[:, -1]), np.float64)[0]
    return {
        "heads": held(heads) @ difference,
        "mlp": held(dense) @ difference,
        "embedding": np.asarray(held(embedding) @ difference),
        "biases": np.asarray(held(bias) @ difference + constant),
        "logit_difference": np.asarray(logits[pair[0]] - logits[pair[1]]),
    }


def _unembedding(model: Transformer, pair: np.ndarray) -> tuple[np.ndarray, float]:
    """The difference of the unembeddings of two tokens, and of their biases."""
    readout, projection = model.readout, model.embedding.projection
    if isinstance(readout, TiedReadout):
        assert projection is not None  # what is tied has a table
        rows = wide(projection.weight[pair])
    else:
        rows = wide(readout.weight[:, pair]).T
    biases = np.zeros(2) if readout.bias is None else np.asarray(wide(readout.bias[pair]), np.float64)
    right, wrong = np.asarray(rows, np.float64)
    return right - wrong, float(biases[0] - biases[1])


def _held(model: Transformer, read: np.ndarray) -> Any:
    """The final norm of a part of the stream, with the scale that it has for the whole stream."""
    norm = model.final_norm
    if norm is None:
        return lambda part: part
    scale = np.asarray(norm.scale, np.float64) + getattr(norm, "offset", 0.0)
    if isinstance(norm, LayerNorm):
        rate = (read.var() + norm.epsilon) ** -0.5
        return lambda part: (part - part.mean(-1, keepdims=True)) * rate * scale
    rate = ((read**2).mean() + norm.epsilon) ** -0.5
    return lambda part: part * rate * scale
