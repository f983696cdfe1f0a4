"""What a claim's check finds on made-up data, as its tests look at it."""

from icllab.experiments.checks import Outcome, worst


def judged(check):
    """Of a check: dataset -> outcomes by id, dataset -> the ids that fail, dataset -> the worst outcome."""

    def outcomes(dataset):
        return {finding.id: finding.outcome for finding in check(dataset)}

    def failing(dataset):
        return [name for name, found in outcomes(dataset).items() if found is Outcome.FAILS]

    def outcome(dataset):
        return worst(outcomes(dataset).values())

    return outcomes, failing, outcome
