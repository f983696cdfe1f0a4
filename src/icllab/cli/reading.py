"""Commands that only read: ``icl check``, ``draw``, ``export`` and ``cite``."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icllab.cli.reports import STYLES, Report, lines, worst
from icllab.core.errors import CellsMissing, IclError, InputError
from icllab.core.sources import bibliography
from icllab.experiments import records, registry, requests, runner

if TYPE_CHECKING:
    from rich.console import Console


def check(
    names: Sequence[str], *, size: str | None, out: Path, control: str | None, claims: Path | None, record: bool
) -> Report:
    """The verdict on each claim; one that cannot be judged does not keep the others from it."""
    if not names:
        raise InputError("icl check: expected at least one claim, got none; `icl list` names them")
    for name in names:
        registry.load(name, claims).under(control)
    how = {"size": size, "out": out, "control": control, "claims": claims}
    parts = [_checked(name, record=record, **how) for name in names]

    def plain(console: "Console") -> None:
        for i, part in enumerate(parts):
            if i:
                console.print()
            part.plain(console)

    return Report({"claims": [part.data for part in parts]}, plain, worst(part.exit_status for part in parts))


def _checked(name: str, *, record: bool, **how: Any) -> Report:
    from icllab.cli.reports import write_verdict
    from icllab.experiments.judging import judged, judgement

    try:
        request = requests.stored_request(name, **how)
        dataset, notes = runner.read(request)
        experiment = request.experiment()
        verdict = judged(experiment, dataset, notes, request.size)
        recorded = [("record", records.write(request, dataset, verdict))] if record else []
    except InputError:
        raise
    except IclError as error:
        message, kind = str(error), "missing" if isinstance(error, CellsMissing) else "environment"
        data = {"claim": name, "verdict": None, "error": {"kind": kind, "message": message}}
        return Report(data, lambda console: _write_failure(console, name, kind, message), error.exit_status)

    def plain(console: "Console") -> None:
        write_verdict(console, experiment.claim, request.size, request.control, verdict)
        lines(console, [("results", request.root), *recorded])

    return Report(judgement(experiment, request, verdict), plain, verdict.outcome.exit_status)


def _write_failure(console: "Console", name: str, kind: str, message: str) -> None:
    from rich.text import Text

    console.print(Text.assemble((name, "bold"), "  ", (kind.upper(), STYLES["fails"])))
    lines(console, [("reason", message.removeprefix(f"{name}: "))])


def draw(
    results: str, *, size: str | None, out: Path, control: str | None, to: Path | None, claims: Path | None
) -> Report:
    """The figure of a claim's results under ``out``; or of a directory of ours, or a file from anywhere."""
    from icllab.experiments.locations import located
    from icllab.experiments.results import picture
    from icllab.figures import save

    dataset, beside = located(results, size=size, out=out, control=control, claims=claims)
    claim = dataset.attrs.get("claim")
    if not isinstance(claim, str):
        raise InputError(f"{results}: expected results of a claim (an attribute 'claim'), got {sorted(dataset.attrs)}")
    experiment = registry.load(claim, claims)
    for name in dataset.dims:
        experiment.vocabulary.axis(str(name).removesuffix("_line"))
    try:
        figure = picture(experiment, dataset)
    except Exception as error:
        raise InputError(
            f"{results}: expected all that the figure of {claim} needs, got {type(error).__name__}: {error}"
        ) from error
    if to is not None and to.suffix in (".png", ".pdf"):
        to = to.with_suffix("")
    files = save(figure, to or beside)
    data = {"claim": claim, "results": results, "figure": list(files)}
    return Report(data, lambda console: lines(console, [("figure", file) for file in files]))


def export(
    results: str,
    *,
    to: Path,
    format: str | None,
    force: bool,
    size: str | None,
    out: Path,
    control: str | None,
    claims: Path | None,
) -> Report:
    """Results as a file for other programs."""
    from icllab.experiments import exporting

    file = exporting.export(results, to, format=format, force=force, size=size, out=out, control=control, claims=claims)
    data = {"results": results, "file": file, "bytes": file.stat().st_size}
    return Report(data, lambda console: lines(console, [("file", file)]))


def cite(claim: str, text: bool, folder: Path | None) -> Report:
    """The sources of a claim: BibTeX, or a line each."""
    experiment = registry.load(claim, folder)
    sources = [experiment.reference(key) for key in experiment.sources]
    written = "\n".join(source.text for source in sources) if text else bibliography(sources)
    data = {"claim": claim, "sources": list(experiment.sources), "text" if text else "bibtex": written}
    return Report(data, lambda console: console.out(written, highlight=False))
