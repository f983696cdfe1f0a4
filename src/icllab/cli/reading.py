"""Commands that only read results: ``icl check``, ``draw`` and ``export``."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from icllab.cli.reports import STYLES, Report, lines, typeset, worst, write_verdict
from icllab.core.errors import CellsMissing, IclError, InputError
from icllab.lab import recording, records, registry, stated
from icllab.lab.api import locate
from icllab.lab.job import require_world, results_root, sizes_present, stored_request
from icllab.lab.run import read

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

    from icllab.cli.parameters import Selection
    from icllab.lab.checks import Verdict


def check(names: Sequence[str], options: "Selection", *, recorded: bool, record: bool) -> Report:
    """The verdict on each claim; a claim that cannot be judged is reported, and the others are judged."""
    if not names:
        raise InputError("icl check: expected at least one claim, got none; `icl list` names them")
    if record and recorded:
        raise InputError("icl check: expected --record or --recorded, got both; the one writes what the other reads")
    foreign = {name for name in names if registry.is_foreign(name, options.claims)}
    for name in names:
        if name not in foreign or record or options.control is not None:
            require_world(name, options.claims, options.control)
    parts = []
    for name in names:
        try:
            if name in foreign:
                parts.append(_stated(name, options, recorded))
            else:
                parts.append(_record_verdict(name, options) if recorded else _verdict(name, options, record))
        except InputError:
            raise
        except IclError as error:
            parts.append(_unjudged(name, error, records.NOT_RECORDED if recorded else "missing"))

    def plain(console: "Console") -> None:
        for i, part in enumerate(parts):
            if i:
                console.print()
            part.plain(console)

    return Report({"claims": [part.data for part in parts]}, plain, worst(part.exit_status for part in parts))


def _verdict(name: str, options: "Selection", record: bool) -> Report:
    """The verdict on results under ``out``; with ``record``, noted with their data."""
    request = stored_request(name, options.size, out=options.out, control=options.control, claims=options.claims)
    from icllab.lab.judging import predicted, verdict_at
    from icllab.lab.results import Store

    claim = request.claim()
    dataset, notes = read(request, theory=False)
    files = [("results", request.root)]
    verdict = verdict_at(claim, request.size, predicted(claim, dataset), notes)
    if record:
        plain_claim = registry.load(name, options.claims)
        if not any(records.size_faults(replace(plain_claim, reduce=None), request.size, request.control, dataset)):
            # Runs of parts may have all values of the size, and not all of its cells.
            Store.existing(request.root).collect(claim, [claim.grid(request.size)])
        files.append(("record", recording.write(plain_claim, request.size, request.control, dataset, request.claims)))
    return _report(claim.sentence, request.size, request.control, verdict, files)


def _record_verdict(name: str, options: "Selection") -> Report:
    """The verdict on the data of a claim's record."""
    size, verdict = records.judged(name, options.size, options.control, options.claims)
    file = records.record_file(registry.claims(options.claims)[name]).with_suffix(".nc")
    sentence = registry.load(name, options.claims).sentence
    return _report(sentence, size, options.control, verdict, [("results", file)])


def _stated(name: str, options: "Selection", recorded: bool) -> Report:
    """The verdict on a claim from elsewhere: that of its record, or noted by a run here. Its check is not run."""
    card = records.card(name, options.claims)
    file: Path = records.record_file(registry.file(name, options.claims))
    if recorded:
        size = options.size or card.recorded
        if size is None or size not in card.record or not card.record[size]["verdict"]:
            raise CellsMissing(f"{name}: expected a recorded verdict at size {size or 'small'}, its record has none")
        findings, note = card.record[size]["findings"], stated.BY_AUTHOR
    else:
        from icllab.lab.verdict_files import noted_verdict

        sizes = [size for size in sizes_present(options.out, name) if options.size in (None, size)]
        noted = noted_verdict(results_root(options.out, name, sizes[-1])) if sizes else None
        if noted is None or noted["verdict"] is None:
            raise CellsMissing(
                f"{name}: expected a verdict of a run under {str(options.out)!r}, found none; `icl run {name}` runs "
                "its code, and --recorded shows its author's verdict"
            )
        size, file = sizes[-1], results_root(options.out, name, sizes[-1])
        findings, note = noted["findings"], "as the run here noted it; with --claims its check judges again"
    return _report(card.sentence, size, None, stated.verdict(name, findings, note), [("results", file)])


def _report(
    sentence: str, size: str, control: str | None, verdict: "Verdict", files: Sequence[tuple[str, Path]]
) -> Report:
    def plain(console: "Console") -> None:
        write_verdict(console, sentence, size, control, verdict)
        lines(console, files)

    data = {**verdict.as_dict(), "sentence": sentence, "size": size, "control": control, "results": files[0][1]}
    return Report(data, plain, verdict.outcome.exit_status)


def _unjudged(name: str, error: IclError, absent: str) -> Report:
    message, missing = str(error), isinstance(error, CellsMissing)
    kind = "missing" if missing else "environment"

    def plain(console: "Console") -> None:
        console.print(typeset((name, "bold"), "  ", ((absent if missing else kind).upper(), STYLES["fails"])))
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
    from icllab.lab.drawing import pictures

    if not results:
        raise InputError("icl draw: expected at least one claim, got none; `icl list` names them")
    if len(results) > 1 and to is None:
        raise InputError("icl draw: expected --to with several claims, got none; it says where their figure goes")
    named_look(style, width)
    parts = [
        _plain_drawing(name, options)
        if recorded and registry.is_foreign(name, options.claims)
        else _drawing(name, options, recorded)
        for name in results
    ]
    names = [part.claim for part in parts]
    try:
        figure = pictures([(part.claim, part.draw) for part in parts], style, width)
    except StandsAlone:
        raise
    except Exception as error:
        raise InputError(
            f"{', '.join(results)}: expected all that the figure of {', '.join(names)} needs, got "
            f"{type(error).__name__}: {error}"
        ) from error
    stem = parts[0].stem
    if to is not None:
        stem = to.with_suffix("") if to.suffix in (".png", ".pdf") else to
    files, notes = save(figure, stem), list(dict.fromkeys(part.note for part in parts if part.note))
    about = {"claim": names[0], "results": results[0]} if len(names) == 1 else {"claims": names, "results": results}
    rows = [*(("figure", file) for file in files), *(("note", note) for note in notes)]
    return Report(about | {"figure": list(files), "notes": notes}, lambda console: lines(console, rows))


class _Drawing(NamedTuple):
    """A claim's name, what draws its results, and the name of the figure's files; a note on what the figure is."""

    claim: str
    draw: "Callable[[], Figure]"
    stem: Path
    note: str = ""


def _drawing(results: str, options: "Selection", recorded: bool) -> _Drawing:
    """The figure of a claim, of results whose axes it knows."""
    from icllab.lab.drawing import picture

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
    return _Drawing(name, partial(picture, claim, dataset), stem)


def _plain_drawing(name: str, options: "Selection") -> _Drawing:
    """The recorded data of a claim from elsewhere against their axes: the claim's own figure would run its code."""
    from icllab.figures.overview import measured

    dataset = records.data(name, options.size, options.control, options.claims)
    note = "the recorded data against their axes; the claim's own figure is drawn by `icl run`, or with --claims"
    return _Drawing(name, partial(measured, dataset), Path(name.split("/")[-1]), note)


def export(results: str, options: "Selection", *, to: Path, format: str | None, force: bool) -> Report:
    """Results as a file for other programs."""
    from icllab.lab.export import export

    size, out, control, claims = options.size, options.out, options.control, options.claims
    file = export(results, to, format=format, force=force, size=size, out=out, control=control, claims=claims)
    data = {"results": results, "file": file, "bytes": file.stat().st_size}
    return Report(data, lambda console: lines(console, [("file", file)]))
