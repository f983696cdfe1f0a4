"""Write docs/_static/explorers: the explorers with precomputed answers. Each build writes them again.

A page opened from a disk cannot load modules or reach a server. So the modules become one script, and each explorer has
a script of data with the server's answers at all points of a grid, from the same code. Curves and maps are thinned,
values are float32, and equal arrays are stored once. Prompts need the language model that `make models` fetches.
"""

import base64
import functools
import itertools
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import icllab.page
from icllab.core.errors import InputError
from icllab.page.explorers import EXPLORERS
from icllab.page.explorers.declaration import Explorer
from icllab.page.language_models import SIZES, TEXTS

HERE = Path(__file__).parent
STATIC = Path(icllab.page.__file__).parent / "static"
MODULES = ("scales", "viridis", "numbers", "formulas", "controls", "server", "plot", "map", "grid", "explore", "prompt")
INSTEAD = {"server": "const explorers = null, prompts = null;\nexport { explorers, prompts };"}
"""Modules that are replaced, because only the page has a server."""
COPIED = (
    "explore.css",
    "prompt.css",
    *(f"vendor/{name}" for name in ("uPlot.iife.min.js", "uPlot.min.css", "uPlot.LICENSE")),
)
COPIED += tuple(f"vendor/katex.{name}" for name in ("min.js", "min.css", "LICENSE"))
MODELS = Path(os.environ.get("ICLLAB_MODELS", HERE.parent / "models"))
MODEL, ENGLISH = "glassllm-en", ("The same words twice", "A story", "Capitals")
GRIDS: dict[str, dict[str, Sequence[Any]]] = {
    "linear_attention": {
        "x": ("tau", "kappa"),
        "tau": (0.5, 2, 8),
        "alpha": (1, 10, 100),
        "kappa": (0.2, 0.5, 1, 2, 5),
        "rho": (0.01, 0.3),
        "ridge": (0, 0.01, 0.3),
    },
    "induction_landscape": {
        "plane": ("beta_alpha", "beta_xi", "alpha_xi"),
        "moment": (0.05, 0.1, 0.2, 0.25, 0.3, 0.65, 1),
        "pairs": (4, 8, 16),
        "labels": (32, 128),
        "time": (400,),
    },
    "preconditioner": {
        "x": ("length", "exponent"),
        "length": (5, 20, 100, 500),
        "exponent": (0.5, 1, 2),
        "power": (-1, 0, 1),
        "noise": (0, 1, 10),
    },
    "saddles": {
        "x": ("time", "length"),
        "dim": (3, 4, 8),
        "exponent": (0, 0.5, 1, 2),
        "length": (5, 31, 200),
        "noise": (0, 1),
        "start": (0.001, 0.01, 0.1),
    },
    "learning_coefficients": {
        "x": ("hidden", "inputs", "outputs", "rank", "n"),
        "inputs": (2, 4, 8),
        "hidden": (1, 2, 4, 8),
        "outputs": (2, 4, 8),
        "rank": (0, 1, 2),
    },
    "normal_crossing": {"x": ("k1", "n"), "k1": (1, 2, 3), "k2": (1, 2), "k3": (1, 2)},
    "free_energies": {"x": ("n", "gap"), "gap": (0.001, 0.01, 0.1), "rich": (1, 2.5, 5), "rich_m": (1, 5)},
}
STARTS = {"induction_landscape": {"moment": 0.25}}  # where the cliff is at this time of the flow
_LONGEST = 64  # of a curve that is not thinned
_RAW = re.compile(r"^import \{(?P<names>[^}]*)\} from \"\./(?P<module>\w+)\.js\";$", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const) (?P<name>\w+))", re.MULTILINE)
_LIST = re.compile(r"^export \{(?P<names>[^}]*)\};$", re.MULTILINE)


def bundle(static: Path = STATIC) -> str:
    """Join the page's modules into one script, in which each is a function that returns its exports."""
    parts = ['"use strict";', "(() => {", "const modules = {};"]
    for name in MODULES:
        text = INSTEAD.get(name) or (static / f"{name}.js").read_text("utf-8")
        exported = [found["name"] for found in _EXPORT.finditer(text)]
        exported += [one.strip() for found in _LIST.finditer(text) for one in found["names"].split(",")]
        text = _RAW.sub(r"const {\g<names>} = modules.\g<module>;", _LIST.sub("", _EXPORT.sub("", text)))
        if left := re.search(r"^(?:import|export)\b.*$|import\.meta", text, re.MULTILINE):
            raise InputError(f"{name}.js: expected imports of names on one line, got {left[0]!r}")
        parts.append(f"modules.{name} = (() => {{\n{text}\nreturn {{ {', '.join(exported)} }};\n}})();")
    return "\n".join([*parts, (HERE / "explorers.js").read_text("utf-8"), "})();\n"])


class Pool:
    """Arrays in base64, each once."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def add(self, values: Sequence[Any], kind: type) -> int:
        """Return the number of an array; None is stored as NaN."""
        numbers = np.array([np.nan if value is None else value for value in values], kind)
        return self.known.setdefault(base64.b64encode(numbers.tobytes()).decode("ascii"), len(self.known))


def thinned(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Keep every second point of long curves, of paths and of both axes of a map, with their ends."""
    found = dict(answer)
    found["curves"] = [{**one, **_every_second(one, ("x", "y"))} for one in answer["curves"]]
    if content := answer.get("map"):
        rows, columns = (_kept(len(content[name]), 0) for name in ("x", "y"))
        less = {"x": [content["x"][i] for i in rows], "y": [content["y"][j] for j in columns]}
        less["z"] = [[content["z"][i][j] for j in columns] for i in rows]
        if path := content.get("path"):
            less["path"] = {**path, **_every_second(path, ("x", "y", "z"))}
        found["map"] = {**content, **less}
    return found


def _every_second(table: Mapping[str, Any], names: Sequence[str]) -> dict[str, list[Any]]:
    kept = _kept(len(table[names[0]]), _LONGEST)
    return {name: [table[name][i] for i in kept] for name in names}


def _kept(count: int, longest: int) -> list[int]:
    return list(range(count)) if count <= longest else sorted({*range(0, count, 2), count - 1})


def parted(value: Any, pool: Pool, leaves: list[Any], exact: bool = False) -> Any:
    """Return a template of an answer; append its numbers and arrays to ``leaves``.

    An array is its number, its columns if it has two axes, and whether it is float64: axes are, of which closed forms
    may be steep functions.
    """
    if isinstance(value, Mapping):
        axes = ("x", "y") if "z" in value and "axes" in value else ("x",)
        return {name: parted(one, pool, leaves, name in axes) for name, one in value.items()}
    if isinstance(value, list) and value and not isinstance(value[0], Mapping):
        columns = len(value[0]) if isinstance(value[0], list) else 0
        numbers = [one for row in value for one in row] if columns else value
        leaves.append([pool.add(numbers, np.float64 if exact else np.float32), columns, int(exact)])
    elif isinstance(value, list):
        return [parted(one, pool, leaves) for one in value]
    elif isinstance(value, str):
        return value
    else:
        leaves.append(value if value is None else float(f"{value:.8g}"))
    return [len(leaves) - 1]


def data(explorer: Explorer, grid: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Answers at all points of a grid, the last control fastest; a control outside the grid keeps its start.

    An answer is the number of its template, or the reason for its absence, and its leaves.
    """
    pool, templates = Pool(), {}
    answers: list[Any] = []
    for point in itertools.product(*grid.values()):
        leaves: list[Any] = []
        try:
            template = parted(thinned(explorer.answer(**dict(zip(grid, point, strict=True)))), pool, leaves)
            made = templates.setdefault(json.dumps(template, ensure_ascii=False), len(templates))
        except InputError as error:
            made = str(error)
        answers.append([made, leaves])
    declaration = explorer.declaration()
    for control in declaration["controls"]:
        name = control["name"]
        control["start"] = STARTS.get(explorer.id, {}).get(name, control["start"])
        allowed = list(grid.get(name, (control["start"],)))
        if control["kind"] == "choice":
            control["options"] = [[value, label] for value, label in control["options"] if value in allowed]
        else:
            control["values"] = allowed
    return {
        "declaration": declaration,
        "grid": {name: list(values) for name, values in grid.items()},
        "answers": answers,
        "templates": [json.loads(template) for template in templates],
        "pool": list(pool.known),
    }


def prompts(models: Path) -> dict[str, Any]:
    """Return the readings of three texts by the small English model, with the patterns of all heads as bytes."""
    if not (models / MODEL).is_dir():
        return {"absent": "This documentation was built without a language model; `icl page` shows this view."}
    from icllab.page import prompt_worker

    texts, answers = {name: TEXTS[name] for name in ENGLISH}, {}
    for text in texts.values():
        read = functools.partial(prompt_worker.read, str(models / MODEL), text)
        block, head, _ = read(1, 0, 0)["scores"]["previous"]
        answer = read(1, block, head)
        rows = [read(1, i, j)["pattern"] for i in range(answer["blocks"]) for j in range(answer["heads"])]
        weights = np.concatenate([row for pattern in rows for row in pattern])
        pattern = base64.b64encode(np.round(255 * weights).astype(np.uint8).tobytes()).decode("ascii")
        alone = {size: _rounded(read(size, 0, 0)["alone"]) for size in SIZES}
        answers[text] = {**answer, "loss": _rounded(answer["loss"]), "alone": alone, "pattern": pattern}
    return {"models": [MODEL], "texts": texts, "sizes": SIZES, "answers": answers}


def _rounded(losses: Sequence[float | None]) -> list[float | None]:
    return [None if loss is None else round(loss, 4) for loss in losses]


def write(docs: Path, grids: Mapping[str, Mapping[str, Sequence[Any]]] = GRIDS, models: Path = MODELS) -> None:
    """Write scripts, data and styles into ``docs/_static/explorers``."""
    folder = docs / "_static" / "explorers"
    folder.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        shutil.copyfile(STATIC / name, folder / Path(name).name)
    shutil.copytree(STATIC / "vendor" / "fonts", folder / "fonts", dirs_exist_ok=True)
    (folder / "explorers.js").write_text(bundle(), "utf-8")
    shutil.copyfile(HERE / "explorers.css", folder / "explorers.css")
    for id, grid in grids.items():
        text = json.dumps(data(EXPLORERS[id], grid), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        (folder / f"{id}.js").write_text(f"window.iclExplorers.{id} = {text};\n", "utf-8")
    text = json.dumps(prompts(models), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    (folder / "prompt.js").write_text(f"window.iclExplorers.prompt = {text};\n", "utf-8")


if __name__ == "__main__":
    write(HERE)
