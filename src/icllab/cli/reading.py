"""Commands that only read: ``icl check``, ``draw``, ``export`` and ``cite``."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from icllab.cli.reports import STYLES, Report, lines, worst, write_verdict
from icllab.core.errors import CellsMissing, IclError, InputError
from icllab.core.sources import bibliography
from icllab.lab import records, registry
from icllab.lab.api import locate
from icllab.lab.checks import Verdict
from icllab.lab.job import stored_request
from icllab.lab.run import read

if TYPE_CHECKING:
    import xarray as xr
    from rich.console import Console

    from icllab.cli.commands import Selection
    from icllab.lab.claim import Claim


def check(names: Sequence[str], options: "Selection", *, recorded: bool, record: bool) -> Report:
    """The verdict on each claim; one that cannot be judged does not keep the others from it."""
    if not names:
        raise InputError("icl check: expected at least one claim, got none; `icl list` names them")
    if record and recorded:
        raise InputError("icl check: expected --record or --recorded, got both; the one writes what the other reads")
    for name in names:
        registry.load(name, options.claims).under(options.control)
    parts = []
    for name in names:
        try:
            parts.append(_record_verdict(name, options) if recorded else _verdict(name, options, record))
        except InputError:
            raise
        except IclError as error:
            parts.append(_unjudged(name, error))

    def plain(console: "Console") -> None:
        for i, part in enumerate(parts):
            if i:
                console.print()
            part.plain(console)

    return Report({"claims": [part.data for part in parts]}, plain, worst(part.exit_status for part in parts))


def _verdict(name: str, options: "Selection", record: bool) -> Report:
    """The verdict on results under ``out``; with ``record``, noted with their data."""
    from icllab.lab.results import predicted, verdict_at

    request = stored_request(name, options.size, out=options.out, control=options.control, claims=options.claims)
    claim = request.claim()
    dataset, notes = read(request, theory=False)
    files = [("results", request.root)]
    verdict = verdict_at(claim, request.size, predicted(claim, dataset), notes)
    if record:
        plain_claim = registry.load(name, options.claims)
        files.append(("record", records.write(plain_claim, request.size, request.control, dataset, request.claims)))
    return _report(claim.sentence, request.size, request.control, verdict, files)


def _record_verdict(name: str, options: "Selection") -> Report:
    """The verdict on the data of a claim's record."""
    from icllab.lab.results import verdict_at

    dataset = records.predicted_data(name, options.size, options.control, options.claims)
    claim = registry.load(name, options.claims).under(options.control)
    size = str(records.configuration(dataset)["size"])
    verdict = verdict_at(claim, size, dataset)
    file = records.record_file(registry.claims(options.claims)[name]).with_suffix(".nc")
    return _report(claim.sentence, size, options.control, verdict, [("results", file)])


def _report(
    sentence: str, size: str, control: str | None, verdict: Verdict, files: Sequence[tuple[str, Path]]
) -> Report:
    def plain(console: "Console") -> None:
        write_verdict(console, sentence, size, control, verdict)
        lines(console, files)

    data = {**verdict.as_dict(), "sentence": sentence, "size": size, "control": control, "results": files[0][1]}
    return Report(data, plain, verdict.outcome.exit_status)


def _unjudged(name: str, error: IclError) -> Report:
    message, kind = str(error), "missing" if isinstance(error, CellsMissing) else "environment"

    def plain(console: "Console") -> None:
        from rich.text import Text

        console.print(Text.assemble((name, "bold"), "  ", (kind.upper(), STYLES["fails"])))
        lines(console, [("reason", message.removeprefix(f"{name}: "))])

    data = {"claim": name, "verdict": None, "error": {"kind": kind, "message": message}}
    return Report(data, plain, error.exit_status)


def draw(
    results: Sequence[str], options: "Selection", *, style: str, width: str | None, to: Path | None, recorded: bool
) -> Report:
    """The figure of claims' results under ``out``, of their records, of directories of ours, or of any files."""
    from icllab.figures import save
    from icllab.figures.layout import StandsAlone
    from icllab.figures.style import named_look
    from icllab.lab.results import pictures

    if not results:
        raise InputError("icl draw: expected at least one claim, got none; `icl list` names them")
    if len(results) > 1 and to is None:
        raise InputError("icl draw: expected --to with several claims, got none; it says where their figure goes")
    named_look(style, width)
    parts = [_drawable(name, options, recorded) for name in results]
    names = [claim.name for claim, _, _ in parts]
    try:
        figure = pictures([(claim, dataset) for claim, dataset, _ in parts], style, width)
    except StandsAlone:
        raise
    except Exception as error:
        raise InputError(
            f"{', '.join(results)}: expected all that the figure of {', '.join(names)} needs, got "
            f"{type(error).__name__}: {error}"
        ) from error
    stem = parts[0][2]
    if to is not None:
        stem = to.with_suffix("") if to.suffix in (".png", ".pdf") else to
    files = save(figure, stem)
    about = {"claim": names[0], "results": results[0]} if len(names) == 1 else {"claims": names, "results": results}
    return Report(about | {"figure": list(files)}, lambda console: lines(console, [("figure", file) for file in files]))


def _drawable(results: str, options: "Selection", recorded: bool) -> tuple["Claim", "xr.Dataset", Path]:
    """A claim with results whose axes it knows, and the name of their figure's files."""
    size, out, control, claims = options.size, options.out, options.control, options.claims
    if recorded:
        dataset, stem = records.predicted_data(results, size, control, claims), Path(results.split("/")[-1])
    else:
        dataset, stem = locate(results, size=size, out=out, control=control, claims=claims)
    name = dataset.attrs.get("claim")
    if not isinstance(name, str):
        raise InputError(f"{results}: expected results of a claim (an attribute 'claim'), got {sorted(dataset.attrs)}")
    claim = registry.load(name, claims)
    for axis in dataset.dims:
        claim.vocabulary.axis(str(axis).removesuffix("_line"))
    return claim, dataset, stem


def export(results: str, options: "Selection", *, to: Path, format: str | None, force: bool) -> Report:
    """Results as a file for other programs."""
    from icllab.lab.export import export

    size, out, control, claims = options.size, options.out, options.control, options.claims
    file = export(results, to, format=format, force=force, size=size, out=out, control=control, claims=claims)
    data = {"results": results, "file": file, "bytes": file.stat().st_size}
    return Report(data, lambda console: lines(console, [("file", file)]))


def cite(name: str, text: bool, folder: Path | None) -> Report:
    """The sources of a claim: BibTeX, or a line each."""
    claim = registry.load(name, folder)
    sources = [claim.reference(key) for key in claim.sources]
    answer = "\n".join(source.text for source in sources) if text else bibliography(sources)
    data = {"claim": name, "sources": list(claim.sources), "text" if text else "bibtex": answer}
    return Report(data, lambda console: console.out(answer, highlight=False))
