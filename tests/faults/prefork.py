"""Python processes that need not import the library: forked from one that has, before JAX starts anything.

``python prefork.py FD`` listens on the socket of that number. A process so made is one of its own: with its own
arguments, variables, folder, files and process group, and the interpreter ends it as any other.
"""

import contextlib
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import warnings
from pathlib import Path

STREAMS = 3
HARMLESS = "jemalloc_bg_thd"  # returns memory to the system, and is not needed
LOADED = (
    "icllab.cli.entry",
    "icllab.cli.running",
    "icllab.training",
    "matplotlib.backends._backend_pdf_ps",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "xarray.backends.h5netcdf_",
)


def imported():
    """What ``icl run`` loads on its way."""
    for name in LOADED:
        importlib.import_module(name)
    tasks = Path("/proc/self/task").iterdir()
    threads = [name for task in tasks if (name := (task / "comm").read_text().strip()) != HARMLESS]
    assert len(threads) == 1, f"a fork has but the thread that forks, here are {threads}"


def serve(asked):
    """Fork for each request and tell how each child ended; returns in every child, with the request."""
    watched = selectors.DefaultSelector()
    watched.register(asked, selectors.EVENT_READ)
    while True:
        for key, _ in watched.select():
            if key.fileobj is not asked:  # a child has ended
                watched.unregister(key.fd)
                os.close(key.fd)
                _, status = os.waitpid(key.data, 0)
                asked.send(json.dumps({"pid": key.data, "status": os.waitstatus_to_exitcode(status)}).encode())
                continue
            content, streams, _, _ = socket.recv_fds(asked, 2**20, STREAMS)
            if not content:  # the tests are over
                sys.exit()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of JAX, that forks and threads do not mix: there are no threads yet
                pid = os.fork()
            if pid == 0:
                watched.close()
                asked.close()
                return json.loads(content), streams
            for stream in streams:
                os.close(stream)
            watched.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
            asked.send(json.dumps({"started": pid}).encode())


def become(request, streams):
    """The process that was asked for, up to its program."""
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])


if __name__ == "__main__":
    imported()
    with contextlib.closing(socket.socket(fileno=int(sys.argv[1]))) as asked:
        request, streams = serve(asked)
    become(request, streams)
    match request["words"]:
        case ["-m", name, *words]:
            sys.argv = [name, *words]
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        case [script, *words]:
            sys.argv = [script, *words]
            sys.path[0] = os.path.dirname(script)
            runpy.run_path(script, run_name="__main__")
