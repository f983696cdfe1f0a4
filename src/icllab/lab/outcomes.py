"""Outcomes of findings and claims, and their counts."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

NO_VERDICT = "smoke is a regression test without a verdict; `--size small` is the first that is judged"


class Outcome(StrEnum):
    """Outcome of a finding or of a whole claim, with the exit status of the command line."""

    HOLDS = "holds"
    FAILS = "fails"
    UNDECIDED = "undecided"

    @property
    def exit_status(self) -> int:
        """0, 1 or 3."""
        return {"holds": 0, "fails": 1, "undecided": 3}[self.value]


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """The worst outcome: ``fails`` before ``undecided`` before ``holds``; ``undecided`` if there are none."""
    outcomes = set(outcomes)
    for outcome in (Outcome.FAILS, Outcome.UNDECIDED):
        if outcome in outcomes:
            return outcome
    return Outcome.HOLDS if outcomes else Outcome.UNDECIDED


def counts(findings: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Count the findings that hold and the conditions that are met, in rows with ``outcome`` and ``about``."""
    table = {"findings": {"hold": 0, "of": 0}, "conditions": {"met": 0, "of": 0}}
    for row in findings:
        kind, good = ("conditions", "met") if row.get("about", "claim") != "claim" else ("findings", "hold")
        table[kind]["of"] += 1
        table[kind][good] += Outcome(row["outcome"]) is Outcome.HOLDS
    return table


def worded(numbers: Mapping[str, Mapping[str, int]]) -> str:
    """The :func:`counts` in words: ``14 of 14 findings hold; 7 of 7 conditions for judging are met``."""
    texts = {"findings": "{hold} of {of} findings hold", "conditions": "{met} of {of} conditions for judging are met"}
    return "; ".join(texts[kind].format(**n) for kind, n in numbers.items() if n["of"]) or "no findings"
