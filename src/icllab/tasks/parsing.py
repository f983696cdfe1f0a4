"""A task as text, ``NAME[:convention] field=value ...``, with the names of the constructors.

    linear_regression:raventos dim=8 length=16 noise_variance=0.25 pool=tasks.npy
    item_label:reddy classes=128 p_novel=0.5
    repeated_tokens vocabulary=8 period=7 distinct=true first=8
    table wine.csv target=quality length=32
    tasks.py:build

A field of a part has a path, ``inputs.covariance=0.125``, or its last name alone if no other field has that. A value is
a number, a fraction such as 1/8, ``true``, ``false``, ``none``, a name, a list with commas, or the path of an ``.npy``
file. Nothing is evaluated.
"""

import contextlib
import dataclasses
import functools
import importlib
import inspect
import re
import shlex
from collections.abc import Collection, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from icllab.core import kernels
from icllab.core.errors import IclError, InputError, expected, require_known, unknown
from icllab.core.protocols import AbstractTask, require_task
from icllab.core.user_files import failure, named
from icllab.core.views import brief
from icllab.tasks.regression_distributions import (
    AbstractInputs,
    AbstractWeights,
    GaussianInputs,
    GaussianWeights,
    WeightPool,
)
from icllab.tasks.token_ids import TokenIds

CLASSES = """
    LinearRegression FunctionRegression HierarchicalRegression NetworkRegression TreeRegression SignLabels Curriculum
    ItemLabel ItemBursts LabelRelations MarkovChain MarkovPool HigherOrderChain RepeatedTokens InContextCopying
    PeriodicStrings Table Text
    GaussianInputs UniformInputs SphereInputs ShiftedQuery GaussianWeights SparseWeights
"""
"""Tasks and their parts, which text names in lower case."""
_UNITS = {AbstractInputs: GaussianInputs, AbstractWeights: GaussianWeights}  # of variance 1, where no part is named
Arguments = dict[str, inspect.Parameter]


def parse(text: Any, **objects: Any) -> Any:
    """The task of a text; a task itself is returned as it is.

    A task takes the fields of its constructor, and ``key=``, 0 by default, for what it draws once. Task vectors may
    have a ``pool=``, a file [task, dim] or a number of vectors that ``key`` draws. ``vectors=`` is a file of the class
    means and label vectors of items. ``first=`` and ``ids=`` are those of :class:`.TokenIds`, for tasks of tokens.
    ``objects`` are values of fields that no text names, such as a ``tokenizer``.

    Raises:
        InputError: The text is not that of a task; one line says what was expected, what came, and the nearest name.
    """
    if not isinstance(text, str):
        require_task(text)
        return text
    try:
        head, *words = shlex.split(text) or [""]
        paths = {"paths" if head == "text" else "path": word for word in words if "=" not in word}
        given: dict[str, Any] = paths | {
            word.partition("=")[0]: word.partition("=")[2] for word in words if "=" in word
        }
        if len(given) < len(words) or (paths and head not in ("table", "text")):
            raise expected("task", "NAME and field=value ..., each field once", text)
        given |= objects
        tokens = {name: _value(name, given.pop(name)) for name in ("first", "ids") if name in given}
        task = _task(head, given)
        require_task(task)
        return TokenIds(task, **tokens) if tokens else task
    except IclError:
        raise
    except Exception as error:  # of a constructor, if values do not fit
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"task: expected a task in {text!r}, got {type(error).__name__}: {reason}") from error


def grammar() -> dict[str, str]:
    """The fields of each task by its name and conventions; nothing stands after ``=`` of a field without a default."""
    texts = {}
    for name, cls in _classes(AbstractTask).items():
        conventions = "|".join(getattr(cls, "conventions", ()))
        texts[f"{name}[:{conventions}]" if conventions else name] = _listed(_arguments(_makers(cls)[0]))
    return texts


def _listed(arguments: Arguments) -> str:
    """Arguments with their defaults as text."""
    units = {a.name: _name(_UNITS[kind]) for a in arguments.values() for kind in _parts(a.annotation) if kind in _UNITS}
    shown = {a.name: brief(a.default).lower() for a in arguments.values() if a.default is not a.empty} | units
    return " ".join(f"{name}={shown.get(name, '0' if name == 'key' else '')}" for name in arguments)


def _name(cls: type) -> str:
    return re.sub(r"(?<=.)([A-Z])", r"_\1", cls.__name__).lower()


def _classes(kinds: Any) -> dict[str, Any]:
    """The classes of some kinds by their names."""
    package = importlib.import_module("icllab.tasks")
    classes = (getattr(package, name) for name in CLASSES.split())
    return {_name(cls): cls for cls in classes if issubclass(cls, kinds)}


def _task(head: str, given: dict[str, str]) -> Any:
    """The task of a name and its fields: of the library, or of a user's file."""
    if not re.search(r"\.\w+:", head):
        return _made(head, _part("task", head, AbstractTask), given)
    path, found = named(head)
    try:
        is_task = hasattr(found, "sample") and not isinstance(found, type)
        return _replaced(head, found, given) if is_task else _made(head, [found], given)
    except IclError:
        raise
    except (Exception, SystemExit) as error:
        raise failure(path, error, f"the task of {head}") from error


def _part(title: str, head: str, kinds: Any) -> list[Any]:
    """The constructors of the task or part NAME[:convention], which is of some kinds; the preferred one first."""
    name, _, convention = head.partition(":")
    classes = _classes(kinds)
    require_known(title, name, classes, "(or file.py:name)" if title == "task" else "")
    if not convention:
        return _makers(classes[name])
    require_known(f"convention of {name}:", convention, getattr(classes[name], "conventions", ()))
    return [functools.partial(classes[name].convention, convention)]


def _makers(cls: type) -> list[Any]:
    return [*(getattr(cls, name) for name in ("init", "from_csv", "from_files") if hasattr(cls, name)), cls]


def _arguments(function: Any) -> Arguments:
    """The arguments of a constructor; numbers that are leaves are annotated as float."""
    inner = getattr(function, "func", function)
    written = dict(getattr(inspect.unwrap(getattr(inner, "__func__", inner)), "__annotations__", {}))
    for field in dataclasses.fields(inner) if dataclasses.is_dataclass(inner) else ():
        written[field.name] = field.type if field.metadata.get("static") or _parts(field.type) else float
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.replace(annotation=written.get(p.name)) for p in parameters}


def _parts(annotation: Any) -> tuple[type, ...]:
    """The classes of parts among the types of an annotation."""
    types = get_args(annotation) or (annotation,)
    return tuple(kind for kind in types if isinstance(kind, type) and issubclass(kind, eqx.Module))


def _missing(function: Any, given: Collection[str]) -> list[str]:
    """The names of arguments without value and default; numbers of inputs and weights are 1 by default."""
    required = [a for a in _arguments(function).values() if a.default is a.empty and a.name not in (*given, "key")]
    of_unit = isinstance(function, type) and issubclass(function, AbstractInputs | AbstractWeights)
    return [
        a.name for a in required if not ((of_unit and a.annotation is float) or {*_parts(a.annotation)} & {*_UNITS})
    ]


def _made(title: str, makers: list[Any], given: dict[str, str]) -> Any:
    """Call the constructor that takes most of the given fields, and set the others in its task."""
    if "pool" in given and given["pool"].isdecimal() and "chains" in _arguments(makers[0]):
        given["chains"] = given.pop("pool")

    maker = max(
        makers, key=lambda function: (-len(_missing(function, given)), len(given.keys() & _arguments(function)))
    )
    arguments, values = _arguments(maker), {}
    if missing := _missing(maker, given):
        fields = _listed(arguments)
        raise InputError(f"{title}: expected a value of {', '.join(missing)}, got none; its fields are {fields}")
    for name, argument in arguments.items():
        kinds, text = _parts(argument.annotation), given.pop(name, None)
        if name == "key":
            values[name] = _key(text or "0")
        elif text is not None and kinds:
            inner = _part(name, text, kinds)
            needs = {need: need for function in inner for need in _missing(function, ()) if need not in arguments}
            needs |= {path[len(name) + 1 :]: path for path in given if path.startswith(f"{name}.")}
            fields = {need: given.pop(path) for need, path in needs.items() if path in given}
            values[name] = _made(text, inner, fields)
        elif text is not None:
            values[name] = _value(name, text, argument.annotation)
        elif argument.default is argument.empty:
            values[name] = _UNITS[kinds[0]](1.0) if kinds else 1.0
    return _replaced(title, maker(**values), given)


def _replaced(title: str, task: Any, changes: dict[str, str]) -> Any:
    """A task with other values of fields, each named by its path, or by its last name if that is the only one."""
    if not changes:
        return task
    paths = dict(_paths(task))
    pool = (
        changes.pop("pool") if "pool" in changes and isinstance(getattr(task, "weights", None), AbstractWeights) else ""
    )
    vectors = changes.pop("vectors") if "vectors" in changes and hasattr(task, "label_vectors") else ""
    key = changes.pop("key", "0") if pool.isdecimal() else "0"
    for name, text in changes.items():
        matches = [path for path in paths if f".{path}".endswith(f".{name}")]
        if not matches:
            raise unknown(f"field of {title}:", name, {*paths, *(path.rpartition(".")[2] for path in paths)})
        if name not in matches and len(matches) > 1:
            raise expected(name, f"one of {', '.join(matches)}", text)
        path = name if name in matches else matches[0]
        task = _set(task, path.split("."), _value(path, text, paths[path]))
    if pool:
        drawn = pool.isdecimal() and WeightPool.init(task.weights, int(pool), task.dim, key=_key(key))
        task = _set(task, ["weights"], drawn or WeightPool(_file("pool", pool), task.weights))
    return dataclasses.replace(task, **_vectors(task, vectors)) if vectors else task


def _paths(task: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Path and annotation of each field that can be replaced, of parts too."""
    for name, argument in _arguments(type(task)).items():
        if isinstance(part := getattr(task, name, None), eqx.Module):
            yield from _paths(part, f"{prefix}{name}.")
        else:
            yield prefix + name, argument.annotation


def _set(task: Any, path: list[str], value: Any) -> Any:
    inner = value if len(path) == 1 else _set(getattr(task, path[0]), path[1:], value)
    return dataclasses.replace(task, **{path[0]: inner})


def _vectors(task: Any, path: str) -> dict[str, Any]:
    """Class means and label vectors of a file, of the sizes of the task."""
    arrays = {name: jnp.asarray(array, float) for name, array in _file("vectors", path).items()}
    stored = {"label_vectors" if name == "labels" else name: array for name, array in arrays.items()}
    shapes = {name: getattr(task, name).shape for name in ("means", "label_vectors")}
    if {name: array.shape for name, array in stored.items()} != shapes:
        raise expected("vectors", f"arrays {shapes}", {name: array.shape for name, array in stored.items()})
    return stored


def _file(name: str, path: str) -> Any:
    """The array of an ``.npy`` file, or the arrays of an ``.npz`` file."""
    try:
        arrays = np.load(path, allow_pickle=False)
        return dict(arrays) if path.endswith(".npz") else jnp.asarray(arrays, float if name == "pool" else None)
    except (OSError, ValueError, EOFError) as error:
        raise expected(name, "an .npy or .npz file of numbers", path, str(error).partition("\n")[0]) from error


def _key(text: str) -> Any:
    if not (text.isdecimal() and len(text) < 10):
        raise expected("key", "an integer from 0 on, of at most nine digits", text)
    return jax.random.key(int(text))


def _value(name: str, text: Any, annotation: Any = None) -> Any:
    """A value of its text; numbers are floats where the annotation says float."""
    if not isinstance(text, str):
        return text
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    if name.endswith("kernel") and text in kernels.FUNCTIONS:
        return kernels.FUNCTIONS[text]
    if name == "paths":
        return [text] if not Path(text).is_dir() else sorted(path for path in Path(text).rglob("*") if path.is_file())
    if text.endswith(".npy"):
        return _file(name, text)
    if "," in text.strip(",") or "Sequence" in str(annotation):
        parts = [_value(name, part) for part in text.split(",")]
        return jnp.asarray(parts, float) if annotation is float else tuple(parts)
    for kind in (int, float, Fraction):
        with contextlib.suppress(ValueError, ZeroDivisionError, OverflowError):
            number = kind(text)
            return float(number) if annotation is float or kind is Fraction else number
    return text.encode() if "bytes" in str(annotation) else text
