"""The price of a run beside what the book's records say it was."""

import itertools
import math
import statistics

from icllab.lab import cost, records, registry
from icllab.lab.claim import SIZES


def test_steps_count_and_what_is_only_an_output_does_not():
    """Twelve seeds to step 8000 against eight to step 2000: six times; more points of a curve cost nothing."""
    claim = registry.load("routing/long_tail")
    assert cost.work(claim, claim.grid("medium")) / cost.work(claim, claim.grid("small")) == 6.0
    claim = registry.load("induction/cliff")
    sparse = claim.grid("small", {"strength": ["beta"]})
    assert cost.work(claim, sparse) == cost.work(claim, claim.grid("small"))


def residuals():
    """ln(recorded / extrapolated seconds) of every claim with two judged sizes in its record."""
    for name in registry.claims():
        entries = records.read(name)
        sizes = [size for size in SIZES[1:] if "seconds" in entries.get(size, {})]
        for near, far in itertools.pairwise(sizes):
            claim = registry.load(name)
            work = [cost.work(claim.at(size), claim.grid(size)) for size in (near, far)]
            yield math.log(entries[far]["seconds"] / entries[near]["seconds"] * work[0] / work[1])


def test_the_error_of_an_extrapolation_is_that_of_the_records():
    """Of the larger of two recorded sizes from the smaller: not larger than stated, nor a small part of it."""
    errors = list(residuals())
    assert len(errors) >= 4
    rms = math.sqrt(statistics.mean(error**2 for error in errors))
    assert 1 / 3 < rms / cost.EXTRAPOLATED < 1.5
    outside = sum(abs(error) > cost.SIGMAS * cost.EXTRAPOLATED for error in errors)
    assert outside <= 1 + 0.1 * len(errors)
