"""Values of known language models that stand beside those of a user's model in `icl examine`.

    .venv/bin/python bench/reference_values.py [--size small] [--write]

``make models`` brings the models. Each is examined on its repeats, heads and few-shot prompts; the text gives the
length of a window alone. The numbers are printed beside those that are recorded, in standard errors of both; with
``--write`` they are recorded in the package. Exit status 1: one differs by more than four of them.
"""

import argparse
import json
import math
import sys
from pathlib import Path

import jax

import icllab
from icllab.examination.examining import examine

MODELS = {"SmolLM2-135M": "smollm2-135m", "glassllm": "glassllm-en"}
SECTIONS = ("repeats", "induction_heads", "few_shot")
ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "src/icllab/examination/references.json"


def main():
    """Examine the models; return the exit status."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--models", type=Path, default=ROOT / "models")
    options.add_argument("--size", default="small")
    options.add_argument("--write", action="store_true", help="record the values")
    options = options.parse_args()
    recorded = json.loads(FILE.read_text())["sections"] if FILE.is_file() else {}
    values, missed = {name: {} for name in SECTIONS}, False
    for model, folder in MODELS.items():
        place = options.models / folder
        found = examine(
            str(place), f"text {ROOT / 'README.md'}", key=jax.random.key(0), only=SECTIONS, size=options.size
        )
        for name in SECTIONS:
            finding = found[name].finding
            number, error = (float(f"{value:.4g}") for value in (finding.number, finding.error))
            values[name][model] = [number, error]
            old = recorded.get(name, {}).get(model, [math.nan, math.nan])
            distance = abs(number - old[0]) / math.hypot(error, old[1])
            missed |= distance > 4
            print(
                f"{name:16} {model:14} {number} ± {error}  recorded {old[0]} ± {old[1]}  {finding.verdict}", flush=True
            )
    if options.write:
        versions = {"icl-lab": icllab.__version__, "jax": jax.__version__}
        FILE.write_text(json.dumps({"size": options.size, "versions": versions, "sections": values}, indent=1) + "\n")
        return 0
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
