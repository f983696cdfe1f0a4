"""Problems for PyTorch: as a module, and as a folder that needs PyTorch and NumPy alone."""

import importlib
import inspect
import json
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from icllab.core.errors import EnvironmentFault, expected
from icllab.core.files import write_atomically
from icllab.posteriors.problems import VERSION, Problem

LEAST_ROWS = 256  # of tokens: more than a batch


def torch_module(problem: Problem, *, dtype: str = "float64") -> Any:
    """The loss of a problem as a module of PyTorch with one parameter ``w``, which starts at the point.

    Args:
        problem: Problem of :func:`icllab.posteriors.problem`.
        dtype: ``"float64"`` or ``"float32"``.

    Returns:
        Module whose ``forward(numbers=None)`` returns the losses of samples by their numbers, [number], or of all, and
        of a problem without data the loss.

    Raises:
        EnvironmentFault: PyTorch is not installed.
    """
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        raise EnvironmentFault("expected PyTorch, which is not installed: pip install torch") from error
    if dtype not in ("float64", "float32"):
        raise expected("dtype", "'float64' or 'float32'", dtype)
    draft, kind = problem.parts, getattr(torch, dtype)

    def tensors(arrays: Any) -> dict[str, Any]:
        return {name: torch.as_tensor(np.asarray(array), dtype=kind) for name, array in (arrays or {}).items()}

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.tensor(np.asarray(problem.at), dtype=kind))
            self.arrays, self.rows = tensors(draft.arrays), tensors(draft.rows)

        def forward(self, numbers: Any = None) -> Any:
            rows = self.rows if numbers is None else {name: row[numbers] for name, row in self.rows.items()}
            return draft.formula(torch, self.w, self.arrays, rows or None, draft.sizes)

    return Module()


def write_torch(problem: Problem, folder: Path) -> list[Path]:
    """Write a problem as ``problem.py``, ``data.npz`` and ``answers.json``, and return the files.

    Nothing is pickled, and the files do not import this package.

    Raises:
        InputError: The folder is there and is not empty.
    """
    if folder.exists() and any(folder.iterdir()):
        raise expected("folder", "a new or empty one", str(folder), "--to names it")
    folder.mkdir(parents=True, exist_ok=True)
    draft = problem.parts
    arrays = {f"array_{name}": array for name, array in draft.arrays.items()}
    arrays |= {f"row_{name}": array for name, array in (draft.rows or {}).items()}
    savez: Any = np.savez
    savez(folder / "data.npz", at=np.asarray(problem.at), **arrays)
    answers = {
        name: {"value": np.asarray(answer.value).tolist(), "error": answer.error, "basis": answer.basis}
        for name, answer in problem.answers.items()
    }
    stated = {"name": problem.name, "version": VERSION, "difficulty": problem.difficulty, "nbeta": problem.nbeta}
    stated |= {"localization": problem.localization, "samples": len(draft.tilt) if draft.tilt is not None else None}
    texts = {
        "problem.py": TEMPLATE.format(
            name=problem.name,
            nbeta=repr(float(problem.nbeta)),
            localization=repr(problem.localization),
            sizes=repr(draft.sizes),
            prior=None if draft.prior is None else (np.asarray(draft.prior.centre).tolist(), draft.prior.std),
            formula=textwrap.dedent(inspect.getsource(draft.formula)).strip(),
            function=draft.formula.__name__,
            least=LEAST_ROWS,
        ),
        "answers.json": json.dumps(stated | {"answers": answers}, indent=1) + "\n",
    }
    for name, text in texts.items():
        write_atomically(folder / name, text.encode(), "nothing was replaced")
    return [folder / name for name in ("problem.py", "data.npz", "answers.json")]


TEMPLATE = '''"""The posterior {name} for PyTorch, exp(-NBETA * loss - LOCALIZATION / 2 * |w - w*|^2)."""

import math
from pathlib import Path

import numpy as np
import torch

NBETA, LOCALIZATION, SIZES = {nbeta}, {localization}, {sizes}
PRIOR = {prior}  # centre and standard deviation of a normal prior beside the localization
LOG_2 = math.log(2)
FILE = Path(__file__).with_name("data.npz")


{formula}


class Problem(torch.nn.Module):
    """One parameter ``w``, at the point; the losses of samples by their numbers, [number], or the loss."""

    def __init__(self, dtype=torch.float64):
        super().__init__()
        data = np.load(FILE)
        self.w = torch.nn.Parameter(torch.tensor(data["at"], dtype=dtype))
        parts = {{"array": {{}}, "row": {{}}}}
        for name in data.files:
            kind, _, short = name.partition("_")
            if kind in parts:
                parts[kind][short] = torch.tensor(data[name], dtype=dtype)
        self.arrays, self.rows = parts["array"], parts["row"]

    def forward(self, numbers=None):
        rows = self.rows if numbers is None else {{name: row[numbers] for name, row in self.rows.items()}}
        return {function}(torch, self.w, self.arrays, rows or None, SIZES)


def token_rows(model):
    """Two tokens a row for a sampler of language models: the number of a sample, each as often as the others, and 0."""
    count = len(next(iter(model.rows.values()))) if model.rows else 1
    numbers = torch.arange(count * math.ceil({least} / count)) % count
    return torch.stack([numbers, torch.zeros_like(numbers)], dim=1)


def loss_fn(model, input_ids):
    """The losses of the samples whose numbers are the first tokens, [batch, 1]."""
    losses = model(input_ids[:, 0] if model.rows else None)
    return losses.expand(len(input_ids))[:, None] if losses.ndim == 0 else losses[:, None]
'''
