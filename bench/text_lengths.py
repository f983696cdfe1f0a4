"""Loss of language models after 16 to 1984 tokens of context, over texts: the same 64 targets after each context.

The window of a text is its first 2048 tokens, without a token before them, and the targets are its last 64. Programs
are held-out files of the running Python's standard library, prose is the topics of its help, both in the order of their
names. Errors are standard errors over texts, of falls too, which are differences on the same targets.

Rows are appended to a file of JSON lines as they are found, and rows that are there are not computed again. A row has
the digest of its text, since other versions of Python have other texts.

Usage: python bench/text_lengths.py [--models smollm2-135m ...] [--texts 8] [--rows FILE] [--table]
"""

import argparse
import hashlib
import json
import pydoc_data.topics
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import machine
import numpy as np

from iclbook.claims.language import _models
from icllab.core.prompt import TokenPrompt
from icllab.tasks import text_files

ROWS = Path(__file__).with_name("text_lengths_rows.jsonl")
TARGETS, CONTEXTS = 64, (16, 64, 256, 448, 1984)


def texts(kind):
    """Names and texts of a kind, in the order of their names."""
    if kind == "prose":
        return sorted(pydoc_data.topics.topics.items())
    files = text_files.standard_library().split(held_out=0.1)[1]
    return [(name, content.decode(errors="replace")) for name, content in zip(files.names, files.contents, strict=True)]


@eqx.filter_jit
def losses(model, ids):
    """Losses in nats of the last tokens of a window."""
    stream = model.trace(TokenPrompt(ids)).activations["readout"][-TARGETS:]
    logs = jax.nn.log_softmax(model.answers(stream))
    return -jnp.take_along_axis(logs, ids[-TARGETS:, None], axis=1)[:, 0]


def rows_of(file):
    """Rows of a file by model, kind and text."""
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return {(row["model"], row["kind"], row["text"]): row for row in lines}


def _mean(values):
    return f"{values.mean():.2f} ± {values.std(ddof=1) / len(values) ** 0.5:.2f}"


def table(rows):
    """Print losses by the context, and their falls from the context before, over the texts of each kind."""
    for model, kind in dict.fromkeys(run[:2] for run in rows):
        found = np.array([row["losses"] for run, row in rows.items() if run[:2] == (model, kind)])
        falls = ["", *(_mean(fall) for fall in -np.diff(found).T)]
        print(f"\n{model}, {len(found)} texts of {kind}")
        lines = [(c, _mean(found[:, i]), falls[i]) for i, c in enumerate(CONTEXTS)]
        machine.table(lines, ("tokens of context", "loss, nats", "fall since the line above"))


def main():
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(_models.DIGESTS), choices=list(_models.DIGESTS))
    parser.add_argument("--texts", type=int, default=8, help="of each kind")
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    rows = rows_of(options.rows)
    for name in () if options.table else options.models:
        tokenizer = _models.tokenizer(name)
        for kind in ("prose", "programs"):
            windows = ((text, content, tokenizer.encode(content).ids) for text, content in texts(kind))
            whole = [window for window in windows if len(window[2]) >= CONTEXTS[-1] + TARGETS]
            for text, content, ids in whole[: options.texts]:
                if (name, kind, text) in rows:
                    continue
                begin, window = time.process_time(), np.array(ids[: CONTEXTS[-1] + TARGETS], np.int32)
                model = _models.load(name)
                found = [float(losses(model, jnp.asarray(window[-TARGETS - c :])).mean()) for c in CONTEXTS]
                row = {"model": name, "kind": kind, "text": text, "losses": found}
                row |= {"digest": hashlib.sha256(content.encode()).hexdigest()[:13]}
                row |= {"seconds": round(time.process_time() - begin, 1)}
                rows[name, kind, text] = row
                machine.append(options.rows, row)
                print(json.dumps(row), flush=True)
    table(rows)


if __name__ == "__main__":
    main()
