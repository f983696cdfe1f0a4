"""Open a network by its name: a name in a Python file, a run of ``icl.fit``, a folder, or a state with its family.

The parameters of a function tell what it is. A function with one required argument is a predictor, a function of a
prompt. A function without required arguments, as ``load()`` or ``load(path="weights.pt")``, builds the network.
"""

import contextlib
import glob
import inspect
import os
import re
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.errors import JAXTypeError

from icllab.core.errors import IclError, InputError, expected, kind_of, require_path
from icllab.core.prompt import RegressionPrompt
from icllab.core.protocols import answer_single, declared, position_losses, require_task
from icllab.core.user_files import failure, named
from icllab.models.pretrained import loading
from icllab.models.pytorch import FromTorch, is_torch_module
from icllab.training.finished_runs import load as load_run
from icllab.training.runs import Run

PICKLES = (*loading.PICKLES, ".pkl", ".pickle", ".joblib")
_NO_PROMPTS = {"path", "file", "filename", "name", "folder", "checkpoint", "step", "seed", "key", "config", "cfg"}
_NETWORK = "a predictor or a torch.nn.Module"
_MOST_DIMS = 64  # that are tried when a network refuses the dim of a task


def network(name: Any, *, store: str | Path | None = None, family: str | None = None, heads: int | None = None) -> Any:
    """The network of a name, as a predictor.

    ``file.py:name`` and ``package.module:name`` name a predictor, a ``torch.nn.Module``, which becomes
    ``FromTorch(module)``, or a function without required arguments that returns one of them. Any other name is a path,
    which :func:`icllab.models.pretrained.load` opens. The file of a user is Python that runs; no pickle is opened.

    Args:
        name: The name, or the network itself.
        store: Folder of a run of :func:`icllab.fit` with one member; ``name`` is then that of the function that builds
            the predictor which was trained. None: ``name`` is the network itself.
        family: ``"gpt2"`` if ``name`` is the path of a state, ``.safetensors`` or ``.npz``; None otherwise.
        heads: Number of heads of such a state; None without one.

    Raises:
        InputError: There is no such network, or the code of the user raises; the line names the file and the line.
    """
    if not isinstance(name, str | os.PathLike):
        return _predictor(kind_of(name), Path(), name)
    name = os.fspath(name)
    is_python = ":" in name and not Path(name).exists()
    if store is not None and not is_python:
        raise expected("name", "file.py:build, the function that builds the predictor of the store", name)
    if (family is None) != (heads is None) or (family is not None and is_python):
        raise expected("family and heads", "both, with the path of a state, or none", (family, heads))
    if is_python:
        path, value = named(name)
        return _predictor(name, path, value) if store is None else load_run(store, _built(name, path, value)).predictor
    suffix = Path(name).suffix.lower()
    if suffix in PICKLES:
        way = "file.py:load opens it, a function of yours; of several, --checkpoints 'run/*.pt' --load file.py:load"
        raise expected(name, "no pickle, since opening one runs code", suffix, f"{way}, or icl.checkpoints")
    if suffix == ".py":
        raise expected("name", "file.py:name, with a name in the file", name)
    if suffix == ".safetensors" and family is None:
        hint = "family='gpt2', heads=12, or --as gpt2 --heads 12; or name its folder with config.json"
        raise expected(name, "the family of a state", family, hint)
    return loading.load(name, family=family, heads=heads)


def checkpoints(pattern: str | Path, load: Any) -> dict[int, Any]:
    """The networks of several files by step, in rising order; the step is the last number in the name of a file.

    Args:
        pattern: Pattern of the files, such as ``"run/*.pt"``.
        load: Function that returns the network of a path, or its name ``file.py:load``. Nothing else opens a file.

    Raises:
        InputError: No file has the pattern, a name has no number, two files have one step, or ``load`` raises.
    """
    require_path("pattern", pattern)
    place = Path(getattr(getattr(load, "__code__", None), "co_filename", "load"))
    place, function = named(load) if isinstance(load, str) else (place, load)
    if not callable(function):
        raise expected("load", "a function of a path, or its name file.py:load", function)
    files: dict[int, str] = {}
    for file in sorted(glob.glob(os.path.expanduser(pattern), recursive=True)):
        numbers = re.findall(r"\d+", re.sub(r"\.[A-Za-z]\w*$", "", Path(file).name))
        if not numbers:
            raise expected(file, "a number in the name, the step", Path(file).name)
        if (step := int(numbers[-1])) in files:
            raise expected("pattern", "one file for each step", f"{files[step]} and {file} of step {step}")
        files[step] = file
    if not files:
        raise expected("pattern", "a pattern of at least one file", os.fspath(pattern))
    networks = {}
    for step in sorted(files):
        try:
            value = function(os.path.abspath(files[step]))
        except (Exception, SystemExit) as error:
            raise failure(place, error, f"the network of {files[step]}") from error
        networks[step] = _predictor(f"load({files[step]!r})", place, value, build=False)
    return networks


def require_answers(network: Any, task: Any) -> None:
    """Raise unless a network answers a prompt of a task in a shape that the task judges; JAX computes nothing.

    A network of another input dimension is told by that dimension, which is declared or found by trying others.
    """
    require_task(task)
    prompt = task.sample(key=jax.random.key(0))
    failed = _refusal(network, task, prompt)
    if failed is None:
        return
    if isinstance(prompt, RegressionPrompt):
        wide = np.tile(prompt.x, (1, _MOST_DIMS))
        for dim in {getattr(network, "dim", prompt.dim): 0} | dict.fromkeys(range(1, _MOST_DIMS + 1)):
            other = RegressionPrompt(jnp.asarray(wide[:, :dim]), prompt.y, prompt.mask)
            if dim != prompt.dim and _refusal(network, task, other) is None:
                wish = f"{dim}, the input dimension of the network"
                raise expected("dim of the task", wish, prompt.dim) from failed
    if isinstance(failed, IclError):
        raise failed
    shapes = ", ".join(f"{name} {value.shape}" for name, value in vars(prompt).items() if hasattr(value, "shape"))
    reason = " ".join(str(failed).split())[:400]
    wish = f"an answer to a prompt of the task ({shapes})"
    raise InputError(f"network: expected {wish}, got {type(failed).__name__}: {reason}") from failed


def _refusal(network: Any, task: Any, prompt: Any) -> Exception | None:
    """The exception of a network or of the loss on a prompt, if there is one."""

    def losses(prompt: Any) -> Any:
        return position_losses(task, jnp.asarray(answer_single(network, prompt)), prompt)

    try:
        if declared(network, "traceable"):
            with contextlib.suppress(JAXTypeError):  # a function on the host
                eqx.filter_eval_shape(losses, prompt)
                return None
        losses(prompt)
    except Exception as error:
        return error
    return None


def _predictor(name: str, path: Path, value: Any, *, build: bool = True) -> Any:
    """A value as a predictor; with ``build`` a function without required arguments is called."""
    if is_torch_module(value):
        return FromTorch(value)
    if isinstance(value, Run):
        return value.predictor
    if isinstance(value, type) or not callable(value):
        raise expected(name, _NETWORK + ", or a function without arguments that returns one" * build, kind_of(value))
    if isinstance(value, eqx.Module) or _is_predictor(name, value):
        return value
    if not build:
        raise expected(name, _NETWORK, "another function without arguments")
    return _predictor(f"{name}()", path, _built(name, path, value), build=False)


def _built(name: str, path: Path, function: Any) -> Any:
    if isinstance(function, type) or not callable(function) or _is_predictor(name, function):
        raise expected(name, "a function without required arguments that builds the predictor", kind_of(function))
    try:
        return function()
    except (Exception, SystemExit) as error:
        raise failure(path, error, f"the network of {name}") from error


def _is_predictor(name: str, function: Any) -> bool:
    """True if a function needs one argument, a prompt, and False if it needs none; raise otherwise."""
    signature = inspect.signature(function)
    parameters = signature.parameters.values()
    needed = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    if not needed:
        return False
    first = needed[0]
    is_prompt = first.kind in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD) and first.name not in _NO_PROMPTS
    if len(needed) > 1 or not is_prompt or first.annotation in (str, int, Path, "str", "int", "Path"):
        wish = "a predictor, whose one argument is a prompt, or a function without required arguments"
        raise expected(name, wish, f"a function of {signature}")
    return True
