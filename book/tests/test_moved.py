"""Digests of files as icl-lab 0.3 had them, which differ from those of today by their imports alone."""

import hashlib

from icllab.lab import registry
from icllab.lab.source_files import moved


def test_files_that_moved_are_there_and_differ_by_their_imports():
    (book,) = registry.books()
    texts = {name: (book.folder / name).read_text("utf-8") for name in moved()}
    assert len(texts) > 100
    assert all("iclbook" in text for text in texts.values())
    # Imports of the others also stand in another order.
    before = {name: text.replace("iclbook.claims", "icllab.claims") for name, text in texts.items()}
    assert sum(hashlib.sha256(before[name].encode()).hexdigest() == old for name, (old, _) in moved().items()) > 90
