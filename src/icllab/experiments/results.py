"""From cells to one Dataset with named axes, and from a Dataset to its verdict and figure."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from icllab.core.errors import CellsMissing, IclError
from icllab.core.grid import Coordinates, Grid, Named, Value, canonical, spelled
from icllab.experiments.checks import Verdict
from icllab.experiments.experiment import SIZES, Experiment
from icllab.experiments.stacks import Stack, assembled, shared_attributes, stacked

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def as_cell(
    experiment: Experiment,
    measured: Mapping[str, Named],
    traced: Mapping[str, Sequence[Any]],
    attributes: Mapping[str, Any],
) -> xr.Dataset:
    """What ``measure`` returned, as a Dataset over the traced axes; what does not fit is refused."""
    variables = {}
    for name, (dims, values) in measured.items():
        experiment.vocabulary.quantity(name)
        values = np.asarray(values)
        wanted = tuple(len(traced[d]) if d in traced else -1 for d in dims)
        if values.shape != wanted:
            raise IclError(
                f"measure: expected values over traced axes { {d: len(v) for d, v in traced.items()} }, "
                f"got {name!r} with axes {dims} and shape {values.shape}"
            )
        variables[name] = (dims, values)
    return xr.Dataset(variables, coords={d: list(v) for d, v in traced.items()}, attrs=dict(attributes))


def missing_part(
    cell: xr.Dataset | None, traced: Mapping[str, tuple[Any, ...]], outputs: Sequence[str] = ()
) -> dict[str, tuple[Any, ...]] | None:
    """Which traced values a stored cell still lacks, as a block that can be measured and merged.

    None: it lacks nothing. Where values are new on one swept axis only, that axis has just the new values and
    the others all that is stored; otherwise the block is the whole union, measured again.
    """
    if cell is None:
        return dict(traced)
    stored = {name: _values(cell, name) for name in traced}
    new = {name: tuple(v for v in traced[name] if v not in stored[name]) for name in traced}
    growing = [name for name, values in new.items() if values]
    if not growing:
        return None
    if len(growing) == 1 and growing[0] not in outputs:
        return {**stored, growing[0]: new[growing[0]]}
    return {name: stored[name] + new[name] for name in traced}


def merged(cell: xr.Dataset | None, block: xr.Dataset) -> xr.Dataset:
    """A stored cell grown by a newly measured block; the newer attributes win."""
    if cell is None:
        return block
    axes = [str(d) for d in block.dims if not np.isin(cell[d].values, block[d].values).all()]
    if not axes:
        return block
    grown = xr.concat([cell, block], dim=axes[0], data_vars="minimal", coords="minimal", compat="override")
    # The older digest stays: a cell of which a part is stale is stale.
    kept = {name: cell.attrs[name] for name in ("sources_digest",) if name in cell.attrs}
    return grown.assign_attrs({**block.attrs, **kept})


def assemble(
    experiment: Experiment, grids: Sequence[Grid], cells: Mapping[str, xr.Dataset], attributes: Mapping[str, Any]
) -> xr.Dataset:
    """One Dataset over the union of the grids' axes; NaN where nothing was asked for.

    ``cells`` maps :func:`label` of a cell's coordinates to the stored cell.
    """
    return from_stacks(experiment, grids, stacked(cells), label, attributes)


def from_stacks(
    experiment: Experiment,
    grids: Sequence[Grid],
    stacks: Sequence[Stack],
    name: Callable[[Coordinates], str],
    attributes: Mapping[str, Any] | None = None,
) -> xr.Dataset:
    """As :func:`assemble`, of stacks of cells that ``name`` calls; without ``attributes``, with those of the cells."""
    variables, axes = assembled(stacks, grids, name)
    shared = shared_attributes(stacks, grids, name) if attributes is None else attributes
    names = json.dumps(experiment.vocabulary.described())
    return xr.Dataset(variables, coords=axes, attrs={**shared, "names": names})


def described(experiment: Experiment, dataset: xr.Dataset) -> xr.Dataset:
    """The Dataset with the symbol, meaning and unit of every axis and quantity; an unknown name is refused."""
    for name in dataset.variables:
        row = experiment.vocabulary.row(str(name))
        dataset[name].attrs = {"symbol": row.symbol, "meaning": row.meaning, "unit": row.unit}
    return dataset


def fixed_values(dataset: xr.Dataset) -> dict[str, Any]:
    """The numbers that are not axes, from the configuration the results were computed under."""
    return json.loads(dataset.attrs["configuration"])["fixed"]


def label(cell: Coordinates) -> str:
    """A cell's coordinates as text, the same whatever their order."""
    return json.dumps(cell, sort_keys=True)


def _values(cell: xr.Dataset, name: str) -> tuple[Value, ...]:
    return tuple(canonical(v) for v in cell[name].values)


def judge(
    experiment: Experiment, dataset: xr.Dataset, notes: Sequence[str] = (), *, size: str | None = None
) -> Verdict:
    """The verdict of a claim's check on a Dataset; of a ``size`` that shows less than the claim, on what it shows."""
    assert experiment.check is not None  # the registry has set it
    partial = size if size and SIZES.index(size) < SIZES.index(experiment.shows) else ""
    return Verdict(experiment.name, tuple(experiment.check(dataset)), tuple(notes), partial)


def picture(experiment: Experiment, dataset: xr.Dataset) -> "Figure":
    """The claim's figure of a Dataset."""
    assert experiment.figure is not None  # the registry has set it
    return experiment.figure(dataset)


def require_complete(claim: str, missing: Sequence[Coordinates], total: int, failures: Sequence[object] = ()) -> None:
    """Refuse to judge while cells that were asked for are not there; ``failures`` are files that say why."""
    if missing:
        failed = f"; {len(failures)} have failed, and {failures[0]} tells why of one" if failures else ""
        raise CellsMissing(
            f"{claim}: expected {total} cells, {len(missing)} are missing (the first: {spelled(missing[0])}){failed}; "
            f"`icl run {claim}` with the same --out computes them"
        )
