"""The page as the laboratory's tests have it."""

from page.conftest import *  # noqa: F403
from page.test_verdicts import views  # noqa: F401
