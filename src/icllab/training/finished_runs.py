"""Finished runs in their stores: written at the end of training, opened by ``icl.load``."""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import xarray as xr

from icllab.core.errors import InputError, expected, require_path
from icllab.core.files import parse_json, write_atomically
from icllab.training.checkpoints import (
    KEPT,
    Checkpoints,
    first_changes,
    named,
    other_program,
    packed,
    restored,
    unpacked,
)
from icllab.training.ensembles import Ensemble, ensemble_of
from icllab.training.fingerprints import answers_alike, changed_options, function_of, functions, options
from icllab.training.runs import Run, Trajectory

_FILE = "finished.icl"


def write_finished(root: Path, run: Run, params: Any, prompt: Any) -> None:
    """Write a finished run beside its checkpoints.

    Args:
        root: The directory.
        run: The run.
        params: The trained arrays of its members.
        prompt: The shapes of one prompt.
    """
    member = run.member(0)
    header = {
        "function": function_of(member, prompt),
        "options": options(member),
        "dataset": run.dataset.to_dict(data=False),
        "members": list(run.members.coordinates),
        "trained": sorted(named(params, "")),
        "kept": list(run.trajectory.steps),
    }
    arrays = {f"dataset.{name}": np.asarray(variable.values) for name, variable in run.dataset.variables.items()}
    write_atomically(root / _FILE, packed(header, arrays | named(run.members.stacked, "members")), KEPT)


def load(store: str | Path, predictor: Any = None) -> Run:
    """Open a finished run of :func:`icllab.fit`, without compiling, training or changing anything.

    Args:
        store: The directory that was given to ``fit``.
        predictor: The predictor or ensemble that was given to ``fit``; its structure and its function matter, the
            numbers in its arrays do not. None: the run has losses, statuses and header, and no members.

    Raises:
        InputError: There is no finished run; or the predictor has other arrays than the trained one or is another
            function of them, or the ensemble has another number of members.

    Warns:
        UserWarning: The function cannot be compared: an older version wrote the run, or other versions of JAX and of
            this library read it otherwise.
    """
    require_path("store", store, "the folder that was given to icl.fit")
    checkpoints, path = Checkpoints(store), Path(store) / _FILE
    if not path.is_file():
        steps = checkpoints.steps()
        if not steps and not (str(store) and Path(store).is_dir()):
            actual = "a file" if str(store) and Path(store).is_file() else str(store)
            raise expected("store", "the folder of a training run", actual, "icl.fit(..., store=folder) makes one")
        state = f"a run that stopped after {steps[-1]} steps" if steps else "none"
        raise expected(str(store), "a finished training run", state, "icl.fit with this store makes or finishes it")
    header, arrays = unpacked(path)
    dataset = _dataset(header, arrays)
    run_header = parse_json(dataset.attrs["training"], f"{path}: training")
    coordinates = {name: dataset[name].values for name in header["members"]}
    if predictor is None:
        return Run(Ensemble(None, coordinates), dataset, run_header, Trajectory((), {}, None, coordinates))
    members = ensemble_of(predictor)
    _require_size(members, predictor, coordinates)
    stacked = restored(members.member(0), "members", arrays, path, member=True)
    _require_function(path, header, run_header.get("versions", {}), members.member(0))
    trained = jax.tree_util.tree_map_with_path(lambda at, _: jax.tree_util.keystr(at) in header["trained"], stacked)
    params, untrained = eqx.partition(stacked, trained)
    kept_params = {}
    for step in header["kept"]:
        file = checkpoints.path(step, "kept")
        kept_params[step] = jax.tree.map(np.asarray, restored(params, "params", unpacked(file)[1], file))
    trajectory = Trajectory(tuple(header["kept"]), kept_params, untrained, coordinates)
    return Run(Ensemble(stacked, coordinates), dataset, run_header, trajectory)


def _require_function(path: Path, header: Mapping[str, Any], versions: Mapping[str, str], predictor: Any) -> None:
    """Raise if a predictor is not the function that was trained; warn if this cannot be decided."""
    if "function" not in header:
        _warn(path, "an older version wrote it")
        return
    alike = answers_alike(header["function"], predictor)
    if alike:
        return
    present = parse_json(json.dumps(options(predictor)))
    changes, elsewhere = changed_options(header["options"], present), other_program(versions)
    if changes or (alike is False and not elsewhere):
        if not changes:
            changes = f"look at {', '.join(functions(present)) or 'the method of its class'}"
        hint = "give the predictor that was given to icl.fit"
        raise InputError(
            f"{path}: expected the function that was trained, got another: {first_changes(changes)}; {hint}"
        )
    _warn(
        path,
        f"written elsewhere: {elsewhere}"
        if elsewhere
        else "the class of its prompts has not been imported, or it does not answer single prompts",
    )


def _warn(path: Path, reason: str) -> None:
    message = f"{path}: the function of the predictor is not compared with the one that was trained ({reason})"
    warnings.warn(message, stacklevel=4)


def _dataset(header: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> xr.Dataset:
    """The dataset of a run; version 0.2 listed dimensions, texts and dtype of each variable."""
    content = header["dataset"]
    if "data_vars" in content:
        for name, variable in (content["coords"] | content["data_vars"]).items():
            variable["data"] = arrays[f"dataset.{name}"]
        return xr.Dataset.from_dict(content)
    variables = {
        name: (dims, arrays[f"dataset.{name}"] if texts is None else np.asarray(texts, dtype))
        for name, (dims, texts, dtype) in content.items()
    }
    attributes = {"training": json.dumps(header["training"])}
    return xr.Dataset(variables, attrs=attributes).set_coords(header["coordinates"])


def _require_size(members: Ensemble, predictor: Any, coordinates: dict[str, np.ndarray]) -> None:
    """Raise unless an ensemble has as many members as the run; a single predictor fits any run."""
    size, total = members.size, len(coordinates["seed"])
    was_crossed = not set(coordinates) <= set(members.coordinates)
    if isinstance(predictor, Ensemble) and (total % size if was_crossed else total != size):
        count = f"{total} member{'s' * (total > 1)}"
        raise expected("predictor", f"the ensemble of the run, with {count}", size)
