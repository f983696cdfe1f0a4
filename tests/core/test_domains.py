"""Domains of numbers: which values belong to one, and what the error says of the others."""

import math
import re
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.domains import (
    FINITE,
    FRACTION,
    NON_NEGATIVE,
    NON_NEGATIVE_OR_INF,
    POSITIVE,
    POSITIVE_OR_INF,
    PROPER_FRACTION,
    Domain,
)
from icllab.core.errors import InputError

COUNT = Domain(int, least=1)
HALF_OPEN = Domain(above=0, most=1)


def refused(call, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        call()


@pytest.mark.parametrize(
    ("domain", "description", "inside", "outside"),
    [
        (FINITE, "a finite number", (-1e308, 0, 1), (math.inf, -math.inf)),
        (POSITIVE, "a finite number > 0", (5e-324, 1.7e308), (0.0, -0.0, -1, math.inf)),
        (POSITIVE_OR_INF, "a number > 0 (inf is allowed)", (5e-324, math.inf), (0.0, -math.inf)),
        (
            NON_NEGATIVE,
            "a finite number >= 0",
            (0, np.int64(3), np.float32(2), Fraction(1, 2)),
            (-5e-324, math.inf),
        ),
        (NON_NEGATIVE_OR_INF, "a number >= 0", (0, math.inf), (-5e-324, -math.inf)),
        (FRACTION, "a number from 0 to 1", (0, 0.5, 1), (-1e-9, 1.1)),
        (PROPER_FRACTION, "a number between 0 and 1", (5e-324, 0.5), (0, 1)),
        (HALF_OPEN, "a finite number > 0 and <= 1", (5e-324, 1), (0, 1.1)),
        (Domain(below=2), "a finite number < 2", (-3, 1.9), (2,)),
        (COUNT, "an integer of at least 1", (1, np.int64(3), 10**15), (0, -1, 2.5, 3.0, np.float64(3.0))),
        (Domain(int, least=1, most=6), "an integer from 1 to 6", (1, 6), (0, 7)),
        (Domain(int), "an integer", (-2, 0), (0.5, 1.0)),
        (Domain(int, least=1_000_001), "an integer of at least 1000001", (1_000_001,), (1_000_000,)),
        (Domain(above=0, text="a ratio"), "a ratio", (1,), (0,)),
    ],
)
def test_a_domain_ends_where_its_description_says(domain, description, inside, outside):
    for value in inside:
        domain.require("x", value)
    for value in (*outside, math.nan, True, "0.5", "1", None, 1j, [1.0], np.ones(1), 10**400):
        refused(lambda value=value: domain.require("x", value), f"x: expected {description}, got {value!r}")
    for value in (*inside, *outside):
        if domain.kind is float:
            assert domain.holds(np.array([value, math.nan], np.float64)).tolist() == [value in inside, False]


def test_hints_follow_the_value():
    refused(
        lambda: Domain(above=0, hint="see b").require("x", 0, "try 1"),
        "x: expected a finite number > 0, got 0; try 1; see b",
    )


def test_a_scalar_may_be_an_array_without_axes_or_traced():
    for value in (1, jnp.array(1.0), np.array(2)):
        POSITIVE.require_scalar("x", value)
    jax.jit(lambda value: POSITIVE.require_scalar("x", value))(-1.0)
    for value, text in (
        (jnp.array(-1.0), "-1.0"),
        (jnp.ones(2), "'float32 of shape (2,)'"),
        (np.array(True), "'bool of shape ()'"),
        ("1", "'1'"),
    ):
        refused(lambda value=value: POSITIVE.require_scalar("x", value), f"x: expected a finite number > 0, got {text}")


def test_a_leaf_has_no_axes_and_a_placeholder_passes():
    POSITIVE.require_leaf("x", jnp.array(1.0))
    POSITIVE.require_leaf("x", jnp.ones(3), axes=1)
    POSITIVE.require_leaf("x", object())
    jax.jit(lambda value: POSITIVE.require_leaf("x", value))(-1.0)
    Domain(int, least=1).require_leaf("x", jnp.array(3.0))
    for value, text in (
        (jnp.array(-1.0), "-1.0"),
        (jnp.array([0.5, 2.0]), "[0.5, 2.0]; use jax.vmap to make an ensemble from an array"),
        (jnp.ones(9), "'shape (9,)'; use jax.vmap to make an ensemble from an array"),
    ):
        refused(lambda value=value: POSITIVE.require_leaf("x", value), f"x: expected a finite number > 0, got {text}")
    refused(
        lambda: POSITIVE.require_leaf("x", jnp.array([1.0, 0.0]), "smaller", axes=1),
        "x: expected a finite number > 0, got [1.0, 0.0]; smaller",
    )
    refused(lambda: COUNT.require_leaf("x", jnp.array(2.5)), "x: expected an integer of at least 1, got 2.5")


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.uint8(2), np.array(2), Fraction(2), [2], [[2.0]], (2, 2)])
def test_every_kind_of_real_number_is_read_as_float64(value):
    array = POSITIVE.read("x", value)
    assert array.dtype == np.float64
    assert np.all(array == 2.0)
    assert COUNT.read("x", value).tolist() == array.tolist()


@pytest.mark.parametrize("value", [-1.0, -0.0, 0, np.nan, np.inf, True, "0.5", 1j, None, {}, 10**400, b"1"])
def test_what_is_read_must_be_real_numbers_of_the_domain(value):
    refused(lambda: POSITIVE.read("tau", value), f"tau: expected a finite number > 0, got {value!r}")


def test_integers_beyond_64_bits_are_numbers():
    assert POSITIVE.read("x", 10**30) == 1e30


def test_in_an_array_the_first_offending_value_is_named_with_its_place():
    rho = np.array([[0.0, 0.5], [-1.5, -2.5]])
    message = "rho: expected a finite number >= 0, got -1.5; element [1, 0] of shape (2, 2)"
    refused(lambda: NON_NEGATIVE.read("rho", rho), message)
    domain = Domain(above=0, hint="an integral")
    message = "x: expected a finite number > 0, got 'a'; element [1] of shape (2,); an integral"
    refused(lambda: domain.read("x", np.array([1.0, "a"], dtype=object)), message)
    message = "x: expected a finite number > 0, or a rectangular array of these, got [[1], [1, 2]]"
    refused(lambda: POSITIVE.read("x", [[1], [1, 2]]), message)
