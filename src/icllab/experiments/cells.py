"""One cell, measured by whoever is given it: from plain values to the bytes of its file.

A worker needs this library and the claim, and no file of the results: it may be on another machine, with another file
system. What it answers is kept by the run that asked.
"""

import contextlib
import datetime
import faulthandler
import gc
import json
import socket
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import icllab
from icllab.core.errors import InputError
from icllab.core.grid import Coordinates, cell_key
from icllab.experiments import provenance, registry
from icllab.experiments.placement import SEED, measured_in_blocks, placed
from icllab.experiments.requests import Request

if TYPE_CHECKING:
    import xarray as xr

MAPPED = 0.5
"""Part of the memory mappings that Linux allows a process, from which compiled programs are forgotten between cells."""

Ending: TypeAlias = Literal["measured", "refused", "raised", "died", "abandoned", "unfit"]


@dataclass(frozen=True)
class Order:
    """What a worker is asked to measure; plain values only.

    Attributes:
        request: The run that asks.
        cell: Static coordinates.
        block: Traced axis -> values.
        versions: Those of the run: a worker of others is not fit to measure for it.
        limit: Seconds that the claim's ``measure`` may take; None: any time.
    """

    request: Request
    cell: Coordinates
    block: Mapping[str, tuple[Any, ...]]
    versions: Mapping[str, str]
    limit: float | None = None


@dataclass(frozen=True)
class Answer:
    """How measuring a cell ended.

    Attributes:
        ending: ``measured``; ``refused``, where the input cannot be used; ``raised``, of any other error; ``died``,
            where the worker's process ended, or was ended at the time limit; ``abandoned``, where a scheduler gives up
            a cell whose workers die; ``unfit``, of a worker of other versions.
        content: The bytes of a file with what was measured.
        seconds: Time that it took, without that in which programs were compiled.
        message: What went wrong, in one line.
        details: The traceback.
    """

    ending: Ending
    content: bytes = b""
    seconds: float = 0.0
    message: str = ""
    details: str = ""


def measured(order: Order) -> Answer:
    """Measure, and answer in plain values whatever happens; runs in whichever process is given it."""
    from icllab.experiments.pace import watched
    from icllab.experiments.store import packed

    here = provenance.versions()
    if here != order.versions:
        wanted, came = (" and ".join(f"{name} {v}" for name, v in some.items()) for some in (order.versions, here))
        return Answer(
            "unfit",
            message=f"worker on {socket.gethostname()}: expected {wanted} as the run has, got {came}; "
            "install the same versions there",
        )
    forget_programs()
    try:
        with watched() as watch:
            content = packed(_measured(order))
    except (Exception, SystemExit) as error:  # whatever a claim's measure may raise
        said = " ".join(f"{type(error).__name__}: {error}".split())
        ending = "refused" if isinstance(error, InputError) else "raised"
        return Answer(ending, message=said, details=traceback.format_exc())
    return Answer("measured", content, watch.seconds - watch.compiling)


def forget_programs() -> None:
    """Forget what JAX has compiled, where it takes too many of the memory mappings that a process may have.

    A program takes some ten of them. A run of thousands would end in *Unable to allocate section memory*.
    """
    import jax

    try:
        used = Path("/proc/self/maps").read_bytes().count(b"\n")
        allowed = int(Path("/proc/sys/vm/max_map_count").read_text())
    except OSError:  # another system than Linux
        return
    if used > MAPPED * allowed:
        jax.clear_caches()
        gc.collect()


def _measured(order: Order) -> "xr.Dataset":
    """One block of a cell, with where it comes from; the sources are those before it was measured."""
    import jax

    from icllab.experiments.results import as_cell
    from icllab.experiments.store import SCHEMA

    request, experiment = order.request, order.request.experiment()
    origin = {
        "claim": experiment.name,
        "sources": json.dumps(experiment.sources),
        "cell": json.dumps(order.cell, sort_keys=True),
        "package_version": icllab.__version__,
        "git_commit": provenance.commit(),
        "sources_digest": registry.digest(request.claim, request.claims),
        "precision": experiment.precision,
        "key": experiment.key,
        "configuration": json.dumps(provenance.configuration(experiment, request.size, request.control, SCHEMA)),
    }
    with placed(request.placement.device, experiment.precision):
        origin |= provenance.machine()
        key = cell_key(jax.random.key(experiment.key), order.cell)
        measure = experiment.measure
        assert measure is not None  # the registry has set it

        def measured_of(block: Mapping[str, Any]) -> Any:
            return measure(experiment.point(order.cell, block), key=key)

        began = time.perf_counter()
        with limited(order.limit):
            values, together = measured_in_blocks(measured_of, dict(order.block))
        seconds = time.perf_counter() - began
    if together < len(order.block.get(SEED, ())):
        origin["seeds_at_once"] = together
    created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return as_cell(experiment, values, order.block, {**origin, "seconds": seconds, "created": created})


_deadlines: dict[int, float] = {}
_changing = threading.Lock()


@contextlib.contextmanager
def limited(seconds: float | None) -> Iterator[None]:
    """End this process, with the stacks of its threads on stderr, should what is inside take longer.

    A process that hangs may do so where no Python runs any more; the clock is a thread of C. It is one for the process:
    where several threads measure, it is set for the first of them that is due.
    """
    if seconds is None:
        yield
        return
    own = threading.get_ident()
    try:
        with _changing:
            _deadlines[own] = time.monotonic() + seconds
            _set_clock()
        yield
    finally:
        with _changing:
            _deadlines.pop(own, None)
            _set_clock()


def _set_clock() -> None:
    if _deadlines:
        left = min(_deadlines.values()) - time.monotonic()
        faulthandler.dump_traceback_later(max(left, 1e-3), exit=True, file=2)
    else:
        faulthandler.cancel_dump_traceback_later()
