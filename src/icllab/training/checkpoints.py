r"""Checkpoints: a JSON header that is checked before a byte of the arrays is read, then the arrays.

    DIR/checkpoint-000000000512.icl     the state after 512 steps; the last two are kept
    DIR/kept-000000000100.icl           parameters asked for with ``Record(keep=...)``
    DIR/finished.icl                    members and losses, once the run has ended: see ``icl.load``

A file is one line of text, one line of JSON with every array's path, type and shape, and the arrays' bytes in that
order. The first line has the SHA-256 of all that follows. Nothing is unpickled. Files are written under a temporary
name, fsynced and moved into place: a kill at any moment leaves the one before.
"""

import hashlib
import json
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from icllab.core.domains import Domain
from icllab.core.errors import InputError, expected, require_path
from icllab.core.files import DamagedFile, difference, disk_faults, write_atomically
from icllab.training.ensembles import Ensemble, ensemble_of
from icllab.training.loop import State
from icllab.training.plans import Plan
from icllab.training.runs import Run, Trajectory, Unopened

SCHEMA = 1
KEPT = "the last checkpoint is kept"
_MAGIC = "icl-lab checkpoint"


@dataclass(frozen=True)
class CheckpointStore:
    """Where the checkpoints of a run are kept, and how often one is written.

    Attributes:
        path: A directory for this run alone, created if it does not exist.
        seconds: A checkpoint is written no sooner than so long after the one before; infinite: at the end only. The
            last state always is.
    """

    path: str | Path
    seconds: float = 30.0

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | Path) or not str(self.path):
            raise expected("store", "a directory", self.path)
        Domain(least=0, infinite=True, text="a number of seconds >= 0").require("seconds", self.seconds)


def packed(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """The bytes of a file."""
    entries = [{"name": name, "dtype": a.dtype.str, "shape": list(a.shape)} for name, a in arrays.items()]
    described = json.dumps({**header, "schema": SCHEMA, "arrays": entries}, sort_keys=True).encode() + b"\n"
    payload = described + b"".join(np.ascontiguousarray(a).tobytes() for a in arrays.values())
    return f"{_MAGIC}, sha256 {hashlib.sha256(payload).hexdigest()}\n".encode() + payload


def unpacked(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and arrays of a file; one that is not as written is refused."""
    with disk_faults(f"cannot read {path}", KEPT):
        content = path.read_bytes()
    first, _, payload = content.partition(b"\n")
    if not first.startswith(_MAGIC.encode()):
        raise DamagedFile(f"{path}: expected a checkpoint of icl-lab, got {first[:30]!r}; move it away")
    if first != f"{_MAGIC}, sha256 {hashlib.sha256(payload).hexdigest()}".encode():
        raise DamagedFile(f"{path}: expected bytes with the checksum of its first line, got {len(content)} others")
    described, _, rest = payload.partition(b"\n")
    header = json.loads(described)
    if header.get("schema") != SCHEMA:
        raise InputError(f"{path}: expected checkpoint schema {SCHEMA}, got {header.get('schema')!r}; start in another")
    arrays, start = {}, 0
    for entry in header.pop("arrays"):
        dtype = np.dtype(entry["dtype"])
        count = int(np.prod(entry["shape"], dtype=np.int64))
        arrays[entry["name"]] = np.frombuffer(rest, dtype, count, start).reshape(entry["shape"]).copy()
        start += count * dtype.itemsize
    return header, arrays


def named(tree: Any, prefix: str) -> dict[str, np.ndarray]:
    """Every array of a tree by its path; random keys by their data."""
    arrays = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        arrays[prefix + jax.tree_util.keystr(path)] = np.asarray(leaf)
    return arrays


def restored(like: Any, prefix: str, arrays: Mapping[str, np.ndarray], path: Path) -> Any:
    """A tree with the structure of ``like`` and the stored arrays; another structure is refused."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    stored = {name: f"{a.dtype}{list(a.shape)}" for name, a in arrays.items() if name.startswith(prefix)}
    wanted = {name: f"{a.dtype}{list(a.shape)}" for name, a in named(like, prefix).items()}
    if stored != wanted:
        raise InputError(f"{path}: the arrays are others: {_first(difference(stored, wanted))}; choose another store")
    values = []
    for place, leaf in leaves:
        value = jnp.asarray(arrays[prefix + jax.tree_util.keystr(place)])
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            value = jax.random.wrap_key_data(value, impl=str(jax.random.key_impl(leaf)))
        values.append(value)
    return jax.tree.unflatten(structure, values)


def _first(text: str, most: int = 3) -> str:
    parts = text.split(", ")
    return ", ".join(parts[:most]) + (f" and {len(parts) - most} more" if len(parts) > most else "")


class Checkpoints:
    """The checkpoints of one run in a directory of its own."""

    def __init__(self, root: str | Path, configuration: Mapping[str, Any]) -> None:
        self.root = Path(root)
        self.configuration = json.loads(json.dumps(configuration))
        with disk_faults(f"cannot use {self.root} for checkpoints", "nothing is lost"):
            self.root.mkdir(parents=True, exist_ok=True)

    def path(self, step: int, kind: str = "checkpoint") -> Path:
        """Where the state after ``step`` steps is kept."""
        return self.path_in(self.root, step, kind)

    @staticmethod
    def path_in(root: Path, step: int, kind: str = "checkpoint") -> Path:
        """Where a run in the directory ``root`` keeps the state after ``step`` steps."""
        return root / f"{kind}-{step:012d}.icl"

    def steps(self, kind: str = "checkpoint") -> list[int]:
        """Which are there, whole or not."""
        with disk_faults(f"cannot read {self.root}", "nothing is lost"):
            names = [path.stem for path in self.root.glob(f"{kind}-*.icl")]
        return sorted(int(name.rpartition("-")[2]) for name in names if name.rpartition("-")[2].isdigit())

    def write(self, step: int, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Keep the state after ``step`` steps, and the one before it."""
        content = packed({**header, "configuration": self.configuration, "step": step}, arrays)
        write_atomically(self.path(step), content, KEPT)
        with disk_faults(f"cannot remove old checkpoints from {self.root}", KEPT):
            for old in [there for there in self.steps() if there < step][:-1]:
                self.path(old).unlink(missing_ok=True)

    def write_kept(self, step: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep the parameters after ``step`` steps for good."""
        content = packed({"configuration": self.configuration, "step": step}, arrays)
        write_atomically(self.path(step, "kept"), content, KEPT)

    def read_kept(self, step: int) -> dict[str, np.ndarray] | None:
        """Kept parameters; None where there are none that are sound."""
        try:
            return unpacked(self.path(step, "kept"))[1] if self.path(step, "kept").exists() else None
        except DamagedFile as damage:
            warnings.warn(str(damage), stacklevel=2)
            return None

    def latest(self, most: int | None = None) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
        """The newest sound checkpoint of this configuration; None where there is none.

        A damaged one is passed over with a warning, for the one before it. One of another configuration is refused
        with the difference shown.
        """
        there = self.steps()
        for step in reversed(there):
            try:
                header, arrays = unpacked(self.path(step))
            except DamagedFile as damage:
                warnings.warn(f"{damage}; the checkpoint before it is used", stacklevel=2)
                continue
            self._require_same(header, step)
            if most is None or step <= most:
                return header, arrays
        if there and most is not None and min(there) > most:
            raise InputError(
                f"{self.root}: expected a run of at most {most} steps, got one of {there[-1]}; ask for more"
            )
        if there:
            raise DamagedFile(
                f"{self.root}: expected a sound checkpoint, got {len(there)} damaged; move them away to start again"
            )
        return None

    def _require_same(self, header: Mapping[str, Any], step: int) -> None:
        stored, wanted = dict(header["configuration"]), dict(self.configuration)
        made, here = header["versions"], wanted_versions()
        if made != here:
            # The program's text differs between versions even where it does the same.
            stored["program"] = wanted["program"]
            warnings.warn(
                f"{self.path(step)}: written elsewhere ({difference(made, here)}); the run goes on, "
                "not with the same bits",
                stacklevel=4,
            )
        if stored != wanted:
            raise InputError(
                f"{self.root} holds a run of another configuration: {_first(difference(stored, wanted))}; "
                "choose another store"
            )


def wanted_versions() -> dict[str, str]:
    """What the bits of a run depend on besides its configuration."""
    device = jax.devices()[0]
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return {
        **{name: version(name) for name in ("icl-lab", "jax", "jaxlib", "equinox", "optax")},
        "device": f"{device.platform}: {device.device_kind}",
        "threads": str(threads),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


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
    values = []
    for name, (_, leaf) in zip(names, leaves, strict=True):
        if name is None:
            values.append(leaf)
            continue
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        shape, array = (jax.random.key_data(leaf) if is_key else leaf).shape, stored[name]
        if array.shape[array.ndim - len(shape) :] != shape:
            raise InputError(
                f"{path}: expected the predictor that was trained, with {name!r} of shape {list(array.shape[1:])}, "
                f"got {list(shape)}"
            )
        value = jnp.asarray(array)
        values.append(jax.random.wrap_key_data(value, impl=str(jax.random.key_impl(leaf))) if is_key else value)
    return jax.tree.unflatten(structure, values)


def configuration(plan: Plan, state: State) -> dict[str, Any]:
    """What a store is checked against before anything is read from it. ``steps`` is no part: a run may be extended.

    ``program`` is a digest of one member's step as JAX writes it out. It knows what cannot be compared otherwise: the
    optimiser's closures, the predictor's static fields, the task's loss.
    """
    program = plan.program
    return {
        "batch": program.stream.batch,
        "prompts": program.stream.name,
        "positions": list(program.positions),
        "record": repr(plan.record.losses),
        "members": {name: np.asarray(values).tolist() for name, values in plan.members.coordinates.items()},
        "key": np.asarray(jax.random.key_data(plan.key)).tolist(),
        "generator": str(jax.random.key_impl(plan.key)),
        "predictor": digest((plan.params, plan.constants.frozen)),
        "task": digest(program.task),
        "data": digest((program.data, plan.constants.data)),
        "held_out": digest(plan.held_out),
        "stop": [type(rule).__name__ for rule in program.rules],
        "thresholds": digest(program.rules),
        "program": _program(plan, state),
    }


def digest(tree: Any) -> str:
    """Hash of all arrays of a tree: paths, types, shapes and bytes."""
    hasher = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_flatten_with_path(eqx.filter(tree, eqx.is_array))[0]:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        value = np.asarray(leaf)
        hasher.update(f"{jax.tree_util.keystr(path)} {value.dtype} {value.shape}".encode() + value.tobytes())
    return hasher.hexdigest()[:16]


def _program(plan: Plan, state: State) -> str:
    constants, first = jax.tree.map(lambda leaf: leaf[0], (plan.constants, state))

    def step(program: Any, constants: Any, state: State) -> State:
        now = jnp.int32(0)
        return program.update(constants, state, program.prompts_at(constants, now), now)

    jaxpr, _, _ = eqx.filter_make_jaxpr(step)(plan.program, constants, first)
    text = hashlib.sha256(re.sub(r" at 0x[0-9a-f]+|id=\d+", "", str(jaxpr)).encode())
    for constant in jaxpr.consts:
        text.update(np.asarray(constant).tobytes())
    return text.hexdigest()[:16]
