"""The six sentences with which a report begins: one for each question, with its numbers, or why it cannot be said."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from icllab.examination.results import Answered, Results

ORDER = ("in_context", "algorithm", "memorising", "theory", "heads")


def first_sentences(examination: "Results") -> list[str]:
    """Six sentences: learning in context, algorithm, memorising, theory, heads, and the worst thing found."""
    by_name = {section.name: section for section in examination.sections}
    said = [_sentence(by_name[name]) if name in by_name else f"{name}: skipped." for name in ORDER]
    return [*said, worst(examination)]


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
    if (finding := by_name.get("in_context")) and finding.verdict == "does not learn in context":
        return f"Worst: the network does not learn in context; {finding.null}."
    for name in ("elsewhere", "memorising"):
        if (finding := by_name.get(name)) and finding.verdict in (
            "fails on fresh tasks",
            "fails elsewhere",
            "memorised",
        ):
            return f"Worst: {finding.verdict}. {finding.sentence}"
    if finding := by_name.get("elsewhere"):
        return f"Worst: no fault was found. {finding.sentence}"
    return "Worst: nothing was found."
