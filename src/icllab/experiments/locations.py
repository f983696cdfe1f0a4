"""Results by what a user calls them: a claim's name, a directory of results, or a file from anywhere."""

from pathlib import Path
from typing import TYPE_CHECKING

from icllab.core.errors import InputError, unknown
from icllab.experiments import registry, requests, runner, store

if TYPE_CHECKING:
    import xarray as xr


def located(
    results: str,
    *,
    size: str | None = None,
    out: str | Path = requests.OUT,
    control: str | None = None,
    claims: str | Path | None = None,
) -> tuple["xr.Dataset", Path]:
    """Results, and the name without suffix of what is written beside them. What names no claim is a path.

    Raises:
        InputError: It is neither; or the file is no netCDF file of results.
        CellsMissing: Results are not complete.
    """
    from icllab.experiments.reader import read_foreign

    path = Path(results)
    if results in registry.claims(claims):
        request = requests.stored_request(results, size, out=out, control=control, claims=claims)
        return runner.read(request)[0], request.root / "figure"
    if not path.exists():
        raise unknown("claim", results, registry.claims(claims), "(or a directory of results, or a .nc file)")
    if size is not None or control is not None:
        raise InputError(f"expected a size and a control with a claim, got them with the path {results}")
    if path.is_dir():
        return _from_store(path, claims), path / "figure"
    return read_foreign(path), path.with_suffix("")


def _from_store(root: Path, folder: str | Path | None) -> "xr.Dataset":
    """All that was asked of a store, wherever it is; of an unknown claim, the Dataset of its last run."""
    configuration = store.Store.existing(root).configuration()
    claim, size, control = (configuration.get(name) for name in ("claim", "size", "control"))
    if isinstance(claim, str) and isinstance(size, str) and (control is None or isinstance(control, str)):
        own = None if folder is None else str(Path(folder).resolve())
        if claim in registry.claims(own):
            return runner.read(requests.Request(claim, size, control=control, claims=own), root)[0]
    return store.read_dataset(root / "results.nc")
