"""A cell as a job of plain values, and ``measure``, which turns a job into the bytes of the cell's file.

A worker needs this library and the claim, and no file of the results: it may be on another machine, with another file
system. What it returns is kept by the run that submitted the job.
"""

import contextlib
import ctypes
import dataclasses
import datetime
import faulthandler
import gc
import json
import os
import socket
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import icllab
from icllab.core.errors import (
    CellsMissing,
    EnvironmentFault,
    IclError,
    InputError,
    expected,
    require_known,
    require_path,
)
from icllab.core.files import parse_json
from icllab.core.grid import Coordinates, cell_key
from icllab.core.progress import shown
from icllab.core.result_warnings import collected
from icllab.core.settings import DEFAULT, GENERATOR, matmul_precision, pinned_generator
from icllab.lab import provenance, registry, source_files
from icllab.lab.claim import SIZES, Claim
from icllab.lab.placement import AS_STATED, SEED, Placement, measured_in_blocks, placed
from icllab.lab.subjects import Given, given, slug, stated

if TYPE_CHECKING:
    import xarray as xr

OUT = "icl-results"
MAPPED = 0.5
"""Fraction of the memory mappings that Linux allows a process, from which compiled programs are dropped."""
GROWTH = 256_000_000
"""Bytes by which a process may grow between two cells before compiled programs are dropped."""
_resident: int | None = None  # bytes of this process before its first cell, or after programs were last dropped


class CellFault(IclError):
    """Error of a cell whose measurement raised; ``details`` is the traceback."""

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message, details)
        self.details = details

    def __str__(self) -> str:
        return str(self.args[0])


class UnfitWorker(EnvironmentFault):
    """Error of a worker with other versions than the run."""


@dataclass(frozen=True)
class Request:
    """A request for a run, or for its results, as plain values that a worker can receive.

    Attributes:
        name: ``subject/finding``.
        size: One of ``SIZES``.
        axes: Values that replace those of the size.
        seeds: Number of independent repetitions; None: that of the size.
        out: Where results are kept.
        control: One of the claim's negative controls.
        claims: A folder with the user's claims.
        placement: A device and a precision.
        matmul_precision: Default precision of matrix products, by the name of :mod:`icllab.core.settings`.
        network: A user's network in the place of the claim's own.
    """

    name: str
    size: str = "small"
    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    seeds: int | None = None
    out: str = OUT
    control: str | None = None
    claims: str | None = None
    placement: Placement = AS_STATED
    matmul_precision: str = DEFAULT
    network: Given | None = None

    def configuration(self) -> dict[str, Any]:
        """The settings on which a cell depends besides its coordinates."""
        settings = self.claim().configuration(self.size, self.control, self.matmul_precision)
        return settings | ({} if self.network is None else {"network": self.network.configuration()})

    def claim(self) -> Claim:
        """The claim, with the fixed values, the control and the precision of the request."""
        claim = registry.load(self.name, self.claims)
        precision = self.placement.precision or claim.precision
        claim = claim if precision == claim.precision else dataclasses.replace(claim, precision=precision)
        claim = claim.at(self.size).with_fixed(self.axes).under(self.control)
        return claim if self.network is None else claim.of_network(self.network.steps)

    @property
    def root(self) -> Path:
        """The directory of the results."""
        root = results_root(self.out, self.name, self.size, self.control)
        return root if self.network is None else root.with_name(f"{root.name}~{slug(self.network.name)}")


def results_root(out: str | Path, claim: str, size: str, control: str | None = None) -> Path:
    """``OUT/<subject>/<finding>/<size>``; a negative control has a directory of its own."""
    return Path(out, *claim.split("/"), size if control is None else f"{size}@{control}")


def sizes_present(out: str | Path, claim: str, control: str | None = None, network: Given | None = None) -> list[str]:
    """The sizes at which a claim has results under ``out``, the largest last."""
    requests = [Request(claim, size, out=str(out), control=control, network=network) for size in SIZES]
    return [request.size for request in requests if (request.root / "configuration.json").is_file()]


def new_request(
    claim: str,
    size: str,
    *,
    axes: Mapping[str, Sequence[Any]] | None = None,
    seeds: int | None = None,
    out: str | Path = OUT,
    control: str | None = None,
    claims: str | Path | None = None,
    placement: Placement = AS_STATED,
    network: Any = None,
    task: Any = None,
    options: Mapping[str, Any] | None = None,
) -> Request:
    """A request with a user's values, whose names are checked; a claim from elsewhere runs, from its folder.

    ``network``, ``task`` and ``options`` are those of :func:`icllab.lab.subjects.given`.
    """
    folder = _folder(out, claims)
    if isinstance(claim, str) and registry.is_foreign(claim, folder):
        folder = str(registry.file(claim, folder).parent)
    if axes is not None and not isinstance(axes, Mapping):
        raise expected("axes", "a mapping of names to values", axes, "such as {'tau': [0.5, 2.0]}")
    values = {name: _sequence(name, v) for name, v in (axes or {}).items()}
    if not isinstance(size, str):
        raise expected("size", f"one of {', '.join(SIZES)}", size)
    # Of `bfloat16` the products are part of the precision.
    products = DEFAULT if placement.precision == "bfloat16" else matmul_precision()
    subject = _given(claim, folder, control, network, task, options or {})
    request = Request(claim, size, values, seeds, str(out), control, folder, placement, products, subject)
    request.claim().grid(size, values, seeds)
    return request


def stored_request(
    claim: str,
    size: str | None = None,
    *,
    out: str | Path = OUT,
    control: str | None = None,
    claims: str | Path | None = None,
    network: Any = None,
) -> Request:
    """The request that reads what is under ``out``, at the largest size there unless one is named.

    ``network``: the network of the run, or its name.
    """
    folder = _folder(out, claims)
    require_world(claim, folder, control)
    if size is not None:
        require_known("size", size, SIZES)
    subject = None if network is None else Given(network)
    sizes = sizes_present(out, claim, control, subject)
    if not sizes or (size is not None and size not in sizes):
        raise CellsMissing(
            f"{claim}{f' at size {size}' if size else ''}: expected results under {str(out)!r}, found none; "
            f"`icl run {claim}{f' --size {size}' if size else ''}` computes them"
        )
    request = Request(claim, size or sizes[-1], out=str(out), control=control, claims=folder, network=subject)
    if subject is None:
        return request
    settings = parse_json((request.root / "configuration.json").read_text(), "configuration")
    return dataclasses.replace(request, network=stated(settings["network"]))


def require_world(claim: str, folder: str | Path | None, control: str | None) -> None:
    """Raise unless a claim has this name, and this control; without one the claim's file is not imported."""
    if control is None and not registry.is_foreign(claim, folder):
        registry.file(claim, folder)
    else:
        registry.load(claim, folder).under(control)


def _folder(out: Any, claims: Any) -> str | None:
    """The resolved folder of the user's claims; raise unless both arguments are paths."""
    require_path("out", out, f"such as {OUT!r}")
    if claims is None:
        return None
    require_path("claims", claims, "the folder with claims of your own")
    return str(Path(claims).resolve())


def _given(
    name: str, folder: str | None, control: str | None, network: Any, task: Any, options: Mapping[str, Any]
) -> Given | None:
    """A user's network for the claim of a name; None without one."""
    if network is None and not options:
        if task is not None:
            raise expected("--task", "a task beside --network", task, f"{name} has its own")
        return None
    claim = registry.load(name, folder)
    if control is not None and claim.subject is not None:
        require_known(f"control of {name} for another network", control, claim.subject.controls)
    return given(claim, network, task, options, folder)


def _sequence(name: str, values: Any) -> tuple[Any, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise expected(f"axes[{name!r}]", "a sequence of values", values, f"for one value: {{{name!r}: [{values!r}]}}")
    return tuple(values)


@dataclass(frozen=True)
class Job:
    """One cell to measure; plain values only.

    Attributes:
        request: The run that submits the job.
        cell: Static coordinates.
        block: Traced axis -> values.
        versions: Those of the run; a worker of other versions refuses the job.
        limit: Seconds after which the worker ends its own process; None: no limit.
        scratch: A directory in which the cell may keep checkpoints until it is finished.
        checkpoints: A directory in which the cell may leave checkpoints for others.
    """

    request: Request
    cell: Coordinates
    block: Mapping[str, tuple[Any, ...]]
    versions: Mapping[str, str]
    limit: float | None = None
    scratch: str | None = None
    checkpoints: str | None = None


def measure(job: Job) -> bytes:
    """The bytes of a cell's file; runs in whichever process is given the job.

    Raises:
        InputError: The claim cannot use its input.
        UnfitWorker: This process has other versions than the run.
        CellFault: The claim's ``measure`` raised.
    """
    from icllab.lab.netcdf import to_bytes

    versions = provenance.versions()
    if versions != job.versions:
        run, worker = (" and ".join(f"{name} {v}" for name, v in v.items()) for v in (job.versions, versions))
        raise UnfitWorker(
            f"worker on {socket.gethostname()}: expected {run} as the run has, got {worker}; "
            "install the same versions there"
        )
    drop_programs()
    try:
        if job.limit is not None:  # a process that hangs may do so where no Python runs: the clock is a thread of C
            faulthandler.dump_traceback_later(job.limit, exit=True)
        with shown(job.request.name, False), collected():  # a run shows its cells, and no cell what it does
            return to_bytes(_dataset(job))
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # whatever a claim's measure may raise
        message = " ".join(f"{type(error).__name__}: {error}".split())
        raise CellFault(message, traceback.format_exc()) from None
    finally:
        if job.limit is not None:
            faulthandler.cancel_dump_traceback_later()


def _dataset(job: Job) -> "xr.Dataset":
    """The Dataset of a cell, with its provenance in the attributes."""
    import jax

    from icllab.lab.results import cell_dataset, values_of_block

    request, claim = job.request, job.request.claim()
    attributes = {
        "claim": claim.name,
        "sources": json.dumps(claim.sources),
        "cell": json.dumps(job.cell, sort_keys=True),
        "package_version": icllab.__version__,
        "git_commit": provenance.commit(),
        **registry.origin(claim.name, request.claims),
        "precision": claim.precision,
        "key": claim.key,
        "generator": GENERATOR,
        "matmul_precision": request.matmul_precision,
        "measure_digest": source_files.measure_digest(claim, request.claims),
        "configuration": json.dumps(request.configuration()),
    }
    arguments: dict[str, Any] = {}
    with pinned_generator():  # this imports the measuring file, which may make keys
        parameters = registry.parameters(claim, request.claims)
    for name, directory in (("scratch", job.scratch), ("checkpoints", job.checkpoints)):
        if directory is not None and name in parameters:
            arguments[name] = Path(directory)
            arguments[name].mkdir(parents=True, exist_ok=True)
    with placed(request.placement.device, claim.precision, request.matmul_precision):
        if request.network is not None:
            assert claim.subject is not None  # the request was made for it
            attributes["network"] = request.network.name
            arguments |= request.network.arguments(claim.subject.kind, parameters)
        attributes |= provenance.machine()
        key = cell_key(jax.random.key(claim.key), job.cell)

        def measure_block(block: Mapping[str, Any]) -> Any:
            assert claim.measure is not None  # the registry has set it
            point = claim.point(job.cell, block)
            values = claim.measure(point, key=key, **arguments)
            return values_of_block(claim, request.size, values, block, point.names_read)

        provenance.reset_memory()
        start, cpu_start = time.perf_counter(), time.process_time()
        values, seeds_at_once = measured_in_blocks(measure_block, dict(job.block))
        attributes["seconds"] = time.perf_counter() - start
        attributes |= {"cpu_seconds": time.process_time() - cpu_start, **provenance.memory()}
    if seeds_at_once < len(job.block.get(SEED, ())):
        attributes["seeds_at_once"] = seeds_at_once
    attributes["created"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return cell_dataset(claim, values, job.block, attributes)


def drop_programs() -> None:
    """Drop compiled programs if they take too much memory or too many memory mappings.

    A program takes some ten mappings. A run of thousands would end in *Unable to allocate section memory*. Cells of one
    shape are measured one after the other, so a program that is dropped is seldom compiled again.
    """
    import jax

    global _resident
    try:
        mappings = Path("/proc/self/maps").read_bytes().count(b"\n")
        limit = int(Path("/proc/sys/vm/max_map_count").read_text())
        _resident = _resident or resident()
        if mappings <= MAPPED * limit and resident() <= _resident + GROWTH:
            return
    except OSError:  # another system than Linux
        return
    jax.clear_caches()
    gc.collect()
    with contextlib.suppress(AttributeError):  # another C library than glibc, which keeps what is freed
        ctypes.CDLL(None).malloc_trim(0)
    _resident = resident()


def resident() -> int:
    """Bytes of memory that this process holds now; raises OSError on another system than Linux."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
