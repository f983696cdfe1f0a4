"""The features' definition, their exact sampler and their exact moments, against simulations that share no code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from icllab.core.errors import InputError
from icllab.core.prompt import RegressionPrompt
from icllab.tasks import GaussianInputs, GaussianWeights, LinearRegression, UniformInputs, WeightPool
from icllab.tasks.attention_features import _chi_square, feature_moments, features, prefix_features, sample_features

DIM = 3
FULL = np.array([[1.0, 0.3, 0.1], [0.3, 0.5, -0.2], [0.1, -0.2, 0.8]])
DIAGONAL = np.array([0.5, 1.0, 2.0])
POOL = np.random.default_rng(11).normal(size=(4, DIM))


def task(inputs=1.0 / DIM, weights=1.0, noise=0.3, length=5):
    weights = np.asarray(weights, np.float32)
    law = GaussianWeights(np.float32(1.0)) if weights.shape == POOL.shape else GaussianWeights(weights)
    weights = WeightPool(jnp.asarray(weights), law) if weights.shape == POOL.shape else law
    return LinearRegression(DIM, length, GaussianInputs(np.asarray(inputs, np.float32)), weights, np.float32(noise))


TASKS = {
    "isotropic": {},
    "diagonal": {"inputs": DIAGONAL, "weights": DIAGONAL[::-1].copy()},
    "full": {"inputs": FULL, "weights": FULL[::-1, ::-1].copy()},
    "pool": {"weights": POOL},
    "full_pool": {"inputs": FULL, "weights": POOL},
    "noiseless": {"noise": 0.0, "inputs": DIAGONAL},
    "one_example": {"length": 1},
}


def simulate(inputs=1.0 / DIM, weights=1.0, noise=0.3, length=5, contexts=200_000, seed=0):
    """Contexts one example at a time, in NumPy: (w, h, query, label)."""
    rng = np.random.default_rng(seed)

    def root(c):
        return np.linalg.cholesky(c if np.ndim(c) == 2 else np.diag(np.broadcast_to(c, DIM)))

    if np.shape(weights) == POOL.shape:
        w = np.asarray(weights)[rng.integers(len(weights), size=contexts)]
    else:
        w = rng.normal(size=(contexts, DIM)) @ root(weights).T
    x = rng.normal(size=(contexts, length + 1, DIM)) @ root(inputs).T
    y = np.einsum("cld,cd->cl", x, w) + np.sqrt(noise) * rng.normal(size=(contexts, length + 1))
    h = np.concatenate(
        [DIM / length * np.einsum("cl,cld->cd", y[:, :-1], x[:, :-1]), np.mean(y[:, :-1] ** 2, axis=1)[:, None]], axis=1
    )
    return w, h, x[:, -1], y[:, -1]


def z_scores(samples, expected):
    """Of the mean over the first axis; entries that do not vary have to be right to rounding."""
    mean, error = samples.mean(0), samples.std(0) / np.sqrt(len(samples))
    fixed = error < 1e-12
    np.testing.assert_allclose(mean[fixed], np.broadcast_to(expected, mean.shape)[fixed], atol=1e-12)
    return (mean - expected)[~fixed] / error[~fixed]


def outer(a, b):
    return np.einsum("ci,cj->cij", a, b)


@pytest.mark.parametrize("name", TASKS)
def test_moments_are_those_of_simulated_contexts(name):
    """Within 5 standard errors, with up to 34 of them; each error is below 2% of the largest entry."""
    w, h, x, y = simulate(**TASKS[name])
    moments = feature_moments(task(**TASKS[name]))
    assert moments.features.dtype == np.float64
    for samples, expected in (
        (outer(h, w), moments.cross),
        (outer(h, h), moments.features),
        (outer(w, w), moments.task),
        (outer(x, x), moments.query),
        (y**2, moments.error(np.zeros((DIM, DIM + 1)))),
    ):
        assert np.max(samples.std(0)) / np.sqrt(len(samples)) < 0.02 * np.max(np.abs(expected))
        assert np.max(np.abs(z_scores(samples, expected))) < 5


def moments_with_errors(v):
    """The means of all entries, of their products, and of the products' products with the last; standard errors."""
    i, j = np.triu_indices(v.shape[1])
    products = v[:, i] * v[:, j]
    terms = np.concatenate([v, products, products * v[:, -1:]], axis=1)
    mean = terms.mean(0)
    variance = np.einsum("ct,ct->t", terms, terms) / len(terms) - mean**2
    return mean, np.sqrt(variance / len(terms))


@pytest.mark.parametrize("name", TASKS)
def test_the_sampler_has_the_law_of_simulated_contexts(name):
    """All first and second moments of (h, query, label), and the marginals by Kolmogorov and Smirnov's test."""
    setting, contexts = TASKS[name], 50_000

    def draw(key):
        return jax.vmap(lambda k: sample_features(task(**setting), key=k))(jax.random.split(key, contexts))

    drawn = jax.tree.map(np.asarray, jax.jit(draw)(jax.random.key(3)))
    ours = np.concatenate([drawn.features, drawn.query, drawn.label[:, None]], axis=1).astype(np.float64)
    _, h, x, y = simulate(**setting, contexts=contexts, seed=1)
    theirs = np.concatenate([h, x, y[:, None]], axis=1)
    (a, of_a), (b, of_b) = map(moments_with_errors, (ours, theirs))
    assert np.max(np.abs(a - b) / np.hypot(of_a, of_b)) < 5
    for column in range(ours.shape[1]):
        assert scipy.stats.ks_2samp(ours[:, column], theirs[:, column]).pvalue > 1e-4


chi_square = jax.jit(jax.vmap(_chi_square, in_axes=(None, 0)))


@pytest.mark.parametrize("freedom", [1, 2, 3, 7, 400])
def test_chi_square_numbers_have_their_law(freedom):
    normals = np.random.default_rng(freedom).standard_normal((20_000, 3, 8), np.float32)
    drawn = np.asarray(chi_square(jnp.asarray(freedom, jnp.float32), jnp.asarray(normals)), np.float64)
    assert scipy.stats.kstest(drawn, scipy.stats.chi2(freedom).cdf).pvalue > 1e-3


def test_moments_have_the_published_form_for_isotropic_inputs():
    r"""E[h w^T] = [I; 0] and E[h h^T] = diag(((1+rho)/alpha + 1 + 1/l) I, ((1+rho)^2 + 2/d)(1 + 2/l))."""
    dim, alpha, rho = 6, 2.5, 0.4
    length = round(alpha * dim)
    fresh = LinearRegression.from_scaling(dim=dim, alpha=alpha, kappa=np.inf, rho=rho, key=jax.random.key(0))
    moments = feature_moments(fresh)
    diagonal = np.full(dim + 1, (1 + rho) / alpha + 1 + 1 / length)
    diagonal[-1] = ((1 + rho) ** 2 + 2 / dim) * (1 + 2 / length)
    np.testing.assert_allclose(moments.features, np.diag(diagonal), rtol=1e-6)
    np.testing.assert_allclose(moments.cross, np.eye(dim + 1)[:, :dim], rtol=1e-6)


def test_a_list_of_weights_is_a_pool_and_many_gaussian_ones_are_the_gaussian_law():
    np.testing.assert_allclose(
        feature_moments(task(), weights=POOL).features, feature_moments(task(weights=POOL)).features, rtol=1e-6
    )
    many = np.random.default_rng(5).normal(size=(400_000, DIM))
    np.testing.assert_allclose(
        feature_moments(task(), weights=many).features, feature_moments(task()).features, atol=0.03
    )


def test_moments_of_another_length_are_those_of_a_task_of_that_length():
    longer, other = feature_moments(task(inputs=FULL), length=9), feature_moments(task(inputs=FULL, length=9))
    np.testing.assert_array_equal(longer.features, other.features)
    empty = feature_moments(task(), length=0)
    assert not empty.features.any()
    assert not empty.cross.any()


def test_prefix_features_are_the_features_of_every_prefix(precision):
    rng = np.random.default_rng(0)
    x, y = (jnp.asarray(rng.normal(size=shape), precision) for shape in ((8, DIM), 8))

    @jax.jit
    def both_routes(x, y):
        return prefix_features(RegressionPrompt(x=x, y=y)), [features(x[:i], y[:i]) for i in range(8)]

    rows, wanted = both_routes(x, y)
    assert (rows.shape, rows.dtype) == ((8, DIM + 1), x.dtype)
    np.testing.assert_array_equal(np.asarray(rows)[0], 0)
    np.testing.assert_allclose(rows, np.stack(wanted), rtol=3e-5 if precision == "float32" else 1e-12)


def test_features_of_an_example_by_hand():
    h = features(jnp.array([[1.0, 2.0], [3.0, -1.0]]), jnp.array([2.0, -1.0]))
    np.testing.assert_allclose(h, [2 / 2 * (2 - 3), 2 / 2 * (4 + 1), (4 + 1) / 2])


def test_other_inputs_are_refused_in_one_line():
    uniform = LinearRegression(DIM, 4, UniformInputs(1.0), GaussianWeights(1.0), 0.1)
    for call in (lambda: sample_features(uniform, key=jax.random.key(0)), lambda: feature_moments(uniform)):
        with pytest.raises(InputError, match=r"^inputs: expected GaussianInputs \(.*\), got UniformInputs"):
            call()


def test_bad_lengths_and_weights_are_refused_in_one_line():
    with pytest.raises(InputError, match="length: expected an integer of at least 0, got -1"):
        feature_moments(task(), length=-1)
    with pytest.raises(InputError, match=r"weights: expected a distribution of task vectors, or an array \[task, 3\]"):
        feature_moments(task(), weights=np.ones((4, 2)))
