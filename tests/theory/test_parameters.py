import re
from fractions import Fraction

import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.theory.parameters import NON_NEGATIVE, POSITIVE, POSITIVE_OR_INF, Range, plain, read


@pytest.mark.parametrize("value", [-1.0, -0.0, 0, np.nan, np.inf, True, "0.5", 1j, None, {}, 10**400, b"1"])
def test_what_is_no_finite_positive_number_is_refused_by_name_and_value(value):
    with pytest.raises(InputError, match=re.escape(f"tau: expected a finite number > 0, got {value!r}")):
        read(tau=(value, POSITIVE))


@pytest.mark.parametrize(
    ("allowed", "edges", "refused"),
    [
        (POSITIVE, (5e-324, 1.7e308), (0.0, np.inf)),
        (POSITIVE_OR_INF, (5e-324, np.inf), (0.0, -np.inf)),
        (NON_NEGATIVE, (0.0, 1.7e308), (-5e-324, np.inf)),
    ],
)
def test_each_range_ends_where_it_says(allowed, edges, refused):
    for value in edges:
        assert read(x=(value, allowed))[0] == value
    for value in refused:
        with pytest.raises(InputError, match=re.escape(f"x: expected {allowed.wanted}, got {value!r}")):
            read(x=(value, allowed))


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.uint8(2), np.array(2), Fraction(2), [2], [[2.0]], (2, 2)])
def test_every_kind_of_real_number_becomes_float64(value):
    (array,) = read(x=(value, POSITIVE))
    assert array.dtype == np.float64
    assert np.all(array == 2.0)


def test_integers_beyond_64_bits_are_numbers():
    assert read(x=(10**30, POSITIVE))[0] == 1e30


def test_in_an_array_the_first_offending_value_is_named_with_its_place():
    rho = np.array([[0.0, 0.5], [-1.5, -2.5]])
    message = "rho: expected a finite number >= 0, got -1.5; element [1, 0] of shape (2, 2)"
    with pytest.raises(InputError, match=re.escape(message)):
        read(rho=(rho, NON_NEGATIVE))
    with pytest.raises(InputError, match=re.escape("got 'a'; element [1] of shape (2,)")):
        read(x=(np.array([1.0, "a"], dtype=object), POSITIVE))


def test_a_ragged_list_is_refused():
    message = "x: expected a finite number > 0, or a rectangular array of such, got [[1], [1, 2]]"
    with pytest.raises(InputError, match=re.escape(message)):
        read(x=([[1], [1, 2]], POSITIVE))


def test_a_hint_follows_the_range():
    allowed = Range("a finite number > 0", POSITIVE.holds, "for alpha -> inf see large_context_limit")
    with pytest.raises(InputError, match=r"got inf; for alpha -> inf see large_context_limit$"):
        read(alpha=(np.inf, allowed))
    with pytest.raises(InputError, match=r"got inf; element \[1\] of shape \(2,\); for alpha"):
        read(alpha=([1.0, np.inf], allowed))


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
