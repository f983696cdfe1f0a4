"""``help`` of public names: short signatures, and docstrings that say what each default is."""

import importlib
import inspect
import re

import jax
import numpy as np
import pytest

import icllab
from icllab import diagnostics, models
from icllab.core.signatures import write_signature

MODULES = ["icllab", *(f"icllab.{name}" for name in icllab.__all__ if inspect.ismodule(getattr(icllab, name)))]
PUBLIC = {
    f"{module}.{name}": value
    for module in MODULES
    for name in importlib.import_module(module).__all__
    if callable(value := getattr(importlib.import_module(module), name))
}
ENTRY = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)


def entries(value):
    """Parameter -> its text in ``Args:`` or ``Attributes:``, of a class or of its ``__init__``."""
    docstrings = [inspect.getdoc(value) or ""]
    if inspect.isclass(value) and value.__init__ is not object.__init__:
        docstrings.append(inspect.getdoc(value.__init__) or "")
    return {name: " ".join(text.split()) for docstring in docstrings for name, text in ENTRY.findall(docstring)}


@pytest.mark.parametrize("name", PUBLIC)
def test_signatures_are_as_short_as_they_are_written(name):
    signature = str(inspect.signature(PUBLIC[name]))
    assert not re.search(r"Union\[|jaxtyping|UInt32|PRNGKey| at 0x|icllab\.|collections\.|typing\.|_jax", signature)
    key = re.search(r"\bkey: ([^,)]*)", signature)
    assert name in ("icllab.lab.Claim", "icllab.diagnostics.change_points") or key is None or key[1].startswith("Key")


def test_a_signature_is_that_of_the_source():
    per_length = "(predictors: Any, task: AbstractTask, *, key: Key, prompts: int = 1024, block: int = 256, against: "
    assert str(inspect.signature(diagnostics.per_length)).startswith(per_length)
    assert "optimizer: Any = optax.adam(1e-3)" in str(inspect.signature(icllab.fit))
    assert "key: Key" in str(inspect.signature(models.LinearAttention.init))  # and of methods
    bound = inspect.signature(icllab.fit).bind("predictor", "task", steps=3, key="key")
    assert set(bound.arguments) == {"predictor", "task", "steps", "key"}
    assert inspect.signature(icllab.fit).parameters["batch"].default == 256


def test_defaults_and_values_are_not_touched():
    optimizer = inspect.unwrap(icllab.fit).__kwdefaults__["optimizer"]
    assert callable(optimizer.update)
    attention = models.LinearAttention.lu(dim=2, std=0.1, answers="every", key=jax.random.key(0))
    assert np.isfinite(attention.p).all()


def test_what_has_no_source_keeps_its_signature():
    for value in (len, int, jax.jit, 3):
        write_signature(value)
    namespace = {"__name__": "icllab.nowhere"}
    exec("def made(key: int = 3): pass", namespace)
    write_signature(namespace["made"])
    assert str(inspect.signature(namespace["made"])) == "(key: int = 3)"


@pytest.mark.parametrize("name", PUBLIC)
def test_every_default_is_said(name):
    """A parameter with a default is described, and what None is stands there; other defaults are in the signature."""
    texts = entries(PUBLIC[name])
    for parameter in inspect.signature(PUBLIC[name]).parameters.values():
        if parameter.default is not parameter.empty:
            assert parameter.name in texts
            if parameter.default is None:
                assert re.search(r"\bNone\b|by default|The default|unless|without", texts[parameter.name]), parameter
