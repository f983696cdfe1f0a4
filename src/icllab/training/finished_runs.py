"""A finished run in its store: written at the end of training, opened by ``icl.load``."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import xarray as xr

from icllab.core.errors import expected, require_path
from icllab.core.files import write_atomically
from icllab.training.checkpoints import KEPT, Checkpoints, named, packed, restored, unpacked
from icllab.training.ensembles import Ensemble, ensemble_of
from icllab.training.runs import Run, Trajectory

_FILE = "finished.icl"


def write_finished(root: Path, run: Run, params: Any) -> None:
    """Write a finished run beside its checkpoints; ``params`` are the trained arrays of its members."""
    header = {
        "dataset": run.dataset.to_dict(data=False),
        "members": list(run.members.coordinates),
        "trained": sorted(named(params, "")),
        "kept": list(run.trajectory.steps),
    }
    arrays = {f"dataset.{name}": np.asarray(variable.values) for name, variable in run.dataset.variables.items()}
    write_atomically(root / _FILE, packed(header, arrays | named(run.members.stacked, "members")), KEPT)


def load(store: str | Path, predictor: Any = None) -> Run:
    """Open a finished run of :func:`icllab.fit`; nothing is compiled, trained or changed.

    Args:
        store: The directory that was given to ``fit``.
        predictor: The predictor or ensemble that was given to ``fit``; its structure matters, its numbers do not.
            None: the run has losses, statuses and header, and no members.

    Raises:
        InputError: There is no finished run; or the predictor has other arrays than the trained one, or the ensemble
            another number of members.
    """
    require_path("store", store, "the folder that was given to icl.fit")
    checkpoints, path = Checkpoints(store), Path(store) / _FILE
    if not path.is_file():
        steps = checkpoints.steps()
        state = f"one that stands at {steps[-1]} steps" if steps else "none"
        raise expected(str(store), "a finished training run", state, "icl.fit with this store makes or finishes it")
    header, arrays = unpacked(path)
    dataset = _dataset(header, arrays)
    run_header = json.loads(dataset.attrs["training"])
    coordinates = {name: dataset[name].values for name in header["members"]}
    if predictor is None:
        return Run(Ensemble(None, coordinates), dataset, run_header, Trajectory((), {}, None, coordinates))
    members = ensemble_of(predictor)
    _require_size(members, predictor, coordinates)
    stacked = restored(members.member(0), "members", arrays, path, member=True)
    trained = jax.tree_util.tree_map_with_path(lambda at, _: jax.tree_util.keystr(at) in header["trained"], stacked)
    params, untrained = eqx.partition(stacked, trained)
    kept_params = {}
    for step in header["kept"]:
        file = checkpoints.path(step, "kept")
        kept_params[step] = jax.tree.map(np.asarray, restored(params, "params", unpacked(file)[1], file))
    trajectory = Trajectory(tuple(header["kept"]), kept_params, untrained, coordinates)
    return Run(Ensemble(stacked, coordinates), dataset, run_header, trajectory)


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
    """Raise unless an ensemble has the run's number of members; one predictor stands for all."""
    size, total = members.size, len(coordinates["seed"])
    was_crossed = not set(coordinates) <= set(members.coordinates)
    if isinstance(predictor, Ensemble) and (total % size if was_crossed else total != size):
        count = f"{total} member{'s' * (total > 1)}"
        raise expected("predictor", f"the ensemble of the run, which has {count}", size)
