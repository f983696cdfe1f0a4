"""Parts of the benches: the machine's description, processes pinned to cores, races, tables and targets."""

import json
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path


def described(*packages):
    """Processor, cores, load and versions, in one line."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":")[1].strip() for line in lines if "model name" in line]
    model = names[0] if names else platform.processor() or platform.machine()
    load = f", load average {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return f"{model}, {os.cpu_count()} cores{load}; {', '.join(f'{name} {version(name)}' for name in packages)}"


def environment(threads):
    """Variables for so many threads in every library; None: as many as each takes."""
    if threads is None:
        return {"JAX_PLATFORMS": "cpu"}
    flags = f"--xla_cpu_multi_thread_eigen={'true' if threads > 1 else 'false'} intra_op_parallelism_threads={threads}"
    counts = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPROC"), str(threads))
    return {**counts, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}


def child(file, threads, *arguments, **variables):
    """Run ``file`` again with ``--child`` in a process of its own; return the JSON on its last line."""
    command = [sys.executable, file, "--child", json.dumps([threads, *arguments])]
    variables = {**os.environ, **environment(threads), **variables}
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def answer(text, function):
    """Call ``function`` with the arguments that :func:`child` sent, pinned to its threads, and print its answer."""
    threads, *arguments = json.loads(text)
    pin(threads)
    print(json.dumps(function(*arguments)))


def pin(threads):
    """Keep this process to as many cores as it has threads, where that can be."""
    if threads is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])


def raced(rows, *, rounds, seconds, clock="cpu"):
    """Row -> CPU and wall seconds of a step, one of each round, and CPU seconds of its first call.

    ``rows`` are name -> ``run(steps)``. They run in turn, each for about so many seconds of the clock. A row that fails
    at its first call is named on stderr and left out: torch.compile needs a C++ compiler.
    """
    now = {"cpu": time.process_time, "wall": time.perf_counter}
    found = {}
    for row, run in rows.items():
        start = time.process_time()
        try:
            run(1)
        except Exception as error:
            print(f"{row}: {str(error).splitlines()[0][:100]}", file=sys.stderr)
            continue
        first = time.process_time() - start
        run(8)
        start = now[clock]()
        run(24)
        each = (now[clock]() - start) / 24
        found[row] = {"first": first, "steps": int(min(3000, max(10, seconds / each))), "cpu": [], "wall": []}
    for _ in range(rounds):
        for row, entry in found.items():
            # The difference of a long and a short run: what a call costs besides its steps is not counted.
            times = []
            for steps in (1, 1 + entry["steps"]):
                begin = {kind: read() for kind, read in now.items()}
                rows[row](steps)
                times.append({kind: read() - begin[kind] for kind, read in now.items()})
            for kind in now:
                entry[kind].append((times[1][kind] - times[0][kind]) / entry["steps"])
    return found


def append(file, row):
    """Append a row to a file of JSON lines, so that an interrupted run goes on."""
    with file.open("a") as lines:
        lines.write(json.dumps(row) + "\n")


def table(rows, headers):
    """Print rows under their headers: numbers with four digits at the right of their columns, text at the left."""
    rows = [list(row) for row in rows]
    texts = [list(headers), *([f"{v:.4g}" if isinstance(v, float) else str(v) for v in row] for row in rows)]
    left = [all(isinstance(row[i], str) for row in rows) for i in range(len(headers))]
    widths = [max(len(row[i]) for row in texts) for i in range(len(headers))]
    for row in texts:
        cells = (t.ljust(w) if is_left else t.rjust(w) for t, w, is_left in zip(row, widths, left, strict=True))
        print("  ".join(cells).rstrip(), flush=True)


def report(missed):
    """Print the targets that were missed; return the exit status."""
    for target in missed:
        print("MISSED", target)
    print("all targets met" if not missed else f"{len(missed)} targets missed")
    return bool(missed)
