"""Numbers that JAX's types would round away are refused, and no others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.core.rounding import require_representable

Y = np.random.default_rng(0).normal(size=(4, 5))


def refused(tree):
    with jax.enable_x64(False), pytest.raises(InputError) as caught:
        require_representable("data", tree)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_would_be_rounded_away_is_refused_by_name():
    assert refused({"y": Y + 1.7e9}).startswith(
        "data['y']: expected numbers whose differences float32 holds, got 'diff"
    )
    assert "jax.enable_x64" in refused(Y + 1.7e9)
    assert "numbers whose differences" in refused(1e-50 * Y)
    assert "expected numbers up to 3.4e+38, got -" in refused(-1e50 * np.abs(Y))
    assert "expected integers that int32 holds, got 1099511627776" in refused(np.asarray([1, 2**40]))
    # One column of many, on the axes after prompt and position.
    assert "numbers whose differences" in refused(np.stack([Y, Y + 1.7e9], axis=2))


@pytest.mark.parametrize(
    "tree",
    [
        Y + 1e5,
        1e-30 * Y,
        1e30 * Y,
        np.full((3, 4), 0.1),  # rounded, and no differences to lose
        np.full((3, 4), 1.7e9 + 0.1),
        np.stack([Y, 1e9 * Y], axis=2),
        np.asarray([np.nan, 1.0, np.inf]),
        np.float32(Y + 1.7e9),
        np.arange(5),
        jnp.ones(3),
        np.zeros((0, 2)),
        "text",
    ],
)
def test_what_is_held_is_not_refused(tree):
    with jax.enable_x64(False):
        require_representable("data", tree)


def test_in_float64_nothing_is_lost():
    with jax.enable_x64(True):
        require_representable("data", {"y": Y + 1.7e9, "n": np.asarray([2**40])})
