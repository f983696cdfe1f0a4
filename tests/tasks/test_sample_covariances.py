"""Covariances drawn without their samples have the distribution of those that are made of samples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from icllab.core.errors import InputError
from icllab.tasks.sample_covariances import chi, sample_covariance
from icllab.theory.finite_wishart import moments

FULL = np.array([[1.0, 0.3, 0.1], [0.3, 0.5, -0.2], [0.1, -0.2, 0.8]])
COVARIANCES = {"diagonal": np.array([0.5, 1.0, 2.0]), "full": FULL}


def drawn(covariance, dim, length, key, count):
    """So many sample covariances, float64 on the host."""
    law = jnp.asarray(covariance, float)
    sample = jax.jit(jax.vmap(lambda k: sample_covariance(law, dim, length, key=k)))
    return np.asarray(sample(jax.random.split(key, count)), np.float64)


@pytest.mark.parametrize("freedom", [1, 20])
def test_chi_is_the_quantile_of_a_normal_number(precision, freedom):
    far = 5.5 if precision == "float32" else 8.2
    normals = np.linspace(-far, far, 401, dtype=precision)
    found = jax.jit(jax.vmap(lambda g: chi(g[None], (freedom,))[0]))(normals)
    assert found.dtype == precision
    g = normals.astype(np.float64)
    law = scipy.stats.chi(freedom)
    exact = np.where(g < 0, law.ppf(scipy.stats.norm.cdf(g)), law.isf(scipy.stats.norm.sf(g)))
    np.testing.assert_allclose(found, exact, rtol=0, atol=(1.5e-6 if precision == "float32" else 1e-12) * freedom**0.5)


def test_every_entry_has_its_own_degrees_of_freedom_and_none_below_one():
    found = jax.jit(lambda normals: chi(normals, (5, 2, 9)))(np.zeros(3, np.float32))
    np.testing.assert_allclose(found, scipy.stats.chi([5, 2, 9]).median(), rtol=1e-6)
    with pytest.raises(InputError, match=r"freedom: expected 2 integers of at least 1, got \[3, 0\]"):
        chi(jnp.zeros(2), (3, 0))


@pytest.mark.parametrize(("name", "length"), [("diagonal", 2), ("full", 5)])
def test_first_and_second_moments(name, length, getkey):
    """90 numbers within 5 standard errors, each of below 3 % of the largest; with 2 samples of 3 entries too."""
    found = drawn(COVARIANCES[name], 3, length, getkey(), 40_000)
    sigma = np.diag(COVARIANCES[name]) if name != "full" else FULL
    pairs = np.einsum("cij,ckl->cijkl", found, found)
    swapped = np.einsum("ik,jl->ijkl", sigma, sigma) + np.einsum("il,jk->ijkl", sigma, sigma)
    for samples, exact in ((found, sigma), (pairs, np.einsum("ij,kl->ijkl", sigma, sigma) + swapped / length)):
        error = samples.std(0) / len(samples) ** 0.5
        assert error.max() < 0.03 * exact.max()
        assert np.all(np.abs(samples.mean(0) - exact) < 5 * error + 1e-12)


@pytest.mark.parametrize(("dim", "length"), [(1, 3), (4, 7), (5, 3)])
def test_the_spectrum_has_the_exact_moments(dim, length, getkey):
    """Of dimensions even and odd, more and fewer samples: tr S^k to the fourth within 4 errors of below 4 %."""
    found = drawn(1.0, dim, length, getkey(), 40_000)
    power = np.broadcast_to(np.eye(dim), found.shape)
    for exact in moments(dim, length, 4)[1:]:
        power = power @ found
        traces = np.trace(power, axis1=1, axis2=2) / dim
        error = traces.std() / len(traces) ** 0.5
        assert error < 0.04 * exact
        assert abs(traces.mean() - exact) < 4 * error


def test_marginal_laws(getkey):
    """n S_ii is a chi-square of n degrees of freedom, n over an entry of the inverse one of n - d + 1."""
    found, length = drawn(1.0, 4, 9, getkey(), 20_000), 9
    inverse = np.linalg.inv(found)
    for i in range(4):
        for value, freedom in ((length * found[:, i, i], 9), (length / inverse[:, i, i], 6)):
            assert scipy.stats.kstest(value, scipy.stats.chi2(freedom).cdf).pvalue > 1e-3


def test_of_fewer_samples_than_dimensions_it_is_singular(getkey):
    with jax.enable_x64(True):
        found = jax.jit(lambda k: sample_covariance(jnp.ones(()), 6, 2, key=k))(getkey())
    assert found.dtype == np.float64
    values = np.linalg.eigvalsh(np.asarray(found))
    assert np.all(np.abs(values[:4]) < 1e-13)
    assert np.all(values[4:] > 1e-3)


def test_no_sample_is_refused(getkey):
    with pytest.raises(InputError, match="length: expected an integer of at least 1, got 0"):
        sample_covariance(jnp.ones(()), 3, 0, key=getkey())
