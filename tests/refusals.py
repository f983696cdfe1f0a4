"""What a user sees of a mistake, who has no type checker: one line of an ``InputError``."""

import contextlib

import jaxtyping
import pytest

from icllab.core.errors import InputError


@contextlib.contextmanager
def unchecked():
    """With the type checker of the tests switched off."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def assert_refused(make, said):
    """``make()`` ends, unchecked, in one line that begins as ``said``."""
    with unchecked(), pytest.raises(InputError) as caught:
        make()
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)
