"""Arguments of formulas broadcast to one shape, and a scalar question has a Python float for an answer."""

import re

import numpy as np
import pytest

from icllab.core.domains import POSITIVE
from icllab.core.errors import InputError
from icllab.theory.parameters import plain, read


def test_shapes_broadcast_or_are_named():
    x, y, z = read(x=(np.ones((3, 1)), POSITIVE), y=(np.ones(4), POSITIVE), z=(2.0, POSITIVE))
    assert x.shape == y.shape == z.shape == (3, 4)
    message = "x, y, z: expected shapes that broadcast together, got x (3,), y (2,)"
    with pytest.raises(InputError, match=re.escape(message)):
        read(x=([1, 2, 3], POSITIVE), y=([1, 2], POSITIVE), z=(1.0, POSITIVE))


def test_a_scalar_answer_is_a_python_float():
    assert type(plain(np.float64(2.0))) is float
    assert type(plain(np.array(2.0))) is float
    assert isinstance(plain(np.array([2.0])), np.ndarray)
