"""The commit under which a result was made."""

from icllab.lab import provenance


def test_the_commit_is_a_hash_or_nothing():
    commit = provenance.commit()
    assert commit == "" or len(commit.removesuffix("+changes")) == 40
