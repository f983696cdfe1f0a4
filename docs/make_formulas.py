"""Write src/icllab/cli/formulas.json: the formulas that ``icl theory`` knows. A test tells when it has to be made anew.

    .venv/bin/python docs/make_formulas.py

A formula is a public function of ``icllab.theory`` whose parameters and answer are numbers, by its signature. What its
parameters are stands in its docstring.
"""

import importlib
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import icllab
from icllab.cli.formulas import POINTWISE, TABLE
from icllab.core.files import write_atomically
from icllab.theory import parameters, preconditioners, sample_covariance
from icllab.theory.free_energy import Phase

# Type of a parameter -> what is asked for. A spectrum is a list that is one value; a phase is a list of loss,
# learning coefficient, multiplicity, constant.
_KINDS = {
    **dict.fromkeys((parameters.Numbers, float), "number"),
    **dict.fromkeys((Sequence[int], Sequence[float], Sequence[float] | None, Sequence[float] | np.ndarray), "list"),
    **dict.fromkeys((npt.ArrayLike, npt.ArrayLike | None), "list"),
    **dict.fromkeys((sample_covariance.Covariance, preconditioners.Covariance), "spectrum"),
    **{int: "count", bool: "flag", Phase: "phase"},
}
_ANSWERS = (float, parameters.Number, parameters.Array)
_TABLES = (
    "Estimate",
    "LearningCoefficient",
    "Steps",
    "Search",
    "Optimum",
    "Flow",
    "Levels",
)  # answers of several numbers
_MATRICES = ("matrices", "preconditioner")  # what no list of numbers can be
_SIGNS = {"ge": " >= ", "le": " <= ", "to": " -> ", "dots": "...", "infty": "inf", "ell": "l", "sqrt": "sqrt"}
_ROLE = re.compile(r":\w+:`~?([^`]*)`")


def functions() -> dict[str, Callable[..., Any]]:
    """The public functions of the modules of ``icllab.theory``, by ``module.function``."""
    stems = [path.stem for path in sorted(Path(icllab.__file__).with_name("theory").glob("[a-z]*.py"))]
    modules = {stem: importlib.import_module(f"icllab.theory.{stem}") for stem in stems}
    return {
        f"{stem}.{name}": value
        for stem, module in modules.items()
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }


def table() -> dict[str, Any]:
    """Formula -> its summary, and kind, definition and default of each of its parameters."""
    known = functions()
    return {name: row for name, function in known.items() if (row := _row(name, function, known)) is not None}


def _row(name: str, function: Callable[..., Any], known: Mapping[str, Callable[..., Any]]) -> dict[str, Any] | None:
    signature = inspect.signature(function)
    kinds = {p: _kind(parameter) for p, parameter in signature.parameters.items()}
    if not kinds or None in kinds.values() or not kinds.keys().isdisjoint(_MATRICES):
        return None
    answer = signature.return_annotation
    numeric = answer in _ANSWERS or getattr(answer, "__name__", "") in _TABLES
    if not (numeric if POINTWISE & set(kinds.values()) else "number" in kinds.values()):
        return None
    texts = definitions(name, known)
    rows = {p: {"kind": kind, "definition": texts.get(p, "")} for p, kind in kinds.items()}
    for p, parameter in signature.parameters.items():
        if parameter.default is not parameter.empty:
            rows[p]["default"] = repr(parameter.default)
    return {"summary": readable((inspect.getdoc(function) or "").partition("\n\n")[0]), "parameters": rows}


def _kind(parameter: inspect.Parameter) -> str | None:
    named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    try:
        return _KINDS.get(parameter.annotation) if named else None
    except TypeError:  # a type that has no hash
        return None


def definitions(name: str, known: Mapping[str, Callable[..., Any]]) -> dict[str, str]:
    """Parameter -> what the docstring says of it, or that of the formula whose arguments they are said to be."""
    docstring = inspect.getdoc(known[name]) or ""
    block = re.search(r"^Args:\n((?:    .*\n?)+)", docstring, re.MULTILINE)
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", block[1], re.MULTILINE) if block else []
    texts = {parameter: readable(text) for parameter, text in entries}
    if reference := re.search(r"rguments\b[^.]* are those of\s+:func:`(?:icllab\.theory\.)?([\w.]+)`", docstring):
        other = reference[1] if "." in reference[1] else f"{name.partition('.')[0]}.{reference[1]}"
        texts = definitions(other, known) | texts
    return texts


def readable(text: str) -> str:
    """A docstring's text without markup."""
    text = _ROLE.sub(r"\1", text).replace("``", "")
    for command, sign in _SIGNS.items():
        text = re.sub(rf"\\{command}(?![a-zA-Z])", sign, text)
    return " ".join(re.sub(r"\\(?:mathcal|mathrm|[,;!])\s?|[{}\\]", "", text).split())


if __name__ == "__main__":
    write_atomically(TABLE, (json.dumps(table(), indent=1, ensure_ascii=False) + "\n").encode())
