"""``icl theory``: the closed forms of ``icllab.theory``, listed and evaluated on a grid.

A formula is a public function of ``icllab.theory`` whose parameters and answer are numbers, by its signature. Its
signature and docstring are read from its source, so that listing and help import nothing of the theory.
"""

import ast
import difflib
import functools
import importlib
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import icllab
from icllab.cli.reports import Report, typeset
from icllab.core.errors import InputError, expected, require_known, unknown

if TYPE_CHECKING:
    from rich.console import Console

THEORY = Path(icllab.__file__).with_name("theory")
# Kind of a parameter by its annotation. A spectrum is a list that is one value of a formula that broadcasts.
_KINDS = {
    **dict.fromkeys(("Numbers", "float"), "number"),
    **dict.fromkeys(("Sequence[int]", "Sequence[float]", "Sequence[float] | None"), "list"),
    **dict.fromkeys(("Sequence[float] | np.ndarray", "npt.ArrayLike", "npt.ArrayLike | None"), "list"),
    **{"Covariance": "spectrum", "int": "count", "bool": "flag", "Phase": "phase"},
}
_POINTWISE = {"count", "flag", "list", "phase"}  # kinds that do not broadcast
_ANSWERS = {"float", "Number", "Array"}
_ANSWERS |= {"Estimate", "LearningCoefficient", "Steps", "Search", "Optimum", "Flow", "Levels"}  # of several numbers
_MATRICES = {"matrices", "preconditioner"}  # parameters that no list of numbers can be
# How a value of a kind is typed, where that is not a number.
_HOW = {
    "flag": "Typed as 0 or 1.",
    "list": "Typed as a list 1,2,4.",
    "spectrum": "Typed as a list of eigenvalues 1,2,4.",
    "phase": "Typed as a list loss,coefficient[,multiplicity[,constant]].",
}
_SIGNS = {"ge": " >= ", "le": " <= ", "to": " -> ", "dots": "...", "infty": "inf", "ell": "l", "sqrt": "sqrt"}
_MOST_ROWS = 1_000_000


@dataclass(frozen=True)
class Formula:
    """A public function of ``icllab.theory`` that takes numbers.

    Attributes:
        name: ``module.function``.
        kinds: Parameter -> ``number``, ``spectrum``, ``count``, ``flag``, ``list`` or ``phase``.
        defaults: Parameter -> default, as it is written.
        docstring: Its docstring.
    """

    name: str
    kinds: Mapping[str, str]
    defaults: Mapping[str, str]
    docstring: str

    @property
    def pointwise(self) -> bool:
        """True if the formula is called once for every point of a grid: a parameter does not broadcast."""
        return not _POINTWISE.isdisjoint(self.kinds.values())

    def whole(self, parameter: str) -> bool:
        """True if a list is one value of the parameter, which is not swept."""
        return self.kinds[parameter] in ("spectrum", "list", "phase")

    @property
    def function(self) -> str:
        """Its name in its module."""
        return self.name.partition(".")[2]

    @property
    def summary(self) -> str:
        """The first sentence of its docstring."""
        return readable(self.docstring.partition("\n\n")[0])

    @property
    def usage(self) -> str:
        """``name key=value ...`` with optional parameters in brackets."""
        defaults = {p: value if value != "None" else "" for p, value in self.defaults.items()}
        words = (f"[{p}={defaults[p]}]" if p in defaults else f"{p}=" for p in self.kinds)
        return " ".join([self.name, *words])


@functools.cache
def _functions() -> dict[str, tuple[ast.FunctionDef, Mapping[str, ast.expr]]]:
    """Public functions of ``icllab.theory`` by ``module.function``, with the constants of their modules."""
    functions = {}
    for path in sorted(THEORY.glob("[a-z]*.py")):
        body = ast.parse(path.read_text("utf-8")).body
        constants = {ast.unparse(node.targets[0]): node.value for node in body if isinstance(node, ast.Assign)}
        for node in body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                functions[f"{path.stem}.{node.name}"] = node, constants
    return functions


@functools.cache
def listing() -> dict[str, Formula]:
    """Every formula by name."""
    return {name: formula for name in _functions() if (formula := _formula(name)) is not None}


def _formula(name: str) -> Formula | None:
    """The formula of a function; None if a parameter or the answer is something else than numbers."""
    node, constants = _functions()[name]
    arguments = [*node.args.args, *node.args.kwonlyargs]
    kinds = {a.arg: _KINDS.get(ast.unparse(a.annotation) if a.annotation else "", "") for a in arguments}
    if "" in kinds.values() or not kinds.keys().isdisjoint(_MATRICES) or node.args.vararg or node.args.kwarg:
        return None
    answer = ast.unparse(node.returns).strip("'") if node.returns else ""
    if not (answer in _ANSWERS if _POINTWISE & set(kinds.values()) else "number" in kinds.values()):
        return None
    values = [*[None] * (len(node.args.args) - len(node.args.defaults)), *node.args.defaults, *node.args.kw_defaults]
    texts = {a.arg: ast.unparse(value) for a, value in zip(arguments, values, strict=True) if value is not None}
    defaults = {p: ast.unparse(constants[text]) if text in constants else text for p, text in texts.items()}
    return Formula(name, kinds, defaults, ast.get_docstring(node) or "")


def definitions(name: str) -> dict[str, str]:
    """Parameter -> its line in the docstring, or in that of the formula to which the docstring refers."""
    docstring = ast.get_docstring(_functions()[name][0]) or ""
    block = re.search(r"^Args:\n((?:    .*\n?)+)", docstring, re.MULTILINE)
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", block[1], re.MULTILINE) if block else []
    texts = {parameter: readable(text) for parameter, text in entries}
    if reference := re.search(r"rguments\b[^.]* are those of\s+:func:`(?:icllab\.theory\.)?([\w.]+)`", docstring):
        other = reference[1] if "." in reference[1] else f"{name.partition('.')[0]}.{reference[1]}"
        texts = definitions(other) | texts
    return texts


def readable(text: str) -> str:
    """A docstring's text without markup."""
    text = re.sub(r":\w+:`~?([^`]*)`", r"\1", text).replace("``", "")
    for command, sign in _SIGNS.items():
        text = re.sub(rf"\\{command}(?![a-zA-Z])", sign, text)
    return " ".join(re.sub(r"\\(?:mathcal|mathrm|[,;!])\s?|[{}\\]", "", text).split())


def overview() -> Report:
    """Every formula with its usage."""
    formulas = listing().values()
    data = {"formulas": [{"name": f.name, "parameters": [*f.kinds], "summary": f.summary} for f in formulas]}

    def plain(console: "Console") -> None:
        for f in formulas:
            _headed(console, f.usage, f.summary)
        console.print("`icl theory NAME --help` says what the parameters of a formula are.", style="dim")

    return Report(data, plain)


def explain(name: str) -> Report:
    """Definition of a formula, and definition, domain and default of its parameters."""
    formula, defined = _formula_named(name), definitions(name)
    rows = {p: f"{defined[p]} {_HOW.get(kind, '')}".strip() for p, kind in formula.kinds.items()}
    rows |= {p: f"{rows[p]} Default: {value}." for p, value in formula.defaults.items() if value != "None"}
    usage = f"icl theory {formula.usage}"
    parameters = [
        {"name": p, "kind": k, "definition": defined[p], "default": formula.defaults.get(p)}
        for p, k in formula.kinds.items()
    ]
    data = {"name": formula.name, "summary": formula.summary, "usage": usage, "parameters": parameters}

    def plain(console: "Console") -> None:
        from rich.table import Table

        _headed(console, formula.name, formula.summary, f"usage: {usage}")
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 2))
        for parameter, text in rows.items():
            table.add_row(typeset(parameter), typeset(text, overflow="fold"))
        console.print(table)

    return Report(data, plain)


def _formula_named(name: str) -> Formula:
    """The formula of a name; an unknown one raises InputError with the nearest ones."""
    formulas = listing()
    if name in formulas:
        return formulas[name]
    functions = difflib.get_close_matches(name.rpartition(".")[2], {f.function for f in formulas.values()}, n=1)
    near = difflib.get_close_matches(name, formulas, n=1, cutoff=0.8)
    near = near or [n for n, f in formulas.items() if f.function in functions]
    if near:
        raise InputError(f"unknown formula {name!r}; did you mean {' or '.join(map(repr, near))}?")
    raise unknown("formula", name, formulas, "" if difflib.get_close_matches(name, formulas) else "(`icl theory`)")


def evaluate(name: str, words: Sequence[str]) -> Report:
    """The formula's values on the grid of all combinations of the values."""
    import numpy as np

    formula = _formula_named(name)
    values = _assigned(formula, words)
    swept = [p for p, numbers in values.items() if len(numbers) > 1 and not formula.whole(p)]
    shape = tuple(len(values[p]) for p in swept)
    if math.prod(shape) > _MOST_ROWS:
        raise expected(name, f"at most {_MOST_ROWS} combinations", math.prod(shape))
    module, _, called = name.partition(".")
    function = getattr(importlib.import_module(f"icllab.theory.{module}"), called)
    if formula.pointwise:
        points = itertools.product(*(values[p] if p in swept else [values[p]] for p in values))
        calls = [_arguments(formula, dict(zip(values, point, strict=True))) for point in points]
        rows = [dict(_columns(formula.function, function(**arguments))) for arguments in calls]
        columns = {c: _table([np.asarray(row[c]).tolist() for row in rows], shape) for c in rows[0]}
    else:
        arguments = {
            p: np.reshape(numbers, [-1 if q == p else 1 for q in swept]) if p in swept else _single(numbers)
            for p, numbers in values.items()
        }
        answer = function(**arguments)
        columns = {c: np.broadcast_to(v, shape) for c, v in _columns(formula.function, answer)}
    data = {
        "name": name,
        "parameters": {p: numbers if p in swept else _single(numbers) for p, numbers in values.items()},
        "axes": swept,
        "values": {c: v.tolist() for c, v in columns.items()},
    }

    def plain(console: "Console") -> None:
        _write(
            console, formula, {p: values[p] for p in swept}, {p: values[p] for p in values if p not in swept}, columns
        )

    return Report(data, plain)


def _arguments(formula: Formula, point: Mapping[str, float | list[float]]) -> dict[str, Any]:
    """One point of a grid as a formula of counts takes it: whole numbers as integers, lists as lists."""
    arguments: dict[str, Any] = {}
    for name, value in point.items():
        kind, values = formula.kinds[name], value if isinstance(value, list) else [value]
        fractions = [x for x in values if not float(x).is_integer()]
        if kind == "count" and fractions:
            raise expected(name, "a whole number", fractions[0])
        if kind == "flag" and values[0] not in (0, 1):
            raise expected(name, "0 or 1", values[0])
        numbers = values if kind == "number" or fractions else [int(x) for x in values]
        if kind == "phase":
            arguments[name] = _phase(name, values)
        elif kind == "flag":
            arguments[name] = bool(values[0])
        else:
            arguments[name] = numbers if kind in ("list", "spectrum") else _single(numbers)
    return arguments


def _phase(name: str, values: Sequence[float]) -> Any:
    from icllab.theory.free_energy import Phase
    from icllab.theory.learning_coefficients import LearningCoefficient

    if not 2 <= len(values) <= 4:
        raise expected(name, "a list of loss, learning coefficient[, multiplicity[, constant]]", list(values))
    loss, value, multiplicity, constant = (*values, *(1.0, 0.0)[len(values) - 2 :])
    if not multiplicity.is_integer():
        raise expected(name, "a whole number as multiplicity", multiplicity)
    return Phase(loss, LearningCoefficient(value, int(multiplicity)), constant)


def _table(values: Sequence[Any], shape: tuple[int, ...]) -> Any:
    """Values of a grid; lists, which may have different lengths, stay lists."""
    import numpy as np

    table = np.empty(len(values), dtype=object)
    table[:] = values
    return table.reshape(shape)


def _single(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else values


def _columns(name: str, value: Any, within: str = "") -> Iterator[tuple[str, Any]]:
    """Every number or array of an answer by name; those of a part of it after the part's name and a dot."""
    fields = getattr(value, "_fields", None)
    parts = dict(zip(fields, value, strict=True)) if fields else value
    if not isinstance(parts, Mapping):
        yield name, value
        return
    for part, content in parts.items():
        label = f"{part:g}" if isinstance(part, float) else str(part)
        yield from _columns(f"{within}{label}", content, within=f"{within}{label}.")


def _assigned(formula: Formula, words: Sequence[str]) -> dict[str, list[float]]:
    """Parameter -> values, in the order of the formula's signature."""
    values: dict[str, list[float]] = {}
    for word in _paired(formula, words):
        name, sign, text = word.partition("=")
        if not sign:
            raise expected(formula.name, "key=value", word, f"usage: icl theory {formula.usage}")
        require_known(f"parameter of {formula.name}:", name, formula.kinds, f"(`icl theory {formula.name} --help`)")
        if name in values:
            raise expected(name, "each parameter once", word, "join its values with commas")
        values[name] = numbers(name, text)
    lacking = [p for p in formula.kinds if p not in values and p not in formula.defaults]
    if lacking:
        raise InputError(
            f"{formula.name}: expected {', '.join(lacking)} too, got {', '.join(values) or 'no parameters'}; "
            f"usage: icl theory {formula.usage}; `icl theory {formula.name} --help` says what they are"
        )
    return {p: values[p] for p in formula.kinds if p in values}


def _paired(formula: Formula, words: Sequence[str]) -> Iterator[str]:
    """``key=value`` of each parameter, also of those that are typed as options: ``--key value`` or ``--key=value``."""
    remaining = iter(words)
    for word in remaining:
        key, sign, text = word.partition("=")
        if key.startswith("-"):
            key = key.lstrip("-").replace("-", "_")
            options = {*formula.kinds, "json", "debug", "help"}
            require_known(f"parameter or option of {formula.name}:", f"--{key}", [f"--{name}" for name in options])
            text = text if sign else next(remaining, "")
            word = f"{key}={text}"
        yield word


def numbers(name: str, text: str) -> list[float]:
    """The numbers of ``1``, ``1,2,inf``, ``start:stop:count`` and ``log:start:stop:count``, joined by commas."""
    return [value for part in text.split(",") for value in _range(name, part.strip())]


def _range(name: str, part: str) -> list[float]:
    import numpy as np

    log = part.startswith("log:")
    try:
        ends = part.removeprefix("log:").split(":")
        if len(ends) == 1 and not log:
            return [float(part)]
        start, stop, count = float(ends[0]), float(ends[1]), int(ends[2])
        sound = math.isfinite(start + stop) and (start * stop > 0 or not log)
        if len(ends) == 3 and 2 <= count <= _MOST_ROWS and sound:
            return (np.geomspace if log else np.linspace)(start, stop, count).tolist()
    except (ValueError, IndexError):
        pass
    raise expected(name, "a number, a list 1,2,4, a range start:stop:count or log:start:stop:count", part) from None


def _write(
    console: "Console",
    formula: Formula,
    swept: Mapping[str, Sequence[float]],
    single: Mapping[str, Sequence[float]],
    columns: Mapping[str, Any],
) -> None:
    at = ["at " + ", ".join(f"{p} = {_spelled(v)}" for p, v in single.items())] if single else []
    _headed(console, formula.name, formula.summary, *at)
    rows = [
        [_cell(v) for v in (*point, *(c.flat[i] for c in columns.values()))]
        for i, point in enumerate(itertools.product(*swept.values()))
    ]
    for line in _aligned([*swept, *columns], rows):
        console.out(line, highlight=False)


def _headed(console: "Console", title: str, *lines: str) -> None:
    from rich.padding import Padding

    console.print(typeset((title, "bold")))
    for line in lines:
        console.print(Padding(typeset(line), (0, 0, 0, 2)))


def _cell(value: Any) -> str:
    """A number; a short list or matrix as it is, of a long one how much there is."""
    if not isinstance(value, list):
        return f"{value:.6g}"
    if len(value) <= 6:
        return f"[{', '.join(map(_cell, value))}]"
    ends = "" if isinstance(value[0], list) else f": {value[0]:.6g} to {value[-1]:.6g}"
    return f"{len(value)} {'rows' if isinstance(value[0], list) else 'values'}{ends}"


def _spelled(values: Sequence[float]) -> str:
    """One number, or a spectrum by its first and last eigenvalues."""
    texts = [f"{v:g}" for v in values]
    texts = texts if len(texts) <= 4 else [*texts[:3], "...", texts[-1]]
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


def _aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    for row in (header, *rows):
        yield "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
