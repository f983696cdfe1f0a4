"""Signatures for ``help``: annotations as written in the source, ``key: Key`` instead of the union behind it."""

import ast
import inspect
import textwrap
import types
from collections.abc import Mapping
from typing import Any

# A name that only sources have -> what readers know it by.
_NAMES = {"PRNGKeyArray": "Key", "_ADAM": "optax.adam(1e-3)"}


class _Written(str):
    """Source text, which ``help`` shows without quotes."""

    def __repr__(self) -> str:
        return str(self)


def write_signature(value: Any) -> None:
    """Set ``__signature__`` of a function or of a class's methods to the text of the source, if there is a source.

    Defaults stay what they are, but for those without a name of their own, such as an optimiser made of functions.
    """
    node = _node(value)
    if isinstance(node, ast.FunctionDef):
        _write(value, node)
    if not isinstance(node, ast.ClassDef):
        return
    methods = {part.name: part for part in node.body if isinstance(part, ast.FunctionDef)}
    for name, method in vars(value).items():
        if name in methods:
            _write(getattr(method, "__func__", method), methods[name])
    init = vars(value).get("__init__")
    if isinstance(init, types.FunctionType) and "__init__" not in methods:  # that of a dataclass, of its fields
        bases = [part for base in reversed(value.__mro__) if isinstance(part := _node(base), ast.ClassDef)]
        fields = [part for base in bases for part in base.body if isinstance(part, ast.AnnAssign)]
        _annotate(init, {part.target.id: part.annotation for part in fields if isinstance(part.target, ast.Name)})


def _node(value: Any) -> ast.stmt | None:
    """The definition of a function or class of this library."""
    if not (isinstance(value, types.FunctionType | type) and value.__module__.startswith("icllab")):
        return None
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]
    except (OSError, TypeError, SyntaxError):
        return None


def _write(function: Any, node: ast.FunctionDef) -> None:
    if not isinstance(function, types.FunctionType):
        return
    a = node.args
    defaults = dict(zip([p.arg for p in [*a.posonlyargs, *a.args]][::-1], a.defaults[::-1], strict=False))
    defaults |= {p.arg: d for p, d in zip(a.kwonlyargs, a.kw_defaults, strict=True) if d is not None}
    written = {p.arg: p.annotation for p in ast.walk(a) if isinstance(p, ast.arg) and p.annotation is not None}
    _annotate(function, written | ({"return": node.returns} if node.returns else {}), defaults)


def _annotate(
    function: types.FunctionType, written: Mapping[str, ast.expr], defaults: Mapping[str, ast.expr] | None = None
) -> None:
    signature, parameters = inspect.signature(function), []
    for name, parameter in signature.parameters.items():
        if name in written and parameter.annotation is not Any:
            parameter = parameter.replace(annotation=_text(written[name]))
        if defaults and name in defaults and " at 0x" in repr(parameter.default):
            parameter = parameter.replace(default=_text(defaults[name]))
        parameters.append(parameter)
    returns = _text(written["return"]) if "return" in written else signature.return_annotation
    function.__signature__ = signature.replace(parameters=parameters, return_annotation=returns)  # pyright: ignore[reportFunctionMemberAccess]


def _text(node: ast.expr) -> _Written:
    for name in ast.walk(node):
        if isinstance(name, ast.Name):
            name.id = _NAMES.get(name.id, name.id)
    return _Written(node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ast.unparse(node))
