"""Checkpoint files: a JSON header, checked before a byte of the arrays is read, and then the arrays.

    DIR/checkpoint-000000000512.icl     the state after 512 steps; the last two are kept
    DIR/kept-000000000100.icl           parameters of ``Record(keep=...)``
    DIR/finished.icl                    members and losses of a run that has ended: see ``icl.load``

A file is one line of text, one line of JSON with every array's path, type and shape, and the arrays' bytes in that
order. The first line has the SHA-256 of all that follows. Nothing is unpickled. Files are written under a temporary
name, fsynced and moved into place, so that a kill at any moment leaves the file before.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from icllab.core.domains import Domain
from icllab.core.errors import InputError, expected
from icllab.core.files import DamagedFile, difference, disk_faults, parse_json, write_atomically
from icllab.core.settings import DEFAULT, matmul_precision
from icllab.training.fingerprints import array_data, changed_options, jaxpr_digest, options
from icllab.training.loop import State
from icllab.training.plans import Plan

SCHEMA = 1
PACKAGES = ("icl-lab", "jax", "jaxlib", "equinox", "optax")
KEPT = "the last checkpoint is kept"
_MAGIC = "icl-lab checkpoint"
_OLDER = {"partitionable": True, "matmul_precision": DEFAULT}
"""Settings of JAX that a checkpoint of version 0.3 does not state."""


@dataclass(frozen=True)
class CheckpointStore:
    """Directory of a run's checkpoints, and the time between two of them.

    Attributes:
        path: A directory for this run alone, created if it does not exist.
        seconds: Least time between two checkpoints; infinite: one at the end only. The last state is always written.
    """

    path: str | Path
    seconds: float = 30.0

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | Path) or not str(self.path):
            raise expected("store", "a directory", self.path)
        Domain(least=0, infinite=True, text="a number of seconds >= 0").require("seconds", self.seconds)


def packed(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """The bytes of a checkpoint file."""
    entries = [{"name": name, "dtype": _dtype_name(a.dtype), "shape": list(a.shape)} for name, a in arrays.items()]
    heading = json.dumps({**header, "schema": SCHEMA, "arrays": entries}, sort_keys=True).encode() + b"\n"
    payload = heading + b"".join(np.ascontiguousarray(a).tobytes() for a in arrays.values())
    return f"{_MAGIC}, sha256 {hashlib.sha256(payload).hexdigest()}\n".encode() + payload


def _dtype_name(dtype: np.dtype[Any]) -> str:
    """A text from which ``np.dtype`` restores the type; ``str`` of a bfloat16 gives only its two bytes."""
    registered = dtype.isbuiltin == 2  # bfloat16, float8 and int4 of ml_dtypes, which JAX has registered
    return dtype.name if registered else dtype.str


def unpacked(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and arrays of a file; raise if its bytes differ from those written."""
    with disk_faults(f"cannot read {path}", KEPT):
        content = path.read_bytes()
    title, _, payload = content.partition(b"\n")
    if not title.startswith(_MAGIC.encode()):
        raise DamagedFile(f"{path}: expected a checkpoint of icl-lab, got {title[:30]!r}; move it away")
    if title != f"{_MAGIC}, sha256 {hashlib.sha256(payload).hexdigest()}".encode():
        raise DamagedFile(
            f"{path}: expected bytes with the checksum of its first line, got {len(content)} bytes with another"
        )
    heading, _, data = payload.partition(b"\n")
    header = parse_json(heading, f"{path}: header")
    if header.get("schema") != SCHEMA:
        raise InputError(f"{path}: expected checkpoint schema {SCHEMA}, got {header.get('schema')!r}; start in another")
    arrays, start = {}, 0
    for entry in header.pop("arrays"):
        if entry["name"] in arrays:
            raise DamagedFile(f"{path}: expected each array once, got {entry['name']!r} twice; move it away")
        dtype = np.dtype(entry["dtype"])
        count = int(np.prod(entry["shape"], dtype=np.int64))
        arrays[entry["name"]] = np.frombuffer(data, dtype, count, start).reshape(entry["shape"]).copy()
        start += count * dtype.itemsize
    return header, arrays


def named(tree: Any, prefix: str) -> dict[str, np.ndarray]:
    """Every array of a tree by its path; for random keys, their data."""
    leaves = jax.tree_util.tree_flatten_with_path(eqx.filter(tree, eqx.is_array))[0]
    return {prefix + jax.tree_util.keystr(path): np.asarray(array_data(leaf)) for path, leaf in leaves}


def restored(like: Any, prefix: str, arrays: Mapping[str, np.ndarray], path: Path, *, member: bool = False) -> Any:
    """A tree with the structure of ``like`` and the arrays of the file ``path``.

    Args:
        like: Its leaves that are not arrays are taken as they are.
        prefix: Start of the names of the tree's arrays.
        arrays: Stored arrays by name.
        path: Named in errors.
        member: Whether ``like`` is one member, and stored arrays have a leading member axis.

    Raises:
        InputError: The stored arrays have other names, types or shapes.
    """
    in_file = {name: f"{a.dtype}{list(a.shape[member:])}" for name, a in arrays.items() if name.startswith(prefix)}
    present = {name: f"{a.dtype}{list(a.shape)}" for name, a in named(like, prefix).items()}
    if in_file != present:
        changes = difference(in_file, present)
        raise InputError(f"{path}: expected other arrays: {first_changes(changes)}; choose another store")

    def value(place: Any, leaf: Any) -> Any:
        if not eqx.is_array(leaf):
            return leaf
        array = jax.device_put(arrays[prefix + jax.tree_util.keystr(place)])
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return array
        return jax.random.wrap_key_data(array, impl=str(jax.random.key_impl(leaf)))

    return jax.tree_util.tree_map_with_path(value, like)


def first_changes(changes: str, limit: int = 3) -> str:
    """The first of many differences, and the number of the remaining ones."""
    parts = changes.split(", ")
    return ", ".join(parts[:limit]) + (f" and {len(parts) - limit} more" if len(parts) > limit else "")


def other_program(versions: Mapping[str, str]) -> str:
    """Differences of versions that may change the text of a function; an empty text if this process has the same."""
    names = {*PACKAGES, "device"}
    present = {name: value for name, value in environment().items() if name in names}
    return difference({name: versions[name] for name in names & versions.keys()}, present)


class Checkpoints:
    """The checkpoints of one run in its own directory; without a configuration they are only read."""

    def __init__(self, root: str | Path, configuration: Mapping[str, Any] | None = None) -> None:
        self.root = Path(root)
        self.configuration = parse_json(json.dumps(configuration))
        if configuration is not None:
            with disk_faults(f"cannot use {self.root} for checkpoints", "nothing is lost"):
                self.root.mkdir(parents=True, exist_ok=True)

    def path(self, step: int, kind: str = "checkpoint") -> Path:
        """File of the state (or ``kept`` parameters) after ``step`` steps."""
        return self.root / f"{kind}-{step:012d}.icl"

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, sound or damaged."""
        with disk_faults(f"cannot read {self.root}", "nothing is lost"):
            names = [path.stem.rpartition("-")[2] for path in self.root.glob("checkpoint-*.icl")]
        return sorted(int(name) for name in names if name.isdigit())

    def write(self, step: int, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Write the state after ``step`` steps, and remove all older states except the last."""
        write_atomically(self.path(step), self._packed(step, header, arrays), KEPT)
        with disk_faults(f"cannot remove old checkpoints from {self.root}", KEPT):
            for old in [number for number in self.steps() if number < step][:-1]:
                self.path(old).unlink(missing_ok=True)

    def write_kept(self, step: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Write parameters after ``step`` steps, which are never removed."""
        write_atomically(self.path(step, "kept"), self._packed(step, {}, arrays), KEPT)

    def _packed(self, step: int, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
        return packed({**header, "configuration": self.configuration, "step": step}, arrays)

    def read_kept(self, step: int) -> dict[str, np.ndarray] | None:
        """Parameters kept after a step; None if the file is missing or damaged."""
        try:
            return unpacked(self.path(step, "kept"))[1] if self.path(step, "kept").exists() else None
        except DamagedFile as damage:
            warnings.warn(str(damage), stacklevel=2)
            return None

    def latest(self, limit: int | None = None) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
        """Header and arrays of the newest sound checkpoint; None if there is no checkpoint.

        A damaged checkpoint is skipped with a warning.

        Raises:
            InputError: The checkpoint has another configuration, or all have more than ``limit`` steps.
            DamagedFile: All checkpoints are damaged.
        """
        steps = self.steps()
        for step in reversed(steps):
            try:
                header, arrays = unpacked(self.path(step))
            except DamagedFile as damage:
                warnings.warn(f"{damage}; the checkpoint before it is used", stacklevel=2)
                continue
            self._require_same(header, step)
            if limit is None or step <= limit:
                return header, arrays
        if steps and limit is not None and steps[0] > limit:
            raise InputError(
                f"{self.root}: expected a run of at most {limit} steps, got a run of {steps[-1]}; give more steps"
            )
        if steps:
            raise DamagedFile(
                f"{self.root}: expected a sound checkpoint, got {len(steps)} damaged; move them away to start again"
            )
        return None

    def _require_same(self, header: Mapping[str, Any], step: int) -> None:
        """Raise if a checkpoint has another configuration; warn if it comes from another version or machine."""
        in_file, present = _OLDER | header["configuration"], dict(self.configuration)
        other_options = changed_options(in_file.pop("options", {}), present.pop("options", {}))
        program = difference({"program": in_file.pop("program")}, {"program": present.pop("program")})
        # The program's text differs between versions even if it does the same: there the options stand for it.
        is_other = other_options if other_program(header["versions"]) else program
        if changes := ", ".join(filter(None, (difference(in_file, present), is_other and (other_options or program)))):
            raise InputError(
                f"{self.root} holds a run of another configuration: {first_changes(changes)}; choose another store"
            )
        if changes := difference(header["versions"], environment()):
            warnings.warn(
                f"{self.path(step)}: written elsewhere ({changes}); the run continues, but not with the same bits",
                stacklevel=4,
            )


def environment() -> dict[str, str]:
    """Versions, device, threads and flags that affect the bits of a run in addition to its configuration."""
    device = jax.devices()[0]
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return {
        **{name: _version(name) for name in PACKAGES},
        "device": f"{device.platform}: {device.device_kind}",
        "threads": str(threads),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def _version(name: str) -> str:
    """The version of a package, or ``unknown`` for a source tree that is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"


def numerics() -> dict[str, Any]:
    """JAX settings that change the numbers of a run; the generator is part of its key."""
    return {
        "partitionable": bool(jax.config.jax_threefry_partitionable),  # pyright: ignore[reportAttributeAccessIssue]
        "matmul_precision": matmul_precision(),
    }


def configuration(plan: Plan, state: State) -> dict[str, Any]:
    """The configuration that must match a store before it is read; without ``steps``, so that a run may be extended.

    ``program`` is a digest of one member's step as JAX prints it. It depends on what cannot be compared otherwise: the
    optimiser's closures, the predictor's static fields, the task's loss. ``options`` only explain another program, and
    stand for it where versions differ.
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
        **numerics(),
        "predictor": tree_digest((plan.params, plan.constants.frozen)),
        "task": tree_digest(program.task),
        "data": tree_digest((program.data, plan.constants.data)),
        "held_out": tree_digest(plan.held_out),
        "stop": [type(rule).__name__ for rule in program.rules],
        "thresholds": tree_digest(program.rules),
        "program": _program_digest(plan, state),
        "options": options({"predictor": plan.members.member(0), "task": program.task}),
    }


def tree_digest(tree: Any) -> str:
    """Hash of all arrays of a tree: paths, types, shapes and bytes."""
    hasher = hashlib.sha256()
    for name, value in named(tree, "").items():
        hasher.update(f"{name} {value.dtype} {value.shape}".encode() + value.tobytes())
    return hasher.hexdigest()[:16]


def _program_digest(plan: Plan, state: State) -> str:
    constants, first = jax.tree.map(lambda leaf: leaf[0], (plan.constants, state))

    def update(program: Any, constants: Any, state: State) -> State:
        step = jnp.int32(0)
        return program.update(constants, state, program.prompts_at(constants, step), step)

    return jaxpr_digest(update, plan.program, constants, first)
