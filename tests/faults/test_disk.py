"""Disks that refuse: the reason in one line, status 4, finished cells kept."""

import resource
import shutil
import signal
import subprocess

import pytest
from faults.processes import (
    DIMS,
    assert_same,
    cells,
    check_command,
    complaint,
    finished,
    inside,
    leftovers,
    run_command,
)


def test_results_below_a_regular_file(tmp_path, capfd):
    (tmp_path / "file").write_text("not a directory")
    status, _, err = inside(capfd, run_command(tmp_path / "file" / "results"))
    assert status == 4
    assert "Not a directory" in complaint(err)
    assert inside(capfd, check_command(tmp_path / "file" / "results"))[0] == 3


def _may_mount():
    """How a file system of a few kilobytes can be had here: as root, or in a user namespace, or not."""
    for words in (["unshare", "-m"], ["unshare", "-rm"]):
        if shutil.which(words[0]):
            trial = [*words, "sh", "-c", "mount -t tmpfs -o size=48k tmpfs /mnt"]
            if subprocess.run(trial, capture_output=True).returncode == 0:
                return words
    return None


@pytest.mark.slow
def test_a_full_disk(tmp_path, undisturbed):
    """A file system that fills up in mid-run, then has room again."""
    words = _may_mount()
    if words is None:
        pytest.skip("mounting a small file system is not permitted here")
    out, kept, after = (tmp_path / name for name in ("small", "kept", "after"))
    out.mkdir()
    quoted = " ".join(f"'{word}'" for word in run_command(out))
    script = f"""
    mount -t tmpfs -o size=48k tmpfs '{out}' || exit 99
    {quoted}; full=$?
    cp -r '{out}' '{kept}'
    mount -o remount,size=8m '{out}' || exit 99
    {quoted} || exit 98
    cp -r '{out}' '{after}'
    exit $full
    """
    done = finished([*words, "sh", "-c", script])
    assert done.returncode == 4, done.stderr
    assert "No space left on device; every finished cell is kept" in complaint(done.stderr)
    before = cells(kept)
    assert 0 < len(before) < len(DIMS)
    assert not list(kept.rglob("*.partial"))
    assert {dim: cells(after)[dim] for dim in before} == before
    assert_same(after, undisturbed)
    assert leftovers(after) == []


def test_a_limit_on_the_size_of_files(tmp_path, capfd, undisturbed):
    """What a quota looks like from inside: no further cell fits, none is left half written, and later all is there."""
    assert inside(capfd, run_command(tmp_path, "--shard", "1/2"))[0] == 0
    before = cells(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, hard))
        status, _, err = inside(capfd, run_command(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert status == 4
    assert "File too large; every finished cell is kept" in complaint(err)
    assert 0 < len(before) < len(DIMS)
    assert cells(tmp_path) == before
    assert not list(tmp_path.rglob("*.partial"))
    assert inside(capfd, run_command(tmp_path))[0] == 0
    assert {dim: cells(tmp_path)[dim] for dim in before} == before
    assert_same(tmp_path, undisturbed)
    assert leftovers(tmp_path) == []
