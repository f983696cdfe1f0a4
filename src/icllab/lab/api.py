"""The Python interface of claims: ``icl.run``, ``check``, ``draw``, ``open``, ``recorded``, ``cite``."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icllab.core.errors import InputError, expected, unknown
from icllab.core.progress import shown
from icllab.core.sources import bibliography
from icllab.lab import records, registry
from icllab.lab.job import OUT, Request, new_request, stored_request
from icllab.lab.placement import AS_STATED, Placement
from icllab.lab.run import collect, compute, read, write_results

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    from icllab.lab.checks import Verdict
    from icllab.lab.claim import Claim


def run(
    claim: str,
    size: str = "small",
    *,
    axes: Mapping[str, Sequence[Any]] | None = None,
    seeds: int | None = None,
    out: str | Path = OUT,
    control: str | None = None,
    claims: str | Path | None = None,
    network: Any = None,
    task: Any = None,
    fresh: bool = False,
    workers: int | None = None,
    scheduler: str | None = None,
    executor: Executor | None = None,
    limit: float | None = None,
    placement: Placement = AS_STATED,
    progress: bool | None = None,
) -> "xr.Dataset":
    """Run a claim at a size and return its results; cells that are already under ``out`` are kept.

    Args:
        claim: ``subject/finding``. The code of a claim from elsewhere, of a wheel or an added folder, runs.
        size: ``smoke``, ``small``, ``medium`` or ``full``.
        axes: Other values for some axes, or one other value for a fixed number; None: those of the size.
        seeds: Number of independent repetitions; None: that of the size.
        out: Where results are kept; ``results.nc`` there has the returned Dataset.
        control: One of the claim's negative controls; None: the claim itself.
        claims: A folder with claims of your own; None: the book's alone.
        network: A network in the place of the claim's own: a name as :func:`icllab.network` takes it, or a predictor;
            for a training run step -> predictor, as :func:`icllab.checkpoints` returns it. An object is measured in
            this process. None: the claim's own.
        task: Task of its training, or its text; None: the claim's own prompts.
        fresh: Start again; the old results get another name.
        workers: Number of processes; None: one.
        scheduler: Address of a dask scheduler whose workers measure instead. None: this machine.
        executor: Any executor of :mod:`concurrent.futures` that measures instead; None: that of ``workers``.
        limit: Seconds that a cell may take: then its process ends, and another measures the cell. None: no limit.
        placement: A device, and another precision than the claim's own, as ``Placement("gpu", "float64")``.
        progress: Whether cells and the time left are shown; None: on a terminal and in a notebook.

    Returns:
        A Dataset whose dimensions and variables say what they are, with the claim's theory beside it.
    """
    request = new_request(
        claim, size, axes=axes, seeds=seeds, out=out, control=control, claims=claims, placement=placement,
        network=network, task=task,
    )  # fmt: skip
    with shown(request.name, progress):
        compute(request, workers=workers, scheduler=scheduler, executor=executor, limit=limit, fresh=fresh)
    dataset, _ = collect(request)
    write_results(request.root, dataset)
    return dataset


def check(
    claim: str,
    size: str | None = None,
    *,
    out: str | Path = OUT,
    control: str | None = None,
    claims: str | Path | None = None,
    network: Any = None,
    recorded: bool = False,
) -> "Verdict":
    """The verdict on stored results; no cell is computed.

    Args:
        claim: ``subject/finding``.
        size: The size to judge; None: the largest there. ``smoke`` has no verdict and is undecided.
        out: Where results are kept.
        control: One of the claim's negative controls; None: the claim itself.
        claims: A folder with claims of your own; None: the book's alone.
        network: The network of the run, or its name, which is not opened; None: the claim's own.
        recorded: Judge the data of the claim's record instead.
    """
    from icllab.lab.judging import verdict_at

    if recorded:
        return records.judged(claim, size, control, claims)[1]
    request = stored_request(claim, size, out=out, control=control, claims=claims, network=network)
    dataset, notes = read(request)
    return verdict_at(request.claim(), request.size, dataset, notes)


def draw(
    results: "xr.Dataset | str | Sequence[xr.Dataset | str]",
    size: str | None = None,
    *,
    style: str = "screen",
    width: str | float | None = None,
    out: str | Path = OUT,
    control: str | None = None,
    claims: str | Path | None = None,
    recorded: bool = False,
) -> "Figure":
    """The figure of a Dataset, or of a claim's results under ``out`` or in its record.

    Several stand side by side in one figure, their panels lettered through.

    Args:
        results: A Dataset of :func:`run`, or the name of a claim; or several of these.
        size: The size of a claim's results; None: the largest there.
        style: ``"screen"``, ``"paper"`` (8 points, panels lettered) or ``"slide"`` (18 points).
        width: Width of the figure, such as ``"3.25in"`` or ``"82mm"``; a number is inches. None: that of the style,
            which is 3.25 in for a figure in a paper, 6.75 in for several, and 12 in on a slide.
        out: Where results are kept.
        control: One of the claim's negative controls; None: the claim itself.
        claims: A folder with claims of your own; None: the book's alone.
        recorded: Draw the data of the claim's record instead.
    """
    from icllab.lab.drawing import picture, pictures

    several: list[Any] = list(results) if isinstance(results, list | tuple) else [results]
    named: list[tuple[Claim, xr.Dataset]] = []
    for one in several:
        if isinstance(one, str):
            dataset = open(one, size, out=out, control=control, claims=claims, recorded=recorded)
            named.append((registry.load(dataset.attrs["claim"], claims).under(control), dataset))
            continue
        attributes = getattr(one, "attrs", None)
        if attributes is None:
            raise expected("results", "a Dataset of icl.run, or a claim's name", type(one).__name__)
        if "claim" not in attributes:
            raise expected("results", "results of a claim (with an attribute 'claim')", sorted(attributes))
        named.append((registry.load(attributes["claim"], claims), one))
    return pictures([(claim.name, partial(picture, claim, dataset)) for claim, dataset in named], style, width)


def recorded(
    claim: str, size: str | None = None, *, control: str | None = None, claims: str | Path | None = None
) -> "xr.Dataset":
    """The data on which a recorded verdict was given, with the claim's theory beside them.

    Args:
        claim: ``subject/finding``.
        size: The recorded size; None: the largest with data.
        control: One of the claim's negative controls; None: the claim itself.
        claims: A folder with claims of your own; None: the book's alone.

    Raises:
        CellsMissing: The record has no such data.
    """
    return records.predicted_data(claim, size, control, claims)


def open(
    results: str | Path,
    size: str | None = None,
    *,
    out: str | Path = OUT,
    control: str | None = None,
    claims: str | Path | None = None,
    recorded: bool = False,
) -> "xr.Dataset":
    """The Dataset of a claim's results under ``out``, of a directory of results, or of a ``.nc`` file.

    Args:
        results: The name of a claim, or a path.
        size: The size of a claim's results; None: the largest there.
        out: Where results are kept.
        control: One of the claim's negative controls; None: the claim itself.
        claims: A folder with claims of your own; None: the book's alone.
        recorded: Open the data of the claim's record instead.

    Raises:
        InputError: It is neither; or the file is no netCDF file of results.
        CellsMissing: Results are not complete.
    """
    if recorded:
        return records.predicted_data(str(results), size, control, claims)
    return locate(str(results), size=size, out=out, control=control, claims=claims)[0]


def locate(
    results: str,
    *,
    size: str | None = None,
    out: str | Path = OUT,
    control: str | None = None,
    claims: str | Path | None = None,
) -> "tuple[xr.Dataset, Path]":
    """Results as :func:`open` finds them, and the stem of the files that are written beside them."""
    path = Path(results)
    if results in registry.claims(claims):
        request = stored_request(results, size, out=out, control=control, claims=claims)
        return read(request)[0], request.root / "figure"
    if registry.is_foreign(results, claims):
        registry.load(results, claims)  # raises: reading would run its code
    if not path.exists():
        hints = ["or a directory of results, or a .nc file", *registry.absent()]
        raise unknown("claim", results, registry.claims(claims), " ".join(f"({hint})" for hint in hints))
    if size is not None or control is not None:
        raise InputError(f"expected a size and a control with a claim, got them with the path {results}")
    if path.is_dir():
        return _directory(path, claims), path / "figure"
    from icllab.lab.foreign import read_foreign

    return read_foreign(path), path.with_suffix("")


def _directory(root: Path, folder: str | Path | None) -> "xr.Dataset":
    """All requested cells of a store; for an unknown claim, the Dataset of its last run."""
    from icllab.lab.foreign import read_foreign
    from icllab.lab.results import Store

    configuration = Store.existing(root).configuration()
    claim, size, control = (configuration.get(name) for name in ("claim", "size", "control"))
    if isinstance(claim, str) and isinstance(size, str) and (control is None or isinstance(control, str)):
        claims = None if folder is None else str(Path(folder).resolve())
        if claim in registry.claims(claims):
            return read(Request(claim, size, control=control, claims=claims), root)[0]
    return read_foreign(root / "results.nc")


def cite(claim: str, *, claims: str | Path | None = None) -> str:
    """BibTeX of a claim's sources.

    Args:
        claim: ``subject/finding``.
        claims: A folder with claims of your own; None: the book's alone.
    """
    return bibliography(records.card(claim, claims).sources)
