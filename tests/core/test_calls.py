"""Calls of public functions: NumPy's integers are taken, and a wrong name is answered with the right one."""

import difflib
import importlib
import inspect
import pickle
import random
import types

import jax
import numpy as np
import pandas as pd
import pytest

import icllab as icl
from icllab import models, tasks, theory
from icllab.core.calls import ArgumentError, checked, plain
from icllab.core.errors import InputError
from icllab.models import BlockOptions, Tokens

PACKAGES = ("icllab", "icllab.algorithms", "icllab.diagnostics", "icllab.models", "icllab.tasks", "icllab.training")
MODULES = [*map(importlib.import_module, PACKAGES), *(getattr(theory, name) for name in theory.__all__)]


def public_functions():
    """Name -> function, of packages; of modules of closed forms; and the constructors and methods of classes."""
    functions = {}
    for module in MODULES:
        names = module.__all__ if hasattr(module, "__all__") else vars(module)
        for name, value in [(name, getattr(module, name)) for name in names if not name.startswith("_")]:
            if hasattr(module, "__all__") is False and getattr(value, "__module__", None) != module.__name__:
                continue
            if isinstance(value, types.FunctionType):
                functions[f"{module.__name__}.{name}"] = value
            if isinstance(value, type):
                for method in ("__init__", "sample", "sample_many", "from_scaling", "init"):
                    if isinstance(getattr(value, method, None), types.FunctionType | types.MethodType):
                        functions[f"{module.__name__}.{name}.{method}"] = getattr(value, method)
    return functions


PUBLIC = public_functions()
assert len(PUBLIC) > 150
assert "icllab.tasks.WeightPool.init" in PUBLIC, "a method that is compiled as a whole"


@pytest.mark.parametrize("name", PUBLIC)
def test_a_misspelt_argument_is_refused_with_the_right_name(name):
    function = PUBLIC[name]
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    names = [n for n in names if n != "self"]
    if not names or any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    right = random.choice(names)
    place = random.randrange(len(right))
    letter = random.choice([x for x in "qxj" if x != right[place]])
    wrong = right[:place] + letter + right[place + (len(right) > 2) :]
    arguments = (object(),) if name.rpartition(".")[2] in ("__init__", "sample", "sample_many") else ()
    with pytest.raises(ArgumentError) as refusal:
        function(*arguments, **{wrong: 1})
    message = str(refusal.value)
    assert repr(wrong) in message
    assert "\n" not in message
    nearest = difflib.get_close_matches(wrong, sorted(names), n=1, cutoff=0.5)
    assert (nearest[0] if nearest else right) in message


def test_an_argument_by_position_is_answered_with_its_name():
    task = tasks.LinearRegression.convention("raventos", dim=2, length=3)
    key = jax.random.key(0)
    with pytest.raises(ArgumentError, match=r"^LinearRegression\.sample: expected no positional .* try key=\.\.\.$"):
        task.sample(key)
    with pytest.raises(TypeError, match=r"sample_many: expected 1 positional argument, got 2; try key="):
        task.sample_many(3, key)
    with pytest.raises(InputError, match="'steps'"):
        icl.fit(lambda prompt: prompt.y, task, key=key)


def test_only_the_call_itself_is_answered():
    """A TypeError from within keeps its text, and so do signatures, names and pickled functions."""

    def function(a: int, *, b: int = 2) -> int:
        """A docstring."""
        return a + b + (lambda: 0)(a)  # type: ignore[call-arg]

    call = checked(function)
    with pytest.raises(TypeError, match="takes 0 positional arguments") as error:
        call(1)
    assert not isinstance(error.value, ArgumentError)
    assert inspect.signature(call) == inspect.signature(function)
    assert (call.__name__, call.__doc__, call.__wrapped__) == ("function", "A docstring.", function)
    assert checked(call) is call
    for value in (icl.fit, theory.linear_attention.icl_error, tasks.LinearRegression, tasks.LinearRegression.sample):
        assert pickle.loads(pickle.dumps(value)) is value


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_function_passes_through_the_check(name):
    """Whether its module, its package or a module that uses it was imported first."""
    function = getattr(PUBLIC[name], "__func__", PUBLIC[name])
    library = function.__module__.startswith("icllab") and function.__code__.co_filename != "<string>"
    assert hasattr(function, "__checked__") or not library


INTEGERS = (np.int64, np.int32, np.uint8, np.int8)


@pytest.mark.parametrize("kind", INTEGERS)
def test_integers_of_numpy_become_pythons(kind):
    for value in (kind(3), (kind(3), 1.5), [kind(3), (kind(4), "a")], {"a": kind(3)}):
        assert all(type(x) is not kind or isinstance(value, dict) for x in jax.tree.leaves(plain(value)))
    same = [np.bool_(True), True, np.float32(3), np.array(3), np.timedelta64(3, "s"), (1, 2), [1.0], "3", None]
    for value in same:
        assert plain(value) is value


def networks(n):
    return models.Transformer(
        Tokens(n), dim=n, width=n, layers=n // 8, block=BlockOptions(heads=n // 4, mlp=(n, n), norm="pre"),
        positions="rotary", key=jax.random.key(0),
    )  # fmt: skip


SIZES = {
    "from_scaling": lambda n: tasks.LinearRegression.from_scaling(
        dim=n, alpha=2.0, kappa=1.0, rho=0.1, key=jax.random.key(0)
    ),
    "convention": lambda n: tasks.LinearRegression.convention("raventos", dim=n, length=n),
    "repeated": lambda n: tasks.RepeatedTokens(vocabulary=n, period=n),
    "network": networks,
    "attention": lambda n: models.LinearAttention.lu(dim=n, std=0.1, answers="every", key=jax.random.key(0)),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_from_arrays_and_tables_are_those_of_python(name):
    """Equal static fields, so that nothing is compiled again, and no warning: these are errors here."""
    expected_structure = jax.tree.structure(SIZES[name](8))
    for size in (*(kind(8) for kind in INTEGERS), pd.Series([4, 8]).iloc[1], np.arange(9)[8]):
        assert jax.tree.structure(SIZES[name](size)) == expected_structure


@pytest.mark.parametrize("size", [True, np.bool_(True), 8.0, np.float32(8), "8", np.array([8])])
def test_other_sizes_stay_refused(size):
    with pytest.raises((InputError, TypeError), match=r"dim|vocabulary|integer|int"):
        tasks.LinearRegression.convention("raventos", dim=size, length=3)
    with pytest.raises((InputError, TypeError), match=r"vocabulary|integer|int"):
        tasks.RepeatedTokens(vocabulary=size, period=3)
