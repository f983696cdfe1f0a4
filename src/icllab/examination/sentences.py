"""The six sentences with which a report begins: one for each question, with its numbers, or why it cannot be said."""

import functools
import importlib.resources
from typing import TYPE_CHECKING, Any

from icllab.core.files import parse_json
from icllab.core.spelling import with_error

if TYPE_CHECKING:
    from icllab.examination.results import Answered, Results

ORDER = ("in_context", "algorithm", "memorising", "theory", "heads")
LANGUAGE = ("text", "repeats", "induction_heads", "few_shot")
_FAILURES = {
    "in_context": ("does not learn in context",),
    "elsewhere": ("fails on fresh tasks", "fails elsewhere"),
    "memorising": ("memorised",),
    "text": ("does not use its context",),
    "repeats": ("does not repeat",),
    "few_shot": ("no benefit",),
}
"""Verdicts that are the worst thing found, if nothing is a fault of the network; the worst first."""


def first_sentences(examination: "Results") -> list[str]:
    """Six sentences, the last of the worst thing found.

    Of a language model: its loss on the text, repeats, heads, few-shot prompts, and the recorded values of other
    models; of others: learning in context, algorithm, memorising, theory, heads.
    """
    by_name = {section.name: section for section in examination.sections}
    is_language = examination.header.get("kind") == "language model"
    order = LANGUAGE if is_language else ORDER
    said = [_sentence(by_name[name]) if name in by_name else f"{name}: skipped." for name in order]
    return [*said, *([beside(examination)] if is_language else []), worst(examination)]


@functools.cache
def references() -> dict[str, Any]:
    """Section -> model -> recorded number and error, and the meaning of the number."""
    return parse_json((importlib.resources.files("icllab.examination") / "references.json").read_text())["sections"]


def beside(examination: "Results") -> str:
    """The numbers of the network beside those recorded of other models."""
    parts = []
    for section in examination.sections:
        if section.finding is not None and section.name in references():
            stated = with_error(section.finding.number, section.finding.error)
            parts.append(f"{section.finding.what.partition(':')[0]} {stated} ({recorded(section.name)})")
    if not parts:
        return "Beside other models: no number that is recorded of them was measured."
    return f"Beside other models: {'; '.join(parts)}; the loss on a text depends on the text."


def recorded(section: str) -> str:
    """The recorded values of a section, as text."""
    return ", ".join(f"{model} {with_error(*value)}" for model, value in references()[section].items())


def _sentence(section: "Answered") -> str:
    if section.finding is None:
        words = {"not asked": "not asked", "failed": "failed", "ended": "ended"}.get(section.status, section.status)
        return f"{section.name.replace('_', ' ').capitalize()}: {words}: {section.reason.removesuffix('.')}."
    return section.finding.sentence


def worst(examination: "Results") -> str:
    """The worst thing found: a fault of the network, a section that raised, or a failure elsewhere; or nothing."""
    for section in examination.sections:
        if section.finding is not None and section.finding.fault:
            return f"Worst: {section.finding.verdict}. {section.finding.sentence}"
    for section in examination.sections:
        if section.status in ("failed", "ended"):
            return f"Worst: the section {section.name!r} {section.status}: {section.reason.removesuffix('.')}."
    by_name = {section.name: section.finding for section in examination.sections if section.finding is not None}
    for name, verdicts in _FAILURES.items():
        if (finding := by_name.get(name)) and finding.verdict in verdicts:
            return f"Worst: {finding.verdict}. {finding.sentence}"
    if finding := by_name.get("elsewhere"):
        return f"Worst: no fault was found. {finding.sentence}"
    return "Worst: nothing was found."
