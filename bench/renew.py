"""Records whose code was changed and whose data were not: shown by measuring again, before and after, to the bit.

    .venv/bin/python bench/renew.py BEFORE [--only TEXT] [--longest 80] [--dry]

A record is stale once any definition that its claim's ``measure`` reaches is another, also where no number is: code
was moved, a message or a path that no claim takes was added. Measuring all of them again takes a day. Of each stale
claim its whole ``smoke`` is measured twice here, with the code of the commit BEFORE, at which the record was not stale,
and with that of HEAD; and the first cell of each recorded size, where the record says that a cell takes no longer than
``--longest`` seconds. If every array has the same bytes, the digests of the record are renewed, and each entry says
between which commits and by what that was shown (``renewals``). Where one byte differs the record stays stale: that
claim has to be measured anew.

What this cannot see is a change that shows only at sizes that were not measured again. Exit status 1 if a record stays
stale.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import machine

ROOT = Path(__file__).parents[1]
LIST = """
import json
import icllab
from icllab.experiments import records, registry
found = {}
for name in registry.claims():
    entries = records.read(name)
    grids = {size: len(registry.load(name).at(size).grid(size, {}, None)) for size in entries}
    found[name] = {"digest": registry.digest(name), "entries": entries, "cells": grids}
print(json.dumps([icllab.__file__, found]))
"""
DIGEST = """
import hashlib, sys
from pathlib import Path
from icllab.experiments.store import read_dataset
found = hashlib.sha256()
for path in sorted(Path(sys.argv[1]).rglob("cells/*.nc")):
    cell = read_dataset(path)
    for name in sorted(map(str, cell.variables)):
        values = cell[name].values
        found.update(f"{path.name} {name} {values.dtype} {values.shape}".encode())
        found.update(values.tobytes() if values.dtype != object else repr(values.tolist()).encode())
    print(path.name)
print(found.hexdigest())
"""


def python(tree, *arguments):
    """The output of a Python that has the code of a tree, and its exit status."""
    environment = {**os.environ, **machine.environment(1), "PYTHONPATH": str(tree / "src")}
    done = subprocess.run([sys.executable, *arguments], cwd=tree, env=environment, capture_output=True, text=True)
    return done.stdout, done.returncode, done.stderr


def known(tree):
    """Claims with their digests, records and numbers of cells, as a tree has them."""
    out, status, said = python(tree, "-c", LIST)
    if status:
        sys.exit(said[-2000:])
    file, found = json.loads(out)
    if not Path(file).is_relative_to(tree):
        sys.exit(f"renew: expected the code of {tree}, got that of {file}")
    return found


def measured(tree, claim, size, cells):
    """Names of the cells that a tree measures, and last the digest of all their arrays."""
    with tempfile.TemporaryDirectory() as folder:
        shard = ["--shard", f"1/{cells}"] if cells else []
        _, status, said = python(tree, "-m", "icllab", "run", claim, "--size", size, "--out", folder, *shard)
        if status not in (0, 1, 3):
            sys.exit(f"{claim} {size}: {said[-2000:]}")
        out, status, said = python(tree, "-c", DIGEST, folder)
        if status:
            sys.exit(f"{claim} {size}: {said[-2000:]}")
        return out.splitlines()


def runs(found, longest):
    """The whole of ``smoke``, and of other sizes the first cell: size and the number of parts."""
    yield "smoke", 0
    for size, entry in found["entries"].items():
        if size != "smoke" and entry["seconds"] / found["cells"][size] <= longest:
            yield size, found["cells"][size]


def renew(claim, sizes, digest, renewal):
    """Write the digest into the entries of a record, and what it was renewed by."""
    path = ROOT / "src/icllab/claims" / claim / "record.json"
    record = json.loads(path.read_text("utf-8"))
    for size in sizes:
        record[size]["digest"] = digest
        record[size].setdefault("renewals", []).append(renewal)
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")


def main():
    """Print what was compared; renew the records of which nothing differed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("before", help="a commit at which the records were not stale")
    parser.add_argument("--only", default="", help="text in the name of a claim")
    parser.add_argument("--longest", type=float, default=80.0, help="seconds of a cell that is measured again")
    parser.add_argument("--dry", action="store_true", help="say which records are stale, and measure nothing")
    asked = parser.parse_args()

    def git(*arguments):
        return subprocess.run(
            ["git", "-C", ROOT, *arguments], check=True, capture_output=True, text=True
        ).stdout.strip()

    if git("status", "--porcelain", "--", "src", ":!*record.json"):
        sys.exit("renew: expected src as it is committed; commit first")
    commits = [git("rev-parse", asked.before), git("rev-parse", "HEAD")]
    folder = Path(tempfile.mkdtemp())
    before = folder / "before"
    git("worktree", "add", "--detach", str(before), commits[0])
    stale = False
    try:
        then, now = known(before), known(ROOT)
        for claim, found in now.items():
            entries = {size: entry for size, entry in found["entries"].items() if entry["digest"] != found["digest"]}
            if not entries or asked.only not in claim:
                continue
            if any(entry["digest"] != then[claim]["digest"] for entry in entries.values()):
                print(f"{claim}: stale before as well", flush=True)
                stale = True
                continue
            if asked.dry:
                print(claim)
                continue
            shown, differ = [], []
            for size, parts in runs(found, asked.longest):
                one, other = (measured(tree, claim, size, parts) for tree in (before, ROOT))
                count = len(one) - 1
                (shown if one == other and count > 0 else differ).append(f"{size}: {count} cell{'s' * (count != 1)}")
            print(
                f"{claim}: {'differs in ' + '; '.join(differ) if differ else 'equal in ' + '; '.join(shown)}",
                flush=True,
            )
            stale = stale or bool(differ)
            if not differ:
                renew(claim, entries, found["digest"], {"commits": commits, "equal": shown})
    finally:
        git("worktree", "remove", "--force", str(before))
        shutil.rmtree(folder)
    return stale


if __name__ == "__main__":
    sys.exit(main())
