"""``icl doctor``: versions, devices, and a test that results can be written."""

import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import icllab
from icllab.cli.reports import Report, typeset
from icllab.core.errors import install_command

if TYPE_CHECKING:
    from rich.console import Console

DISTRIBUTION = "icl-lab"
PYTHONS = ((3, 11), (3, 13))
_SPACE_NEEDED = 200e6


class Row(NamedTuple):
    """One thing examined."""

    what: str
    state: Literal["ok", "note", "problem"]
    detail: str


def examine(out: Path) -> Report:
    """Examine everything; any problem is exit status 4."""
    rows = [row for part in (_python, _packages, _jax, lambda: _disk(out)) for row in _guarded(part)]
    problems = [row for row in rows if row.state == "problem"]
    data = {"examined": [row._asdict() for row in rows], "problems": [f"{row.what}: {row.detail}" for row in problems]}

    def plain(console: "Console") -> None:
        from rich.table import Table

        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        styles = {"ok": "green", "note": "yellow", "problem": "bold red"}
        for row in rows:
            table.add_row(
                typeset((row.state, styles[row.state])), typeset(row.what), typeset(row.detail, overflow="fold")
            )
        console.print(table)
        console.print(typeset((f"{len(problems)} problems" if problems else "no problems", "bold")))

    return Report(data, plain, 4 if problems else 0)


def _guarded(part: Callable[[], Iterator[Row]]) -> Iterator[Row]:
    """Turn an exception of a part into a problem, so that the other parts are still examined."""
    try:
        yield from part()
    except Exception as error:
        yield Row(part.__name__.strip("_<>"), "problem", f"{type(error).__name__}: {' '.join(str(error).split())}")


def _python() -> Iterator[Row]:
    low, high = PYTHONS
    running = sys.version_info[:2]
    range_tested = f"{low[0]}.{low[1]} to {high[0]}.{high[1]}"
    version = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if running < low:
        yield Row("python", "problem", f"{version}; expected {range_tested}")
    elif running > high:
        yield Row("python", "note", f"{version}; tested: {range_tested}")
    else:
        yield Row("python", "ok", version)
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    settings = [f"{n}={os.environ[n]}" for n in ("XLA_FLAGS", "OMP_NUM_THREADS", "JAX_PLATFORMS") if n in os.environ]
    yield Row("processors", "ok", ", ".join([f"{threads} usable", *settings]))


def _packages() -> Iterator[Row]:
    """Requirements must be met; pinned versions, where the checkout has them, are what was tested."""
    from packaging.requirements import Requirement

    pins, optional, count = _pins(), {}, 0
    for requirement in map(Requirement, metadata.requires(DISTRIBUTION) or []):
        extra = str(requirement.marker).partition('extra == "')[2].partition('"')[0] if requirement.marker else ""
        if requirement.name == DISTRIBUTION:
            continue
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            version = None
        sound = version is not None and requirement.specifier.contains(version, prereleases=True)
        if extra:
            optional.setdefault(extra, []).append((requirement, sound))
        elif not sound:
            yield Row(requirement.name, "problem", f"expected {requirement.specifier}, got {version or 'none'}")
        elif pins.get(requirement.name, version) != version:
            yield Row(requirement.name, "note", f"{version}; {pins[requirement.name]} was tested")
        else:
            count += 1
    yield Row("packages", "ok", f"{count} of the core as {'pinned' if pins else 'required'}")
    for extra, parts in optional.items():
        lacking = [str(requirement.name) for requirement, sound in parts if not sound]
        detail = "installed" if not lacking else f"without {', '.join(lacking)}; {install_command(extra)}"
        yield Row(f"extra [{extra}]", "ok" if not lacking else "note", detail)


def _pins() -> dict[str, str]:
    """name -> version of the checkout's ``constraints.txt``, for this platform."""
    from packaging.requirements import Requirement

    path = Path(icllab.__file__).parents[2] / "constraints.txt"
    if not path.is_file():
        return {}
    lines = (line.strip() for line in path.read_text("utf-8").splitlines())
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {r.name: str(r.specifier).removeprefix("==") for r in pins if r.marker is None or r.marker.evaluate()}


def _jax() -> Iterator[Row]:
    import jax
    import jax.numpy as jnp

    from icllab.lab.placement import require_start

    require_start(children=False)
    devices = jax.devices()
    kinds = ", ".join(f"{d.platform}: {d.device_kind}" for d in devices)
    yield Row("jax", "ok", f"{jax.__version__}, {len(devices)} device{'s' * (len(devices) > 1)} ({kinds})")
    with jax.enable_x64(True):
        wide = jnp.ones(2, jnp.float64) / 3
        exact = wide.dtype == jnp.float64 and abs(float(wide[0]) - 1 / 3) < 1e-16
    always = "on by default" if jax.config.read("jax_enable_x64") else "on request"
    yield Row("float64", "ok" if exact else "problem", always if exact else f"expected float64, got {wide.dtype}")
    size, times = 1024, []
    a = jnp.ones((size, size), jnp.float32)
    product = jax.jit(jnp.matmul)
    product(a, a).block_until_ready()
    for _ in range(7):
        start = time.perf_counter()
        product(a, a).block_until_ready()
        times.append(time.perf_counter() - start)
    median = sorted(times)[len(times) // 2]
    yield Row("speed", "ok", f"{2 * size**3 / median / 1e9:.0f} GFLOP/s in float32 products of {size}")


def _disk(out: Path) -> Iterator[Row]:
    """Write, flush and move a file in the directory of results, and remove it."""
    folder = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    name = f"results in {out}"
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".icl-doctor-") as trial:
            first, second = Path(trial, "a"), Path(trial, "b")
            with first.open("wb") as file:
                file.write(bytes(1 << 20))
                file.flush()
                os.fsync(file.fileno())
            first.replace(second)
    except OSError as error:
        yield Row(name, "problem", f"cannot write there: {error.strerror}; choose another --out")
        return
    free = shutil.disk_usage(folder).free
    yield Row(name, "ok" if free > _SPACE_NEEDED else "problem", f"writable, {free / 1e9:.1f} GB free")
