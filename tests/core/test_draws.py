"""Uniform and normal numbers from one draw of bits have their distributions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from icllab.core.draws import _cosine_and_sine, uniform_and_normal


@pytest.mark.parametrize("impl", ["threefry2x32", "unsafe_rbg"])
def test_numbers_have_their_laws_and_are_independent(impl, precision):
    dtype = jnp.dtype(precision)
    key = jax.random.key(5, impl=impl)
    uniform, normal = uniform_and_normal(4000, 3, 5, dtype=dtype, key=key)
    assert uniform.dtype == normal.dtype == dtype
    assert (uniform.shape, normal.shape) == ((4000, 3), (4000, 5))
    assert stats.kstest(np.asarray(uniform).reshape(-1), "uniform").pvalue > 1e-3
    assert stats.kstest(np.asarray(normal).reshape(-1), "norm").pvalue > 1e-3
    assert 0 <= float(uniform.min()) < float(uniform.max()) < 1
    columns = np.concatenate([stats.norm.ppf(np.clip(uniform, 1e-7, 1 - 1e-7)), normal], axis=1)
    for table in (columns, columns**2):  # the pairs of one angle are uncorrelated in their squares too
        off = np.corrcoef(table.T)[~np.eye(8, dtype=bool)]
        assert np.abs(off).max() < 4.5 / 4000**0.5


def test_cosine_and_sine_are_those_of_an_angle_in_turns():
    """Half a turn on, which changes the sign of both."""
    with jax.enable_x64(True):
        turn = jnp.linspace(0, 1, 1001)
        cosine, sine = _cosine_and_sine(turn)
        np.testing.assert_allclose(cosine, -np.cos(2 * np.pi * np.asarray(turn)), atol=3e-15)
        np.testing.assert_allclose(sine, -np.sin(2 * np.pi * np.asarray(turn)), atol=3e-15)
