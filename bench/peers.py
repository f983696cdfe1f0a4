"""The library beside its peers on equal inputs: docs/peers/NAME.json, of which docs/coming-from.md is made.

    .venv/bin/python bench/peers.py [--only NAME ...] [--checkout NAME=DIR ...]

A peer is a file of ``bench/peers/``: ``PEER``, "owner/repository" or a package; ``VERSION()`` of a package, or
``VERSION(checkout)`` of a clone, the text of its version; and ``cases(checkout)``, which yields dicts of ``FIELDS``.
``checkout`` is the path of the clone, None for a package. ``ours`` begins with a public name, ``theirs`` has the names
of the peer. A difference beyond the tolerance needs a note that says whose answer is wrong, or why the two differ; a
difference of None, for a name that the peer no longer has, needs a note that says what stands in its place. Each file
runs in a process of its own; a peer that is not there is left out, and its record stays as it is.
"""

import argparse
import inspect
import json
import os
import runpy
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

from icllab.core.files import write_atomically

HERE = Path(__file__).parent
RECORDS = HERE.parent / "docs" / "peers"
FIELDS = ("case", "theirs", "ours", "difference", "unit", "tolerance", "note")
UNITS = ("absolute", "relative", "standard errors")


def modules():
    """Name -> file of every peer."""
    return {path.stem: path for path in sorted((HERE / "peers").glob("*.py"))}


def commit(checkout, *files):
    """The commit of a clone; of a folder of single files, which they are."""
    if (checkout / ".git").exists():
        command = ("git", "-C", str(checkout), "rev-parse", "HEAD")
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return f"a copy of {', '.join(files)}"


def row(case):
    """A case as JSON has it."""
    if set(case) != set(FIELDS) or case["unit"] not in UNITS:
        raise ValueError(f"case: expected {', '.join(FIELDS)}, with a unit of {', '.join(UNITS)}, got {case}")
    numbers = {name: float(case[name]) for name in ("difference", "tolerance") if case[name] is not None}
    return {name: numbers.get(name, case[name]) for name in FIELDS}


def unexplained(rows):
    """Rows beyond their tolerance whose note does not say whose answer is wrong, or why the two differ."""
    answered = (row["difference"] is not None and row["difference"] <= row["tolerance"] for row in rows)
    return [row["case"] for row, equal in zip(rows, answered, strict=True) if not equal and not row["note"].strip()]


def measure(path, checkout):
    """The record of a peer."""
    module = runpy.run_path(str(path))
    about = module["VERSION"]
    clone = bool(inspect.signature(about).parameters)
    if clone and checkout is None:
        raise ModuleNotFoundError(f"expected a clone of {module['PEER']}")
    text = about(checkout) if clone else about()
    rows = [row(case) for case in module["cases"](checkout)]
    origin = {"date": datetime.now(UTC).date().isoformat(), "package": version("icl-lab")}
    return {"peer": module["PEER"], "version": text, "clone": clone, **origin, "rows": rows}


def main():
    """Print a line for each peer that was compared."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--only", action="append", choices=modules(), help="the peers that are compared")
    options.add_argument("--checkout", action="append", default=[], metavar="NAME=DIR", help="a clone of a peer")
    options = options.parse_args()
    checkouts = {name: Path(folder) for name, _, folder in (text.partition("=") for text in options.checkout)}
    os.environ.setdefault("NPROC", "1")  # batches of LAPACK may wait for each other's threads for ever
    status = 0
    for name, path in modules().items():
        if options.only and name not in options.only:
            continue
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            try:
                record = process.submit(measure, path, checkouts.get(name)).result()
            except ModuleNotFoundError as error:
                print(f"{name}: {error}; install it, or clone it and say --checkout {name}=DIR", file=sys.stderr)
                status = 1
                continue
        text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)
        write_atomically(RECORDS / f"{name}.json", f"{text}\n".encode())
        missing = unexplained(record["rows"])
        status = 1 if missing else status
        print(f"{name}: {len(record['rows'])} cases" + f", without a note: {missing}" * bool(missing), flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
