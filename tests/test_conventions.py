"""The checks that all other tests rely on are switched on, and functions are short."""

import ast
import inspect
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import icllab
from icllab import diagnostics
from icllab.core.prompt import RegressionPrompt

SOURCE = Path(icllab.__file__).parent
MOST_LINES, MOST_PARAMETERS = 60, 8


def test_a_wrong_shape_is_refused():
    with pytest.raises(Exception, match="position"):
        RegressionPrompt(x=jnp.zeros((3, 2)), y=jnp.zeros(4))


def test_silent_rank_and_type_promotion_are_refused():
    with pytest.raises(ValueError, match="rank_promotion"):
        jnp.ones((2, 3)) + jnp.ones(3)
    with pytest.raises(Exception, match="promotion"):
        jnp.ones(2, jnp.float32) + jnp.asarray(np.ones(2, np.int32))


def lines_without_docstring(function):
    first, end = function.body[0], function.end_lineno - function.lineno + 1
    described = ast.get_docstring(function) is not None
    return end - (first.end_lineno - first.lineno + 1 if described else 0)


def test_a_function_has_at_most_sixty_lines_beneath_its_docstring():
    found, count = set(), 0
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            count += isinstance(node, ast.FunctionDef)
            if isinstance(node, ast.FunctionDef) and lines_without_docstring(node) > MOST_LINES:
                found.add(f"{path.relative_to(SOURCE).as_posix()} {node.name}")
    assert count > 2000
    assert not found
    (long,) = ast.parse("def f():\n    '''One\n    two.'''\n" + "    x = 1\n" * MOST_LINES).body
    assert lines_without_docstring(long) == MOST_LINES + 1


def test_a_diagnostic_has_at_most_eight_parameters():
    branches = [node for node in ast.parse(inspect.getsource(diagnostics)).body if isinstance(node, ast.If)]
    imports = [node for branch in branches for node in branch.body if isinstance(node, ast.ImportFrom)]
    public = {alias.name for node in imports for alias in node.names}
    functions = {name: getattr(diagnostics, name) for name in public if name.islower()}
    assert {"identify", "context_map", "hessian_spectrum"} <= set(functions)
    many = {
        name for name, function in functions.items() if len(inspect.signature(function).parameters) > MOST_PARAMETERS
    }
    assert not many
