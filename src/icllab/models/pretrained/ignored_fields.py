"""Ignored fields of a language model's file: their names in the model and in results about it."""

import dataclasses
import functools
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

import equinox as eqx
import xarray as xr

from icllab.models.networks.transformer import Transformer

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class AssumedTransformer(Transformer):
    """A language model with unknown fields that are assumed to be without effect.

    Attributes:
        ignored: Names of the fields. Results on the model have them as an attribute.
    """

    ignored: tuple[str, ...] = eqx.field(static=True)

    def __init__(self, model: Transformer, ignored: tuple[str, ...]):
        """Copy the parts of a model."""
        for field in dataclasses.fields(model):
            setattr(self, field.name, getattr(model, field.name))
        self.ignored = ignored


def ignored_fields(*values: Any) -> dict[str, list[str]]:
    """``{"ignored": names}`` for the language models within the values; empty without ignored fields."""
    names: set[str] = set()
    seen: dict[int, Any] = {}  # values are kept, so that no other value gets their ids
    stack = list(values)
    while stack:
        value = stack.pop()
        if id(value) not in seen:
            seen[id(value)] = value
            stack.extend(_held(value))
            if isinstance(value, AssumedTransformer):
                names.update(value.ignored)
    return {"ignored": sorted(names)} if names else {}


def _held(value: Any) -> Iterable[Any]:
    """Values that a container, an object, a method, a partial function or a closure holds."""
    if isinstance(value, type | types.ModuleType):
        return
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        yield from value
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, types.MethodType):
        yield from (value.__self__, value.__func__)
    elif isinstance(value, types.FunctionType):
        yield from (cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType())
    yield from getattr(value, "__dict__", {}).values()
    yield getattr(value, "__wrapped__", None)  # of a compiled function


def names_ignored(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorate a diagnostic so that its result names the ignored fields of its arguments' models."""

    @functools.wraps(function)
    def wrapped(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        result = function(*args, **kwargs)
        dataset = getattr(result, "dataset", result)
        if isinstance(dataset, xr.Dataset):
            dataset.attrs.update(ignored_fields(args, kwargs))
        return result

    return wrapped
