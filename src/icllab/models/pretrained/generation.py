r"""Tokens that a language model writes, one after the other.

.. math:: t_{n+1} = \arg\max_t\, \big[\ln p(t \mid t_1 \cdots t_n) + T g_t\big], \qquad g_t \sim \mathrm{Gumbel}

draws from the distribution of temperature T, and is the likeliest token at T = 0. Keys and values of earlier tokens are
kept. The loop over tokens is one compiled program, whose lengths are powers of two: a prompt has the first slots,
padded on the right, and written tokens have the slots after the padding, for all prompts of a batch alike.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from icllab.core.errors import InputError, expected, kind_of
from icllab.core.kernels import SOFTMAX
from icllab.core.prompt import TokenPrompt
from icllab.core.protocols import Edit
from icllab.models.interventions.edits import AbstractEdited, unedited
from icllab.models.interventions.heads import HeadsReplaced
from icllab.models.interventions.recording import Recorder
from icllab.models.networks.transformer import Transformer, bucket

Ids: TypeAlias = Sequence[int] | np.ndarray
ROUNDING = 1e-3  # largest difference between the logits of two lengths, over the largest logit


class Sampling(NamedTuple):
    """The choice of the next token: temperature T, and a key for each prompt."""

    temperature: Array
    keys: Key[Array, " prompt"]

    def chosen(self, logits: Array, step: Array) -> Int[Array, " prompt"]:
        """The token of each prompt, as number ``step`` after it."""

        def noise() -> Array:
            return jax.vmap(lambda key: jax.random.gumbel(jax.random.fold_in(key, step), logits.shape[1:]))(self.keys)

        zero = jnp.zeros(logits.shape, jnp.result_type(float))
        heat = self.temperature * jax.lax.cond(self.temperature > 0, noise, lambda: zero)
        return jnp.argmax(logits + heat.astype(logits.dtype), axis=1).astype(jnp.int32)


class State(NamedTuple):
    """State of the loop: ids that were written, how many, and keys and values [prompt, head, slot, dim] by block."""

    ids: Int[Array, "prompt slot"]
    step: Int[Array, ""]
    kept: Any


def written(
    model: Any, prompts: Sequence[Ids], tokens: int, sampling: Sampling, chunk: int
) -> Iterator[Int[np.ndarray, "prompt token"]]:
    """Write ``tokens`` tokens after each prompt; yield all of them after each ``chunk``.

    Keys and values are kept for interventions that act on each token alone. For others the whole text is computed anew
    for each token.

    Raises:
        InputError: An intervention changes with the number of tokens that follow.
    """
    lengths = np.array([len(prompt) for prompt in prompts])
    edits = _token_edits(model)
    if edits is None:
        yield from _recomputed(model, prompts, tokens, sampling, chunk)
        return
    size = bucket(int(lengths.max()), unedited(model).embedding.places)
    ids = jnp.asarray(_padded(prompts, size))
    fixed = (model, jnp.asarray(lengths, jnp.int32), sampling, jnp.asarray(size, jnp.int32))
    state, count = _begun(fixed, ids, bucket(size + tokens)), 0
    while count < tokens:
        count = min(count + chunk, tokens)
        state = _continued(fixed, state, jnp.asarray(count, jnp.int32))
        yield np.asarray(state.ids)[:, :count]


def padded(model: Any, ids: Int[np.ndarray, " position"]) -> Int[Array, " slot"]:
    """Ids at a length at which other prompts are compiled too, unless an intervention may depend on the length."""
    anywhere = isinstance(model, Transformer) or _token_edits(model) is not None
    size = bucket(len(ids), unedited(model).embedding.places) if anywhere else len(ids)
    return jnp.asarray(_padded([ids], size)[0])


def _padded(rows: Sequence[Ids], size: int) -> Int[np.ndarray, "prompt slot"]:
    return np.stack([np.pad(np.asarray(row, np.int32), (0, size - len(row))) for row in rows])


def _token_edits(model: Any) -> list[Edit] | None:
    """The interventions, from the inner one, if each acts on every token alone; None if earlier tokens are not kept."""
    edits = []
    while isinstance(model, HeadsReplaced):
        outputs = () if model.outputs is None else model.outputs
        if model.tokens is not None or any(np.ndim(part) != 2 for part in outputs):
            return None
        edits.insert(0, model.edit_of(None))
        model = model.model
    if not isinstance(model, Transformer) or model.embedding.projection is None:
        return None
    attentions = [block.attention for block in model.blocks]
    plain = all(a.weighting == SOFTMAX and a.similarity is None and a.normalisation == "none" for a in attentions)
    return edits if plain and model.embedding.positions != "one_hot" else None


@eqx.filter_jit
def _begun(fixed: Any, ids: Int[Array, "prompt place"], slots: int) -> State:
    """Read the prompts and write the first token of each."""
    model, lengths, sampling, _ = fixed
    network = unedited(model)

    def single(ids: Array, length: Array) -> Any:
        activations = model.trace(TokenPrompt(jnp.append(ids, 0))).activations
        kept = [
            tuple(
                jnp.pad(
                    activations[f"block{i}.attention.{part}"].swapaxes(0, 1), ((0, 0), (0, slots - len(ids)), (0, 0))
                )
                for part in ("keys", "values")
            )
            for i in range(len(network.blocks))
        ]
        return network.answers(activations["readout"][length - 1][None])[0], kept

    logits, kept = jax.vmap(single)(ids, lengths)
    first = sampling.chosen(logits, jnp.zeros((), jnp.int32))
    return State(jnp.zeros((len(ids), slots), jnp.int32).at[:, 0].set(first), jnp.ones((), jnp.int32), kept)


@eqx.filter_jit(donate="all-except-first")
def _continued(fixed: Any, state: State, count: Int[Array, ""]) -> State:
    """Write tokens until there are ``count`` of them."""
    model, lengths, sampling, size = fixed
    network, edits, slots = unedited(model), _token_edits(model) or [], state.ids.shape[1]
    tables = {
        (block.attention.rotary, dim): tuple(
            jnp.asarray(f(block.attention.rotary.angles(np.arange(slots), dim)), float) for f in (np.cos, np.sin)
        )
        for block in network.blocks
        if block.attention.rotary is not None
        for dim in [block.attention.query.shape[2]]
    }
    slot_numbers = jnp.arange(slots, dtype=jnp.int32)

    def edit(name: str, value: Array) -> Array:
        for change in edits:
            value = change(name, value)
        return value

    def single(token: Array, length: Array, kept: Any, slot: Array) -> tuple[Array, Any]:
        """Logits after one more token, which gets the slot."""
        place = length + slot - size
        places = jnp.where(slot_numbers < size, slot_numbers, length + slot_numbers - size)
        empty = (slot_numbers > slot) | ((slot_numbers >= length) & (slot_numbers < size))
        distance = jnp.where(empty, -1, place - places)
        record, new = Recorder(edit), []
        x = record("embedding", network.embedding.row(token, place))
        for i, block in enumerate(network.blocks):
            attention, at = block.attention, kept[i]
            table = tables.get((attention.rotary, attention.query.shape[2]))
            turn = None if table is None else (table[0][place], table[1][place])

            def attend(read: Array, record: Any, attention: Any = attention, at: Any = at, turn: Any = turn) -> Array:
                out, pair = attention.step(read, at, slot, distance, turn, record)
                new.append(pair)
                return out

            x = block.through(x, attend, record, f"block{i}")
        x = x if network.final_norm is None else network.final_norm(x)
        return record("prediction", network.answers(record("readout", x)))[0], new

    def body(state: State) -> State:
        token = jax.lax.dynamic_index_in_dim(state.ids, state.step - 1, 1, keepdims=False)
        logits, kept = jax.vmap(single, (0, 0, 0, None))(token, lengths, state.kept, size + state.step - 1)
        chosen = sampling.chosen(logits, state.step)[:, None]
        ids = jax.lax.dynamic_update_slice_in_dim(state.ids, chosen, state.step, 1)
        return State(ids, state.step + 1, kept)

    return jax.lax.while_loop(lambda state: state.step < count, body, state)


def _recomputed(
    model: Any, prompts: Sequence[Ids], tokens: int, sampling: Sampling, chunk: int
) -> Iterator[Int[np.ndarray, "prompt token"]]:
    """As :func:`written`, with the whole text computed for each token."""
    places, longest, count = unedited(model).embedding.places, max(map(len, prompts)), 0
    rows = [np.asarray(prompt).tolist() for prompt in prompts]
    lengths = jnp.asarray([len(row) for row in rows], jnp.int32)
    size = bucket(longest + 1, places)
    if isinstance(model, AbstractEdited):
        _require_same(model, rows[0], size)
    while count < tokens:
        size = bucket(longest + count + 1, places)
        until = min(tokens, count + chunk, size - longest)
        ids = _rewritten((model, lengths, sampling), _padded(rows, size), jnp.asarray([count, until], jnp.int32))
        rows = [np.asarray(ids[i, : len(prompt) + until]).tolist() for i, prompt in enumerate(prompts)]
        count = until
        yield np.array([row[-count:] for row in rows])


@eqx.filter_jit
def _rewritten(fixed: Any, ids: Int[Any, "prompt place"], count: Int[Array, "2"]) -> Int[Array, "prompt place"]:
    """Write tokens from number ``count[0]`` up to number ``count[1]`` after each prompt."""
    model, lengths, sampling = fixed

    def single(ids: Array, end: Array) -> Array:
        real = jnp.arange(len(ids) + 1) < end
        return model(TokenPrompt(jnp.append(ids, 0), real))[end - 1]

    def body(state: tuple[Array, Array]) -> tuple[Array, Array]:
        ids, step = state
        chosen = sampling.chosen(jax.vmap(single)(ids, lengths + step), step)
        return ids.at[jnp.arange(len(ids)), lengths + step].set(chosen), step + 1

    return jax.lax.while_loop(lambda state: state[1] < count[1], body, (jnp.asarray(ids), count[0]))[0]


def _require_same(model: AbstractEdited, ids: Ids, size: int) -> None:
    """Raise unless the answers to ids are the same if ``size`` positions are computed."""
    try:
        exact, padded = (
            np.asarray(_last(model, jnp.asarray(_padded([ids], n)[0]), len(ids))) for n in (len(ids), size)
        )
        same = np.abs(exact - padded).max() <= ROUNDING * np.abs(exact).max()
    except InputError:
        raise
    except (TypeError, ValueError):  # arrays of two lengths
        same = False
    if not same:
        hint = "such as one of ablated(model, heads=...)"
        raise expected("model", "an intervention that does not depend on the number of tokens", kind_of(model), hint)


@eqx.filter_jit
def _last(model: Any, ids: Array, end: int) -> Array:
    return model(TokenPrompt(jnp.append(ids, 0), jnp.arange(len(ids) + 1) < end))[end - 1]
