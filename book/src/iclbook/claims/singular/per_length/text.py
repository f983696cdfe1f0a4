"""A small transformer trained on a text or on a Markov chain, and its losses after recorded steps.

The text is the standard library of the running Python, split by file; the chain is of order three, another for every
seed. The n-gram predictors are counted in the training files, or exact for the chain.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import icllab as icl
from icllab import models
from icllab.algorithms import NGram
from icllab.core.errors import require_instance
from icllab.models.torch_derivatives import with_autograd
from icllab.tasks import HigherOrderChain, Text, text_files
from icllab.tasks.text import PRINTABLE
from icllab.training import Record

CHAIN = {"vocabulary": 6, "order": 3, "share": 0.3, "concentration": 0.1}
LONGEST = 3  # longest n-grams counted in a text
SMOOTHING = 4.0
TOGETHER = 128  # windows in one batch of an evaluation


class Source(NamedTuple):
    """Distributions of windows, and n-gram predictors from unigrams on; a chain's last predictor is the truth."""

    training: Any
    held_out: Any
    ngrams: tuple[NGram, ...]
    facts: dict[str, float]


@functools.cache
def text(tokens: int) -> Source:
    """The standard library, with a tenth of its files held out."""
    documents = text_files.standard_library().at_least(tokens)
    training_files, held_out_files = documents.split()
    training, held_out = (
        Text.from_documents(part, tokens=tokens, alphabet=PRINTABLE) for part in (training_files, held_out_files)
    )
    longest = NGram.counted(training, n=LONGEST, smoothing=SMOOTHING)
    facts = {"corpus_bytes": float(documents.size), "corpus_digest": float(int(documents.digest()[:13], 16))}
    return Source(training, held_out, tuple(longest.shorter(n) for n in range(1, LONGEST + 1)), facts)


def of_task(task: Any) -> Source:
    """A user's windows of a text, with n-grams counted in it."""
    require_instance("--task", task, Text, "windows of a text, as `text FILE tokens=65`")
    longest = NGram.counted(task, n=LONGEST, smoothing=SMOOTHING)
    return Source(task, task, tuple(longest.shorter(n) for n in range(1, LONGEST + 1)), {})


def stacked(network: Any) -> tuple[Any, Any]:
    """The parameters of one network with an axis of a single step, and its static part."""
    params, static = eqx.partition(with_autograd(network), eqx.is_inexact_array)
    return jax.tree.map(lambda leaf: leaf[None], params), static


def chain(tokens: int, key: Any) -> Source:
    """A random chain and its exact n-gram predictors."""
    law = HigherOrderChain.init(tokens=tokens, key=key, **CHAIN)
    ngrams = tuple(NGram.knowing(law, n=n) for n in range(1, law.order + 2))
    return Source(law, law, ngrams, {})


def network(source: Source, *, width: int, layers: int, key: Any) -> Any:
    """The transformer, before training."""
    size, length = source.training.vocabulary, source.training.length
    block = models.BlockOptions(heads=4, mlp=(4 * width,), norm="pre")
    shape = {"dim": size, "width": width, "layers": layers, "block": block}
    return models.Transformer(models.Tokens(size), **shape, positions="learned", length=length, key=key)


@functools.cache
def adam(steps: int) -> Any:
    """Adam with a short warm-up and a rate that does not decay, so that the schedule does not end learning."""
    return lambda rate: optax.adam(optax.schedules.linear_schedule(0.0, rate, min(100, steps)))


def train(source: Source, model: Any, *, steps: Sequence[int], rate: float, batch: int, key: Any) -> tuple[Any, Any]:
    """Train a model, and return its parameters at all ``steps``, stacked, and its static part."""
    if max(steps) == 0:
        params, static = eqx.partition(model, eqx.is_inexact_array)
        return jax.tree.map(lambda leaf: jnp.stack([leaf] * len(steps)), params), static
    run = icl.fit(
        model,
        source.training,
        steps=max(steps),
        key=key,
        batch=batch,
        optimizer=adam(max(steps)),
        sweep={"optimizer.rate": [rate]},
        record=Record([0], keep=steps, progress=False),
    )
    static = jax.tree.map(lambda leaf: leaf[0] if eqx.is_array(leaf) else leaf, run.trajectory.rest)
    return jax.tree.map(jnp.asarray, run.trajectory.stacked(0)), static


class Evaluation(NamedTuple):
    """Loss and its error [step, position]; loss of n-grams [n, position], divergence from them [n, step, position]."""

    loss: np.ndarray
    error: np.ndarray
    ngram_loss: np.ndarray
    divergence: np.ndarray


def evaluate(source: Source, model: tuple[Any, Any], *, windows: int, key: Any) -> Evaluation:
    """Evaluate checkpoints on fresh windows of the held-out distribution."""
    prompts = source.held_out.sample_many(windows, key=key)
    loss, square, ngram_loss, divergence = (np.asarray(x, float) for x in _evaluate(*model, source, prompts))
    error = np.sqrt(np.maximum(square - loss**2, 0) / (windows - 1))
    return Evaluation(loss, error, ngram_loss, divergence.transpose(1, 0, 2))


@eqx.filter_jit
def _evaluate(params: Any, static: Any, source: Source, prompts: Any) -> tuple[Any, Any, Any, Any]:
    laws = source.ngrams
    task = source.held_out

    def of_laws(prompt: Any) -> Any:
        return jnp.stack([task.loss(law(prompt), prompt) for law in laws])

    ngram_loss = jnp.mean(jax.lax.map(of_laws, prompts, batch_size=TOGETHER), axis=0)

    def at(step: Any) -> Any:
        model = eqx.combine(step, static)

        def evaluate_window(prompt: Any) -> Any:
            answer = model(prompt)
            logs = jax.nn.log_softmax(answer, axis=-1)
            divergence = [jnp.sum(jnp.exp(p) * (p - logs), axis=-1) for p in (law(prompt) for law in laws)]
            return task.loss(answer, prompt), jnp.stack(divergence)

        loss, divergence = jax.lax.map(evaluate_window, prompts, batch_size=TOGETHER)
        return jnp.mean(loss, 0), jnp.mean(loss**2, 0), jnp.mean(divergence, 0)

    loss, square, divergence = jax.lax.map(at, params)
    return loss, square, ngram_loss, divergence
