"""Strings after the program that is run on them: many contexts, each with its own function.

A program is one function or several, one after the other. Programs come with given frequencies, those of a power law
for instance, so that some are rare; lengths of strings come equally often.
"""

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from icllab.core.domains import FINITE, FRACTION
from icllab.core.errors import expected, require_flag, require_integer, require_key
from icllab.core.prompt import TokenPrompt
from icllab.tasks.regression import number
from icllab.tasks.sequences import AbstractSequences, draw

Programs = tuple[tuple[int, ...], ...]

_DRAWS = 100  # of all functions
_MOST = 100_000  # strings of a length, or turns by data
_ROUNDING = 1e-9


class StringPrograms(AbstractSequences):
    r"""A program, a string, and the program's output for the string.

    .. math:: p_1, \dots, p_P,\; x_1, \dots, x_n,\; {=},\; y_1, \dots, y_n,\; {=}, \dots, {=} \qquad
              y = f_{p_P}(\cdots f_{p_1}(x))

    A function turns a string round and replaces its symbols,

    .. math:: f_a(x)_i = \sigma_a\bigl(x_{1 + (i - 1 + r_a) \bmod n}\bigr)

    With one number of places for all strings and permutations :math:`\sigma_a` functions are a group, and every
    composition is a function again. Where the number depends on the first symbol, :math:`r_a = r_a(x_1)`, functions
    lose strings, and compositions are no functions: :meth:`nearest_function_error` tells.

    Programs of fewer than P functions are filled up with ``=``, which does nothing. A program c, the *context*, comes
    with the frequency :math:`\pi_c`; n is any of ``lengths``, equally often; symbols of x are uniform on V. Each
    symbol of the answer is replaced by a uniform one with probability :math:`\epsilon`. Tokens 0 to V - 1 are symbols,
    those from V on functions, the last is ``=``.

    Attributes:
        tables: :math:`\sigma_a`: the symbol that takes the place of each.
        turns: :math:`r_a`: by how many symbols a string is turned to the left; with a column for each first symbol,
            :math:`r_a(x_1)`.
        frequencies: :math:`\pi`, which sums to 1; a leaf.
        noise: :math:`\epsilon`; a leaf, from 0 to 1.
        programs: Functions of each program, first to last (static).
        lengths: Lengths of strings, ascending (static).

    Raises:
        InputError: Tables hold no symbols, a program is empty, unknown or comes twice, or frequencies do not sum to 1.
    """

    tables: Int[Array, "function symbol"]
    turns: Int[Array, "function ..."]
    frequencies: Float[Array, " context"]
    noise: Float[Array, ""] = eqx.field(converter=partial(number, "noise"))
    programs: Programs = eqx.field(static=True)
    lengths: tuple[int, ...] = eqx.field(static=True)

    def __check_init__(self) -> None:
        for count in self.lengths:
            require_integer("lengths", count)
        if not self.lengths or list(self.lengths) != sorted(set(self.lengths)):
            raise expected("lengths", "different integers in ascending order", self.lengths)
        if not self.programs or len(set(self.programs)) != len(self.programs):
            raise expected("programs", "at least one program, all different", self.programs)
        FRACTION.require_leaf("noise", self.noise)
        parts = (self.tables, self.turns, self.frequencies)
        if any(isinstance(part, Tracer) or not isinstance(part, jax.Array) for part in parts):
            return
        tables, turns, frequencies = (np.asarray(part) for part in parts)
        if tables.ndim != 2 or tables.shape[1] < 2 or tables.min() < 0 or tables.max() >= tables.shape[1]:
            raise expected("tables", "symbols from 0 to V - 1, V of them for each function", tables.shape)
        for program in self.programs:
            if not program or not set(program) <= set(range(len(tables))):
                raise expected("programs", f"functions from 0 to {len(tables) - 1}, at least one", program)
        if turns.shape not in (tables.shape[:1], tables.shape):
            wanted = f"one for each of {len(tables)} functions, or of its {tables.shape[1]} symbols"
            raise expected("turns", wanted, turns.shape)
        if frequencies.shape != (len(self.programs),) or frequencies.min() < 0 or not abs(frequencies.sum() - 1) < 1e-5:
            raise expected("frequencies", f"{len(self.programs)} numbers >= 0 that sum to 1", frequencies.tolist())

    @classmethod
    def init(
        cls,
        *,
        functions: int,
        symbols: int,
        lengths: Sequence[int],
        programs: Sequence[Sequence[int]] | None = None,
        exponent: float = 1.0,
        noise: float = 0.0,
        turned: bool = False,
        by_data: bool = False,
        key: PRNGKeyArray,
    ) -> "StringPrograms":
        r"""Draw functions with random permutations of the symbols, and set frequencies by a power law.

        .. math:: \pi_c \propto c^{-\alpha}, \qquad c = 1, 2, \dots

        Args:
            functions: Number of functions, which all differ.
            symbols: V.
            lengths: Lengths of strings.
            programs: Functions of each, the most frequent program first; None: every function by itself.
            exponent: :math:`\alpha`; 0 for programs that come equally often.
            noise: :math:`\epsilon`.
            turned: Whether functions turn strings too, by 0 to n - 1 symbols for the longest n.
            by_data: Whether by how many depends on the first symbol. Then no program of several functions does what
                a single function does: functions are drawn anew until none does.
            key: Key of the functions.

        Raises:
            InputError: There are not enough different functions, or programs of several are functions in every draw.
        """
        require_integer("functions", functions)
        require_integer("symbols", symbols, least=2)
        FINITE.require("exponent", exponent)
        if not _is_sequence(lengths) or not len(lengths):
            raise expected("lengths", "lengths of strings, such as (4, 8)", lengths)
        for length in lengths:
            require_integer("lengths", length)
        if programs is not None and not (_is_sequence(programs) and all(map(_is_sequence, programs))):
            raise expected("programs", "a sequence of sequences of functions, such as [(0,), (0, 1)]", programs)
        require_flag("turned", turned)
        require_flag("by_data", by_data)
        require_key(key)
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        sequences = [(a,) for a in range(functions)] if programs is None else programs
        for _ in range(_DRAWS if by_data else 1):
            rows = _different_rows(rng, functions, symbols, max(lengths) if turned or by_data else 1, by_data)
            task = cls(
                tables=jnp.asarray(rows[:, :symbols]),
                turns=jnp.asarray(rows[:, symbols:] if by_data else rows[:, -1]),
                frequencies=jnp.asarray(power_law(len(sequences), exponent), float),
                noise=noise,  # pyright: ignore[reportArgumentType]
                programs=tuple(tuple(int(a) for a in program) for program in sequences),
                lengths=tuple(lengths),
            )
            several = [program for program in task.programs if len(program) > 1] if by_data else []
            if all(task.nearest_function_error(program) > 0 for program in several):
                return task
        raise expected("programs", "compositions that do not equal a single function", programs, "give longer strings")

    @property
    def symbols(self) -> int:
        """V, the number of symbols."""
        return self.tables.shape[-1]

    @property
    def functions(self) -> int:
        """Number of functions."""
        return self.tables.shape[-2]

    @property
    def vocabulary(self) -> int:
        """Number of symbols, functions and the sign ``=``."""
        return self.symbols + self.functions + 1

    @property
    def slots(self) -> int:
        """P, the number of functions in the longest program."""
        return max(map(len, self.programs))

    @property
    def tokens(self) -> int:
        """Number of tokens, P + 2n + 1 for the longest n."""
        return self.slots + 2 * max(self.lengths) + 1

    def only(self, *contexts: int) -> "StringPrograms":
        """The same task restricted to these programs, with the same relative frequencies."""
        for context in contexts:
            if not 0 <= context < len(self.programs):
                raise expected("contexts", f"integers from 0 to {len(self.programs) - 1}", context)
        frequencies = jnp.where(np.isin(np.arange(len(self.programs)), contexts), self.frequencies, 0)
        if not isinstance(frequencies, Tracer) and not float(jnp.sum(frequencies)) > 0:
            raise expected("contexts", "at least one of frequency above 0", contexts)
        return eqx.tree_at(lambda task: task.frequencies, self, frequencies / jnp.sum(frequencies))

    def program_tokens(self) -> Int[np.ndarray, "context slot"]:
        """The tokens of each program."""
        short = self.functions  # comes after the functions, and so stands for the sign
        rows = [(*program, *[short] * (self.slots - len(program))) for program in self.programs]
        return np.array(rows, np.int32) + self.symbols

    def context_of(self, prompt: TokenPrompt) -> Int[Array, ""]:
        """The number of the program at the start of a prompt; -1 if a traced prompt starts with another.

        Raises:
            InputError: The tokens are known, and begin with no program.
        """
        matches = jnp.all(prompt.tokens[None, : self.slots] == self.program_tokens(), axis=1)
        number = jnp.where(jnp.any(matches), jnp.argmax(matches), -1)
        if not isinstance(number, Tracer) and int(number) < 0:
            raise expected("prompt", "tokens that begin with a program", prompt.tokens[: self.slots].tolist())
        return number

    def answers(self, prompt: TokenPrompt) -> Bool[Array, " position"]:
        """True at positions that predict a symbol of the answer."""
        n = jnp.argmax(prompt.tokens[self.slots :] == self.vocabulary - 1)
        after = jnp.arange(self.tokens - 1, dtype=n.dtype) - self.slots - n
        return (after >= 0) & (after < n)

    def entropies(self) -> Float[np.ndarray, " position"]:
        r"""The least expected loss at every position, in nats, :math:`\sum_c \pi_c H_i^{(c)}`."""
        rows, frequencies = self.context_entropies(), self._frequencies()
        return frequencies[frequencies > 0] @ rows[frequencies > 0]

    def context_entropies(self) -> Float[np.ndarray, "context position"]:
        r"""The least expected loss of each program at every position, in nats; NaN for a position that never occurs.

        .. math:: H^{(c)} = -\ln\frac{\pi(p_1 \dots p_{k+1})}{\pi(p_1 \dots p_k)}, \;\dots,\; \ln V,\;
                  S_i \bigl[h(q_i) + (1 - q_i) \ln V\bigr] + P(n < i \le 2n)\, h_\epsilon

        for the probability :math:`\pi` that a program begins so, :math:`S_i = P(n \ge i)` and
        :math:`q_i = P(n = i \mid n \ge i)`, the binary entropy h, and the entropy of a symbol of the answer,

        .. math:: h_\epsilon = -\bigl(1 - \epsilon + \tfrac{\epsilon}{V}\bigr)
                  \ln\bigl(1 - \epsilon + \tfrac{\epsilon}{V}\bigr) - (V - 1) \tfrac{\epsilon}{V} \ln\tfrac{\epsilon}{V}

        Derived: docs/item-label.md, Sequences whose least loss is known.
        """
        programs, frequencies = self.program_tokens(), self._frequencies()
        begins = [
            np.array([frequencies[np.all(programs[:, :k] == row[:k], axis=1)].sum() for row in programs])
            for k in range(1, self.slots + 1)
        ]
        with np.errstate(divide="ignore", invalid="ignore"):
            of_program = [np.log(before / after) for before, after in itertools.pairwise(begins)]
        lengths = np.array(self.lengths)
        of_string = []
        for i in range(2 * lengths.max() + 1):
            left = np.mean(lengths >= i)
            ends = np.mean(lengths == i) / left if left else 0.0
            ahead = left * (_entropy(ends, 1 - ends) + (1 - ends) * np.log(self.symbols))
            of_string.append(ahead + np.mean((lengths < i) & (i <= 2 * lengths)) * self.answer_entropy())
        string_part = np.tile(np.array(of_string), (len(programs), 1))
        entropies = np.concatenate([np.array(of_program).T.reshape(len(programs), -1), string_part], axis=1)
        return np.where(frequencies[:, None] > 0, entropies, np.nan)

    def answer_entropy(self) -> float:
        r"""The least expected loss per symbol of an answer in nats, :math:`h_\epsilon` of :meth:`context_entropies`."""
        wrong = float(self.noise) / self.symbols
        return _entropy(1 - (self.symbols - 1) * wrong, *[wrong] * (self.symbols - 1))

    def _frequencies(self) -> np.ndarray:
        frequencies = np.asarray(self.frequencies, np.float64)
        return frequencies / frequencies.sum()

    def sample(self, *, key: PRNGKeyArray) -> TokenPrompt:
        """One sequence."""
        require_key(key)
        longest, lengths = max(self.lengths), jnp.asarray(self.lengths, jnp.int32)
        u = jax.random.uniform(key, (2 + 3 * longest,), self.frequencies.dtype)
        program = jnp.asarray(self.program_tokens())[draw(jnp.cumsum(self.frequencies), u[0])]
        n = lengths[_whole(u[1], len(lengths))]
        x, noise = (_whole(u[2 + k * longest : 2 + (k + 1) * longest], self.symbols) for k in range(2))
        wrong = u[2 + 2 * longest :] < self.noise.astype(u.dtype)
        y = jnp.where(wrong, noise, self._run(program, x, n))
        index = jnp.arange(2 * longest + 1, dtype=jnp.int32)
        tail = jnp.where(index < n, x[jnp.minimum(index, longest - 1)], y[jnp.clip(index - n - 1, 0, longest - 1)])
        tail = jnp.where((index == n) | (index > 2 * n), self.vocabulary - 1, tail)
        return TokenPrompt(jnp.concatenate([program, tail]))

    def _run(self, program: Array, x: Array, n: Array) -> Array:
        """Output of a program, given by its tokens, for the first n symbols."""
        identity = jnp.arange(self.symbols, dtype=jnp.int32)[None]
        tables = jnp.concatenate([self.tables.astype(jnp.int32), identity])
        turns = self.turns.astype(jnp.int32)
        turns = jnp.broadcast_to(turns if turns.ndim == 2 else turns[:, None], self.tables.shape)
        turns = jnp.concatenate([turns, jnp.zeros_like(identity)])
        index = jnp.arange(len(x), dtype=jnp.int32)
        for token in program:
            function = token - self.symbols
            x = tables[function, x[(index + turns[function, x[0]]) % n]]
        return x

    def every_string(self, program: Sequence[int]) -> list[tuple[np.ndarray, np.ndarray]]:
        """All strings [string, position] of every length, and the program's outputs for them.

        Raises:
            InputError: There are more than a hundred thousand strings of a length.
        """
        if self.symbols ** max(self.lengths) > _MOST:
            raise expected("lengths", f"at most {_MOST} strings of one length", self.symbols ** max(self.lengths))
        tokens = jnp.asarray(program, jnp.int32) + self.symbols
        pairs = []
        for n in self.lengths:
            strings = np.array(list(itertools.product(range(self.symbols), repeat=n)), np.int32)
            run = jax.vmap(lambda x, n=n: self._run(tokens, x, jnp.int32(n)))
            pairs.append((strings, np.asarray(run(jnp.asarray(strings)))))
        return pairs

    def nearest_function_error(self, program: Sequence[int]) -> float:
        r"""Fraction of symbols in which a program differs from the nearest single function, over all strings.

        .. math:: \min_{\sigma, r}\; P\bigl(f_{p_P}(\cdots f_{p_1}(x))_i \ne
                  \sigma(x_{1 + (i - 1 + r(x_1)) \bmod n})\bigr)

        over all tables, permutations or not, and all turns by data; every length weighs as often as it comes. It is 0
        if and only if the program does what one function could do: for each r the best :math:`\sigma` is counted, so
        that nothing is left out.

        Raises:
            InputError: There are too many strings or turns to count.
        """
        v, longest = self.symbols, max(self.lengths)
        if longest**v > _MOST:
            raise expected("symbols", f"at most {_MOST} turns by data", longest**v)
        counts = np.zeros((longest, v, v, v))  # turn, first symbol, symbol read, symbol of the answer
        for strings, answers in self.every_string(program):
            first = np.broadcast_to(strings[:, :1], strings.shape)
            for turn in range(longest):
                triples = np.ravel_multi_index((first, np.roll(strings, -turn, axis=1), answers), (v, v, v))
                counts[turn] += np.bincount(triples.ravel(), minlength=v**3).reshape(v, v, v) / strings.size
        symbols = np.arange(v)
        right = [
            counts[turns, symbols].sum(axis=0).max(axis=1).sum() / len(self.lengths)
            for turns in itertools.product(range(longest), repeat=v)
        ]
        error = 1 - float(max(right))
        return error if error > _ROUNDING else 0.0

    def guessing_losses(self) -> Float[np.ndarray, " context"]:
        r"""The least expected loss per symbol of an answer, if the program is known and the string is not, in nats.

        .. math:: \frac{\sum_n \sum_{i \le n} H(y_i)}{\sum_n n}

        It is :math:`\ln V` where functions permute symbols and turn all strings alike.
        """
        share = float(self.noise)
        losses = []
        for program in self.programs:
            places = [answers[:, i] for _, answers in self.every_string(program) for i in range(answers.shape[1])]
            p = [
                (1 - share) * np.bincount(symbols, minlength=self.symbols) / len(symbols) + share / self.symbols
                for symbols in places
            ]
            losses.append(np.mean([_entropy(*row) for row in p]))
        return np.array(losses)


def power_law(count: int, exponent: float) -> Float[np.ndarray, " rank"]:
    r"""Frequencies :math:`c^{-\alpha}` of the ranks 1 to ``count``, divided by their sum."""
    weights = np.arange(1.0, count + 1) ** -exponent
    return weights / weights.sum()


def _different_rows(
    rng: np.random.Generator, functions: int, symbols: int, longest: int, by_data: bool
) -> Int[np.ndarray, "function column"]:
    """Draw for every function a permutation, and a turn or one turn for each first symbol; all functions differ."""
    rows: dict[tuple[int, ...], None] = {}
    for _ in range(100 * functions):
        row = rng.permutation(symbols).tolist()
        turns = rng.integers(longest, size=symbols).tolist() if by_data else [int(rng.integers(longest))]
        rows[(*row, *turns)] = None
        if len(rows) == functions:
            return np.array(list(rows), np.int32)
    hint = "give more symbols, or turned=True"
    raise expected("functions", f"few enough to differ on {symbols} symbols", functions, hint)


def _is_sequence(value: Any) -> bool:
    return not isinstance(value, str) and (isinstance(value, Sequence) or np.ndim(value) > 0)


def _whole(uniform: Array, count: int) -> Array:
    """Integers below ``count``, from numbers uniform on [0, 1)."""
    return jnp.minimum((count * uniform).astype(jnp.int32), count - 1)


def _entropy(*probabilities: Any) -> float:
    """Entropy in nats."""
    p = np.array([value for value in probabilities if value > 0])
    return float(-np.sum(p * np.log(p)))
