"""``icl`` as a process of its own, or inside this one, on the claim of ``claims/steady.py``."""

import atexit
import functools
import hashlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CLAIMS = Path(__file__).parent / "claims"
CLAIM = "claims/steady"
DIMS = (2, 4, 8, 16, 32)
ICL = [sys.executable, "-m", "icllab"]
MINDS_INTERRUPTS = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])
"""
FORKS = hasattr(os, "pidfd_open")  # Linux
READ_AT_START = ("JAX", "XLA", "PYTHON", "NPROC", "OPENBLAS", "MPL", "LD_")  # variables: too late for a fork
STORE = Path(*CLAIM.split("/"), "smoke")


def inside(capfd, command):
    """``command`` without a process of its own: its status, stdout and stderr."""
    from icllab.cli import main

    capfd.readouterr()
    status = main(command[len(ICL) :])
    out, err = capfd.readouterr()
    assert "Traceback" not in err, err
    return status, out, err


def strictly(text):
    """One JSON object, without the constants that are not JSON."""

    def refuse(name):
        raise AssertionError(name)

    (line,) = text.splitlines()
    answer = json.loads(line, parse_constant=refuse)
    assert isinstance(answer, dict)
    return answer


def environment(**variables):
    """The calling one, with what the claim listens to."""
    return {**os.environ, "JAX_PLATFORMS": "cpu", **{name: str(value) for name, value in variables.items()}}


def run_command(out, *more):
    return [*ICL, "run", CLAIM, "--size", "smoke", "--claims", str(CLAIMS), "--out", str(out), *more]


def finished_run(out):
    """Where the toy claim has run to its end, in this process."""
    from icllab.cli import main

    assert main(run_command(out)[len(ICL) :]) == 0
    return out


def check_command(out, *more):
    return [*ICL, "check", CLAIM, "--size", "smoke", "--claims", str(CLAIMS), "--out", str(out), *more]


def finished(command, timeout=120, **variables):
    """The command's status and what it said; a person is shown one line and never a traceback."""
    done = completed(command, timeout, **variables)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def completed(command, timeout=120, **variables):
    """The command's status and what it said, whatever that is."""
    process = started(command, **variables)
    try:
        out, err = process.communicate(timeout=timeout)
    finally:
        process.kill()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def started(command, **variables):
    """The command under way, in a process group of its own, as a terminal would have it.

    It minds interrupts, even where the tests were started with interrupts ignored, as in the background.
    """
    python = FORKS and command[0] == sys.executable
    late = any(name.startswith(READ_AT_START) for name in variables)
    return Forked(command, environment(**variables)) if python and not late else alone(command, **variables)


def alone(command, **variables):
    """``started``, by an interpreter of its own that imports all it needs."""
    return subprocess.Popen(
        [sys.executable, "-c", MINDS_INTERRUPTS, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**variables),
        start_new_session=True,
    )


class Forked:
    """A process of ``prefork.py`` with the face of ``subprocess.Popen``; what it says is kept in files."""

    def __init__(self, command, variables):
        self._server, self.returncode = _server(), None
        self._files = [tempfile.TemporaryFile("w+") for _ in range(2)]  # noqa: SIM115
        request = {"words": command[1:], "environment": variables, "folder": os.getcwd()}
        self.pid = self._server.fork(request, self._files)

    def poll(self):
        """The exit status, or None as long as it runs."""
        if self.returncode is None and (status := self._server.status(self.pid)) is not None:
            self._said = tuple(_closed(file) for file in self._files)
            self.returncode = status
        return self.returncode

    def wait(self, timeout=None):
        """The exit status, once there is one."""
        end = time.monotonic() + (float("inf") if timeout is None else timeout)
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("a forked process", timeout)
            time.sleep(0.005)
        return self.returncode

    def communicate(self, timeout=None):
        """All that it said on stdout and on stderr, once it has ended."""
        self.wait(timeout)
        return self._said

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def _closed(file):
    """All that stands in it."""
    with file:
        file.seek(0)
        return file.read()


class _Server:
    """``prefork.py`` under way: one for these tests, with the variables that they were started with."""

    def __init__(self):
        self._asked, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            theirs.set_inheritable(True)
            words = [sys.executable, str(Path(__file__).with_name("prefork.py")), str(theirs.fileno())]
            self._process = subprocess.Popen(words, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self._statuses = {}
        atexit.register(self._close)

    def fork(self, request, said):
        content = json.dumps(request).encode()
        with open(os.devnull) as nothing:
            socket.send_fds(self._asked, [content], [file.fileno() for file in (nothing, *said)])
        while "started" not in (answer := self._answer()):
            self._note(answer)
        return answer["started"]

    def status(self, pid):
        while select.select([self._asked], [], [], 0)[0]:
            self._note(self._answer())
        return self._statuses.get(pid)

    def _answer(self):
        answer = self._asked.recv(2**16)
        assert answer, "the process that forks has ended"
        return json.loads(answer)

    def _note(self, answer):
        self._statuses[answer["pid"]] = answer["status"]

    def _close(self):
        self._asked.close()
        self._process.wait(10)


@functools.cache
def _server():
    return _Server()


def ended(process, timeout=60):
    """Its status, stdout and stderr."""
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def complaint(err):
    """The line on stderr that says what went wrong; there is exactly one."""
    lines = [line for line in err.splitlines() if line.startswith(("icl: ", "icl "))]
    assert len(lines) == 1, err
    return lines[0]


def cells(out):
    """dim -> content digest of every finished cell."""
    found = {}
    for path in sorted((Path(out) / STORE / "cells").glob("*.nc")):
        found[int(path.stem.removeprefix("dim="))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def assert_same(out, undisturbed):
    """Bit for bit; what says when and where it was computed may differ."""
    import xarray as xr

    from icllab.experiments.store import read_dataset

    here = read_dataset(Path(out) / STORE / "results.nc")
    xr.testing.assert_equal(here, undisturbed)
    for name in undisturbed.variables:
        assert here[name].values.tobytes() == undisturbed[name].values.tobytes()
        assert here[name].attrs == undisturbed[name].attrs
    for name in ("claim", "configuration", "key", "precision", "device"):
        assert here.attrs[name] == undisturbed.attrs[name]


def leftovers(out):
    """Files of a store that only runs under way should have."""
    store = Path(out) / STORE
    return [*store.rglob("*.partial"), *store.glob("leases*"), *store.glob("running*"), *store.glob("failures*")]


def measured(log):
    """``(dim, pid)`` of each measurement that began, in order."""
    lines = Path(log).read_text().splitlines() if Path(log).exists() else []
    return [tuple(map(int, line.split())) for line in lines]


def wait_until(condition, seconds=60.0):
    """The first true value of ``condition()``."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s")


def alive(pid):
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
