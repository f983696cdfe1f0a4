r"""Activation patching: which activations carry the difference between two prompts.

With the metric m of the clean and the corrupted run, the value of a site s is

.. math:: v_s = \frac{m_s - m_{\text{corrupted}}}{m_{\text{clean}} - m_{\text{corrupted}}}

where :math:`m_s` is the metric of the corrupted run with one clean activation (denoising: 0 if the site changes
nothing, 1 if it restores all), or of the clean run with one corrupted activation (noising: 1 if the site changes
nothing, 0 if it destroys all). A site that acts alone has :math:`v^{\text{denoising}} + v^{\text{noising}} = 1`; what
is missing is its interaction with the rest of the network,

.. math:: 1 - v_s^{\text{denoising}} - v_s^{\text{noising}}.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, Int

from icllab.core import progress
from icllab.core.errors import expected, require_instance, require_known
from icllab.core.result_warnings import warns
from icllab.core.views import fields_html, fields_repr
from icllab.diagnostics.circuits.block_runs import (
    KINDS,
    embedded,
    most_at_once,
    passed,
    patched,
    pulled,
    pushed,
    read_out,
    recorded,
)
from icllab.diagnostics.circuits.texts import answer_id, prompt_ids, prompt_list, token_texts, transformer_of
from icllab.models.networks.transformer import Transformer
from icllab.models.pretrained.ignored_fields import names_ignored

DIRECTIONS = {
    "denoising": "one clean activation in the corrupted run",
    "noising": "one corrupted activation in the clean run",
}
METHODS = ("patching", "attribution")
RESAMPLES = 400
ROUNDING = 1e-5  # relative to the metrics, below which a difference of two is rounding


@dataclass(frozen=True, repr=False)
class LogitDifference:
    """The logit of the ``right`` answer minus that of the ``wrong`` one, after the last token of a prompt."""

    right: Any
    wrong: Any
    __repr__ = fields_repr
    _repr_html_ = fields_html

    def ids(self, lm: Any, prompts: int) -> Int[np.ndarray, "prompt answer"]:
        """The ids of both answers for each prompt; raise unless each answer is one token."""
        columns = []
        for name in ("right", "wrong"):
            stated = getattr(self, name)
            answers = [stated] * prompts if np.ndim(stated) == 0 else list(stated)
            if len(answers) != prompts:
                raise expected(f"{name} of the metric", f"one answer, or one for each of {prompts} prompts", stated)
            columns.append([answer_id(lm, answer) for answer in answers])
        pairs = np.array(columns).T
        if (same := pairs[:, 0] == pairs[:, 1]).any():
            raise expected("metric", "two different answers", token_texts(lm, pairs[same][0]))
        return pairs


def logit_difference(right: Any, wrong: Any) -> LogitDifference:
    """The metric "logit of ``right`` minus logit of ``wrong``": two texts or ids, or lists with one for each prompt."""
    return LogitDifference(right, wrong)


class _Run(NamedTuple):
    """One prompt: the stream before each block [token, width], the activations of each, and the metric."""

    streams: list[Array]
    sites: list[dict[str, Array]]
    metric: float


@warns("patching", "denominator", "denominator_error")
@names_ignored
def patch(
    lm: Any,
    clean: Any,
    corrupted: Any,
    sites: Any = KINDS,
    *,
    metric: Any,
    direction: str = "denoising",
    method: str = "patching",
) -> xr.Dataset:
    """Value of each activation for the difference between clean and corrupted prompts.

    Runs start at the block of their site, so that a site costs half a run on average; sites are taken together as
    memory allows.

    Args:
        lm: Language model of :func:`~icllab.models.pretrained.language_model.open`, or a
            :class:`~icllab.models.networks.transformer.Transformer` of token ids.
        clean: Text or ids of a prompt, or a list of prompts.
        corrupted: As many prompts, each with as many tokens as the clean one.
        sites: Some of ``"residual"`` (the stream after a block, at one position), ``"attention"`` and ``"mlp"`` (what a
            part adds to it, at one position) and ``"heads"`` (the output of one head, at all positions).
        metric: :func:`logit_difference` of two answers of one token.
        direction: ``"denoising"``: one clean activation in the corrupted run; ``"noising"``: one corrupted activation
            in the clean run; ``"both"``: both, with the interaction of each site with the rest.
        method: ``"patching"``: a run for each site; ``"attribution"``: the gradient times the difference, for all sites
            from one gradient. One product of the Hessian with the difference of the prompts then gives
            ``_second_order``, half the change of each value when the whole run moves to the other prompt: where it is
            as large as the value, take a run for the site.

    Returns:
        Over ``block`` and ``position`` or ``head``, for each kind of sites: the value (``residual``), the metric itself
        (``residual_metric``), and with both directions ``residual_interaction``; each has an ``_error`` by bootstrap
        over pairs of prompts, NaN for one pair. ``clean_metric``, ``corrupted_metric`` and their difference, the
        ``denominator``. Positions count from 0, or, if pairs have different lengths, from the end (-1 is the last).

    Raises:
        InputError: The tokens of a pair differ in number, their metrics are equal, an answer has several tokens, or a
            name is unknown.

    Source: a path from one prompt to another through one activation [WangIOI23].
    """
    model, sites = transformer_of(lm), _known_sites(sites)
    require_instance("metric", metric, LogitDifference, 'diagnostics.logit_difference(" Paris", " Rome")')
    require_known("direction", direction, (*DIRECTIONS, "both"))
    require_known("method", method, METHODS)
    directions = list(DIRECTIONS) if direction == "both" else [direction]
    pairs = _pairs(lm, clean, corrupted)
    answers = metric.ids(lm, len(pairs))
    measure = _patched_metrics if method == "patching" else _attributed_metrics
    progress.stage("patching", len(pairs) * len(directions) * len(model.blocks), "blocks")
    ends, rows = [], []
    for number, (pair, ids) in enumerate(zip(pairs, jnp.asarray(answers), strict=True)):
        runs = [_run(model, tokens, ids) for tokens in pair]
        _require_sites(sites, runs[0])
        _require_difference(number, len(pairs), [run.metric for run in runs])
        ends.append([run.metric for run in runs])
        ordered = {"noising": (runs[0], runs[1]), "denoising": (runs[1], runs[0])}  # the run, and its source
        of_pair = [measure(model, ordered[name][0], ordered[name][1], sites, ids) for name in directions]
        rows.append({name: np.stack([part[name] for part in of_pair]) for name in of_pair[0]})
    dataset = _dataset(rows, np.array(ends), [len(pair[0]) for pair in pairs], directions)
    if len(pairs) == 1:
        texts = {
            name: ("position", token_texts(lm, ids)) for name, ids in zip(("token", "other"), pairs[0], strict=True)
        }
        dataset = dataset.assign_coords(token=texts["token"], corrupted_token=texts["other"])
    return dataset.assign_attrs(pairs=len(pairs), method=method)


def _known_sites(sites: Any) -> list[str]:
    sites = [sites] if isinstance(sites, str) else list(sites)
    for name in sites:
        require_known("sites", name, KINDS)
    if not sites:
        raise expected("sites", "some of " + ", ".join(KINDS), sites)
    return sites


def _pairs(lm: Any, clean: Any, corrupted: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    """The ids of each pair; raise unless both prompts of a pair have as many tokens."""
    parts = [
        [prompt_ids(lm, prompt, name) for prompt in prompt_list(prompts)]
        for name, prompts in (("clean", clean), ("corrupted", corrupted))
    ]
    if len(parts[0]) != len(parts[1]):
        raise expected("corrupted", f"{len(parts[0])} prompts, one for each clean one", len(parts[1]))
    for pair in zip(*parts, strict=True):
        if len(pair[0]) != len(pair[1]):
            texts = [" | ".join(token_texts(lm, ids)) for ids in pair]
            raise expected("corrupted", f"{len(pair[0])} tokens, as in {texts[0]!r}", f"{len(pair[1])}: {texts[1]}")
    return list(zip(*parts, strict=True))


@eqx.filter_jit
def _metrics(model: Transformer, rows: Float[Array, "row width"], ids: Int[Array, " answer"]) -> Float[Array, " row"]:
    logits = read_out(model, rows)
    return logits[:, ids[0]] - logits[:, ids[1]]


def _run(model: Transformer, tokens: np.ndarray, ids: Array) -> _Run:
    x, streams, sites = embedded(model, jnp.asarray(tokens)[None]), [], []
    for block in model.blocks:
        streams.append(x[0])
        activations = recorded(block, model.embedding.arrangement, x)
        sites.append({kind: value[0] for kind, value in activations.items()})
        x = activations["residual"]
    return _Run(streams, sites, float(_metrics(model, x[:, -1], ids)[0]))


def _require_sites(sites: Sequence[str], run: _Run) -> None:
    for name in sites:
        if not all(name in activations for activations in run.sites):
            raise expected("sites", "sites that each block has", name, "mlp is missing in a block without dense layers")


def _require_difference(number: int, count: int, metrics: list[float]) -> None:
    if not abs(metrics[0] - metrics[1]) > ROUNDING * max(map(abs, metrics)):
        pair = f" of pair {number}" if count > 1 else ""
        hint = "patching measures shares of their difference"
        raise expected(f"metric{pair}", "two values that differ for clean and corrupted", metrics, hint)


def _places(sites: Sequence[str], activations: dict[str, Array]) -> list[tuple[int, int]]:
    """Kind and index (position or head) of each site of a block."""
    counts = {kind: activations[kind].shape[1 if kind == "heads" else 0] for kind in sites}
    return [(KINDS.index(kind), index) for kind, count in counts.items() for index in range(count)]


def _by_kind(sites: Sequence[str], blocks: list[tuple[list[tuple[int, int]], np.ndarray]]) -> dict[str, np.ndarray]:
    """Values of the sites of each block as tables [block, position or head], NaN where a block has fewer heads."""
    tables = {}
    for kind in sites:
        rows = [[v for (k, _), v in zip(*block, strict=True) if k == KINDS.index(kind)] for block in blocks]
        size = max(map(len, rows))
        tables[kind] = np.array([[*row, *[np.nan] * (size - len(row))] for row in rows])
    return tables


def _patched_metrics(
    model: Transformer, run: _Run, source: _Run, sites: Sequence[str], ids: Array
) -> dict[str, np.ndarray]:
    """The metric of a run with one activation of the source, for each site."""
    blocks, arrangement = [], model.embedding.arrangement
    most = most_at_once(model, len(run.streams[0]))
    for i, block in enumerate(model.blocks):
        places = _places(sites, run.sites[i])
        size = -(-len(places) // -(-len(places) // most))  # parts of one size
        metrics = []
        for first in range(0, len(places), size):
            part = places[first : first + size]
            kinds, indices = jnp.asarray((part + part[-1:] * size)[:size]).T
            x = patched(block, arrangement, run.streams[i], {k: source.sites[i][k] for k in sites}, kinds, indices)
            for later in model.blocks[i + 1 :]:
                x = passed(later, arrangement, x)
            metrics.append(np.asarray(_metrics(model, x[:, -1], ids), float)[: len(part)])
        blocks.append((places, np.concatenate(metrics)))
        progress.advance()
    return _by_kind(sites, blocks)


def _attributed_metrics(
    model: Transformer, run: _Run, source: _Run, sites: Sequence[str], ids: Array
) -> dict[str, np.ndarray]:
    """The metric to first order, and the half of what the second order adds if the whole run moves to the source."""
    arrangement, moved = model.embedding.arrangement, [source.streams[0] - run.streams[0]]
    for x, block in zip(run.streams, model.blocks, strict=True):
        moved.append(pushed(block, arrangement, x, moved[-1])[1])
    last = run.sites[-1]["residual"]
    slope = jax.jvp(
        jax.grad(lambda x: _metrics(model, x[-1:], ids)[0]), (last,), (moved[-1],)
    )  # the gradient after the last block, and its change
    first, second = [], []
    for i in reversed(range(len(model.blocks))):
        activations = {kind: run.sites[i][kind] for kind in sites}
        pairs = (run.streams[i], moved[i]), slope
        slopes, changes = pulled(
            model.blocks[i], arrangement, *pairs, {kind: jnp.zeros_like(v) for kind, v in activations.items()}
        )
        products = [[], []]
        for kind, value in activations.items():
            difference = np.asarray(source.sites[i][kind] - value, np.float64)
            axes = (0, 2) if kind == "heads" else (1,)
            for part, gradient in zip(products, (slopes[1][kind], changes[1][kind]), strict=True):
                part.append((np.asarray(gradient, np.float64) * difference).sum(axes))
        places = _places(sites, activations)
        first.append((places, run.metric + np.concatenate(products[0])))
        second.append((places, np.concatenate(products[1]) / 2))
        slope = slopes[0], changes[0]
        progress.advance()
    tables = _by_kind(sites, second[::-1])
    return _by_kind(sites, first[::-1]) | {f"{kind}_second_order": table for kind, table in tables.items()}


def _dataset(
    rows: list[dict[str, np.ndarray]], ends: np.ndarray, lengths: list[int], directions: list[str]
) -> xr.Dataset:
    """Values with errors from metrics [direction, block, index] of each pair."""
    longest, alike = max(lengths), len(set(lengths)) == 1
    counts = np.random.default_rng(0).multinomial(len(ends), np.full(len(ends), 1 / len(ends)), RESAMPLES)
    weights = np.vstack([np.ones(len(ends)), counts])
    variables: dict[str, Any] = {}

    def add(name: str, dims: tuple[str, ...], samples: np.ndarray) -> None:
        error = samples[1:].std(0, ddof=1) if len(ends) > 1 else np.full(samples.shape[1:], np.nan)
        variables[name], variables[f"{name}_error"] = (dims, samples[0]), (dims, error)

    for name in rows[0]:
        kind = name.removesuffix("_second_order")
        dims = ("direction", "block", "head" if kind == "heads" else "position")
        pads = [longest - length if kind != "heads" else 0 for length in lengths]
        table = np.stack(
            [
                np.pad(row[name], ((0, 0), (0, 0), (pad, 0)), constant_values=np.nan)
                for row, pad in zip(rows, pads, strict=True)
            ]
        )
        shares, metrics = _resampled(table, ends, weights, offset=kind == name)
        add(name, dims, shares)
        if kind == name:
            add(f"{name}_metric", dims, metrics)
        if kind == name and len(directions) == 2:
            add(f"{name}_interaction", dims[1:], 1 - shares.sum(1))
    means = weights @ ends / weights.sum(1, keepdims=True)
    for name, samples in (
        ("clean_metric", means[:, 0]),
        ("corrupted_metric", means[:, 1]),
        ("denominator", means[:, 0] - means[:, 1]),
    ):
        add(name, (), samples)
    positions = np.arange(longest) - (0 if alike else longest)
    dataset = xr.Dataset(variables, coords={"direction": directions})
    for kind in set(rows[0]) & set(KINDS):
        dataset[kind].attrs["long_name"] = f"share of the difference, {kind}"
    dataset = dataset.assign_coords({dim: np.arange(n) for dim, n in dataset.sizes.items() if dim in ("block", "head")})
    if "position" in dataset.sizes:
        dataset = dataset.assign_coords(position=positions)
    dataset = dataset.assign_coords(meaning=("direction", [DIRECTIONS[name] for name in directions]))
    difference, error = variables["denominator"][1], variables["denominator_error"][1]
    text = f"the metrics of clean and corrupted prompts differ by {difference:.2g} ± {error:.1g}: values are unstable"
    warnings = [text] if len(ends) > 1 and not abs(difference) > 3 * error else []
    dataset = dataset.squeeze("direction") if len(directions) == 1 else dataset
    return dataset.assign_attrs(warnings=warnings)


def _resampled(
    table: np.ndarray, ends: np.ndarray, weights: np.ndarray, *, offset: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Values and mean metrics [resample, direction, block, index] under weights of pairs; NaN counts nowhere."""
    there = np.isfinite(table)
    parts = [
        np.tensordot(weights, np.where(there, part, 0), 1)
        for part in (
            table - offset * ends[:, 1, None, None, None],
            np.broadcast_to((ends[:, 0] - ends[:, 1])[:, None, None, None], table.shape),
            table,
            np.ones_like(table),
        )
    ]
    with np.errstate(divide="ignore", invalid="ignore"):
        return parts[0] / parts[1], parts[2] / parts[3]
