"""A run of a claim at ``smoke`` in a process of its own: CPU time, connections and golden numbers.

CPU time is counted without the imports of libraries, and connections of Python's sockets are refused. What C code or
another program does is not seen.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from icllab.core.files import parse_json
from icllab.lab import records, regression
from icllab.lab.claim import SIZES

CPU_SECONDS = 10.0
"""CPU seconds of a claim at ``smoke``."""
_LONGEST = 600.0  # seconds that the process may take


def smoke_items(name: str, folder: Path) -> dict[str, str]:
    """CPU time, connections and golden numbers of a run at ``smoke``, in a process of its own."""
    command = [sys.executable, "-m", "icllab.lab.smoke", name, str(folder)]
    settings = {"JAX_ENABLE_COMPILATION_CACHE": "false", "JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu")}
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=_LONGEST, env={**os.environ, **settings}
        )
    except subprocess.TimeoutExpired:
        return {"smoke": f"expected {CPU_SECONDS:g} CPU seconds, it took over {_LONGEST:g} s"}
    try:
        answer = parse_json(process.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        line = (process.stderr.strip().splitlines() or ["nothing"])[-1]
        return {"smoke": f"its process ended with {process.returncode} and said {line[:200]}"}
    seconds, addresses = answer["seconds"], answer["addresses"]
    fault = answer["fault"] and f"it raised {answer['fault']}"
    slow = f"expected at most {CPU_SECONDS:g} CPU seconds, got {seconds:.1f}: make smoke smaller"
    changes = answer["changes"]
    unrecorded = f"{name} is {records.NOT_RECORDED} at size {SIZES[0]}; {records.commands(name, SIZES[0], folder)}"
    return {
        "smoke": fault or slow * (seconds > CPU_SECONDS),
        "no network": f"it tried to reach {', '.join(addresses)}" if addresses else "",
        "golden numbers": (
            "there is no run to compare" if fault else unrecorded if changes is None else "; ".join(changes)
        ),
    }


def _smoke(name: str, folder: str) -> dict[str, Any]:
    """Run a claim at ``smoke`` with its theory, check and figure; no connection is made."""
    import jax  # noqa: F401  what importing it costs is not the claim's

    from icllab.figures import png_bytes
    from icllab.lab.drawing import picture
    from icllab.lab.job import Request
    from icllab.lab.run import collect, compute, read
    from icllab.training import compile_quickly

    compile_quickly()
    addresses = _refuse_connections()
    fault, changes, before = "", None, _cpu_seconds()
    with tempfile.TemporaryDirectory() as out:
        request = Request(name, SIZES[0], out=out, claims=folder)
        try:
            compute(request, progress=lambda *_: None)
            claim, (dataset, _) = request.claim(), collect(request)
            seconds = _cpu_seconds() - before
            assert claim.check is not None  # the registry has set it
            list(claim.check(dataset))
            png_bytes(picture(claim, dataset))
            if SIZES[0] in records.groups(name, folder):
                measured = records.reduced(claim, read(request, theory=False)[0])
                changes = regression.differences(records.data(name, SIZES[0], None, folder), measured)
        except Exception as error:  # whatever a claim raises
            seconds, fault = _cpu_seconds() - before, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return {"seconds": seconds, "addresses": sorted(set(addresses)), "fault": fault, "changes": changes}


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _refuse_connections() -> list[str]:
    """Refuse every connection of a socket but to a file, loopback too; the list gets the addresses."""
    addresses: list[str] = []

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"):
            address = arguments[0] if event.startswith("socket.get") else arguments[1]
            if isinstance(address, str | bytes) and not event.startswith("socket.get"):
                return  # of a Unix socket
            addresses.append(str(address))
            raise PermissionError(f"icl claim conform: expected no connection, got one to {address}")

    sys.addaudithook(refuse)
    return addresses


if __name__ == "__main__":
    print(json.dumps(_smoke(*sys.argv[1:3])), flush=True)
