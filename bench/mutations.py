"""The bugs one would make: each a change of one expression, as a place in a file and what is written there instead."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
COMPARISONS = {ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
FUNCTIONS = [("std", "var"), ("mean", "sum"), ("min", "max"), ("argmin", "argmax"), ("any", "all"), ("log", "exp")]
OTHER = {one: other for pair in FUNCTIONS for one, other in (pair, pair[::-1])}
LOUD = ("isinstance", "issubclass", "hasattr")  # arguments that nobody exchanges unnoticed


@dataclass(frozen=True)
class Mutant:
    """One change: ``text`` in the place of ``before``, in the function or constant ``where`` of a file."""

    file: Path
    where: str
    line: int
    kind: str
    start: int
    end: int
    before: str
    text: str

    def applied(self, source: str) -> str:
        """The file with the change."""
        return source[: self.start] + self.text + source[self.end :]


def mutants(file: Path) -> list[Mutant]:
    """Every change of a file that this rule knows, in the order of its lines."""
    source = file.read_text("utf-8")
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))

    def position(line: int, column: int) -> int:
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    found = []
    for top in ast.parse(source).body:
        where = getattr(top, "name", "") or (top.targets[0].id if _is_constant(top) else "")
        if not where:
            continue
        for node in _code(top):
            start = position(node.lineno, node.col_offset)
            end = position(node.end_lineno or node.lineno, node.end_col_offset or 0)
            for kind, text in _changes(node):
                found.append(Mutant(file, where, node.lineno, kind, start, end, source[start:end], text))
    return found


def _is_constant(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """Statements and expressions, without annotations, decorators, error messages and texts."""
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert):
        return
    if isinstance(node, ast.expr | ast.stmt) and not isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_params", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _code(child)


def _changes(node: ast.AST) -> Iterator[tuple[str, str]]:
    """What could stand in the place of a node by mistake, each with the kind of the mistake."""
    match node:
        case ast.BinOp(op=op) if type(op) in OPERATORS:
            yield "operator", _with(node, op=OPERATORS[type(op)]())
        case ast.BinOp(op=ast.Pow(), left=left):
            yield "power", ast.unparse(left)
        case ast.BinOp(op=ast.MatMult(), left=left, right=right):
            yield "order", _with(node, left=right, right=left)
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand) if not isinstance(operand, ast.Constant):
            yield "sign", f"({ast.unparse(operand)})"
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            yield "comparison", _with(node, ops=[COMPARISONS[type(op)]()])
        case ast.BoolOp(op=op):
            yield "and, or", f"({_with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())})"
        case ast.IfExp(body=body, orelse=orelse):
            yield "branches", f"({_with(node, body=orelse, orelse=body)})"
        case ast.Constant(value=float(value)) if value:
            yield "factor of two", repr(2 * value)
        case ast.Subscript(value=value, slice=ast.Constant(value=0)):
            yield "index", f"{ast.unparse(value)}[-1]"
        case ast.Subscript(value=value, slice=ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=1))):
            yield "index", f"{ast.unparse(value)}[0]"
        case ast.Slice(lower=None, upper=ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=1))):
            yield "slice", "1:"
        case ast.Slice(lower=ast.Constant(value=1), upper=None):
            yield "slice", ":-1"
        case ast.Assign(
            targets=[ast.Tuple(elts=names) as target], value=ast.Call(func=ast.Attribute(attr="split")) as call
        ):
            drawn = (
                ast.unparse(call)
                if len(call.args) > 1 or call.keywords
                else _with(call, args=[*call.args, ast.Constant(len(names))])
            )
            yield "one key for all", f"{ast.unparse(target)} = ({drawn}[0],) * {len(names)}"
        case ast.Call(func=ast.Attribute(attr="fold_in"), args=[key, _]):
            yield "one key for all", ast.unparse(key)
        case ast.Call():
            yield from _calls(node)


def _calls(node: ast.Call) -> Iterator[tuple[str, str]]:
    """Another function, another axis, or two arguments exchanged."""
    func, args = node.func, node.args
    name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    if name in OTHER and isinstance(func, ast.Attribute):
        yield "function", _with(node, func=ast.Attribute(func.value, OTHER[name], ast.Load()))
    for i, keyword in enumerate(node.keywords):
        if keyword.arg == "axis" and isinstance(keyword.value, ast.Constant | ast.UnaryOp):
            other = "0" if ast.unparse(keyword.value) != "0" else "-1"
            changed = ast.keyword("axis", ast.parse(other, mode="eval").body)
            yield "axis", _with(node, keywords=[*node.keywords[:i], changed, *node.keywords[i + 1 :]])
    if len(args) > 1 and name not in LOUD and all(isinstance(arg, ast.Name | ast.Attribute) for arg in args[:2]):
        yield "arguments", _with(node, args=[args[1], args[0], *args[2:]])
    named = [i for i, keyword in enumerate(node.keywords) if isinstance(keyword.value, ast.Name | ast.Attribute)]
    if len(named) > 1 and node.keywords[named[0]].arg and node.keywords[named[1]].arg:
        values = list(node.keywords)
        a, b = named[:2]
        values[a], values[b] = ast.keyword(values[a].arg, values[b].value), ast.keyword(values[b].arg, values[a].value)
        yield "arguments", _with(node, keywords=values)


def _with(node: ast.expr, **changes: object) -> str:
    """The source of a node with other parts, in brackets where it may stand within others."""
    fields = {name: getattr(node, name) for name in node._fields}
    changed = ast.unparse(type(node)(**(fields | changes)))
    return f"({changed})" if isinstance(node, ast.BinOp | ast.Compare) else changed
