"""With ``--dist loadgroup`` the tests of one claim go to one worker."""

import pytest


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
