"""``icl`` inside the test's process, and a finished run."""

import contextlib
import os
import shutil
import sys
import threading

import pytest
from faults import processes


@pytest.fixture
def icl(capfd):
    """``icl words...``: its status, stdout and stderr."""
    return lambda *words: processes.inside(capfd, [*processes.ICL, *map(str, words)])


@contextlib.contextmanager
def _stderr(descriptor):
    """Descriptor 2 and Python's stream lead to ``descriptor``, as a shell's redirection would have it."""
    kept, stream = os.dup(2), sys.stderr
    os.dup2(descriptor, 2)
    sys.stderr = os.fdopen(2, "w", closefd=False)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # full
            sys.stderr.close()
        sys.stderr = stream
        os.dup2(kept, 2)
        os.close(kept)


@pytest.fixture
def icl_to(icl):
    """``icl_to(descriptor, words...)``: ``icl`` with its stderr there."""

    def call(descriptor, *words):
        with _stderr(descriptor):
            return icl(*words)

    return call


@pytest.fixture
def on_terminal(icl_to):
    """``on_terminal(words...)``: the status and stdout, and what a terminal of 0 rows and 0 columns has been sent."""

    def call(*words):
        ours, theirs = os.openpty()
        sent = bytearray()

        def read():
            with contextlib.suppress(OSError):  # the other end is closed
                while part := os.read(ours, 1 << 16):
                    sent.extend(part)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            status, out, _ = icl_to(theirs, *words)
        finally:
            os.close(theirs)
            reader.join()
            os.close(ours)
        return status, out, bytes(sent)

    return call


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """Where a finished run of the toy claim is, which no test changes."""
    return processes.finished_run(tmp_path_factory.mktemp("finished"))


@pytest.fixture
def ran(finished_run, tmp_path):
    """A copy of the finished run, for one test to change."""
    shutil.copytree(finished_run, tmp_path, dirs_exist_ok=True)
    return tmp_path
