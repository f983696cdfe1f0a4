"""Which worker runs which tests of claims."""

import pytest

import iclbook

assert "fixture_book" not in str(iclbook.__file__), "book/tests and tests run apart: each has a book of its own"


def pytest_terminal_summary(terminalreporter):
    """How many claims had their golden numbers judged to rounding: on another platform none are."""
    every = [report for reports in terminalreporter.stats.values() for report in reports]
    reports = [report for report in every if getattr(report, "when", "") == "call"]
    strict = [value for report in reports for name, value in getattr(report, "user_properties", ()) if name == "strict"]
    if strict:
        terminalreporter.write_line(f"golden numbers of {sum(strict)} of {len(strict)} claims were judged strictly")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With ``--dist loadgroup`` all smokes of one claim go to one worker, which has its results and its programs."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByClaim(LoadScopeScheduling):
        """One unit of work for every name in brackets, without that of a control; of other tests, for every file."""

        def _split_scope(self, nodeid):
            file = nodeid.partition("::")[0]
            if not file.endswith("test_every_claim.py"):
                return file
            return nodeid.partition("[")[2].rstrip("]").partition("-")[0] or nodeid

    return ByClaim(config, log)
