"""A certificate as one HTML file that loads nothing and prints on two pages."""

import base64
import hashlib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from icllab.core.spelling import number, with_error
from icllab.figures.markup import Html, document, embedded, joined, table, tag
from icllab.lab.certificate import headline
from icllab.lab.checklists import command
from icllab.lab.outcomes import worded
from icllab.lab.power import false_alarms

_STATIC = Path(__file__).parent / "static"
_IMAGE = re.compile(r'src="data:image/png;base64,([A-Za-z0-9+/=]*)"')
_SHOWN = 16
_SMALLEST, _LARGEST = 4.5, 8.2
"""Points of the type of a long and of a short certificate on paper."""
NO_POWER = (
    "No planted family is recorded for this claim's check, or names this claim as one that uses its statistic. "
    "The controls show that it can fail."
)


def html(content: Mapping[str, Any], png: bytes | None) -> str:
    """The text of the file, of a certificate's content and the figure."""
    letters = {name: ascii_lowercase[i % 26] for i, name in enumerate(content["controls"])}
    body = tag(
        "main",
        _head(content),
        tag("div", _figure(content, png), _facts(content), class_="pair"),
        tag("h2", "Findings"),
        _findings(content, letters),
        tag("h2", "Negative controls"),
        _controls(content, letters),
        tag("h2", "Power of the statistics that its files use"),
        _power(content["power"]),
        tag("h2", "Digests"),
        _digests(content["digests"]),
        tag("h2", "Checklists, about this claim alone"),
        _checklists(content["checklists"]),
        _sources(content),
    )
    style = (_STATIC / "certificate.css").read_text("utf-8").replace("8.2pt", f"{_points(body):g}pt")
    return document(f"certificate of {content['claim']}", style, [body])


def is_of(text: str, content: Mapping[str, Any]) -> bool:
    """True if a file of HTML, by this version of the library, shows this content and its figure."""
    image = _IMAGE.search(text)
    png = base64.b64decode(image[1]) if image else None
    try:
        return figure_digest(png) == content["issued"].get("figure") and text == html(content, png)
    except (LookupError, TypeError, ValueError, AttributeError):  # content that is no certificate's
        return False


def figure_digest(png: bytes | None) -> str | None:
    """SHA-256 of a figure; None of none."""
    return None if png is None else hashlib.sha256(png).hexdigest()


def _points(text: str) -> float:
    """Points of the type in which a text of HTML fits on two pages of paper; A4 or Letter, measured on certificates."""
    letters = len(re.sub("<[^>]*>", "", text))
    return min(max(round(650 / math.sqrt(letters + 700), 2), _SMALLEST), _LARGEST)


def _words(row: Mapping[str, Any]) -> str:
    """The finding, or condition, in words."""
    advice = f" ({row['advice']})" if row["advice"] else ""
    return f"{'' if row['about'] == 'claim' else 'condition: '}{row['what']}{advice}"


def _head(content: Mapping[str, Any]) -> Html:
    statement, issued = content["statement"], content["issued"]
    commit = f", commit {issued['commit']}" if issued["commit"] else ""
    origin = f"Issued {issued['date'][:10]} by icl-lab {issued['package']}{commit}"
    label = f" at size {content['size']}. {origin}. Digest {content['digest'][:_SHOWN]}."
    colour = content["verdict"] if headline(content)[1] != 3 else "undecided"
    verdict = [tag("b", headline(content)[0], class_=colour), f": {worded(content['counts'])}."]
    return tag(
        "header",
        tag("p", "Certificate of ", tag("code", content["claim"]), label, class_="small"),
        tag("h1", statement["sentence"]),
        tag("p", tag("em", "Conditions: "), statement["conditions"] or "none stated"),
        tag("p", *verdict),
        *(tag("p", note, class_="undecided") for note in content["notes"]),
    )


def _figure(content: Mapping[str, Any], png: bytes | None) -> Html:
    if png is None:
        return tag("p", "No figure: there are no data to draw.", class_="small")
    return tag("figure", tag("img", src=embedded(png), alt=f"Figure of the data: {content['statement']['sentence']}"))


def _facts(content: Mapping[str, Any]) -> Html:
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", text)) for name, text in _rows(content).items()))


def _rows(content: Mapping[str, Any]) -> dict[str, str]:
    """Design and measurement, a line each."""
    design, cost = content["design"], content["measurement"]
    hours = cost["core_hours_at_most"]
    parts = [f"{name} {value:g} s" for name, value in cost["seconds"].items()]
    spent = f"{cost['hours']:g} h" + (f", at most {hours:g} core-hours" if hours is not None else "")
    return {
        "key, seeds": f"{design['key']}; {_run(design['seeds'])}",
        **{name: _list(values) for name, values in design["axes"].items()},
        "fixed": ", ".join(f"{name} = {value}" for name, value in design["fixed"].items()) or "nothing",
        "precision": f"{design['precision']}, matrix products {design['matmul_precision']}",
        "generator": design["generator"],
        "data": {"record": "of the claim's record", "results": "results of the user"}[content["origin"]],
        "commit of icl-lab": f"{cost['commit'] or 'unknown'} (working tree {cost['working_tree']})",
        "versions": f"icl-lab {cost['package']}, JAX {cost['jax']}, measure.py {design['measure']}",
        "machine": cost["machine"],
        "measured": cost["created"],
        "cost": f"{spent} ({', '.join(parts)})",
        "again": command(content),
        **({"icl claim conform": _conformance(content["conformance"])} if content["conformance"] else {}),
    }


def _conformance(items: Mapping[str, str]) -> str:
    """The answer of ``icl claim conform`` for a claim from elsewhere."""
    faults = [f"{item}: {fault}" for item, fault in items.items() if fault]
    return "; ".join([f"{len(items) - len(faults)} of {len(items)} items that need no run are met", *faults])


def _run(seeds: Sequence[int]) -> str:
    if not seeds:
        return "no seeds"
    whole = list(seeds) == list(range(seeds[0], seeds[0] + len(seeds)))
    return f"seeds {seeds[0]} to {seeds[-1]}" if whole and len(seeds) > 1 else f"seeds {_list(seeds)}"


def _list(values: Sequence[Any]) -> str:
    texts = [number(value) if isinstance(value, float) else str(value) for value in values]
    return ", ".join(texts) if len(texts) <= 12 else f"{', '.join(texts[:5])} ... {texts[-1]} ({len(texts)} values)"


def _findings(content: Mapping[str, Any], letters: Mapping[str, str]) -> Html:
    rows: list[list[str]] = []
    for row in content["findings"].values():
        numbers = {name: float(row[name]) for name in ("predicted", "measured", "standard_error", "tolerance")}
        exact = numbers["standard_error"] == numbers["tolerance"] == 0
        rows.append(
            [
                _words(row),
                number(numbers["predicted"]),
                with_error(numbers["measured"], numbers["standard_error"]),
                "exact" if exact else number(numbers["tolerance"]),
                tag("span", row["outcome"], class_=row["outcome"]),
                " ".join(letters[name] for name in row["falsified_by"]) or "-",
            ]
        )
    columns = {
        "finding": "",
        "predicted": "n",
        "measured ± SE": "n",
        "tolerance": "n",
        "outcome": "",
        "falsified by": "",
    }
    return table(columns, rows)


def _controls(content: Mapping[str, Any], letters: Mapping[str, str]) -> Html:
    rows: list[list[str]] = []
    for name, control in content["controls"].items():
        falsified = _falsified(control)
        measured = "simulated" if control["simulated"] else "another formula"
        verdict = control["verdict"] or "no data"
        rows.append([letters[name], tag("code", name), f"{control['meaning']} ({measured})", verdict, falsified or "-"])
    columns = {"": "", "control": "", "what differs": "", "verdict": "", "falsifies (findings)": ""}
    return table(columns, rows, class_="controls")


def _falsified(control: Mapping[str, Any]) -> str:
    """The findings that a control falsifies: names, and how many there are of each."""
    names = Counter(id.partition("[")[0] for id in control["falsifies"])
    return ", ".join(f"{name} ({count})" if count > 1 else name for name, count in names.items())


def _power(families: Mapping[str, Mapping[str, Any]]) -> Html:
    if not families:
        return tag("p", NO_POWER)
    items = []
    for family in families.values():
        statistic = "This claim's check" if family["claims_check"] else family["statistic"].removeprefix("icllab.")
        items.append(tag("li", tag("code", statistic), f": {_planted(family)}"))
    return tag("ul", *items, class_="power")


def _planted(family: Mapping[str, Any]) -> str:
    """A planted family in words."""
    false, replicates = false_alarms(family)
    strengths = family["strengths"]
    planted = f"planted from {strengths[0]:g} to {strengths[-1]:g}, {len(strengths)} strengths"
    return f"{family['caption']} False at an end: at most {false} of {replicates} replicates ({planted})."


def _digests(digests: Mapping[str, Mapping[str, str]]) -> Html:
    parts = []
    for kind, table_ in digests.items():
        entries = [joined(f"{name} ", tag("code", digest[:_SHOWN]), " ") for name, digest in table_.items()]
        parts.append(tag("p", tag("em", f"{kind}: "), *(entries or ["none kept"])))
    note = f"SHA-256, the first {_SHOWN} digits; the JSON file has all."
    return tag("div", *parts, tag("p", note, class_="small"), class_="digests")


def _checklists(lists: Mapping[str, Mapping[str, str | None]]) -> Html:
    """The venues side by side; items that the certificate cannot answer stay open."""
    tables = []
    for venue, items in lists.items():
        rows: list[list[str]] = [
            [item, _answer(answer) if answer is not None else tag("span", "open: for the authors", class_="open")]
            for item, answer in items.items()
        ]
        tables.append(table({venue: "", "answer": ""}, rows, class_="checklist"))
    return tag("div", *tables, class_="pair lists")


def _answer(text: str) -> Html:
    """An answer, with what stands between backquotes as code."""
    return joined(*(tag("code", part) if i % 2 else part for i, part in enumerate(text.split("`"))))


def _sources(content: Mapping[str, Any]) -> Html:
    sources = content["statement"]["sources"]
    entries = [joined(tag("b", key), f" {text} ") for key, text in sources.items()]
    verify = "icl verify certificate.json" + ("" if content["conformance"] is None else " --claims DIR")
    return tag(
        "footer",
        tag("p", tag("em", "Sources: "), *entries),
        tag("p", tag("code", verify), " computes every number again from the data and says what differs."),
        class_="small",
    )
