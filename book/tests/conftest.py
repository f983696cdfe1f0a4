"""Which worker runs which tests of claims."""

import pytest
from scheduling import pytest_xdist_make_scheduler  # noqa: F401

import iclbook

assert "fixture_book" not in str(iclbook.__file__), "book/tests and tests run apart: each has a book of its own"


def pytest_terminal_summary(terminalreporter):
    """How many claims had their golden numbers judged to rounding: on another platform none are."""
    every = [report for reports in terminalreporter.stats.values() for report in reports]
    reports = [report for report in every if getattr(report, "when", "") == "call"]
    strict = [value for report in reports for name, value in getattr(report, "user_properties", ()) if name == "strict"]
    if strict:
        terminalreporter.write_line(f"golden numbers of {sum(strict)} of {len(strict)} claims were judged strictly")


OTHER_WORLDS = {
    "induction/four_strategies": "the predictors are fitted together",
    "routing/interactions": "a world with fewer programs is another one",
    "routing/one_by_one": "a world with fewer programs is another one",
    "routing/susceptibility_peaks": "its measurement needs the observable `loss`",
}
"""Claims whose names along an axis cannot be measured one by one, as `requested_values` asks, and why."""


def pytest_collection_modifyitems(items):
    """Contracts that a claim does not keep yet; the list may only shrink."""
    for item in items:
        for claim, reason in OTHER_WORLDS.items():
            if item.name.endswith(f"[{claim}-requested_values]"):
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
