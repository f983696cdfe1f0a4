"""A small language of codes, its interpreter, and a task whose contexts are codes and whose queries are data."""

import functools
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray

from icllab.core.prompt import TokenPrompt
from icllab.models import BlockOptions, Tokens, Transformer
from icllab.tasks.sequences import AbstractTokens

INSTRUCTIONS = "fgr+?"
SYMBOLS, CELLS = 3, 3
MAPS = {"f": (1, 2, 0), "g": (1, 0, 2)}  # the symbol that takes the place of each; they generate all permutations
NOTHING = len(INSTRUCTIONS)


def run(code: str, data: Sequence[int]) -> tuple[int, ...]:
    """Interpret a code.

    f and g replace every symbol by another, r turns the data to the left by one cell, + adds one to a counter, which
    starts at 0, and ? copies the first cell to the second if the counter is odd.
    """
    cells, counter = list(data), 0
    for instruction in code:
        if instruction in MAPS:
            cells = [MAPS[instruction][symbol] for symbol in cells]
        elif instruction == "r":
            cells = [*cells[1:], cells[0]]
        elif instruction == "+":
            counter += 1
        elif counter % 2:
            cells[1] = cells[0]
    return tuple(cells)


def all_codes(lengths: Iterable[int]) -> list[str]:
    """Every code of these lengths."""
    return ["".join(code) for length in lengths for code in itertools.product(INSTRUCTIONS, repeat=length)]


def effect(code: str) -> tuple[tuple[int, ...], ...]:
    """Answers of a code to all data, which are what it computes."""
    return tuple(run(code, data) for data in itertools.product(range(SYMBOLS), repeat=CELLS))


@functools.cache
def guesses(length: int) -> tuple[float, float]:
    """Accuracies over all codes of a length of the best guess from the data, and of the best order-blind one.

    Codes are counted by the map of symbols, the cell that each cell comes from, and the parity of the counter.
    """
    counts: dict[Any, Counter[Any]] = {(0,) * len(INSTRUCTIONS): Counter({((0, 1, 2), (0, 1, 2), 0): 1})}
    for _ in range(length):
        longer: dict[Any, Counter[Any]] = defaultdict(Counter)
        for often, states in counts.items():
            for number, instruction in enumerate(INSTRUCTIONS):
                after = longer[tuple(count + (i == number) for i, count in enumerate(often))]
                for state, count in states.items():
                    after[_step(state, instruction)] += count
        counts = longer
    tables = np.stack([_answer_counts(states) for states in counts.values()])
    total = len(INSTRUCTIONS) ** length * SYMBOLS**CELLS
    return float(tables.sum(0).max(1).sum() / total), float(tables.max(2).sum() / total)


def _step(state: Any, instruction: str) -> Any:
    symbols, (first, second, third), odd = state
    if instruction in MAPS:
        return tuple(MAPS[instruction][symbol] for symbol in symbols), (first, second, third), odd
    if instruction == "r":
        return symbols, (second, third, first), odd
    if instruction == "+":
        return symbols, (first, second, third), 1 - odd
    return symbols, (first, first if odd else second, third), odd


def _answer_counts(states: Counter[Any]) -> Float[np.ndarray, "data answer"]:
    """Number of codes that answer each of the data with each result."""
    data = np.array(list(itertools.product(range(SYMBOLS), repeat=CELLS)))
    table = np.zeros((len(data), len(data)))
    for (symbols, sources, _), count in states.items():
        answers = np.array(symbols)[data[:, list(sources)]] @ SYMBOLS ** np.arange(CELLS)[::-1]
        table[np.arange(len(data)), answers] += count
    return table


class Codes(AbstractTokens):
    r"""A code, its data and the answer of the interpreter.

    .. math:: c_1, \dots, c_S,\; x_1, x_2, x_3,\; {=},\; y_1, y_2, y_3

    A code of fewer than S instructions has its instructions in order in random slots; the other slots hold a token that
    does nothing. A length L of codes has a frequency proportional to L + 1. The loss is that of the answer's tokens.

    Attributes:
        codes: Instructions of each code, then -1.
        answers: Answer to each of the data.
        ends: Distribution function of the codes.
    """

    codes: Int[Array, "code slot"]
    answers: Int[Array, "code data cell"]
    ends: Float[Array, " code"]

    @classmethod
    def init(cls, codes: Sequence[str], *, slots: int, answers: Sequence[str] | None = None) -> "Codes":
        """Build the task of these codes; ``answers``: the codes that are run in their place."""
        rows = [[INSTRUCTIONS.index(i) for i in code] + [-1] * (slots - len(code)) for code in codes]
        lengths = np.array([len(code) for code in codes])
        shares = (lengths + 1) / np.bincount(lengths)[lengths]
        runs = [effect(code) for code in (codes if answers is None else answers)]
        ends = np.cumsum(shares / shares.sum())
        return cls(jnp.asarray(rows, jnp.int32), jnp.asarray(runs, jnp.int32), jnp.asarray(ends, jnp.float32))

    @property
    def slots(self) -> int:
        """S, the number of instructions of the longest code that fits."""
        return self.codes.shape[1]

    @property
    def vocabulary(self) -> int:
        """Number of symbols, instructions, the token that does nothing and ``=``."""
        return SYMBOLS + len(INSTRUCTIONS) + 2

    @property
    def tokens(self) -> int:
        """Number of tokens, S + 7."""
        return self.slots + 2 * CELLS + 1

    def sample(self, *, key: PRNGKeyArray) -> TokenPrompt:
        """Sample a code, the slots of its instructions, and data."""
        u = jax.random.uniform(key, (2 + self.slots,))
        code = jnp.minimum(jnp.sum(self.ends <= u[0]), len(self.codes) - 1)
        data = jnp.minimum((u[1] * SYMBOLS**CELLS).astype(jnp.int32), SYMBOLS**CELLS - 1)
        return self.prompt(code, data, u[2:])

    def prompt(self, code: Array, data: Array, order: Float[Array, " slot"]) -> TokenPrompt:
        """Return the prompt of a code, with its instructions in the slots of least ``order``, and of data by number."""
        row = self.codes[code]
        length = jnp.sum(row >= 0)
        taken = jnp.argsort(jnp.argsort(order)) < length
        place = jnp.cumsum(taken) - 1
        instructions = jnp.where(taken, row[jnp.maximum(place, 0)], NOTHING) + SYMBOLS
        cells = data // jnp.array([9, 3, 1], jnp.int32) % SYMBOLS
        sign = jnp.array([self.vocabulary - 1], jnp.int32)
        parts = (instructions, cells, sign, self.answers[code, data])
        return TokenPrompt(jnp.concatenate([part.astype(jnp.int32) for part in parts]))

    def loss(self, prediction: Float[Array, "position token"], prompt: TokenPrompt) -> Float[Array, " position"]:
        """Cross-entropy of the answer's tokens, and 0 at other positions."""
        losses, positions = super().loss(prediction, prompt), len(prompt.tokens) - 1
        return jnp.where(np.arange(positions) >= positions - CELLS, losses, 0)


@eqx.filter_jit
def transformer(task: Codes, layers: int, heads: int, width: int, *, key: PRNGKeyArray) -> Transformer:
    """A transformer of pre-norm blocks with learned positions."""
    block = BlockOptions(heads=heads, mlp=(2 * width,), norm="pre")
    sizes = {"dim": task.vocabulary, "width": width, "layers": layers, "length": task.length}
    return Transformer(Tokens(task.vocabulary), **sizes, positions="learned", block=block, key=key)


@eqx.filter_jit
def accuracies(
    network: Any, task: Codes, codes: Int[Array, " code"], keys: Key[Array, " code"]
) -> Float[Array, " code"]:
    """Fraction of data that the network answers wholly right, for each of several codes."""

    def of_code(code: Array, key: PRNGKeyArray) -> Array:
        order = jax.random.uniform(key, (SYMBOLS**CELLS, task.slots))
        prompts = jax.vmap(lambda data, row: task.prompt(code, data, row))(jnp.arange(SYMBOLS**CELLS), order)
        answers = jnp.argmax(jax.vmap(network)(prompts)[:, -CELLS:, :SYMBOLS], axis=-1)
        return jnp.mean(jnp.all(answers == prompts.tokens[:, -CELLS:], axis=1))

    return jax.lax.map(lambda pair: of_code(*pair), (codes, keys))
