"""Influence against known covariances, against samples left out, and against the Hessian where it is regular."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from scipy.optimize import minimize

from icllab import posteriors
from icllab.core.errors import InputError
from icllab.diagnostics import (
    HMC,
    LocalPosterior,
    Quadrature,
    coefficient_of_draws,
    hessian_influence,
    influence,
    susceptibility,
)

KEY = jax.random.key(0)
CHAINS = HMC(chains=8, warm_up=300, draws=3000)


def without(problem, row):
    """The posterior without one sample, at the same weight of the others."""
    rows = {name: np.delete(array, row, axis=0) for name, array in problem.data.items()}
    count = len(rows["y"])
    return LocalPosterior(
        problem.loss, problem.at, rows, nbeta=problem.nbeta * count / (count + 1), localization=problem.localization
    )


@pytest.mark.parametrize("name", ["product_regression", "tanh_unit", "poisson"])
def test_quadrature_finds_the_known_covariances(name):
    problem = posteriors.problem(name)
    with jax.enable_x64(True):
        nodes = Quadrature(points=201).sample(problem, key=KEY)
        result = influence(nodes, {"query": problem.query})
    known = problem.answers["influence"].value
    np.testing.assert_allclose(result["influence"].values[:, 0], known, atol=2e-3 * np.abs(known).max())
    assert "null" not in result


def test_chains_find_the_known_covariances_within_their_errors():
    problem = posteriors.problem("regression")
    draws = CHAINS.sample(problem, key=KEY)
    result = influence(draws, {"query": problem.query})
    known = problem.answers["influence"].value
    distances = (result["influence"].values[:, 0] - known) / result["influence_error"].values[:, 0]
    assert np.mean(np.abs(distances) < 1) > 0.4
    assert np.abs(distances).max() < 4
    assert float(result["rhat"].max()) < 1.01
    # Covariances between chains are as large as the errors, and far smaller than the largest influence.
    ratio = float(np.sqrt((result["null"] ** 2).mean()) / np.sqrt((result["influence_error"] ** 2).mean()))
    assert 0.5 < ratio < 4
    assert np.abs(known).max() > 10 * float(result["null"].max())
    assert not [text for text in result.attrs["warnings"] if "stands out" in text]
    np.testing.assert_allclose(result["leave_one_out"], -result.attrs["beta"] * result["influence"])


def test_an_observable_of_chance_is_said_to_be_one():
    problem = posteriors.problem("regression")
    few = HMC(chains=4, warm_up=100, draws=20).sample(problem, key=KEY)
    with pytest.warns(UserWarning, match="stands out from chance"):
        result = influence(few, {"noise": lambda w: jnp.sin(1e4 * w[0])})
    assert any("no sample's influence on noise stands out" in text for text in result.attrs["warnings"])


def test_influence_sums_to_the_susceptibility():
    problem = posteriors.problem("tanh_unit")
    nodes = Quadrature(points=201).sample(problem, key=KEY)
    result = influence(nodes, {"query": problem.query})
    route = {"route": Quadrature(points=201), "key": KEY}
    whole = susceptibility(problem, tilted={"half": problem.tilted}, observables={"query": problem.query}, **route)
    summed = problem.nbeta * problem.draft.tilt @ result["influence"].values[:, 0]
    np.testing.assert_allclose(summed, whole["susceptibility"].values[0, 0], rtol=1e-3)


def test_the_hessian_gives_the_limit_at_a_regular_point_and_not_elsewhere():
    warm, cold = (posteriors.problem("tanh_unit", setting=i) for i in (0, 2))
    with jax.enable_x64(True):
        gaps = []
        for problem, factor in ((warm, 1), (cold, 1), (cold, 100)):
            local = replace(problem, nbeta=problem.nbeta * factor)
            nodes = Quadrature(points=401).sample(local, key=KEY)
            exact = influence(nodes, {"query": problem.query})["influence"].values
            classical = hessian_influence(local, {"query": problem.query})
            assert classical.attrs["warnings"] == []
            gaps.append(np.abs(classical["influence"].values - exact).max() / np.abs(exact).max())
        assert gaps[2] < 0.05 * gaps[0]
        assert gaps[2] < 0.01
        singular = posteriors.problem("product_regression")
        nodes = Quadrature(points=401).sample(singular, key=KEY)
        exact = influence(nodes, {"query": singular.query})["influence"].values
        flat = hessian_influence(singular, {"query": singular.query})
    assert float(flat["curvature"][-1]) < 1e-6
    assert np.abs(flat["influence"].values - exact).max() > 0.02 * np.abs(exact).max()


def test_samples_left_out_move_the_posterior_mean_as_predicted():
    problem = posteriors.problem("normal_scale")
    route = Quadrature(points=161)
    with jax.enable_x64(True):
        nodes = route.sample(problem, key=KEY)
        predicted = influence(nodes, {"query": problem.query})["leave_one_out"].values[:, 0]
        order, rng = np.argsort(-np.abs(predicted)), np.random.default_rng(0)
        chosen = [*order[:4], *rng.choice(order[4:], 4, replace=False)]

        def mean(posterior):
            at_point, above = route.sample(posterior, key=KEY).values(Stacked(problem.query))
            weights = route.sample(posterior, key=KEY).weights
            return at_point[0] + weights @ above[:, 0]

        whole = mean(problem)
        moved = np.array([mean(without(problem, i)) - whole for i in chosen])
    assert np.corrcoef(moved, predicted[chosen])[0, 1] > 0.95
    assert np.abs(moved[:4]).mean() > 3 * np.abs(moved[4:]).mean()
    np.testing.assert_allclose(moved[4:], predicted[chosen][4:], atol=0.2 * np.abs(moved[:4]).mean())


def test_a_fit_without_the_ten_most_influential_samples_moves_more_than_without_ten_at_random():
    problem = posteriors.problem("regression", setting=2)
    x, y, place = problem.data["x"], problem.data["y"], problem.draft.query["x"][0]
    with jax.enable_x64(True):
        answer = {"answer": lambda w: jnp.sum(jnp.asarray(place) * w)}
        found = hessian_influence(problem, answer)["leave_one_out"].values[:, 0]

    def answered(rows):
        return place @ np.linalg.lstsq(x[rows], y[rows], rcond=None)[0]

    everyone, rng = np.arange(len(y)), np.random.default_rng(0)

    def moved(out):
        return answered(np.setdiff1d(everyone, out)) - answered(everyone)

    most = np.argsort(-found)[:10]
    random = np.array([rng.choice(len(y), 10, replace=False) for _ in range(60)])
    changes, predicted = np.array([moved(out) for out in random]), np.array([found[out].sum() for out in random])
    assert moved(most) > 0.8 * found[most].sum() > 0
    assert moved(most) > changes.max()
    assert np.corrcoef(changes, predicted)[0, 1] > 0.9


def tanh_network():
    """The loss of four tanh units on 90 samples, a function that trains from a start, and the data."""
    rng = np.random.default_rng(3)
    x = rng.uniform(-2, 2, 90)
    data = {"x": x, "y": np.sin(2 * x) + 0.3 * x + 0.2 * rng.standard_t(3, 90)}

    def answers(w, x):
        return jnp.tanh(x[:, None] * w[None, :4] + w[None, 4:8]) @ w[8:12]

    def loss(w, rows):
        return jnp.mean((answers(w, rows["x"]) - rows["y"]) ** 2) / 2 + 1e-3 * jnp.sum(w**2)

    slope, curvature = jax.jit(jax.value_and_grad(loss)), jax.jit(jax.hessian(loss))

    def trained(rows, start):
        w = minimize(lambda w: [np.asarray(a, float) for a in slope(w, rows)], start, jac=True, method="L-BFGS-B").x
        for _ in range(30):
            w = w - np.linalg.solve(np.asarray(curvature(w, rows)) + 1e-9 * np.eye(12), slope(w, rows)[1])
        assert np.linalg.norm(slope(w, rows)[1]) < 1e-9
        return w

    return loss, lambda w: answers(w, jnp.array([0.0]))[0], trained, data, rng


@pytest.mark.slow
def test_a_network_trained_without_the_ten_most_influential_samples_moves_as_predicted():
    """By the Bayesian influence of chains and by the Hessian; without ten at random it moves less."""
    with jax.enable_x64(True):
        loss, answer, trained, data, rng = tanh_network()
        w = trained(data, rng.normal(size=12))
        posterior = LocalPosterior.from_function(loss, jnp.asarray(w), data=data, nbeta=1e6, localization=100.0)
        classical = hessian_influence(posterior, {"answer": answer})
        bayesian = influence(HMC(chains=8).sample(posterior, key=KEY), {"answer": answer})

        def moved(out):
            rows = {name: np.delete(row, out) for name, row in data.items()}
            return float(answer(jnp.asarray(trained(rows, w))) - answer(jnp.asarray(w)))

        random = [rng.choice(90, 10, replace=False) for _ in range(30)]
        changes = np.array([moved(out) for out in random])
        for found in (classical, bayesian):
            predicted = found["leave_one_out"].values[:, 0]
            most = np.argsort(-predicted)[:10]
            whole, of_most = predicted[most].sum(), moved(most)
            assert 0 < whole < of_most < 3 * whole  # to first order ten of ninety move it half as much
            assert of_most > changes.max()
            assert np.corrcoef(changes, [predicted[out].sum() for out in random])[0, 1] > 0.9


class Stacked:
    """One number as a vector."""

    def __init__(self, function):
        self.function = function

    def __call__(self, w):
        return self.function(w)[None]


def test_influence_through_some_weights_is_that_of_the_restricted_posterior():
    problem = posteriors.problem("regression")
    first = jnp.asarray([True, False, False, False, False])
    part = LocalPosterior(
        problem.loss, problem.at, problem.data, nbeta=problem.nbeta, localization=problem.localization, weights=first
    )
    result = influence(Quadrature(points=401).sample(part, key=KEY), {"query": problem.query})
    x, y = problem.data["x"], problem.data["y"]
    residual, n = y - x @ problem.at, len(y)
    variance = 1 / (problem.nbeta / n * (x[:, 0] ** 2).sum() + problem.localization)
    query = problem.draft.query
    of_query = query["y"][0] - query["x"][0] @ problem.at
    across = x[:, 0] * query["x"][0, 0] * variance
    np.testing.assert_allclose(
        result["influence"].values[:, 0],
        -(across**2 / 2 + residual * of_query * across),
        atol=1e-3 * np.abs(across).max(),
    )


def test_chains_of_another_program_are_read_from_a_dataset():
    problem = posteriors.problem("regression")
    draws = HMC(chains=4, warm_up=200, draws=500).sample(problem, key=KEY)
    ours = influence(draws, {"query": problem.query})
    rows = np.asarray(draws.parameters, np.float64)
    losses = np.array([[problem.numpy_loss(w) for w in chain] for chain in rows])
    query = np.array([[float(problem.numpy_loss(w, problem.draft.query)[0]) for w in chain] for chain in rows])
    theirs = xr.Dataset(
        {
            "sample_loss": (("chain", "draw", "sample"), losses),
            "observed": (("chain", "draw", "observable"), query[..., None]),
        },
        coords={"observable": ["query"]},
        attrs={"nbeta": problem.nbeta},
    )
    np.testing.assert_allclose(influence(theirs)["influence"], ours["influence"], atol=1e-4)
    at_point = theirs.assign(baseline=("sample", problem.numpy_loss(problem.at)))
    found, known = coefficient_of_draws(at_point), coefficient_of_draws(draws)
    for name in ("estimate", "mcse", "rhat", "ess"):
        assert float(found[name]) == pytest.approx(float(known[name]), rel=1e-3)
    unlike = at_point.assign(sample_loss=theirs["sample_loss"] + xr.DataArray(np.arange(4.0), dims="chain"))
    with pytest.warns(UserWarning, match="chains disagree"):
        assert float(coefficient_of_draws(unlike)["rhat"]) > 1.5
    with pytest.raises(InputError, match="a Dataset with baseline"):
        coefficient_of_draws(theirs)
    with pytest.raises(InputError, match="the attribute nbeta"):
        coefficient_of_draws(at_point.drop_attrs())
    with pytest.raises(InputError, match="checks: expected None with a Dataset"):
        coefficient_of_draws(at_point, checks=("hessian",))
    part = influence(theirs.isel(sample=slice(0, 10)).assign_attrs(n=40))
    np.testing.assert_allclose(part["leave_one_out"], ours["leave_one_out"][:10], atol=1e-4)
    drifting = theirs.assign(sample_loss=theirs["sample_loss"] + xr.DataArray(np.arange(4.0), dims="chain"))
    with pytest.warns(UserWarning, match="chains disagree"):
        assert float(influence(drifting)["rhat"].min()) > 1.5
    with pytest.raises(InputError, match="a Dataset with sample_loss"):
        influence(theirs.drop_vars("sample_loss"))


def test_a_loss_without_data_and_a_missing_observable_are_refused():
    problem = posteriors.problem("quadratic")
    draws = HMC(chains=4, warm_up=20, draws=20).sample(problem, key=KEY)
    with pytest.raises(InputError, match="data: expected at least 2 samples"):
        influence(draws, {"first": lambda w: w[0]})
    with pytest.raises(InputError, match="data: expected at least 2 samples"):
        hessian_influence(problem, {"first": lambda w: w[0]})
