r"""Results on disk: one checksummed file per cell, written so that nothing finished is ever lost.

A cell file is a 512-byte text block, then HDF5 (netCDF-4); HDF5 calls this a user block, so any
netCDF reader opens the file as it is. The block names the SHA-256 of all that follows, because HDF5
itself returns a flipped bit without a word. Files are written under a temporary name, fsynced, moved
into place, and the directory is fsynced: a reader sees a whole file or none, and any number of
processes may share a directory.

    DIR/<claim>/<size>/configuration.json      what a cell depends on besides its coordinates
    DIR/<claim>/<size>/grids/<digest>.json     every grid that was asked for
    DIR/<claim>/<size>/cells/dim=40,tau=1.5.nc
    DIR/<claim>/<size>/failures/dim=80,tau=2.txt   the traceback of a cell that failed, until it is there
"""

import contextlib
import hashlib
import io
import itertools
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icllab.core.errors import InputError
from icllab.core.files import DamagedFile, difference, disk_faults, write_atomically
from icllab.core.grid import Coordinates, Grid
from icllab.experiments.decoding import decoded, decoded_axes

try:
    import fcntl
except ImportError:  # not a Unix
    fcntl = None

if TYPE_CHECKING:
    import xarray as xr

SCHEMA = 2
_BLOCK = 512


def _block(payload: bytes) -> bytes:
    digest = hashlib.sha256(payload).hexdigest()
    return f"icl-lab results, schema {SCHEMA}\nsha256 of what follows byte {_BLOCK}: {digest}\n".encode().ljust(_BLOCK)


def packed(dataset: "xr.Dataset") -> bytes:
    """A Dataset as the bytes of a checksummed file."""
    from xarray.backends import H5NetCDFStore

    # As Dataset.to_netcdf, but for its lock: on a dask worker that one is the scheduler's, named by a file we have not.
    target = io.BytesIO()
    backend = H5NetCDFStore.open(target, mode="w", lock=False)
    dataset.dump_to_store(backend)
    backend.close()
    payload = target.getvalue()
    return _block(payload) + payload


def unpacked(content: bytes, name: object) -> "xr.Dataset":
    """The Dataset in the bytes of a checksummed file; ``name`` is for the message."""
    import xarray as xr

    payload = _sound(content, name)
    dataset = decoded(payload)
    return xr.load_dataset(io.BytesIO(payload), engine="h5netcdf") if dataset is None else dataset


def _sound(content: bytes, name: object) -> bytes:
    payload = content[_BLOCK:]
    if content[:_BLOCK] != _block(payload):
        raise DamagedFile(
            f"{name}: expected a file with the checksum in its first {_BLOCK} bytes, got {len(content)} bytes that "
            "do not match it; `icl run` computes this cell again"
        )
    return payload


def write_dataset(path: Path, dataset: "xr.Dataset") -> None:
    """Save a Dataset as a checksummed file."""
    write_atomically(path, packed(dataset))


def sound_payload(path: Path) -> bytes:
    """The HDF5 bytes of a checksummed file; a file that is not as written is refused."""
    return _sound(_content(path), path)


def read_dataset(path: Path) -> "xr.Dataset":
    """Load a checksummed file that this library wrote."""
    return unpacked(_content(path), path)


def _content(path: Path) -> bytes:
    with disk_faults(f"cannot read {path}"):
        return path.read_bytes()


class Store:
    """The cells of one claim at one size, under one configuration."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._seen: set[str] = set()  # configurations of cells that are this store's

    @classmethod
    def open(cls, root: Path, configuration: Mapping[str, Any]) -> "Store":
        """The store at ``root``, made if it is not there; one of another configuration is refused."""
        store = cls(root)
        with disk_faults(f"cannot use {root} for results"):
            (root / "cells").mkdir(parents=True, exist_ok=True)
            (root / "grids").mkdir(exist_ok=True)
        path = root / "configuration.json"
        if not path.exists():
            with store.locked():
                if not path.exists():
                    store._require_no_cells()
                    write_atomically(path, _json(configuration))
        stored = store.configuration()
        if stored != json.loads(_json(configuration)):
            raise InputError(
                f"{root} holds results of another configuration: {difference(stored, configuration)}; "
                "choose another --out, or --fresh to set the old ones aside"
            )
        return store

    @classmethod
    def existing(cls, root: Path) -> "Store":
        """The store at ``root``, which must be there."""
        if not (root / "configuration.json").is_file():
            raise InputError(f"{root}: expected a directory of results with a configuration.json, found none")
        return cls(root)

    def _require_no_cells(self) -> None:
        """Refuse cells of which nothing says what they were computed under."""
        with disk_faults(f"cannot read {self.root}"):
            cell = next((self.root / "cells").glob("*.nc"), None)
        if cell is not None:
            raise InputError(
                f"{self.root}: expected a configuration.json beside its cells, found none; restore it, choose another "
                "--out, or --fresh to set the cells aside"
            )

    def configuration(self) -> dict[str, Any]:
        """What the cells depend on besides their coordinates."""
        return _read_json(self.root / "configuration.json")

    def _asked(self, grid: Grid) -> tuple[Path, bytes]:
        """The file that says that ``grid`` was asked for."""
        content = _json({"static": grid.static, "traced": grid.traced, "block": grid.block})
        return self.root / "grids" / f"{hashlib.sha256(content).hexdigest()[:16]}.json", content

    def request(self, grid: Grid) -> None:
        """Note that ``grid`` was asked for; what is asked for and not there is *missing*."""
        path, content = self._asked(grid)
        with disk_faults(f"cannot read {path}"):
            noted = path.exists() and path.read_bytes() == content
        if not noted:
            write_atomically(path, content)

    def withdraw(self, grid: Grid) -> None:
        """Forget that ``grid`` was asked for; a store that is left empty takes any configuration."""
        with disk_faults(f"cannot withdraw a grid from {self.root}"), self.locked():
            self._asked(grid)[0].unlink(missing_ok=True)
            if not any((self.root / "grids").iterdir()) and not any((self.root / "cells").iterdir()):
                (self.root / "configuration.json").unlink(missing_ok=True)

    def requested(self) -> list[Grid]:
        """Every grid that was asked for."""
        with disk_faults(f"cannot read {self.root}"):
            paths = sorted((self.root / "grids").glob("*.json"))
        return [_grid(path) for path in paths]

    def path(self, cell: Coordinates) -> Path:
        """Where a cell is kept."""
        name = ",".join(f"{axis}={value}" for axis, value in sorted(cell.items())) or "single"
        # A name is for people; one that a file system would not take is replaced by its digest.
        if len(name) > 120 or not name.isascii() or any(c in name for c in '/\\:*?"<>|\0'):
            name = hashlib.sha256(name.encode()).hexdigest()[:32]
        return self.root / "cells" / f"{name}.nc"

    def has(self, cell: Coordinates) -> bool:
        """Whether a cell is there, without a look into it."""
        return self.path(cell).exists()

    def read(self, cell: Coordinates) -> "xr.Dataset | None":
        """A finished cell; None where there is none; a damaged one, or another's, raises :class:`DamagedFile`."""
        if not self.has(cell):
            return None
        found = read_dataset(self.path(cell))
        self.require_own(cell, found.attrs)
        return found

    def require_own(self, cell: Coordinates, attributes: Mapping[str, Any]) -> None:
        """Refuse what another cell, or another configuration, was measured as: a file can be copied or renamed."""
        said = attributes.get("cell")
        wanted = json.dumps(cell, sort_keys=True)
        if said is not None and said != wanted and json.loads(said) != json.loads(wanted):
            raise DamagedFile(f"{self.path(cell)}: expected the cell {wanted}, got {said}; `icl run` computes it again")
        under = attributes.get("configuration")
        if under is None or under in self._seen:
            return
        other = difference(json.loads(under), self.configuration())
        if other:
            raise DamagedFile(
                f"{self.path(cell)}: expected a cell of the configuration of its directory, got another: {other}; "
                "`icl run` computes it again"
            )
        self._seen.add(under)

    def require_sound(self, cell: Coordinates) -> None:
        """Refuse a cell whose bytes are not those of its checksum."""
        sound_payload(self.path(cell))

    def axes(self, cell: Coordinates) -> dict[str, list[Any]] | None:
        """Axis -> coordinates of a cell, whose checksum is checked; None where there is none.

        Axes other than numbers and text are left out: :meth:`read` has them. It takes a fifth of the time.
        """
        path = self.path(cell)
        if not path.exists():
            return None
        axes, attributes = decoded_axes(sound_payload(path))
        self.require_own(cell, attributes)
        return axes

    def version(self, cell: Coordinates) -> bytes | None:
        """What tells two contents of a cell apart; None where there is none."""
        path = self.path(cell)
        with disk_faults(f"cannot read {path}"), contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            return file.read(_BLOCK)
        return None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from the same section of milliseconds; a killed one's lock is gone with it.

        Where the system or the file system has no locks, two processes that meet there may still lose a cell's
        values to each other; they are then missing, and the same command computes them again.
        """
        with contextlib.ExitStack() as stack:
            with disk_faults(f"cannot lock {self.root}"):
                file = stack.enter_context((self.root / ".lock").open("wb"))
            if fcntl is not None:
                with contextlib.suppress(OSError):
                    fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def write(self, cell: Coordinates, dataset: "xr.Dataset") -> None:
        """Keep a finished cell."""
        self.put(cell, packed(dataset))

    def put(self, cell: Coordinates, content: bytes) -> None:
        """Keep a finished cell as the bytes of its file, which are looked at; it has failed no more."""
        path, failure = self.path(cell), self.failure(cell)
        _sound(content, path)
        write_atomically(path, content)
        with contextlib.suppress(OSError):
            failure.unlink(missing_ok=True)
            failure.parent.rmdir()

    def note_failure(self, cell: Coordinates, text: str) -> None:
        """Keep what is to be said of a cell that failed."""
        path = self.failure(cell)
        with disk_faults(f"cannot note in {self.root} why a cell failed"):
            path.parent.mkdir(exist_ok=True)
        write_atomically(path, text.encode())

    def failure(self, cell: Coordinates) -> Path:
        """Where it is kept why a cell failed."""
        return self.root / "failures" / f"{self.path(cell).stem}.txt"

    def set_damaged_aside(self, cell: Coordinates) -> Path:
        """Give a damaged cell another name; returns the one it had."""
        path = self.path(cell)
        # Another process may just have done so.
        with disk_faults(f"cannot set {path} aside"), contextlib.suppress(FileNotFoundError):
            path.replace(path.with_suffix(".nc.damaged"))
        return path

    def set_aside(self) -> Path | None:
        """Move the whole store to a name of its own and say which; None where there was nothing."""
        if not self.root.exists():
            return None
        stamp = time.strftime("%Y%m%dT%H%M%S")
        suffixes = itertools.chain([""], (f"-{i}" for i in itertools.count(1)))
        names = (self.root.with_name(f"{self.root.name}.before-{stamp}{suffix}") for suffix in suffixes)
        aside = next(path for path in names if not path.exists())
        with disk_faults(f"cannot set {self.root} aside"):
            self.root.rename(aside)
        return aside


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, sort_keys=True, indent=1) + "\n").encode()


def _grid(path: Path) -> Grid:
    """A grid that was asked for."""
    stored = _read_json(path)
    try:
        static, traced = ({name: tuple(some) for name, some in stored[kind].items()} for kind in ("static", "traced"))
        return Grid(static=static, traced=traced, block=stored["block"])
    except (LookupError, TypeError, AttributeError):
        raise DamagedFile(
            f"{path}: expected a grid that was asked for, got {str(stored)[:40]!r}; remove it, and `icl run` with what "
            "was asked for"
        ) from None


def _read_json(path: Path) -> dict[str, Any]:
    with disk_faults(f"cannot read {path}"):
        text = path.read_bytes()
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise DamagedFile(f"{path}: expected a JSON object, got {text[:40]!r}; restore it, or start again with --fresh")
    return value
