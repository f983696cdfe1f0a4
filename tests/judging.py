"""What a claim's check finds on made-up data, as its tests look at it."""

from icllab.lab import registry
from icllab.lab.checks import Outcome, worst


def judged(check):
    """Of a check: dataset -> outcomes by id, dataset -> the ids that fail, dataset -> the worst outcome."""

    def outcomes(dataset):
        return {finding.id: finding.outcome for finding in check(dataset)}

    def failing(dataset):
        return [name for name, found in outcomes(dataset).items() if found is Outcome.FAILS]

    def outcome(dataset):
        return worst(outcomes(dataset).values())

    return outcomes, failing, outcome


def theory_under(claim, control):
    """The theory of a claim's module under one of its negative controls."""
    subject, name = claim.__name__.split(".")[-3:-1]
    return registry.load(f"{subject}/{name}").under(control).theory
