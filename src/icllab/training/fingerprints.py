"""Fingerprints of a predictor's function in a store: its options, and a digest of its computations.

Two predictors with equal arrays may be two functions: with rotary positions and without, with softmax and ReLU weights.
The digest is of the predictor as JAX writes it out on one prompt. It knows static fields and functions alike, and is
the same for a function that another process makes anew. The options only say in words what differs.
"""

import contextlib
import dataclasses
import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr

from icllab.core.files import difference
from icllab.core.prompt import Prompt

_ADDRESS = re.compile(r" at 0x[0-9a-f]+|id=\d+")
_FUNCTION = "function "
_LAMBDA = f"{_FUNCTION}<lambda>"


def options(tree: Any) -> dict[str, Any]:
    """Everything in a tree that is not an array, by its path: numbers and texts unchanged, functions by name."""
    return dict(_options(tree, ""))


def _options(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if eqx.is_array(value) or isinstance(value, jax.ShapeDtypeStruct):
        return
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield path or "predictor", type(value).__qualname__
        for field in dataclasses.fields(value):
            if hasattr(value, field.name):
                yield from _options(getattr(value, field.name), f"{path}.{field.name}".lstrip("."))
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _options(entry, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        if all(isinstance(entry, bool | int | float | str) for entry in value):
            yield path, repr(value)
            return
        for i, entry in enumerate(value):
            yield from _options(entry, f"{path}[{i}]")
    elif value is None or isinstance(value, bool | int | str):
        yield path, value
    elif callable(value):
        yield path or "predictor", _FUNCTION + getattr(value, "__name__", type(value).__name__)
    elif not jax.tree_util.all_leaves([value]):  # a node of another library
        yield path, type(value).__qualname__
        yield from _options(jax.tree.leaves(eqx.filter(value, eqx.is_array, inverse=True)), path)
    else:
        entries = sorted(map(repr, value)) if isinstance(value, set | frozenset) else repr(value)
        yield path, _ADDRESS.sub("", str(entries))


def functions(options: Mapping[str, Any]) -> list[str]:
    """Paths of the options that are functions; two functions may share a name."""
    return [path for path, value in options.items() if isinstance(value, str) and value.startswith(_FUNCTION)]


def changed_options(stored: Mapping[str, Any], present: Mapping[str, Any]) -> str:
    """Options that both sides state with different values; lambdas and options stated by one side are ignored."""
    names = [name for name in stored.keys() & present.keys() if _LAMBDA not in (stored[name], present[name])]
    return difference({name: stored[name] for name in names}, {name: present[name] for name in names})


def jaxpr_digest(function: Any, *arguments: Any) -> str:
    """Digest of a function's program in JAX's notation, with the constants it closes over."""
    jaxpr, _, _ = eqx.filter_make_jaxpr(function)(*arguments)
    text = hashlib.sha256(_ADDRESS.sub("", str(jaxpr)).encode())
    for constant in _constants(jaxpr):
        text.update(np.asarray(array_data(constant)).tobytes())
    return text.hexdigest()[:16]


def _constants(jaxpr: Any) -> Iterator[Any]:
    """The constants of a program and of its inner programs, whose text does not show their values."""
    yield from getattr(jaxpr, "consts", ())
    for equation in jaxpr.eqns:
        for value in jax.tree.leaves(list(equation.params.values())):
            if isinstance(value, ClosedJaxpr | Jaxpr):
                yield from _constants(value)


def array_data(leaf: Any) -> Any:
    """An array; for random keys, their data."""
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def function_of(predictor: Any, prompt: Any) -> dict[str, Any]:
    """Fingerprint of a predictor that answers prompts of these shapes: see :func:`answers_alike`."""
    description, x64 = _described(prompt), bool(jax.config.read("jax_enable_x64"))
    try:
        digest = None if description is None else _digest(predictor, prompt, x64)
    except Exception:  # whatever it raises on one prompt alone; a run that has ended is kept
        digest = None
    return {"digest": digest, "prompt": description, "x64": x64}


def answers_alike(function: Mapping[str, Any], predictor: Any) -> bool | None:
    """True if a predictor is the stored function, False if not, None if this cannot be decided here."""
    prompt = None if function["prompt"] is None else _prompt(function["prompt"])
    if prompt is None or function["digest"] is None:
        return None
    try:
        return _digest(predictor, prompt, function["x64"]) == function["digest"]
    except Exception:  # whatever a predictor raises that does not answer such prompts
        return False


def _digest(predictor: Any, prompt: Any, x64: bool) -> str:
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if eqx.is_array(leaf) else leaf, (predictor, prompt)
    )
    with contextlib.ExitStack() as settings:  # settings of the process are no part of a function
        for setting in (
            jax.enable_x64(x64),
            jax.default_matmul_precision(None),  # pyright: ignore[reportArgumentType]
            jax.numpy_dtype_promotion("standard"),
            jax.numpy_rank_promotion("allow"),
            jax.disable_jit(False),
        ):
            settings.enter_context(setting)
        return jaxpr_digest(lambda predictor, prompt: predictor(prompt), *shapes)


def _described(prompt: Any) -> Any:
    """The class, the shapes and the static fields of a prompt as JSON; None if other fields occur."""
    if not isinstance(prompt, Prompt):
        return None
    fields = {}
    for field in dataclasses.fields(prompt):
        value = getattr(prompt, field.name)
        if hasattr(value, "shape") and hasattr(value, "dtype"):
            fields[field.name] = {"shape": list(value.shape), "dtype": str(value.dtype)}
        elif value is None or isinstance(value, bool | int | float | str):
            fields[field.name] = value
        else:
            return None
    return {"class": type(prompt).__qualname__, "module": type(prompt).__module__, "fields": fields}


def _prompt(description: Mapping[str, Any]) -> Any:
    """A prompt of shapes from its description; None if no class of that name has been imported."""
    kinds = [kind for kind in _subclasses(Prompt) if kind.__qualname__ == description["class"]]
    kinds.sort(key=lambda kind: kind.__module__ != description["module"])
    if not kinds or {field.name for field in dataclasses.fields(kinds[0])} != set(description["fields"]):
        return None
    prompt = object.__new__(kinds[0])
    try:
        for name, value in description["fields"].items():
            shape = isinstance(value, Mapping)
            leaf = jax.ShapeDtypeStruct(tuple(value["shape"]), jnp.dtype(value["dtype"])) if shape else value
            object.__setattr__(prompt, name, leaf)
    except TypeError:  # a type of numbers that this version of JAX does not have
        return None
    return prompt


def _subclasses(kind: type) -> Iterator[type]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)
