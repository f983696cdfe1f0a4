"""Fitted heads on other tasks, other lengths and other inputs than those of pretraining, against the closed forms."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import icllab as icl
from icllab.core.statistics import extrapolate, mean_and_error
from icllab.models import LinearAttention, reduced
from icllab.tasks import GaussianInputs, GaussianWeights, LinearRegression, WeightPool
from icllab.tasks.attention_features import feature_moments, features
from icllab.theory import linear_attention, task_alignment
from icllab.theory.sample_covariance import power_law
from icllab.training import Record

DIMS = (8, 16, 32)


def limits(fitted_errors, seeds):
    """``fitted_errors(dim, key)``, measured over predicted, taken to 1/d -> 0, with standard errors."""
    means, errors = [], []
    for dim, draws in zip(DIMS, seeds, strict=True):
        keys = jax.random.split(jax.random.key(dim), draws)
        mean, error = mean_and_error(np.array([fitted_errors(dim, key) for key in keys]).T)
        means.append(mean)
        errors.append(error)
    pairs = zip(np.transpose(means), np.transpose(errors), strict=True)
    return np.array([extrapolate(DIMS, m, s, order=2) for m, s in pairs]).T


@pytest.mark.slow
def test_contexts_of_another_length():
    """A short and a long test, fresh tasks and those of the pool."""
    law = {"tau": 0.5, "alpha": 2.0, "kappa": 0.5, "rho": 0.2}
    lengths = (0.5, 8.0)
    predicted = [
        error(**law, test_alpha=length)
        for error in (linear_attention.icl_error, linear_attention.idg_error)
        for length in lengths
    ]

    def errors(dim, key):
        of_pool, of_contexts = jax.random.split(key)
        scaling = {name: law[name] for name in ("alpha", "kappa", "rho")}
        task = LinearRegression.from_scaling(dim=dim, **scaling, key=of_pool)
        model = reduced.fit(task, prompts=reduced.prompts_at(0.5, dim, per="d(d+1)"), ridge=0.0, key=of_contexts)
        return [
            model.population_error(on, length=round(length * dim)) for on in (task.fresh(), task) for length in lengths
        ] / np.array(predicted)

    limit, error = limits(errors, (160, 96, 72))
    assert np.all(error < 0.06)
    assert np.all(np.abs(limit - 1) < 3 * error)
    # The length of pretraining in the test too, and the length of the test in pretraining too, are told apart.
    for wrong in ({"alpha": 2.0}, {"alpha": 0.5}):
        other = linear_attention.icl_error(**{**law, **wrong}) / predicted[0]
        assert abs(limit[0] - other) > 5 * error[0]


@pytest.mark.slow
def test_covariances_that_do_not_commute():
    """Full matrices: only the diagonal of the test covariance in the eigenbasis of that of pretraining enters."""
    law = {"tau": 2.0, "alpha": 4.0, "kappa": 1.5, "rho": 0.1, "ridge": 0.1}

    def covariances(dim):
        rng = np.random.default_rng(dim)
        turns = [np.linalg.qr(rng.standard_normal((dim, dim)))[0] for _ in range(2)]
        return [turn * power_law(dim, 0.7) @ turn.T for turn in turns]

    def errors(dim, key):
        of_pool, of_contexts = jax.random.split(key)
        train, test = covariances(dim)
        law_of_tasks = GaussianWeights(jnp.asarray(train, "float32"))
        # Drawn with one root for all tasks: `WeightPool.init` would find it anew for each.
        normals = np.asarray(jax.random.normal(of_pool, (round(1.5 * dim), dim)))
        pool = WeightPool(jnp.asarray(normals @ np.linalg.cholesky(train).T, "float32"), law_of_tasks)
        task = LinearRegression(dim, 4 * dim, GaussianInputs(jnp.ones(()) / dim), pool, 0.1)
        model = reduced.fit(task, prompts=reduced.prompts_at(2.0, dim, per="d(d+1)"), ridge=0.1, key=of_contexts)
        measured = [model.population_error(weights=GaussianWeights(jnp.asarray(c, "float32"))) for c in (test, train)]
        return np.array(measured) / [task_alignment.icl_error(train, c, **law) for c in (test, train)]

    limit, error = limits(errors, (160, 96, 64))
    assert np.all(error < 0.04)
    assert np.all(np.abs(limit - 1) < 3 * error)
    train, test = covariances(32)
    ordered = task_alignment.icl_error(np.linalg.eigvalsh(train), np.linalg.eigvalsh(test), **law)
    assert abs(limit[0] - ordered / task_alignment.icl_error(train, test, **law)) > 5 * error[0]


@pytest.fixture
def correlated():
    """A task whose inputs have a full covariance, and the isotropic-input task it maps to."""
    dim = 5
    rng = np.random.default_rng(0)
    half = rng.standard_normal((dim, dim)) / 2 + np.eye(dim)
    sigma = half @ half.T
    values, vectors = np.linalg.eigh(sigma)
    root = vectors * np.sqrt(values) @ vectors.T
    tasks = rng.standard_normal((7, dim))
    return dim, sigma, root, tasks


@pytest.mark.parametrize(("ridge", "prompts", "same"), [(0.0, 60, True), (0.0, 20, False), (0.1, 60, False)])
def test_correlated_inputs_are_other_tasks_without_ridge_and_with_enough_contexts(correlated, ridge, prompts, same):
    """Exactly, for one and the same training set; with a ridge, or at least norm, the two fits differ."""
    dim, sigma, root, tasks = correlated
    with jax.enable_x64(True):
        law = GaussianWeights(jnp.ones(()))
        isotropic = LinearRegression(
            dim, 12, GaussianInputs(jnp.ones(()) / dim), WeightPool(jnp.asarray(tasks @ root), law), 0.1
        )
        turned = LinearRegression(
            dim, 12, GaussianInputs(jnp.asarray(sigma / dim)), WeightPool(jnp.asarray(tasks), law), 0.1
        )
        drawn = reduced.sample(isotropic, prompts=prompts, key=jax.random.key(4))
        x, h, y = (np.asarray(part) for part in (drawn.query, drawn.features, drawn.label))
        x, h, y = x.reshape(-1, dim)[:prompts], h.reshape(-1, dim + 1)[:prompts], y.reshape(-1)[:prompts]
        both = np.block([[root, np.zeros((dim, 1))], [np.zeros((1, dim)), np.ones((1, 1))]])
        kept = {"ridge": ridge, "precision": "float64", "tolerance": 1e-12}
        plain = reduced.fit_features(isotropic, reduced.Samples.from_rows(x, h, y), **kept)
        other = reduced.fit_features(turned, reduced.Samples.from_rows(x @ root, h @ both, y), **kept)
        assert plain.converged
        assert other.converged
        mapped = root @ np.asarray(other.gamma) @ both
        distance = np.abs(mapped - np.asarray(plain.gamma)).max()
        assert (distance < 1e-7 * np.abs(mapped).max()) == same
        # Errors are those of the mapped tasks, whatever the matrix.
        wanted = feature_moments(isotropic).error(mapped)
        np.testing.assert_allclose(other.population_error(), wanted, rtol=1e-12)


@pytest.mark.slow
def test_correlated_inputs_have_the_errors_of_the_mapped_covariance():
    law = {"tau": 2.0, "alpha": 4.0, "kappa": 1.5, "rho": 0.1}

    def errors(dim, key):
        of_pool, of_contexts = jax.random.split(key)
        sigma, c = power_law(dim, 0.6), power_law(dim, 0.3)[::-1].copy()
        pool = WeightPool.init(GaussianWeights(jnp.asarray(c, "float32")), round(1.5 * dim), dim, key=of_pool)
        task = LinearRegression(dim, 4 * dim, GaussianInputs(jnp.asarray(sigma / dim, "float32")), pool, 0.1)
        model = reduced.fit(task, prompts=reduced.prompts_at(2.0, dim, per="d(d+1)"), ridge=0.0, key=of_contexts)
        predicted = [task_alignment.icl_error(sigma * c, sigma * c, **law), task_alignment.idg_error(sigma * c, **law)]
        return np.array([model.icl_error(), model.idg_error()]) / predicted

    limit, error = limits(errors, (320, 240, 160))
    assert np.all(error < 0.06)
    assert np.all(np.abs(limit - 1) < 3 * error)


def low_rank(dim, key):
    """A task whose pool of dim/2 vectors has rank dim/4, and second moments of tests inside and outside of the span."""
    rank = dim // 4
    inside, outside = np.repeat([dim / rank, 0], [rank, dim - rank]), np.repeat([0, 4 / 3], [rank, dim - rank])
    laws = [GaussianWeights(jnp.asarray(c, "float32")) for c in (inside, outside)]
    pool = WeightPool.init(laws[0], dim // 2, dim, key=key)
    return LinearRegression(dim, 4 * dim, GaussianInputs(jnp.ones(()) / dim), pool, 0.05), laws, (inside, outside)


@pytest.mark.slow
@pytest.mark.parametrize("tau", [0.125, 2.0])
def test_low_rank_tasks_inside_and_outside_of_their_subspace(tau):
    law = {"tau": tau, "alpha": 4.0, "kappa": 0.5, "rho": 0.05}

    def errors(dim, key):
        of_pool, of_contexts = jax.random.split(key)
        task, laws, (inside, outside) = low_rank(dim, of_pool)
        fit = reduced.fit(task, prompts=reduced.prompts_at(tau, dim, per="d(d+1)"), ridge=0.0, key=of_contexts)
        predicted = [task_alignment.icl_error(inside, test, **law) for test in (inside, outside)]
        return np.log(np.array([fit.population_error(weights=test) for test in laws]) / predicted)

    limit, error = limits(errors, (320, 160, 80))
    assert np.all(error < 0.08)
    assert np.all(np.abs(limit) < 3 * error)


@pytest.mark.slow
def test_a_trained_layer_of_low_rank_tasks_has_the_errors_of_the_exact_fit():
    """The layer's values learn no part from inputs to labels; its factors then have one minimum at tau > 1."""
    of_pool, of_contexts, of_layer, of_fit = jax.random.split(jax.random.key(2), 4)
    task, laws, _ = low_rank(8, of_pool)
    prompts = jax.vmap(lambda key: task.sample(key=key))(jax.random.split(of_contexts, 360))
    h = jax.vmap(features)(prompts.x[:, :-1], prompts.y[:, :-1])
    exact = reduced.fit_features(
        task, reduced.Samples.from_rows(prompts.x[:, -1], h, prompts.y[:, -1]), ridge=0.0, precision="float64"
    )

    def reduced_values(layer):
        return eqx.tree_at(lambda layer: layer.p, layer, layer.p.at[:, -1, :-1].set(0.0))

    layer = reduced_values(LinearAttention.lu(dim=8, std=0.1, key=of_layer))
    adam = optax.adam(optax.cosine_decay_schedule(0.02, 3000))
    run = icl.fit(
        layer,
        task,
        steps=3000,
        key=of_fit,
        batch=None,
        data=prompts,
        positions="last",
        optimizer=optax.chain(optax.stateless(lambda updates, _: reduced_values(updates)), adam),
        record=Record([0], progress=False),
    )
    trained = eqx.tree_at(lambda fit: fit.gamma, exact, run.member(0).gamma())
    inside, outside = ([fit.population_error(weights=test) for fit in (trained, exact)] for test in laws)
    np.testing.assert_allclose([inside[0], outside[0]], [inside[1], outside[1]], rtol=0.01)
    assert inside[0] < 0.5 < 1.05 < outside[0]
