"""The cost of a run beside the seconds that the book's records have."""

import itertools

from icllab.lab import cost, records, registry
from icllab.lab.claim import SIZES
from icllab.lab.job import Request


def test_steps_count_and_what_is_only_an_output_does_not():
    """Twelve seeds to step 8000 against eight to step 2000: six times; more points of a curve cost nothing."""
    claim = registry.load("routing/long_tail")
    assert cost.work(claim, claim.grid("medium")) / cost.work(claim, claim.grid("small")) == 6.0
    claim = registry.load("induction/cliff")
    sparse = claim.grid("small", {"strength": ["beta"]})
    assert cost.work(claim, sparse) == cost.work(claim, claim.grid("small"))


def ratios(first, second):
    """Recorded seconds of one size over those that another size of the same claim predicts, for every claim."""
    for name in registry.claims():
        entries = records.read(name)
        if all("seconds" in entries.get(size, {}) for size in (first, second)):
            seconds = [entries[size].get("cpu_seconds", entries[size]["seconds"]) for size in (first, second)]
            claims = [Request(name, size).claim() for size in (first, second)]
            before, after = (cost.work(c, c.grid(s)) for c, s in zip(claims, (first, second), strict=True))
            yield seconds[1] / (seconds[0] * after / before)


def within(first, second):
    values = list(ratios(first, second))
    return sum(1 / cost.FACTOR <= value <= cost.FACTOR for value in values), len(values)


def test_a_judged_size_predicts_another_within_the_stated_factor():
    """The counts of the module's docstring; of a later record, at least five in six."""
    for pair in itertools.permutations(("small", "medium")):
        inside, count = within(*pair)
        assert count >= 9
        assert inside >= 5 / 6 * count
    assert SIZES[0] == "smoke"
    inside, count = within("smoke", "small")
    assert inside < 0.7 * count  # why a smoke predicts no other size
