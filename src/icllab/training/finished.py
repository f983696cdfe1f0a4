"""A finished run on disk, in the format of a checkpoint; it is opened without compiling or computing anything."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from icllab.core.errors import InputError, expected, require_path
from icllab.core.files import write_atomically
from icllab.training.ensembles import Ensemble, ensemble_of
from icllab.training.runs import Run, Unopened
from icllab.training.store import KEPT, Checkpoints, named, packed, unpacked
from icllab.training.trajectory import Trajectory

_FILE = "finished.icl"
_WITHOUT = "icl.load(store, predictor) with the predictor or ensemble that was given to icl.fit"


def write(root: Path, run: Run, members: Ensemble, params: Any) -> None:
    """Keep a finished run beside its checkpoints: its members, of whose arrays ``params`` were trained."""
    arrays, texts = {}, {}
    for name, variable in run.dataset.variables.items():
        text = variable.dtype.kind == "U"
        texts[str(name)] = [list(variable.dims), variable.values.tolist() if text else None, variable.dtype.str]
        if not text:
            arrays[f"dataset.{name}"] = np.asarray(variable.values)
    header = {
        "dataset": texts,
        "coordinates": [str(name) for name in run.dataset.coords],
        "members": list(members.coordinates),
        "training": dict(run.header),
        "trained": sorted(named(params, "")),
        "kept": list(run.trajectory.steps),
    }
    content = packed(header, arrays | named(members.stacked, "members"))
    write_atomically(root / _FILE, content, KEPT)


def load(store: str | Path, predictor: Any = None) -> Run:
    """Open a finished run of :func:`icllab.fit`; nothing is compiled, trained or changed.

    Args:
        store: The directory that was given to ``fit``.
        predictor: The predictor or ensemble that was given to ``fit``: its numbers do not matter, its structure does.
            None: losses, statuses and the header alone; asking for a member is refused.

    Raises:
        InputError: There is no finished run; or the predictor has other arrays than the one that was trained,
            or the ensemble another number of members.
    """
    require_path("store", store, "the folder that was given to icl.fit")
    root = Path(store)
    path = root / _FILE
    if not path.is_file():
        steps = [int(file.stem.rpartition("-")[2]) for file in root.glob("checkpoint-*.icl")]
        came = f"one that stands at {max(steps)} steps" if steps else "none"
        raise expected(str(root), "a finished training run", came, "icl.fit with this store makes or finishes it")
    header, arrays = unpacked(path)
    dataset = _dataset(header, arrays)
    coordinates = {name: dataset[name].values for name in header["members"]}
    if predictor is None:
        return Run(Unopened(_WITHOUT, coordinates), dataset, header["training"], Trajectory((), {}, None, coordinates))
    members = ensemble_of(predictor)
    _require_size(members, predictor, coordinates)
    stacked = _filled(members.member(0), arrays, "members", path)
    trained = jax.tree_util.tree_map_with_path(lambda at, _: jax.tree_util.keystr(at) in header["trained"], stacked)
    params, rest = eqx.partition(stacked, trained)
    kept = {}
    for step in header["kept"]:
        file = Checkpoints.path_in(root, step, "kept")
        kept[step] = jax.tree.map(np.asarray, _filled(params, unpacked(file)[1], "params", file))
    trajectory = Trajectory(tuple(header["kept"]), kept, rest, coordinates)
    return Run(Ensemble(stacked, coordinates), dataset, header["training"], trajectory)


def _require_size(members: Ensemble, given: Any, coordinates: Mapping[str, np.ndarray]) -> None:
    """Refuse an ensemble of another number of members than was given to ``fit``; one predictor stands for all."""
    size, total = members.size, len(coordinates["seed"])
    crossed = not set(coordinates) <= set(members.coordinates)
    if isinstance(given, Ensemble) and (total % size if crossed else total != size):
        count = f"{total} member{'s' * (total > 1)}"
        raise expected("predictor", f"the ensemble of the run, which has {count}", size)


def _dataset(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> xr.Dataset:
    variables = {
        name: (dims, arrays[f"dataset.{name}"] if texts is None else np.asarray(texts, dtype))
        for name, (dims, texts, dtype) in header["dataset"].items()
    }
    dataset = xr.Dataset(variables, attrs={"training": json.dumps(header["training"])})
    return dataset.set_coords(header["coordinates"])


def _filled(like: Any, arrays: Mapping[str, np.ndarray], prefix: str, path: Path) -> Any:
    """The structure of a predictor with stored arrays, which have a leading member axis; other arrays are refused."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    names = [prefix + jax.tree_util.keystr(at) if eqx.is_array(leaf) else None for at, leaf in leaves]
    stored = {name: array for name, array in arrays.items() if name.startswith(prefix)}
    if set(stored) != {name for name in names if name is not None}:
        differing = sorted(set(stored) ^ {name for name in names if name is not None})
        raise InputError(f"{path}: expected the predictor that was trained, got one that differs in {differing[0]!r}")
    found = []
    for name, (_, leaf) in zip(names, leaves, strict=True):
        if name is None:
            found.append(leaf)
            continue
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        shape, array = (jax.random.key_data(leaf) if is_key else leaf).shape, stored[name]
        if array.shape[array.ndim - len(shape) :] != shape:
            raise InputError(
                f"{path}: expected the predictor that was trained, with {name!r} of shape {list(array.shape[1:])}, "
                f"got {list(shape)}"
            )
        value = jnp.asarray(array)
        found.append(jax.random.wrap_key_data(value, impl=str(jax.random.key_impl(leaf))) if is_key else value)
    return jax.tree.unflatten(structure, found)
