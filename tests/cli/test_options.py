"""Values of options that a command reads by itself."""

import pytest


@pytest.mark.parametrize(("text", "status"), [("1/2", 0), ("2/2", 0), ("0/2", 2), ("3/2", 2), ("2", 2), ("x/2", 2)])
def test_a_shard_is_one_of_as_many(text, status, icl, tmp_path):
    words = ("run", "routing/one_daughter", "--size", "smoke", "--dry-run", "--out", tmp_path, "--shard", text)
    code, _, err = icl(*words)
    assert code == status
    assert (f"--shard: expected i/N with i from 1 to N, got '{text}'" in err) == (status == 2)
