"""Repeated strings of different tokens; only the prompt shows the period."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from icllab.core.errors import expected, require_integer, require_key
from icllab.core.prompt import TokenPrompt
from icllab.tasks.sequences import AbstractTokens


class PeriodicStrings(AbstractTokens):
    r"""A string of different tokens, repeated throughout the prompt; its length differs from prompt to prompt.

    .. math:: t_i = s_{i \bmod p}, \qquad p \sim \mathrm{Uniform}\{p_{\min}, \dots, p_{\max}\}, \quad 0 \le i < T

    Since a string has no token twice, a token that has come before tells the next one. Where that stands does not
    follow from the position, because the period is not known beforehand.

    Of all pairs of tokens, those with :math:`(b - a) \bmod V \in \{1, \dots, H\}` are *held out*: b never follows a,
    within the string or where it begins anew. Each token of a string is uniform over those that are left.

    Attributes:
        vocabulary: V, more than the longest period and 2H together (static).
        shortest: Shortest period, at least 2 (static).
        longest: Longest period (static).
        tokens: T, more than the longest period (static).
        held_out: H, successors of each token that never follow it (static).

    Raises:
        InputError: The numbers do not fit each other.

    Source: repeated random tokens as a test of induction [Olsson22].
    """

    vocabulary: int = eqx.field(static=True)
    shortest: int = eqx.field(static=True)
    longest: int = eqx.field(static=True)
    tokens: int = eqx.field(static=True)
    held_out: int = eqx.field(static=True, default=0)

    def __check_init__(self) -> None:
        names = (("vocabulary", 2), ("shortest", 2), ("longest", 2), ("tokens", 2), ("held_out", 0))
        for name, least in names:
            require_integer(name, getattr(self, name), least=least)
        if self.longest < self.shortest:
            raise expected("longest", f"at least the shortest period, {self.shortest}", self.longest)
        if self.tokens <= self.longest:
            raise expected("tokens", f"more than the longest period, {self.longest}", self.tokens)
        if self.vocabulary <= self.longest + 2 * self.held_out:
            requirement = (
                f"more than {self.longest + 2 * self.held_out}, so that a token is left at every position of a string"
            )
            raise expected("vocabulary", requirement, self.vocabulary)

    def sample(self, *, key: PRNGKeyArray) -> TokenPrompt:
        """One sequence."""
        require_key(key)
        of_period, of_string = jax.random.split(key)
        period = jax.random.randint(of_period, (), self.shortest, self.longest + 1)
        heights = jax.random.uniform(of_string, (self.longest, self.vocabulary))
        every = jnp.arange(self.vocabulary)
        start = jnp.argmax(heights[0])

        def step(state: tuple[Array, Array], new: tuple[Array, Array]) -> tuple[tuple[Array, Array], Array]:
            left, before = state
            place, height = new
            # The last token of a string is followed by the first.
            closes = (place + 1 == period) & self._held(every, start)
            token = jnp.argmax(jnp.where(left & ~self._held(before, every) & ~closes, height, -1.0))
            return (left & (every != token), token), token

        places = jnp.arange(1, self.longest)
        string = jnp.append(start, jax.lax.scan(step, (every != start, start), (places, heights[1:]))[1])
        return TokenPrompt(string[jnp.arange(self.tokens) % period])

    def copied(self, prompt: TokenPrompt) -> Bool[Array, " position"]:
        """True at positions whose token has come before in the prompt, so that the next token is known."""
        return jnp.any(_earlier(prompt.tokens), axis=1)[:-1]

    def period(self, prompt: TokenPrompt) -> Int[Array, ""]:
        """Number of different tokens of a prompt."""
        return jnp.sum(~jnp.any(_earlier(prompt.tokens), axis=1))

    def of_held_out_pairs(self, prompt: TokenPrompt) -> Bool[Array, " position"]:
        """True at positions whose token and next token are a pair that this task never draws."""
        return self._held(prompt.tokens[:-1], prompt.tokens[1:])

    def _held(self, first: Int[Array, "..."], second: Int[Array, "..."]) -> Bool[Array, "..."]:
        difference = (second - first) % self.vocabulary
        return (difference >= 1) & (difference <= self.held_out)


def _earlier(tokens: Int[Array, " token"]) -> Bool[Array, "token token"]:
    """True for each token that equals an earlier one."""
    return jnp.tril(tokens[:, None] == tokens[None], -1)
