"""Tables of the distribution of the next token given the last few: unigrams, bigrams, trigrams.

What a network of tokens is compared with: an n-gram predictor uses n - 1 tokens of the context and no more. From a text
it is counted; of a Markov chain it is known, and is the best predictor there is.
"""

from collections.abc import Sequence
from numbers import Integral

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from icllab.core.domains import POSITIVE
from icllab.core.errors import expected, require_integer
from icllab.core.prompt import TokenPrompt
from icllab.core.protocols import AbstractPredictor
from icllab.core.vocabularies import PADDING, in_vocabulary
from icllab.tasks.higher_order_chain import HigherOrderChain
from icllab.tasks.sequences import require_probabilities
from icllab.tasks.text import Text


class NGram(AbstractPredictor):
    r"""Predict :math:`\ln P(b \mid c)`, with c the last n - 1 tokens, or all tokens if there are fewer.

    Attributes:
        tables: ln P for contexts of 0, 1, ..., n - 1 tokens, each a row; the first token of a context is the leading
            digit of its number.
    """

    differentiable = False

    tables: tuple[Float[Array, "_context state"], ...]

    @classmethod
    def from_laws(cls, laws: Sequence[Float[np.ndarray, "_context state"]]) -> "NGram":
        """Build n-grams from the distributions given 0, 1, ..., n - 1 tokens.

        Raises:
            InputError: There is no table, they are not of 1, V, V^2, ... contexts of V tokens, or a row is no
                distribution.
        """
        if not isinstance(laws, Sequence) or not all(getattr(law, "ndim", 0) == 2 for law in laws):
            raise expected("distributions", "a sequence of tables, arrays [context, state]", laws)
        if not len(laws):
            raise expected("distributions", "at least one table, for unigrams", list(laws))
        size = laws[0].shape[-1]
        for j, law in enumerate(laws):
            if law.shape != (size**j, size):
                raise expected(f"distributions[{j}]", f"a table of shape {(size**j, size)}", law.shape)
            require_probabilities(np.asarray(law, np.float64), f"distributions[{j}]")
        # What cannot come has a probability that float32 can still be asked the logarithm of.
        return cls(tuple(jnp.asarray(np.log(np.maximum(law, 1e-30)), float) for law in laws))

    @classmethod
    def counted(cls, text: Text, *, n: int, smoothing: float = 1.0) -> "NGram":
        r"""Estimate n-grams from a text, each order smoothed with the one before it.

        .. math:: P_n(b \mid c) = \frac{N(cb) + s\,P_{n-1}(b \mid c')}{N(c\,\cdot) + s}, \qquad P_0 = \frac1V

        with the numbers N of times that c, and then b, stand in the text, and c' being c without its first token; n is
        1 for unigrams, 2 for bigrams, ..., and ``smoothing`` is s, above 0.

        Raises:
            InputError: A number is out of its range, or a table has more than 2^25 entries.
        """
        require_integer("n", n)
        POSITIVE.require("smoothing", smoothing)
        law, laws = np.full((1, text.vocabulary), 1 / text.vocabulary), []
        for order in range(1, n + 1):
            counts = text.counts(order)
            below = np.tile(law, (len(counts) // len(law), 1))
            law = (counts + smoothing * below) / (counts.sum(axis=1, keepdims=True) + smoothing)
            laws.append(law)
        return cls.from_laws(laws)

    @classmethod
    def knowing(cls, chain: HigherOrderChain, *, n: int | None = None) -> "NGram":
        """The n-grams of a chain with known transitions; None: n is one more than the chain's order.

        Raises:
            InputError: There is no such n: a longer one than that would know nothing more.
        """
        _require_n(1 if n is None else n, chain.order + 1, ", one more than the order of the chain")
        return cls.from_laws(chain.conditionals()[:n])

    @property
    def n(self) -> int:
        """Number of tokens of the longest n-gram, including the answer."""
        return len(self.tables)

    def shorter(self, n: int) -> "NGram":
        """The same n-grams with fewer tokens of context."""
        _require_n(n, self.n)
        return NGram(self.tables[:n])

    def __call__(self, prompt: TokenPrompt) -> Float[Array, "position state"]:
        """Logits at every position, which are logarithms of probabilities.

        NaN where a token that is looked up is traced and not of the vocabulary.
        """
        tokens = prompt.tokens[:-1]
        size = self.tables[0].shape[1]
        valid = in_vocabulary("tokens", tokens, size, PADDING)
        position = jnp.arange(tokens.shape[0])
        answer = jnp.broadcast_to(self.tables[0], (tokens.shape[0], size))
        context, usable = jnp.zeros_like(tokens), jnp.ones_like(valid)
        for j, table in enumerate(self.tables[1:], 1):
            places = jnp.maximum(position - j + 1, 0)
            context = context + size ** (j - 1) * jnp.where(position >= j - 1, tokens[places], 0)
            usable = usable & valid[places]
            laws = jnp.where(usable[:, None], table[context], jnp.nan)
            answer = jnp.where((position + 1 >= j)[:, None], laws, answer)
        return answer


def _require_n(n: object, largest: int, why: str = "") -> None:
    if isinstance(n, bool) or not isinstance(n, Integral) or not 1 <= int(n) <= largest:
        raise expected("n", f"an integer from 1 to {largest}{why}", n)
