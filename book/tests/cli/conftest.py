"""``icl`` as the laboratory's tests have it."""

from cli.conftest import *  # noqa: F403
