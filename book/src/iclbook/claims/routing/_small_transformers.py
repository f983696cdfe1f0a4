"""Transformers of some hundred parameters, many at once, on programs of which every prompt is written out."""

import itertools
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PRNGKeyArray

from iclbook.claims.routing import _transformers
from iclbook.claims.routing._responses import response_size, solve
from icllab.core.prompt import TokenPrompt
from icllab.tasks import StringPrograms


class Family(eqx.Module):
    """Networks of one shape, their weights as vectors, each with programs of its own.

    Attributes:
        weights: Those at the start.
        prompts: Every string after every program of a seed, with its answer.
        noise: Probability that a symbol of an answer is replaced by a uniform one.
        like: A network without its weights.
        symbols: Number of symbols (static).
        answers: Number of symbols of an answer (static).
    """

    weights: Float[Array, "seed parameter"]
    prompts: Int[Array, "seed context string token"]
    noise: Float[Array, ""]
    like: Any
    symbols: int = eqx.field(static=True)
    answers: int = eqx.field(static=True)

    def network(self, w: Float[Array, " parameter"]) -> Any:
        """The network of these weights."""
        params, static = eqx.partition(self.like, eqx.is_inexact_array)
        return eqx.combine(ravel_pytree(params)[1](w), static)

    def logits(self, w: Float[Array, " parameter"], tokens: Int[Array, " token"]) -> Float[Array, "answer logit"]:
        """Logits of the symbols of the answer to one prompt."""
        return self.network(w)(TokenPrompt(tokens))[-self.answers :]

    def context_losses(
        self, w: Float[Array, " parameter"], prompts: Int[Array, "context string token"]
    ) -> Float[Array, " context"]:
        """The expected loss of each program's answers, in nats a symbol, over all strings and labels."""

        def loss(tokens: Array) -> Array:
            ends = jax.nn.log_softmax(self.logits(w, tokens))
            right = jnp.take_along_axis(ends, tokens[-self.answers :, None], axis=1)
            any_symbol = jnp.mean(ends[:, : self.symbols], axis=1, keepdims=True)
            return -jnp.mean((1 - self.noise) * right + self.noise * any_symbol)

        return jnp.mean(jax.vmap(jax.vmap(loss))(prompts), axis=1)


def sample_family(seeds: Sequence[int], point: Any, *, key: PRNGKeyArray) -> tuple[list[StringPrograms], Family]:
    """Tasks of as many functions as ``point.program`` names, each a program, and networks for them."""
    tasks, networks = [], []
    for seed in seeds:
        of_task, of_network = (jax.random.fold_in(jax.random.fold_in(key, seed), i) for i in range(2))
        # A generator whose programs compile in a third of the time.
        of_network = jax.random.wrap_key_data(jnp.tile(jax.random.key_data(of_network), 2), impl="rbg")
        task = _transformers.task(point.program, point, exponent=point.zipf_exponent, key=of_task)
        tasks.append(task)
        networks.append(_transformers.transformer(task, point, key=of_network))
    params = [eqx.filter(network, eqx.is_inexact_array) for network in networks]
    family = Family(
        weights=jnp.stack([ravel_pytree(leaves)[0] for leaves in params]),
        prompts=jnp.asarray(np.stack([every_prompt(task) for task in tasks])),
        noise=jnp.asarray(getattr(point, "noise", 0.0), float),
        like=networks[0],
        symbols=point.symbols,
        answers=point.length,
    )
    return tasks, family


def every_prompt(task: StringPrograms) -> Int[np.ndarray, "context string token"]:
    """All strings after every program, each with its answer."""
    (length,) = task.lengths
    strings = np.array(list(itertools.product(range(task.symbols), repeat=length)), np.int32)
    sign = np.full((len(strings), 1), task.vocabulary - 1, np.int32)
    tables, turns = np.asarray(task.tables), np.asarray(task.turns)
    rows = []
    for program, tokens in zip(task.programs, task.program_tokens(), strict=True):
        answers = strings
        for function in program:
            answers = tables[function][np.roll(answers, -int(turns[function]), axis=1)]
        before = np.broadcast_to(tokens, (len(strings), len(tokens)))
        rows.append(np.concatenate([before, strings, sign, answers], axis=1))
    return np.stack(rows).astype(np.int32)


class Batches(eqx.Module):
    """Which prompts are seen at every step, and what stands in the place of their answers' symbols; -1: nothing."""

    contexts: Int[Array, "step batch"]
    strings: Int[Array, "step batch"]
    wrong: Int[Array, "step batch answer"]

    @classmethod
    def from_frequencies(
        cls, frequencies: Float[np.ndarray, "step context"], family: Family, *, batch: int, rng: np.random.Generator
    ) -> "Batches":
        """Sample batches of programs with the frequencies of every step."""
        size = len(frequencies), batch
        ends = np.cumsum(frequencies, axis=1)[:, None, :-1]
        strings = family.prompts.shape[2]
        symbols = rng.integers(family.symbols, size=(*size, family.answers))
        right = rng.random(symbols.shape) >= float(family.noise)
        return cls(
            jnp.asarray((rng.random(size)[:, :, None] > ends).sum(2), jnp.int32),
            jnp.asarray(rng.integers(strings, size=size), jnp.int32),
            jnp.asarray(np.where(right, -1, symbols), jnp.int32),
        )


class Path(eqx.Module):
    """What training leaves at every record.

    Attributes:
        weights: The weights there.
        loss: Mean loss of the minibatches since the last record.
        slope: Root mean square of the norms of their gradients.
    """

    weights: Float[Array, "seed record parameter"]
    loss: Float[Array, "seed record"]
    slope: Float[Array, "seed record"]


def descended(
    family: Family, batches: Sequence[Batches], *, optimizer: Any, every: int
) -> Float[Array, "seed record parameter"]:
    """The weights after every so many steps on a seed's batches."""
    return descent(family, batches, optimizer=optimizer, every=every).weights


def descent(family: Family, batches: Sequence[Batches], *, optimizer: Any, every: int) -> Path:
    """Training on each seed's batches, with a record after every so many steps."""
    stack = jax.tree.map(lambda *rows: jnp.stack(rows), *batches)
    return _descended(family, stack, optimizer, every)


@eqx.filter_jit
def _descended(family: Family, batches: Batches, optimizer: Any, every: int) -> Path:
    def of_seed(start: Array, prompts: Array, batches: Batches) -> tuple[Array, Array, Array]:
        def loss(w: Array, batch: Batches) -> Array:
            tokens = prompts[batch.contexts, batch.strings]

            def prompt_loss(tokens: Array, wrong: Array) -> Array:
                ends = jax.nn.log_softmax(family.logits(w, tokens))
                labels = jnp.where(wrong < 0, tokens[-family.answers :], wrong)
                return -jnp.mean(jnp.take_along_axis(ends, labels[:, None], axis=1))

            return jnp.mean(jax.vmap(prompt_loss)(tokens, batch.wrong))

        def step(state: Any, batch: Batches) -> tuple[Any, tuple[Array, Array]]:
            w, memory = state
            value, slope = jax.value_and_grad(loss)(w, batch)
            with jax.numpy_dtype_promotion("standard"):
                move, memory = optimizer.update(slope, memory)
            return (w + move, memory), (value, jnp.sum(slope**2))

        def record(state: Any, batch: Batches) -> tuple[Any, tuple[Array, Array, Array]]:
            state, (values, squares) = jax.lax.scan(step, state, batch)
            return state, (state[0], jnp.mean(values), jnp.sqrt(jnp.mean(squares)))

        records = jax.tree.map(lambda row: row.reshape(-1, every, *row.shape[1:]), batches)
        return jax.lax.scan(record, (start, optimizer.init(start)), records)[1]

    return Path(*jax.vmap(of_seed)(family.weights, family.prompts, batches))


@eqx.filter_jit
def losses_along(family: Family, path: Float[Array, "seed record parameter"]) -> Float[Array, "seed record context"]:
    """The expected loss of every program along training."""

    def of_seed(ways: Array, prompts: Array) -> Array:
        return jax.lax.map(lambda w: family.context_losses(w, prompts), ways)

    return jax.vmap(of_seed)(path, family.prompts)


class Seen(eqx.Module):
    r"""Losses and linear responses at points of training.

    Attributes:
        losses: That of every program.
        response: :math:`-g_\phi^\top (G + \rho)^{-1} (g_{c} - g)`, of every program's loss to more of one.
    """

    losses: Float[Array, "record context"]
    response: Float[Array, "record observed tilted"]


@eqx.filter_jit
def seen(
    family: Family,
    ways: Float[Array, "record parameter"],
    prompts: Int[Array, "context string token"],
    frequencies: Float[Array, " context"],
    resolution: Float[Array, ""],
) -> Seen:
    r"""Responses along one network's training, to first order.

    G is the Gauss-Newton matrix of :math:`L = \sum_c \pi_c L_c`, written with the Fisher matrices of answers as
    :math:`G = B^\top B`.

    Derived: docs/routing.md, Three routes.
    """
    strings = prompts.shape[1]
    shares = jnp.repeat(frequencies / strings, strings)

    def at(w: Array) -> tuple[Array, Array]:
        losses = family.context_losses(w, prompts)
        slopes = jax.jacrev(lambda w: family.context_losses(w, prompts))(w)
        tilts = slopes - (frequencies @ slopes)[None]
        return losses, -slopes @ solve(_fisher_rows(family, w, prompts, shares), resolution, tilts.T)

    return Seen(*jax.lax.map(at, ways))


@eqx.filter_jit
def response_sizes(
    family: Family,
    ways: Float[Array, "record parameter"],
    prompts: Int[Array, "context string token"],
    batches: Batches,
    resolution: Float[Array, ""],
) -> Float[Array, " record"]:
    """Size of the response of the loss of each record's batches to more of one of their examples.

    Answers have one symbol. Derived: docs/routing.md, Blind detection.
    """
    count, strings, symbols = prompts.shape[0], prompts.shape[1], family.symbols
    labels = jnp.where(batches.wrong < 0, prompts[batches.contexts, batches.strings, -1:], batches.wrong)[..., 0]
    places = ((batches.contexts * strings + batches.strings) * symbols + labels).reshape(len(ways), -1)

    def at(part: tuple[Array, Array]) -> Array:
        w, drawn = part
        shares = (jnp.bincount(drawn, length=count * strings * symbols) / len(drawn)).reshape(-1, symbols)
        tokens = prompts.reshape(-1, prompts.shape[-1])
        derivative = jax.vmap(jax.jacrev(lambda w, row: jax.nn.log_softmax(family.logits(w, row))[0]), (None, 0))
        gradients = -derivative(w, tokens)[:, :symbols]
        rows = _fisher_rows(family, w, prompts, shares.sum(1))
        return response_size(gradients.reshape(-1, w.size), shares.ravel(), rows, resolution)

    return jax.lax.map(at, (ways, places))


def _fisher_rows(family: Family, w: Array, prompts: Array, shares: Float[Array, " prompt"]) -> Array:
    """B: a row for every symbol that an answer may have, of all prompts, which have shares of the data."""

    def rows(tokens: Array, share: Array) -> Array:
        derivative = jax.jacrev(lambda w: family.logits(w, tokens))(w)
        p = jax.nn.softmax(family.logits(w, tokens))
        centred = derivative - jnp.sum(p[:, :, None] * derivative, axis=1, keepdims=True)
        return jnp.sqrt(share / family.answers * p)[:, :, None] * centred

    return jax.vmap(rows)(prompts.reshape(-1, prompts.shape[-1]), shares).reshape(-1, w.size)
