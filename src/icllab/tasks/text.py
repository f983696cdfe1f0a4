r"""Windows of consecutive bytes of a text, every prefix of which asks for the byte that follows.

.. math:: (t_1, t_2),\; (t_1t_2,\, t_3),\; \dots,\; (t_1 \cdots t_{C-1},\, t_C)

are the examples of a window of C tokens. No window reaches from one file into another; of all windows that lie within a
file each is equally likely. The distribution of such text is not known, and neither is its least loss.
"""

from collections.abc import Iterable
from os import PathLike

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt8

from icllab.core.errors import expected, require_integer, require_key
from icllab.core.prompt import TokenPrompt
from icllab.core.vocabularies import in_vocabulary
from icllab.tasks import text_files
from icllab.tasks.sequences import AbstractTokens
from icllab.tasks.text_files import Documents

PRINTABLE = b"\n" + bytes(range(32, 127))
"""The printable characters of ASCII, and the end of a line."""


class Text(AbstractTokens):
    """A uniformly drawn window of a text; the loss is the cross-entropy of the next token, in nats, at every position.

    A byte is a token as it is, 256 of them, or with an ``alphabet`` its place there; all bytes that the alphabet lacks
    are then one more token, the last.

    Attributes:
        symbols: Tokens of all files, one file after the other.
        windows: How many windows there are in the files up to and with each.
        tokens: C, tokens of a window (static).
        vocabulary: How many tokens there are (static).
    """

    symbols: UInt8[Array, " place"]
    windows: Int[Array, " file"]
    tokens: int = eqx.field(static=True)
    vocabulary: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        if isinstance(self.symbols, jax.Array):
            in_vocabulary("symbols", self.symbols, self.vocabulary, "a larger vocabulary=")

    @classmethod
    def from_documents(cls, documents: Documents, *, tokens: int, alphabet: bytes | None = None) -> "Text":
        """Windows of ``tokens`` tokens, at least 2, of files such as :func:`.text_files.standard_library` has them.

        ``alphabet`` has the bytes that are tokens of their own, each once, such as :data:`PRINTABLE`; None: all.

        Raises:
            InputError: A file is shorter than a window, there are 2^31 bytes or more, or the alphabet is not bytes or
                repeats one.
        """
        require_integer("tokens", tokens, least=2)
        table, vocabulary = np.arange(256, dtype=np.uint8), 256
        if alphabet is not None:
            if not isinstance(alphabet, bytes):
                raise expected("alphabet", "bytes", alphabet, "such as b'abc'")
            if not 0 < len(set(alphabet)) == len(alphabet) < 256:
                raise expected("alphabet", "at least one byte and not all, each once", alphabet)
            vocabulary = len(alphabet) + 1
            table = np.full(256, vocabulary - 1, np.uint8)
            table[np.frombuffer(alphabet, np.uint8)] = np.arange(len(alphabet), dtype=np.uint8)
        sizes = np.array([len(content) for content in documents.contents], np.int64)
        if not len(sizes):
            raise expected("documents", "at least one file", 0)
        if sizes.min() < tokens:
            short = documents.names[int(np.argmin(sizes))]
            hint = "leave short files out with documents.at_least(tokens)"
            raise expected(short, f"at least {tokens} bytes, those of a window", int(sizes.min()), hint)
        # Places are numbered in 32 bits, and windows, which are fewer.
        if sizes.sum() >= 2**31:
            raise expected("documents", "fewer than 2^31 bytes", int(sizes.sum()), "use fewer files")
        windows = np.cumsum(sizes - tokens + 1)
        symbols = table[np.frombuffer(b"".join(documents.contents), np.uint8)]
        return cls(jnp.asarray(symbols), jnp.asarray(windows.astype(np.int32)), tokens, vocabulary)

    @classmethod
    def from_files(cls, paths: Iterable[str | PathLike[str]], *, tokens: int, alphabet: bytes | None = None) -> "Text":
        """Windows of files by their paths; the rest is as in :meth:`of`, errors as in :func:`.text_files.read` too."""
        return cls.from_documents(text_files.read(paths), tokens=tokens, alphabet=alphabet)

    def sample(self, *, key: PRNGKeyArray) -> TokenPrompt:
        """One window."""
        require_key(key)
        return self._window(self._numbers((), key))

    def sample_many(self, count: int, *, key: PRNGKeyArray) -> TokenPrompt:
        """Draw ``count`` independent windows, on a leading axis."""
        require_key(key)
        return jax.vmap(self._window)(self._numbers((count,), key))

    def counts(self, order: int) -> Float[np.ndarray, "context token"]:
        """Counts of every token after every context of ``order - 1`` tokens within a file, at all positions.

        The first token of a context is the leading digit of its number. Not traceable.

        Raises:
            InputError: The table has more than 2^25 entries.
        """
        require_integer("order", order)
        size = self.vocabulary
        if size**order > 2**25:
            raise expected("order", f"a table of at most 2^25 entries, not {size}^{order}", order)
        symbols = np.asarray(self.symbols, np.int64)
        sizes = np.diff(np.asarray(self.windows, np.int64), prepend=0) + self.tokens - 1
        ends = np.cumsum(sizes)
        number = np.zeros(len(symbols) - order + 1, np.int64)
        for j in range(order):
            number = number * size + symbols[j : len(symbols) - order + 1 + j]
        # A place of a file is followed by at least so many others of that file.
        begin = np.arange(len(number))
        within = begin + order <= ends[np.searchsorted(ends, begin, side="right")]
        return np.bincount(number[within], minlength=size**order).reshape(-1, size).astype(float)

    def _numbers(self, shape: tuple[int, ...], key: PRNGKeyArray) -> Int[Array, "*shape"]:
        return jax.random.randint(key, shape, 0, self.windows[-1], self.windows.dtype)

    def _window(self, number: Int[Array, ""]) -> TokenPrompt:
        """A window by its number: every file before it has C - 1 places at which none begins."""
        file = jnp.searchsorted(self.windows, number, side="right").astype(number.dtype)
        begin = number + (self.tokens - 1) * file
        return TokenPrompt(self.symbols[begin + jnp.arange(self.tokens, dtype=begin.dtype)].astype(jnp.int32))
