"""``icl`` as a process of its own, or inside this one, on the claim of ``claims/steady.py``."""

import hashlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

CLAIMS = Path(__file__).parent / "claims"
CLAIM = "claims/steady"
DIMS = (2, 4, 8, 16, 32)
ICL = [sys.executable, "-m", "icllab"]
MINDS_INTERRUPTS = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""
STORE = Path(*CLAIM.split("/"), "small")


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
    return [*ICL, "run", CLAIM, "--size", "small", "--claims", str(CLAIMS), "--out", str(out), *more]


def finished_run(out):
    """Where the toy claim has run to its end, in this process."""
    from icllab.cli import main

    assert main(run_command(out)[len(ICL) :]) == 0
    return out


def check_command(out, *more):
    return [*ICL, "check", CLAIM, "--size", "small", "--claims", str(CLAIMS), "--out", str(out), *more]


def finished(command, timeout=120, **variables):
    """The command's status and what it said; a person is shown one line and never a traceback."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, env=environment(**variables), stdin=subprocess.DEVNULL
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def started(command, **variables):
    """The command under way, in a process group of its own, as a terminal would have it.

    It minds interrupts, even where the tests were started with interrupts ignored, as in the background.
    """
    return subprocess.Popen(
        [sys.executable, "-c", MINDS_INTERRUPTS, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**variables),
        start_new_session=True,
    )


class Fork:
    """A command as a process and group of its own, of a server that has imported what a run imports.

    The server has started neither JAX's devices nor a thread, so a fork of it is what a new interpreter becomes.
    """

    SERVER = multiprocessing.get_context("forkserver")
    SERVER.set_forkserver_preload(["dask.array", "h5netcdf", "icllab.lab.run", "jax", "matplotlib.figure", "xarray"])

    def __init__(self, folder, command, **variables):
        folder.mkdir()
        self.streams = [folder / name for name in ("stdout", "stderr")]
        for path in self.streams:
            path.touch()
        arguments = (command[len(ICL) :], environment(**variables), *map(str, self.streams))
        self.process = self.SERVER.Process(target=_run_forked, args=arguments)
        self.process.start()
        self.pid = self.process.pid

    def ended(self, timeout=120):
        """Its status, stdout and stderr."""
        self.process.join(timeout)
        return self.process.exitcode, *(path.read_text() for path in self.streams)


def _run_forked(words, variables, out, err):
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(variables)
    for descriptor, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), descriptor)
    from icllab.cli import main

    sys.exit(main(words))


def ended(process, timeout=120):
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


def results(out):
    """The Dataset of ``results.nc``, opened as anybody would."""
    import xarray as xr

    return xr.load_dataset(Path(out) / STORE / "results.nc")


def assert_same(out, undisturbed):
    """Bit for bit; what says when and where it was computed may differ."""
    import xarray as xr

    here = results(out)
    xr.testing.assert_equal(here, undisturbed)
    for name in undisturbed.variables:
        assert here[name].values.tobytes() == undisturbed[name].values.tobytes()
        assert here[name].attrs == undisturbed[name].attrs
    for name in ("claim", "configuration", "key", "precision", "device"):
        assert here.attrs[name] == undisturbed.attrs[name]


def leftovers(out):
    """Files of a store that only runs under way should have."""
    store = Path(out) / STORE
    return [*store.rglob("*.partial"), *store.glob("scratch*"), *store.glob("failures*")]


def measured(log):
    """``(dim, pid)`` of each measurement that began, in order."""
    lines = Path(log).read_text().splitlines() if Path(log).exists() else []
    return [tuple(map(int, line.split())) for line in lines]


def wait_until(condition, seconds=180.0):
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
