"""Write docs/power.md and its figures: how often each verdict is given along planted families.

Made anew at each build from the records ``book/src/iclbook/power/NAME.json``, which ``bench/power.py`` measures.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from icllab.figures.curves import curves
from icllab.figures.output import png_bytes

HERE = Path(__file__).parent
_INTRODUCTION = """# Power

A statistic that decides a claim must be able to say yes and no. For each statistic a family of data sets is simulated,
from "obeys exactly" to "does not", and the verdicts are counted along it. Error bars are binomial standard errors. A
verdict that is false at an end of the family is a false alarm: at most 5 % of the replicates may give it.

`.venv/bin/python bench/power.py` measures a family again. The families are the files of `book/src/iclbook/planted/`;
add a file for a new statistic ([Contributing](contributing.md)). `docs/make_power.py` makes this page from the records
in `book/src/iclbook/power/`.
"""


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """Map each family to its record."""
    return {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))}


def figure(record: Mapping[str, Any]) -> Figure:
    """Draw the fraction of replicates with each verdict against the strength."""
    counts = np.array(list(record["verdicts"].values())) / record["replicates"]
    error = np.sqrt(counts * (1 - counts) / record["replicates"])
    dataset = xr.Dataset(
        {"fraction": (("verdict", "strength"), counts), "fraction_error": (("verdict", "strength"), error)},
        coords={"verdict": list(record["verdicts"]), "strength": [f"{value:g}" for value in record["strengths"]]},
    )
    names = {"fraction": ("p", "replicates", ""), "verdict": ("v", "verdict", ""), "strength": ("s", "strength", "")}
    dataset.attrs["names"] = json.dumps(names)
    drawing = curves(dataset, x="strength", y="fraction", hue="verdict", ylim=(-0.03, 1.03))
    drawing.axes[0].set(xlabel=record["axis"], ylabel="fraction of replicates")
    return drawing


def false_verdicts(record: Mapping[str, Any]) -> dict[str, tuple[int, list[str]]]:
    """Map the strength of each end to the number of false verdicts there, and their names."""
    at = {strength: record["strengths"].index(float(strength)) for strength in record["false"]}
    counts = record["verdicts"]
    return {
        strength: (sum(counts[verdict][at[strength]] for verdict in verdicts if verdict in counts), verdicts)
        for strength, verdicts in record["false"].items()
    }


def page(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the text of the page: a section with a figure for each family."""
    parts = [_INTRODUCTION]
    for name, record in records.items():
        alarms = [
            f"{count} of {record['replicates']} say *{'* or *'.join(verdicts)}* at {float(strength):g}"
            for strength, (count, verdicts) in false_verdicts(record).items()
        ]
        title = name.replace("_", " ").capitalize()
        parts += [
            f"## {title}\n\n{record['caption']} Decided by `{record['statistic']}`.\n",
            f"```{{image}} _static/power/{name}.png\n:alt: {record['caption']}\n:width: 420px\n```\n",
            f"*Planted*: {record['family']}\n\n*False verdicts*: {'; '.join(alarms)}.\n",
        ]
    return "\n".join(parts)


def write(docs: Path) -> None:
    """Write the page and its figures into ``docs``."""
    records = read(docs.parent / "book/src/iclbook/power")
    pictures = docs / "_static" / "power"
    pictures.mkdir(parents=True, exist_ok=True)
    for name, record in records.items():
        (pictures / f"{name}.png").write_bytes(png_bytes(figure(record)))
    (docs / "power.md").write_text(page(records), "utf-8")


if __name__ == "__main__":
    write(HERE)
