"""The standard streams as they come: of any encoding and width, closed, broken or full.

What is written to a terminal is text of others too: certificates, records, results, paths. Its control characters would
act there, so they are shown as escapes. An answer is typeset by :func:`console` from such texts and from
:func:`~icllab.cli.reports.typeset`; whatever is written to stderr passes through :class:`_Escaped`.
"""

import codecs
import contextlib
import errno
import io
import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from icllab.core.spelling import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

NARROWEST, WIDEST = 60, 400
"""Columns of an answer: fewer would cut its numbers off, more would pad its lines."""

_HANDLER = "icl-spelled"
_ASCII = {"±": "+-", "\N{MINUS SIGN}": "-", "⁻": "-", "\N{EN DASH}": "-", "…": "...", "\N{MULTIPLICATION SIGN}": "x"}
_ASCII |= {"≤": "<=", "≥": ">=", "→": "->", "·": "*", "√": "sqrt", "∑": "sum", "∏": "prod", "∞": "inf", "λ": "lambda"}


@contextlib.contextmanager
def usable() -> Iterator[None]:
    """Standard streams to work with; what cannot be written to stderr is lost, and no work with it.

    Descriptors 0 to 2 that are closed lead nowhere, so that no file is opened under their numbers. Text that the
    encoding of a stream lacks is spelled in ASCII. A width that is none, in ``COLUMNS``, is forgotten.
    """
    codecs.register_error(_HANDLER, _spelled)
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # the lowest that is free is this one
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    columns = os.environ.get("COLUMNS", "")
    if not (columns.isdecimal() and 0 < int(columns) < 10_000):
        os.environ.pop("COLUMNS", None)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=_HANDLER)
    with contextlib.redirect_stderr(_Escaped(_stderr())):
        yield


def write(text: str) -> None:
    """Write an answer to stdout; a closed pipe is not an error.

    Raises:
        OSError: stdout is closed, or its disk is full.
    """
    if sys.stdout is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF), "stdout")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        # What is still buffered would fail again when Python ends, and change the exit status then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise OSError(error.errno, error.strerror, "stdout") from error


def console(*, escape: bool = True) -> "Console":
    """A console to capture an answer in, as wide, coloured and encoded as stdout is; it escapes what it is given.

    Args:
        escape: Whether strings are shown with their control characters as escapes.
    """
    from rich.console import Console

    class Escaping(Console):
        """Strings, in tables too, are shown with their control characters as escapes."""

        def render_str(self, text: str, **options: Any) -> "Text":
            return super().render_str(printable(text, keep="\n"), **options)

        def out(self, *objects: Any, **options: Any) -> None:
            super().out(*map(printable, objects), **options)

    terminal = True if sys.stdout is not None and sys.stdout.isatty() else None
    page = io.TextIOWrapper(io.BytesIO(), getattr(sys.stdout, "encoding", None) or "utf-8", _HANDLER)
    console = (Escaping if escape else Console)(
        file=page, force_terminal=terminal, highlight=False, emoji=False, markup=False
    )
    console.width = min(max(console.width, NARROWEST), WIDEST)
    return console


class _Escaped:
    """A stream whose text has its control characters as escapes, but for the lines of a progress display."""

    _REWRITTEN = re.compile("(\r)([^\r\x1b]*)(\x1b\\[K\n?)")

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text; its lines and tabs stay."""
        display = self._REWRITTEN.fullmatch(text)
        self._stream.write(f"\r{printable(display[2])}{display[3]}" if display else printable(text, keep="\n\t"))
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        self._stream.flush()

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)


class _Lossy(io.FileIO):
    """A file that takes everything, whether or not it can keep it."""

    def write(self, data: Any) -> int:
        with contextlib.suppress(OSError):
            return super().write(data) or 0
        return len(data)


def _stderr() -> Any:
    """The stderr of this process, made lossy; another one, such as a notebook's, as it is."""
    stream = sys.stderr
    if stream is not None and not (isinstance(stream, io.TextIOWrapper) and _is_descriptor(stream, 2)):
        return stream
    encoding = "utf-8" if stream is None else stream.encoding
    return io.TextIOWrapper(_Lossy(2, "w", closefd=False), encoding, _HANDLER, line_buffering=True)


def _is_descriptor(stream: Any, descriptor: int) -> bool:
    try:
        return stream.fileno() == descriptor
    except (OSError, ValueError):
        return False


def _spelled(error: UnicodeError) -> tuple[str | bytes, int]:
    """An error handler: a character in ASCII, ``±`` as ``+-`` and ``κ`` as ``kappa``; bytes of a path as they are."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character = error.object[error.start]
    if "\udc80" <= character <= "\udcff":
        return bytes([ord(character) - 0xDC00]), error.start + 1
    text = _ASCII.get(character) or unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    if not text:
        words = unicodedata.name(character, "?").split()
        text = (words[-1].capitalize() if character.isupper() else words[-1].lower()) if words[0] == "GREEK" else "?"
    return text, error.start + 1
