"""Attention-only byte models along training: losses, heads, and the restricted coefficient of a head of the last layer.

Every seed is trained once; its parameters after all recorded steps stay in ``checkpoints``, for ``icl.load``.
"""

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import xarray as xr
from jaxtyping import Array, Int, PRNGKeyArray

import icllab as icl
from iclbook.claims.language.induction_bump.claim import LIBRARY
from icllab import models
from icllab.core.grid import tabulated
from icllab.core.prompt import TokenPrompt
from icllab.diagnostics import LocalPosterior, coefficient_at_temperature, head_scores, per_length
from icllab.diagnostics.sampling import SGLD
from icllab.lab.networks import require_answers
from icllab.tasks import Text, text_files
from icllab.tasks.sequences import AbstractTokens
from icllab.tasks.text import PRINTABLE
from icllab.tasks.text_files import Documents
from icllab.training import Record

VERSION = 1

LETTERS = PRINTABLE.index(b"a"), 26
PERIOD = 16  # letters of a string that is repeated
EARLY, LATE = slice(4, 12), slice(-16, None)  # positions of a window


class Rearranged(AbstractTokens):
    """Windows of a text whose tokens are put in another order, or replaced."""

    text: Text
    order: Callable[[PRNGKeyArray, Array], Array] = eqx.field(static=True)
    vocabulary: int = eqx.field(static=True)
    tokens: int = eqx.field(static=True)

    @classmethod
    def of(cls, text: Text, order: Callable[[PRNGKeyArray, Array], Array]) -> "Rearranged":
        """The windows of ``text`` in this order."""
        return cls(text, order, text.vocabulary, text.tokens)

    def sample(self, *, key: PRNGKeyArray) -> TokenPrompt:
        """One window."""
        of_window, of_order = jax.random.split(key)
        return TokenPrompt(self.order(of_order, self.text.sample(key=of_window).tokens))


def repeating(share: float) -> Callable[[PRNGKeyArray, Array], Array]:
    """The order of a window that with probability ``share`` is its first bytes over and over, a quarter to a half."""

    def order(key: PRNGKeyArray, tokens: Int[Array, " token"]) -> Int[Array, " token"]:
        of_period, of_choice = jax.random.split(key)
        size = len(tokens)
        period = jax.random.randint(of_period, (), size // 4, size // 2)
        period = jnp.where(jax.random.bernoulli(of_choice, share), period, size)
        return tokens[jnp.arange(size) % period]

    return order


def distinct(vocabulary: int) -> Callable[[PRNGKeyArray, Array], Array]:
    """The order of a window that is different tokens of a vocabulary in a random order, over and over."""

    def order(key: PRNGKeyArray, tokens: Int[Array, " token"]) -> Int[Array, " token"]:
        string = jax.random.permutation(key, vocabulary)[: min(PERIOD, len(tokens) // 2)]
        return jnp.resize(string, tokens.shape).astype(tokens.dtype)

    return order


def letters(key: PRNGKeyArray, tokens: Int[Array, " token"]) -> Int[Array, " token"]:
    """Different letters in a random order, over and over."""
    string = LETTERS[0] + jax.random.permutation(key, LETTERS[1])[:PERIOD]
    return jnp.resize(string, tokens.shape).astype(tokens.dtype)


@functools.cache
def corpus(name: str) -> Documents:
    """The standard library of the running Python, or multiplication tables, which are the same everywhere."""
    if name == LIBRARY:
        return text_files.standard_library()
    tables = [b"\n".join(b"%d * %d = %d" % (i, j, i * j) for j in range(1, 40)) for i in range(1, 40)]
    return Documents(tuple(f"table {i}" for i in range(len(tables))), tuple(tables), "multiplication tables")


def network_of(
    point: Any, layers: int, *, size: tuple[int, int] | None = None, key: PRNGKeyArray
) -> models.Transformer:
    """An attention-only transformer with tied embedding, before training; ``size``: vocabulary and tokens."""
    vocabulary, tokens = size or (len(PRINTABLE) + 1, point.tokens)
    block = models.BlockOptions(heads=point.heads, mlp=None, norm="pre")
    arrangement, length = models.Tokens(vocabulary, tied=True), tokens - 2
    shape = {"dim": vocabulary, "width": point.width, "layers": layers, "block": block}
    return models.Transformer(arrangement, **shape, positions="learned", length=length, key=key)


@functools.cache
def adam(rate: float) -> Any:
    """Adam with a short warm-up and a rate that does not decay, so that the schedule ends no learning."""
    return optax.adam(optax.schedules.linear_schedule(0.0, rate, 100), b2=0.99)


def measure(
    point,
    *,
    key,
    checkpoints=None,
    blocks=None,
    shuffled=False,
    even=False,
    untrained=False,
    lag=1,
    network=None,
    task=None,
):
    """One cell: networks of some layers, one for each seed.

    ``blocks``: layers of the network, whatever the cell says. ``shuffled``: it is trained on windows whose bytes are
    in random order. ``even``: queries are zero and stay so. ``untrained``: every step has the initial network.
    ``lag``: heads are those of a network with so many times fewer updates, or more where it is below 1. ``network``: a
    user's networks by step, in the place of those of two layers, and ``task``: windows of tokens. The coefficient is
    not judged, and not sampled then.
    """
    layers = point.layers if blocks is None else blocks
    if network is not None:
        return of_run(point, network if layers > 1 else None, task, lag, key=key)
    documents = corpus(point.corpus).at_least(point.tokens)
    training, held_out = (
        Text.from_documents(part, tokens=point.tokens, alphabet=PRINTABLE) for part in documents.split()
    )
    source = Rearranged.of(training, jax.random.permutation if shuffled else repeating(point.repeating))
    test = Rearranged.of(held_out, repeating(point.repeating))
    repeated, strings = Rearranged.of(held_out, repeating(1.0)), Rearranged.of(held_out, letters)
    steps = [int(step) for step in point.step]

    def at(seed):
        of_weights, of_training, of_text, of_repeats, of_strings, of_chains = jax.random.split(
            jax.random.fold_in(key, seed), 6
        )
        model = network_of(point, layers, key=of_weights)
        if even:
            model = eqx.tree_at(queries, model, replace_fn=jnp.zeros_like)
        with tempfile.TemporaryDirectory() as temporary:
            run = icl.fit(
                model,
                source,
                steps=max(steps),
                key=of_training,
                batch=point.batch,
                optimizer=adam(0.0 if untrained else point.learning_rate),
                record=Record(steps, keep=steps),
                store=Path(checkpoints or temporary) / f"seed={seed}",
                trainable=all_but_queries if even else None,
                progress=False,
            )
        networks = run.trajectory
        windows = {"prompts": point.windows, "progress": False}
        losses = per_length(networks, held_out, key=of_text, **windows)["loss"].isel(member=0)
        again = per_length(networks, repeated, key=of_repeats, **windows)["loss"].isel(member=0)
        before, within = slice(4, point.tokens // 4 - 1), slice(point.tokens // 2, None)  # a repetition
        scores = head_scores(networks, strings, key=of_strings, prompts=point.strings).isel(member=0)
        first, last = (scores.isel(attention_head=part) for part in (slice(0, point.heads), slice(-point.heads, None)))
        best = int(last["prefix_matching_score"].isel(step=-1).argmax("attention_head"))
        matching = last["prefix_matching_score"].isel(attention_head=best).values[delayed_records(steps, lag)]
        estimates = [
            coefficient(networks.at(step).member(0), test, best, point, key=of_chains) for step in point.checkpoint
        ]
        names = ("restricted_coefficient", "restricted_coefficient_error", "chain_rhat", "sampler_warnings")
        return {
            "text_loss": (("step",), losses.mean("position").values),
            "repeated_loss": (("step",), again.mean("position").values),
            "early_minus_late": (("step",), difference(losses, EARLY, LATE)),
            "repeat_benefit": (("step",), difference(again, before, within)),
            "prefix_matching_score": (("step",), matching),
            "previous_token_score": (("step",), first["previous_token_score"].max("attention_head").values),
            **{name: (("checkpoint",), values) for name, values in zip(names, np.transpose(estimates), strict=True)},
        }

    facts = {"corpus_bytes": documents.size, "corpus_digest": int(documents.digest()[:13], 16)}
    return {**tabulated(at, seed=point.seed), **{name: ((), float(value)) for name, value in facts.items()}}


def of_run(point, networks, task, lag, *, key):
    """One cell of a user's ``networks`` by step; None: a network of one layer that is trained on the same windows."""
    documents = corpus(point.corpus).at_least(point.tokens)
    own = [Text.from_documents(part, tokens=point.tokens, alphabet=PRINTABLE) for part in documents.split()]
    source, held_out = own if task is None else (task, task)
    training = Rearranged.of(source, repeating(point.repeating))
    repeated = Rearranged.of(held_out, repeating(1.0))
    strings = Rearranged.of(held_out, letters if task is None else distinct(task.vocabulary))
    steps, size = [int(step) for step in point.step], held_out.tokens
    if networks is not None:
        require_answers(networks[steps[0]], held_out)

    def at(seed):
        of_weights, of_training, of_text, of_repeats, of_strings = jax.random.split(jax.random.fold_in(key, seed), 5)
        run = networks
        if run is None:
            trained = icl.fit(
                network_of(point, 1, size=(held_out.vocabulary, size), key=of_weights),
                training,
                steps=max(steps),
                key=of_training,
                batch=point.batch,
                optimizer=adam(point.learning_rate),
                record=Record(steps, keep=steps),
                progress=False,
            )
            run = {step: trained.trajectory.at(step).member(0) for step in steps}
        windows = {"prompts": point.windows, "progress": False}
        losses, again = (
            xr.concat([per_length(run[step], part, key=k, **windows)["loss"] for step in steps], "step")
            for part, k in ((held_out, of_text), (repeated, of_repeats))
        )
        scores = xr.concat(
            [head_scores(run[step], strings, key=of_strings, prompts=point.strings) for step in steps], "step"
        )
        blocks = [str(name).rpartition(".")[0] for name in scores["attention_head"].values]
        first, last = (scores.isel(attention_head=[b == blocks[end] for b in blocks]) for end in (0, -1))
        best = int(last["prefix_matching_score"].isel(step=-1).argmax("attention_head"))
        matching = last["prefix_matching_score"].isel(attention_head=best).values[delayed_records(steps, lag)]
        before, within = slice(4, size // 4 - 1), slice(size // 2, None)
        rows = {
            "text_loss": losses.mean("position").values,
            "repeated_loss": again.mean("position").values,
            "early_minus_late": difference(losses, EARLY, LATE),
            "repeat_benefit": difference(again, before, within),
            "prefix_matching_score": matching,
            "previous_token_score": first["previous_token_score"].max("attention_head").values,
        }
        names = ("restricted_coefficient", "restricted_coefficient_error", "chain_rhat", "sampler_warnings")
        blank = np.full(len(point.checkpoint), np.nan)
        return {name: (("step",), row) for name, row in rows.items()} | dict.fromkeys(names, (("checkpoint",), blank))

    facts = {"corpus_bytes": documents.size, "corpus_digest": int(documents.digest()[:13], 16)}
    facts = dict.fromkeys(facts, np.nan) if task is not None else facts
    return {**tabulated(at, seed=point.seed), **{name: ((), float(value)) for name, value in facts.items()}}


def delayed_records(steps: list[int], lag: float) -> np.ndarray:
    """Index of the last record at or before each step divided by ``lag``."""
    return np.searchsorted(steps, np.asarray(steps) / lag, side="right") - 1


def difference(losses: xr.DataArray, early: slice, late: slice) -> np.ndarray:
    """Mean loss over early positions minus that over late ones, at every step."""
    early_loss, late_loss = (losses.isel(position=part).mean("position") for part in (early, late))
    return (early_loss - late_loss).values


def coefficient(
    model: Any, task: Any, head: int, point: Any, *, key: PRNGKeyArray
) -> tuple[float, float, float, float]:
    """Restricted coefficient of a head of the last layer, its Monte Carlo error, R-hat, and the number of warnings."""
    of_data, of_chains = jax.random.split(key)
    mask = jax.tree.map(lambda leaf: np.zeros(leaf.shape, bool), eqx.filter(model, eqx.is_inexact_array))
    attention = mask.blocks[-1].attention
    for weights in (attention.query, attention.key, attention.value):
        weights[:, head] = True
    attention.output[head] = True
    posterior = LocalPosterior.from_network(
        model,
        task,
        data=task.sample_many(point.samples, key=of_data),
        weights=mask,
        nbeta=point.nbeta,
        localization=point.localization,
    )
    estimate = coefficient_at_temperature(
        posterior,
        sampler=SGLD(chains=4, warm_up=point.warm_up, batch=point.chain_batch),
        checks=("minimum", "hessian", "step_size"),
        key=jax.random.split(of_chains)[1],
        progress=False,
    )
    value, mcse, rhat = (float(estimate[name]) for name in ("estimate", "mcse", "rhat"))
    return value, mcse, rhat, float(len(estimate.attrs["warnings"]))


def queries(model: Any) -> list[Any]:
    """The weights of all queries."""
    return [block.attention.query for block in model.blocks]


def all_but_queries(model: Any) -> list[Any]:
    """All parts of the network but the weights of queries."""
    parts = [part for block in (b.attention for b in model.blocks) for part in (block.key, block.value, block.output)]
    return [model.embedding, model.readout, model.final_norm, *[block.norms for block in model.blocks], *parts]
