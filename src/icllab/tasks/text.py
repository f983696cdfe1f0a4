r"""Windows of consecutive bytes or tokens of a text; the next one is predicted after every prefix.

.. math:: (t_1, t_2),\; (t_1t_2,\, t_3),\; \dots,\; (t_1 \cdots t_{C-1},\, t_C)

are the examples of a window of C tokens. No window reaches from one file into another; of all windows that lie within a
file each is equally likely. The distribution of such text is not known, and neither is its least loss.
"""

from collections.abc import Iterable
from os import PathLike
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt

from icllab.core.errors import expected, require_flag, require_integer, require_key
from icllab.core.prompt import TokenPrompt
from icllab.core.tokenizers import beginning, plain
from icllab.core.vocabularies import in_vocabulary
from icllab.tasks import text_files
from icllab.tasks.sequences import AbstractTokens
from icllab.tasks.text_files import Documents

PRINTABLE = b"\n" + bytes(range(32, 127))
"""The printable characters of ASCII, and the end of a line."""


class Text(AbstractTokens):
    """A uniformly drawn window of a text; the loss is the cross-entropy of the next token, in nats, at every position.

    A byte is a token as it is, 256 of them, or with an ``alphabet`` its place there; all bytes that the alphabet lacks
    are then one more token, the last. With a ``tokenizer`` tokens are those of a language model; if the tokenizer puts
    a BOS token before each text, each window begins with it.

    Attributes:
        symbols: Tokens of all files, one file after the other; a file shorter than a window is followed by zeros.
        windows: How many windows there are in the files up to and with each.
        tokens: C, tokens of a window, those of ``beginning`` included (static).
        vocabulary: How many tokens there are (static).
        sizes: Tokens of each file, by which windows are masked; None: no file is shorter than a window.
        beginning: Ids with which each window begins, such as a BOS token; they are not in ``symbols`` (static).
    """

    symbols: UInt[Array, " place"]
    windows: Int[Array, " file"]
    tokens: int = eqx.field(static=True)
    vocabulary: int = eqx.field(static=True)
    sizes: Int[Array, " file"] | None = None
    beginning: tuple[int, ...] = eqx.field(static=True, default=())

    def __check_init__(self) -> None:
        if isinstance(self.symbols, jax.Array):
            in_vocabulary("symbols", self.symbols, self.vocabulary, "a larger vocabulary=")

    @classmethod
    def from_documents(
        cls,
        documents: Documents,
        *,
        tokens: int,
        alphabet: bytes | None = None,
        tokenizer: Any = None,
        vocabulary: int | None = None,
        pad: bool = False,
        bos: bool = True,
    ) -> "Text":
        """Windows of ``tokens`` tokens, at least 2, from files such as :func:`.text_files.standard_library` returns.

        ``alphabet`` has the bytes that are tokens of their own, each once, such as :data:`PRINTABLE`; None: all.
        ``tokenizer`` is one of the package ``tokenizers`` in its place, such as ``models.pretrained.tokenizer`` gives;
        each file, UTF-8, is encoded whole and without special tokens, but what the tokenizer puts before each text,
        such as a BOS token, is the beginning of each window; with ``bos=False`` it is left out. ``vocabulary`` is that
        of a model that has more tokens than its tokenizer; None: the tokenizer's. With ``pad`` a file shorter than a
        window, of at least 2 tokens, is one window that is padded on the right and masked.

        Raises:
            InputError: A file is shorter than a window, or no UTF-8; there are 2^31 tokens or more; or the alphabet is
                not bytes or repeats one.

        Warns:
            ResultWarning: The tokenizer truncates, pads or draws its splits, which is switched off on a copy.
        """
        require_flag("bos", bos)
        tokenizer = plain(tokenizer)
        begin = beginning(tokenizer) if bos else ()
        require_integer("tokens", tokens, least=max(2, len(begin) + 1))
        width = tokens - len(begin)
        table, unit = _table(alphabet), "bytes" if tokenizer is None else "tokens"
        if tokenizer is None and vocabulary is not None:
            raise expected(
                "vocabulary",
                "a tokenizer with it",
                vocabulary,
                "without one the vocabulary is all 256 bytes, or alphabet=",
            )
        if tokenizer is not None and alphabet is not None:
            raise expected("alphabet", "None with a tokenizer", alphabet, "leave out one of the two")
        contents = documents.contents if tokenizer is None else _encoded(documents, tokenizer)
        sizes = np.array([len(content) for content in contents], np.int64)
        if not len(sizes):
            raise expected("documents", "at least one file", 0)
        least = 2 if pad else width
        if sizes.min() < least:
            short = documents.names[int(np.argmin(sizes))]
            hint = f"leave short files out with documents.at_least({'tokens' if tokenizer is None else 'bytes'})"
            raise expected(short, f"at least {least} {unit}, the size of a window", int(sizes.min()), hint)
        # Places are numbered in 32 bits, and windows, which are fewer.
        places = int(np.maximum(sizes, width).sum())
        if places >= 2**31:
            raise expected("documents", f"fewer than 2^31 {unit}", places, "use fewer files")
        if tokenizer is None:
            rows = [table[np.frombuffer(content, np.uint8)] for content in documents.contents]
            size = int(table.max()) + 1
        else:
            size = tokenizer.get_vocab_size() if vocabulary is None else vocabulary
            in_vocabulary("tokens", np.concatenate([np.array(begin, int), *contents]), size, "a larger vocabulary=")
            rows = [np.asarray(content, np.min_scalar_type(size - 1)) for content in contents]
        rows = [np.pad(row, (0, max(0, width - len(row)))) for row in rows]
        windows = np.cumsum(np.maximum(sizes - width, 0) + 1).astype(np.int32)
        symbols, lengths = jnp.asarray(np.concatenate(rows)), jnp.asarray(sizes.astype(np.int32)) if pad else None
        return cls(symbols, jnp.asarray(windows), tokens, size, lengths, begin)

    @classmethod
    def from_files(
        cls,
        paths: Iterable[str | PathLike[str]],
        *,
        tokens: int = 128,
        alphabet: bytes | None = None,
        tokenizer: Any = None,
        vocabulary: int | None = None,
        pad: bool = False,
        bos: bool = True,
    ) -> "Text":
        """Windows of files given by paths; see :meth:`from_documents` and :func:`.text_files.read` for the rest."""
        documents = text_files.read(paths)
        return cls.from_documents(
            documents, tokens=tokens, alphabet=alphabet, tokenizer=tokenizer, vocabulary=vocabulary, pad=pad, bos=bos
        )

    def sample(self, *, key: PRNGKeyArray) -> TokenPrompt:
        """One window."""
        require_key(key)
        return self._window(self._numbers((), key))

    def sample_many(self, count: int, *, key: PRNGKeyArray) -> TokenPrompt:
        """Draw ``count`` independent windows, on a leading axis."""
        require_key(key)
        return jax.vmap(self._window)(self._numbers((count,), key))

    def counts(self, order: int) -> Float[np.ndarray, "context token"]:
        """Counts of each token after each context of ``order - 1`` tokens within a file, over all positions.

        The first token of a context is the leading digit of its number. Not traceable.

        Raises:
            InputError: The table has more than 2^25 entries.
        """
        require_integer("order", order)
        size = self.vocabulary
        if size**order > 2**25:
            raise expected("order", f"a table of at most 2^25 entries, not {size}^{order}", order)
        symbols = np.asarray(self.symbols, np.int64)
        sizes = np.diff(np.asarray(self.windows, np.int64), prepend=0) + self._width - 1
        ends = np.cumsum(sizes)
        number = np.zeros(len(symbols) - order + 1, np.int64)
        for j in range(order):
            number = number * size + symbols[j : len(symbols) - order + 1 + j]
        # A place of a file is followed by at least so many others of that file, none of them padding.
        begin = np.arange(len(number))
        file = np.searchsorted(ends, begin, side="right")
        padding = 0 if self.sizes is None else np.maximum(self._width - np.asarray(self.sizes, np.int64), 0)
        within = begin + order <= (ends - padding)[file]
        return np.bincount(number[within], minlength=size**order).reshape(-1, size).astype(float)

    @property
    def _width(self) -> int:
        """Number of tokens of a window that come from its file."""
        return self.tokens - len(self.beginning)

    def _numbers(self, shape: tuple[int, ...], key: PRNGKeyArray) -> Int[Array, "*shape"]:
        return jax.random.randint(key, shape, 0, self.windows[-1], self.windows.dtype)

    def _window(self, number: Int[Array, ""]) -> TokenPrompt:
        """A window by its number; no window begins at the last ``_width`` - 1 positions of a file."""
        file = jnp.searchsorted(self.windows, number, side="right").astype(number.dtype)
        begin = number + (self._width - 1) * file
        index = jnp.arange(self._width, dtype=begin.dtype)
        mask = None if self.sizes is None else index < self.sizes[file]
        tokens = self.symbols[begin + index].astype(jnp.int32)
        if self.beginning:
            tokens = jnp.concatenate([jnp.array(self.beginning, jnp.int32), tokens])
            mask = None if mask is None else jnp.concatenate([jnp.ones(len(self.beginning), bool), mask])
        return TokenPrompt(tokens, mask)


def _table(alphabet: Any) -> np.ndarray:
    """The token of each byte."""
    if alphabet is None:
        return np.arange(256, dtype=np.uint8)
    if not isinstance(alphabet, bytes):
        raise expected("alphabet", "bytes", alphabet, "such as b'abc'")
    if not 0 < len(set(alphabet)) == len(alphabet) < 256:
        raise expected("alphabet", "between 1 and 255 different bytes", alphabet)
    table = np.full(256, len(alphabet), np.uint8)
    table[np.frombuffer(alphabet, np.uint8)] = np.arange(len(alphabet), dtype=np.uint8)
    return table


def _encoded(documents: Documents, tokenizer: Any) -> list[list[int]]:
    """Token ids of each file."""
    rows = []
    for name, content in zip(documents.names, documents.contents, strict=True):
        try:
            rows.append(tokenizer.encode(content.decode(), add_special_tokens=False).ids)
        except UnicodeDecodeError as error:
            hint = "leave the file out, or read bytes without a tokenizer"
            raise expected(name, "text in UTF-8", f"byte {content[error.start]:#04x} at {error.start}", hint) from None
    return rows
