"""How often each verdict is given along planted families: the book's power/NAME.json, of which docs/power.md is made.

    .venv/bin/python bench/power.py [--only TEXT] [--again]

A family is a file of the book's ``planted/``: a docstring that says what is decided, ``STATISTIC``, ``CLAIMS`` (those
whose verdict or measurement uses it, in whose certificates the family stands), ``FAMILY``, ``AXIS``, ``STRENGTHS``,
``FALSE`` (strength -> verdicts that are false there), ``REPLICATES``, and
``verdicts(strength, *, replicates, key)``. What is there already is kept, unless the family changed.
"""

import argparse
import json
import runpy
import sys
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import jax

from icllab.core.files import write_atomically
from icllab.training import cache_compilations

BOOK = Path(__file__).parents[1] / "book/src/iclbook"
RECORDS = BOOK / "power"
STATED = ("STATISTIC", "CLAIMS", "FAMILY", "AXIS", "STRENGTHS", "FALSE", "REPLICATES")


def families():
    """Name -> file of every planted family."""
    return {path.stem: path for path in sorted((BOOK / "planted").glob("*.py"))}


def load(path):
    """What one family defines."""
    return SimpleNamespace(**runpy.run_path(str(path)))


def stated(family):
    """What a family says of itself, as JSON has it."""
    values = {name.lower(): getattr(family, name) for name in STATED}
    values["false"] = {repr(float(strength)): list(verdicts) for strength, verdicts in family.FALSE.items()}
    caption, *_ = str(family.__doc__).strip().splitlines()
    return {
        "caption": caption,
        **values,
        "claims": list(family.CLAIMS),
        "strengths": [float(x) for x in family.STRENGTHS],
    }


def verdicts(family, index, replicates):
    """The verdicts at one strength, which has a key of its own."""
    key = jax.random.fold_in(jax.random.key(0), index)
    return [str(verdict) for verdict in family.verdicts(family.STRENGTHS[index], replicates=replicates, key=key)]


def measure(family):
    """The record of a family: counts of verdicts along its strengths."""
    start = time.process_time()
    counts = [Counter(verdicts(family, i, family.REPLICATES)) for i in range(len(family.STRENGTHS))]
    names = sorted(set().union(*counts))
    origin = {"package": version("icl-lab"), "jax": jax.__version__, "cpu_seconds": round(time.process_time() - start)}
    return {**stated(family), "verdicts": {name: [count[name] for count in counts] for name in names}, **origin}


def main():
    """Print a line for each family that was measured."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--only", default="", help="families whose name has this text")
    options.add_argument("--again", action="store_true", help="measure what is recorded as well")
    options = options.parse_args()
    cache_compilations()
    for name, path in families().items():
        record, family = RECORDS / f"{name}.json", load(path)
        kept = json.loads(record.read_text("utf-8")) if record.exists() else {}
        changed = {field for field, value in stated(family).items() if kept.get(field) != value}
        if options.only in name and (options.again or changed):
            content = kept | stated(family) if changed == {"claims"} and not options.again else measure(family)
            write_atomically(record, (json.dumps(content, indent=1) + "\n").encode())
            print(f"{name}: {content['verdicts']} at {content['strengths']}", flush=True)
            jax.clear_caches()


if __name__ == "__main__":
    sys.exit(main())
