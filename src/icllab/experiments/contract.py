"""The Python contract of a claim: ``icl.run``, ``icl.check``, ``icl.draw``, ``icl.cite``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icllab.core.errors import expected
from icllab.core.sources import bibliography
from icllab.experiments import registry
from icllab.experiments.placement import AS_STATED, Placement
from icllab.experiments.requests import OUT, requested, stored_request
from icllab.experiments.runner import execute, read

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    from icllab.experiments.checks import Verdict


def run(
    claim: str,
    size: str = "small",
    *,
    axes: Mapping[str, Sequence[Any]] | None = None,
    seeds: int | None = None,
    out: str | Path = OUT,
    control: str | None = None,
    claims: str | Path | None = None,
    fresh: bool = False,
    workers: int | None = None,
    scheduler: str | None = None,
    limit: float | None = None,
    placement: Placement = AS_STATED,
) -> "xr.Dataset":
    """Run a claim at a size and return its results; cells that are already under ``out`` are kept.

    Args:
        claim: ``subject/finding``.
        size: ``smoke``, ``small``, ``medium`` or ``full``.
        axes: Other values for some axes, or one other value for a fixed number.
        seeds: Number of independent repetitions.
        out: Where results are kept.
        control: One of the claim's negative controls.
        claims: A folder with claims of your own.
        fresh: Start again; the old results get another name.
        workers: Number of processes; None: one.
        scheduler: Address of a dask scheduler whose workers measure instead.
        limit: Seconds that a cell may take: then its worker is replaced, and the cell given to another.
        placement: A device, and another precision than the claim's own, as ``Placement("gpu", "float64")``.

    Returns:
        A Dataset whose dimensions and variables say what they are, with the claim's theory beside it.
    """
    request = requested(
        claim, size, axes=axes, seeds=seeds, out=out, control=control, claims=claims, placement=placement
    )
    return execute(request, workers=workers, scheduler=scheduler, limit=limit, fresh=fresh).dataset


def check(
    claim: str,
    size: str | None = None,
    *,
    out: str | Path = OUT,
    control: str | None = None,
    claims: str | Path | None = None,
) -> "Verdict":
    """Judge the results that are already under ``out`` (the largest size there, unless one is named)."""
    from icllab.experiments.results import judge

    request = stored_request(claim, size, out=out, control=control, claims=claims)
    dataset, notes = read(request)
    return judge(request.experiment(), dataset, notes, size=request.size)


def draw(
    results: "xr.Dataset | str",
    size: str | None = None,
    *,
    out: str | Path = OUT,
    control: str | None = None,
    claims: str | Path | None = None,
) -> "Figure":
    """The figure of a claim's Dataset; or, of a claim's name, of the results under ``out``.

    Arguments are those of :func:`run`; None for ``size`` is the largest there.
    """
    from icllab.experiments.results import picture

    if isinstance(results, str):
        request = stored_request(results, size, out=out, control=control, claims=claims)
        return picture(request.experiment(), read(request)[0])
    attributes = getattr(results, "attrs", None)
    if attributes is None:
        raise expected("results", "a Dataset of icl.run, or a claim's name", type(results).__name__)
    if "claim" not in attributes:
        raise expected("results", "results of a claim (with an attribute 'claim')", sorted(attributes))
    return picture(registry.load(attributes["claim"], claims), results)


def cite(claim: str, *, claims: str | Path | None = None) -> str:
    """BibTeX of a claim's sources."""
    experiment = registry.load(claim, claims)
    return bibliography(experiment.reference(key) for key in experiment.sources)
