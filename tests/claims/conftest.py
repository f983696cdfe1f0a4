"""Which worker runs which tests of claims."""

import pytest


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With ``--dist loadgroup`` all tests of one claim go to one worker, which has its results and its programs."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByClaim(LoadScopeScheduling):
        """One unit of work for every name in brackets, without that of a control."""

        def _split_scope(self, nodeid):
            return nodeid.partition("[")[2].rstrip("]").partition("-")[0] or nodeid

    return ByClaim(config, log)
