"""Bytes of files as a corpus: the choice of files, their split, and a digest that identifies the corpus.

The example that is at hand wherever this library runs is Python's own standard library. Its sources differ between
versions of Python, so that whoever measures on them also states :attr:`Documents.source` and the digest.
"""

import hashlib
import platform
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path

from icllab.core.domains import PROPER_FRACTION
from icllab.core.errors import expected

# Not code that a person reads, or what some distributions of Python leave out.
LEFT_OUT = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "encodings", "pydoc_data", "idlelib", "tkinter", "turtledemo"}
    | {"ensurepip", "distutils", "lib2to3", "__phello__"}
)


@dataclass(frozen=True)
class Documents:
    """Files as bytes, by name.

    ``source`` says in words what they are.
    """

    names: tuple[str, ...]
    contents: tuple[bytes, ...]
    source: str = ""

    @property
    def size(self) -> int:
        """Number of bytes in all files."""
        return sum(map(len, self.contents))

    def digest(self) -> str:
        """SHA-256 of the files' digests in order, in hexadecimal; independent of their names."""
        return hashlib.sha256(b"".join(hashlib.sha256(content).digest() for content in self.contents)).hexdigest()

    def split(self, *, held_out: float = 0.1) -> tuple["Documents", "Documents"]:
        """Split the files into two disjoint sets, for training and held out.

        A file is held out where the SHA-256 of its name, as a fraction of its largest value, is below ``held_out``,
        between 0 and 1. So a file stays on its side whatever others are there.

        Raises:
            InputError: The share is out of range, or one side has no file.
        """
        PROPER_FRACTION.require("held_out", held_out)
        mask = [int(hashlib.sha256(name.encode()).hexdigest()[:13], 16) < held_out * 16**13 for name in self.names]
        if all(mask) or not any(mask):
            raise expected("held_out", f"a fraction that splits {len(mask)} files", held_out, "give more files")
        return self._only([not is_held_out for is_held_out in mask]), self._only(mask)

    def at_least(self, size: int) -> "Documents":
        """The files of at least ``size`` bytes."""
        return self._only([len(content) >= size for content in self.contents])

    def _only(self, mask: list[bool]) -> "Documents":
        files = [(n, c) for n, c, keep in zip(self.names, self.contents, mask, strict=True) if keep]
        return Documents(tuple(n for n, _ in files), tuple(c for _, c in files), self.source)


def read(paths: Iterable[str | PathLike[str]]) -> Documents:
    """Read the bytes of files, in the given order.

    Raises:
        InputError: No path is given, one path in place of a list, or one that is no file that can be read.
    """
    if isinstance(paths, str | bytes | PathLike):
        raise expected("paths", "a list of paths", paths, "put the one path into a list")
    names, contents = [], []
    for path in paths:
        try:
            contents.append(Path(path).read_bytes())
        except OSError as error:
            raise expected("paths", "files that can be read", fspath(path), str(error.strerror).lower()) from None
        names.append(Path(path).name)
    if not names:
        raise expected("paths", "at least one file", [])
    return Documents(tuple(names), tuple(contents))


def standard_library() -> Documents:
    """The sources of the running Python's standard library.

    All ``.py`` files below its folder in the order of their names, without tests, tables of characters and of help
    texts (``encodings``, ``pydoc_data``), what is written when Python is built, and what some distributions leave out
    (``idlelib``, ``tkinter``, ``turtledemo``, ``ensurepip``, ``distutils``, ``lib2to3``). Names are relative.

    Raises:
        InputError: This Python has no such files, as where they are in an archive.
    """
    root = Path(sysconfig.get_path("stdlib"))
    sources = sorted((path.relative_to(root).as_posix(), path) for path in root.rglob("*.py"))
    files = [(name, path) for name, path in sources if not _left_out(name)]
    if not files:
        raise expected("standard library", "source files", 0, "give files of your own to text_files.read")
    names, contents = tuple(name for name, _ in files), tuple(path.read_bytes() for _, path in files)
    return Documents(names, contents, f"standard library of Python {platform.python_version()}")


def _left_out(name: str) -> bool:
    folders = name.split("/")[:-1]
    is_generated = name.startswith("_sysconfigdata") or any(folder.startswith("config-") for folder in folders)
    return is_generated or not LEFT_OUT.isdisjoint(folders)
