"""The report of an examination as one HTML file that prints: first sentences, then a part for each section."""

import itertools
from collections.abc import Sequence

import icllab
from icllab.core.spelling import with_error
from icllab.examination.claims import part
from icllab.examination.comparison import differences
from icllab.examination.results import Answered, Results
from icllab.examination.sections import SECTIONS
from icllab.examination.sentences import first_sentences, recorded, references
from icllab.figures.markup import Html, document, embedded, joined, table, tag

_DPI = 150
_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c1e21; --muted: #5a616a; --line: #dcdfe3; --good: #00734f;
  --bad: #b3401a; --doubt: #8a6100; }
@media (prefers-color-scheme: dark) { :root { --paper: #15181b; --ink: #e8e6e1; --muted: #a3abb3; --line: #343a41;
  --good: #55cda0; --bad: #f59067; --doubt: #e3b54a; } .figure img { filter: invert(0.92) hue-rotate(180deg); } }
@media print { section { break-inside: avoid-page; } }
body { margin: 0 auto; max-width: 50rem; padding: 2rem 1.2rem 4rem; background: var(--paper); color: var(--ink);
  font: 15px/1.55 system-ui, "DejaVu Sans", sans-serif; }
h1, h2 { font-family: Palatino, Georgia, "DejaVu Serif", serif; line-height: 1.25; }
h2 { margin-top: 2.4rem; font-size: 1.25rem; }
ol.first li { margin: 0.5rem 0; font-size: 1.05rem; }
.verdict { font-weight: 600; } .bad { color: var(--bad); } .doubt { color: var(--doubt); }
.muted, .origin { color: var(--muted); font-size: 0.9rem; }
table { border-collapse: collapse; font-size: 0.9rem; margin: 0.6rem 0; }
td, th { padding: 0.2rem 1rem 0.2rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
pre { font: 12.5px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; overflow-x: auto; padding-left: 0.8rem;
  border-left: 3px solid var(--line); white-space: pre-wrap; }
.figure img { max-width: 100%; }
"""


def html(examinations: Sequence[Results]) -> str:
    """The text of the file."""
    body: list[str] = []
    for examination in examinations:
        body += [tag("h1", f"Examination of {examination.header['name']}"), card(examination), *_sections(examination)]
        body.append(part(examination.claims))
    body += [_comparison(one, other) for one, other in itertools.pairwise(examinations)]
    return document(f"examination of {examinations[0].header['name']}", _STYLE, body)


def _comparison(one: Results, other: Results) -> Html:
    """Differences of the losses of two networks on the same prompts."""
    names = [str(examination.header["name"]) for examination in (one, other)]
    rows = [
        [row["section"], row["part"], *(f"{row[name]:.4g}" for name in ("first", "second")),
         with_error(row["difference"], row["error"])]
        for row in differences(one, other)
    ]  # fmt: skip
    columns = dict.fromkeys(("section", "tasks", *names, "difference, paired error"), "")
    return joined(tag("h2", f"Loss at the last position: {names[0]} less {names[1]}"), table(columns, rows))


def card(examination: Results) -> Html:
    """The six sentences, the subject, and the reason for each question that was not asked."""
    header = examination.header
    key = ", ".join(map(str, header["key"]))
    origin = (
        f"Size {header['size']} ({header['prompts']} prompts), key data [{key}], icl-lab {icllab.__version__}, weights "
        f"{str(header['weights'])[:12]}. The verdicts of the six sentences are wrong with a joint probability of at "
        "most 5 % (Holm)."
    )
    files = "; ".join(f"{name} {str(digest)[:12]}" for name, digest in dict(header.get("files", {})).items())
    skipped: dict[tuple[str, str], list[str]] = {}
    for section in examination.sections:
        if section.finding is None:
            skipped.setdefault((section.status, section.reason), []).append(section.name)
    rows = [tag("li", tag("b", ", ".join(names)), f": {status}: {why}") for (status, why), names in skipped.items()]
    asked = {section.name for section in examination.sections}
    unasked = [name for name, section in SECTIONS.items() if section.on_request and name not in asked]
    rows += [tag("li", tag("b", name), f": only if it is asked for, by --only {name}") for name in unasked]
    return joined(
        tag("ol", *(tag("li", sentence) for sentence in first_sentences(examination)), class_="first"),
        tag("p", tag("b", "Task. "), str(header["task"])),
        tag("p", origin, class_="origin"),
        *([tag("p", f"Files that ran or were read, by SHA-256: {files}.", class_="origin")] if files else []),
        *([tag("h2", "Not asked"), tag("ul", *rows)] if rows else []),
    )


def _sections(examination: Results) -> list[Html]:
    return [_section(section, examination) for section in examination.sections if section.finding is not None]


def _section(section: Answered, examination: Results) -> Html:
    finding, declared = section.finding, SECTIONS[section.name]
    assert finding is not None
    kind = "bad" if finding.fault else "doubt" if finding.verdict == "undecided" else ""
    rows = [["number", f"{with_error(finding.number, finding.error)} ({finding.what})"]]
    others = recorded(section.name) if section.name in references() else ""
    named = {
        "other models": others,
        "null": finding.null,
        "smallest effect seen": finding.smallest,
        "would change it": finding.change,
    }
    rows += [[name, text] for name, text in named.items() if text]
    if finding.p_value is not None:
        rows.append(["p-value", f"{finding.p_value:.2g}"])
    warnings = section.dataset.attrs.get("warnings", []) if section.dataset is not None else []
    warnings = [warnings] if isinstance(warnings, str) else list(warnings)
    rows += [["warning", text] for text in warnings]
    rows.append(["seconds", f"{section.seconds:.1f} (stated {section.cost:.0f})"])
    return tag(
        "section",
        tag("h2", declared.question),
        tag("p", tag("span", f"{finding.verdict.capitalize()}. ", class_=f"verdict {kind}".strip()), finding.sentence),
        *_figure(section),
        table({"": "", " ": ""}, rows),
        tag("pre", code(section.name, examination)),
    )


def _figure(section: Answered) -> list[Html]:
    draw = SECTIONS[section.name].figure
    if draw is None or section.dataset is None:
        return []
    from icllab.figures import png_bytes

    try:
        picture = png_bytes(draw(section.dataset), _DPI)
    except Exception as error:  # a report needs no figure
        return [tag("p", f"No figure: {type(error).__name__}: {error}", class_="muted")]
    return [tag("p", tag("img", src=embedded(picture), alt=""), class_="figure")]


def code(name: str, examination: Results) -> str:
    """Three lines of Python that give the number of a section."""
    header = examination.header
    key = ", ".join(map(str, header["key"]))
    return "\n".join(
        [
            f"key = jax.random.wrap_key_data(jax.numpy.array([{key}], dtype='uint32'))",
            f"found = icl.examine(network, task, key=key, size={header['size']!r}, only=[{name!r}])",
            f"found[{name!r}].finding.number  # beside it: {SECTIONS[name].code}",
        ]
    )
