"""Digests of files as icl-lab 0.3 had them, beside those of today; between them measurement and check are the same."""

import hashlib

from icllab.core.files import source_text
from icllab.lab import registry
from icllab.lab.source_files import digests, moved


def test_files_that_moved_are_the_files_of_today():
    """An edit of a measurement or a check takes its file out of the list, and certificates of 0.3 tell of it."""
    (book,) = registry.books()
    files = {name: book.folder / name for name in moved()}
    assert digests(files) == {name: today for name, (_, today) in moved().items()}
    assert len(files) >= 140
    # Many texts differ by the name of the package alone. Others have imports in another order, another docstring,
    # a call of the library as it is spelled in 0.4, or take the network of a user, which is None in what is recorded.
    before = {name: source_text(path).replace("iclbook.claims", "icllab.claims") for name, path in files.items()}
    assert sum(hashlib.sha256(before[name].encode()).hexdigest() == old for name, (old, _) in moved().items()) > 50
