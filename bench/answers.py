"""How soon ``icl`` answers: help, completion and the list of claims, beside the start of the interpreter alone.

    python bench/answers.py

One row a command, the same interpreter, in turn; medians of wall time. The first row is what Python itself takes.
"""

import statistics
import subprocess
import sys
import time

import machine

ROUNDS = 12
LIMITS = {"icl --help": 0.5, "icl __complete run asym": 0.5}
ROWS = {
    "python -c pass": ["-c", "pass"],
    "icl --help": ["-m", "icllab", "--help"],
    "icl __complete run asym": ["-m", "icllab", "__complete", "run", "asym"],
    "icl list": ["-m", "icllab", "list"],
}


def main():
    """Print the table; the exit status says whether a target was missed."""
    print(machine.described("cyclopts", "rich"))
    seconds = {row: [] for row in ROWS}
    for _ in range(ROUNDS):
        for row, words in ROWS.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, *words], capture_output=True, check=True)
            seconds[row].append(time.perf_counter() - start)
    alone = statistics.median(seconds["python -c pass"])
    missed, lines = [], []
    for row, times in seconds.items():
        median, limit = statistics.median(times), LIMITS.get(row)
        lines.append((row, median, median / alone, "" if limit is None else limit))
        missed += [row] if limit is not None and median > limit else []
    machine.table(lines, ("row", "wall s", "/ python", "target"))
    return machine.report(missed)


if __name__ == "__main__":
    sys.exit(main())
