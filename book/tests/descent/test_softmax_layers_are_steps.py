"""What is particular to this claim: its check on made-up errors, its solvers, and repeated blocks beside deep ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from judging import judged
from scipy.optimize import minimize

from iclbook.claims.descent import _softmax_steps
from iclbook.claims.descent.softmax_layers_are_steps import claim, measure
from icllab import constructions
from icllab.algorithms import KernelRichardson, NormalisedDescent
from icllab.core.kernels import gaussian
from icllab.core.prompt import RegressionPrompt

AXES = {"layers": [16, 1024, 4096], "ridge": [1.0, 4.0], "length": [8, 32], "pieces": [16, 64, 256]}


def made_up(depth=-1.0, width=-2.0, growth=1.0, rate=1.1, trained=1e-9, step=1e-15, scaled=0.6, over=0.2, size=0.8):
    """Errors of twelve seeds with these powers, and a distance from ridge regression that is ``over`` its bound."""
    rng, seeds = np.random.default_rng(0), np.arange(12)
    coordinates = {name: np.array(values) for name, values in AXES.items()} | {"seed": seeds}
    layers, length, pieces = (
        xr.DataArray(np.array(AXES[name], float), dims=name) for name in ("layers", "length", "pieces")
    )
    ridge, noise = (
        xr.DataArray(np.ones(2), dims="ridge"),
        xr.DataArray(np.exp(0.03 * rng.normal(size=12)), dims="seed"),
    )
    bound = 1.0 / pieces**2 + 0 * layers
    values = {
        "step_distance": step * noise * (0 * layers + 1),
        "margin_gap": noise * layers**depth,
        "margin_scaled": scaled * noise * (0 * layers + 1),
        "margin_scaled_theory": xr.DataArray(3.2),
        "trained_distance": trained * noise * (0 * layers + 1),
        "ridge_error": over * noise * ridge * bound * (0 * length + 1),
        "ridge_error_theory": bound,
        "dense_error": noise * ridge * length**growth * pieces**width,
        "rate_ratio": rate * noise * ridge * (0 * length + 1) * (0 * pieces + 1),
        "product_size": size * noise / noise * ridge * (0 * length + 1),
    }
    return xr.Dataset(values, coordinates)


_, failing, outcome = judged(claim.check)


def test_it_holds_on_errors_with_the_stated_powers():
    assert outcome(made_up()).value == "holds"


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        ({"depth": -0.5}, "depth"),
        ({"width": -1.0}, "width"),
        ({"growth": 2.0}, "examples"),
        ({"rate": 0.5}, "rate[ridge=1,length=8,pieces=256]"),
        ({"trained": 0.1}, "imitated"),
        ({"step": 1e-3}, "steps"),
        ({"scaled": 5.0}, "margin"),
        ({"over": 2.0}, "ridge"),
    ],
)
def test_it_fails_where_an_error_is_not_as_stated(changes, finding):
    assert finding in failing(made_up(**changes))


def test_it_is_undecided_where_products_leave_their_bound():
    assert outcome(made_up(size=1.1)).value == "undecided"


def test_the_largest_margin_is_that_of_the_shortest_vector():
    rng = np.random.default_rng(0)
    truth, x = rng.normal(size=3), rng.normal(size=(12, 3))
    signed = x * np.sign(x @ truth)[:, None]
    constraint = {"type": "ineq", "fun": lambda v: signed @ v - 1, "jac": lambda _: signed}
    start = 50 * truth
    shortest = minimize(lambda v: v @ v, start, jac=lambda v: 2 * v, constraints=constraint, options={"ftol": 1e-14})
    assert _softmax_steps.largest_margin(signed) == pytest.approx(1 / np.linalg.norm(shortest.x), rel=1e-6)
    w = _softmax_steps.classifiers(signed[None], 0.2, 20000)[-1]
    assert 0.99 < _softmax_steps.margins(signed[None], w)[0] * np.linalg.norm(shortest.x) < 1


def test_the_iteration_falls_to_ridge_regression_at_its_contraction():
    rng = np.random.default_rng(1)
    x, y = rng.uniform(-1, 1, (9, 3)), np.clip(rng.normal(size=8), -1, 1)
    limit, contraction = _softmax_steps.kernel_ridge(x, y, 1.0, 2.0)
    answers = _softmax_steps.richardson(x, y, 1.0, 2.0, 150)[:-1]
    errors = np.abs(answers - limit)
    assert errors[-1] < 1e-8
    assert np.log(errors[99] / errors[59]) / 40 == pytest.approx(np.log(contraction), rel=0.02)
    assert measure.rate_of(contraction ** np.arange(1.0, 100.0), contraction) == pytest.approx(1.0)


def test_blocks_repeated_are_deep_networks():
    """Of both constructions: answers after three applications, and the classifier that queries along axes read."""
    rng = np.random.default_rng(2)
    with jax.enable_x64(True):
        inputs, labels = measure.separable(rng, 2, 6, 3)
        one, deep = (
            constructions.gradient_descent(NormalisedDescent(0.7, layers=n, dim=3), answers="last") for n in (1, 3)
        )
        own = measure.classifiers_of(one, inputs, labels, 3)
        signed = labels[..., None] * inputs
        np.testing.assert_allclose(own, _softmax_steps.classifiers(signed, 0.7, 3), rtol=1e-12)
        query = rng.normal(size=3)
        prompt = RegressionPrompt(jnp.asarray(np.append(inputs[0], [query], 0)), jnp.asarray(np.append(labels[0], 1.0)))
        np.testing.assert_allclose(deep(prompt)[0], own[2, 0] @ query, rtol=1e-12)
        x, y = rng.uniform(-1, 1, (1, 7, 3)), rng.uniform(-1, 1, (1, 7))
        one, deep = (
            constructions.kernel_richardson(
                KernelRichardson(1.0, kernel=gaussian, temperature=2.0, layers=n), dim=3, pieces=8, size=1.2
            )
            for n in (1, 3)
        )
        prompts = jax.vmap(RegressionPrompt)(jnp.asarray(x), jnp.asarray(y))
        answers = measure.looped(one, prompts, 3)
        np.testing.assert_allclose(answers[-1], jax.vmap(deep)(prompts)[:, 0], rtol=1e-12)


def test_controls_change_the_attention_alone():
    network = constructions.gradient_descent(NormalisedDescent(0.7, layers=1, dim=3), answers="last")
    exchanged, plain = (
        measure.changed(network, *flags).blocks[0].attention for flags in ((False, True), (True, False))
    )
    attention = network.blocks[0].attention
    np.testing.assert_array_equal(exchanged.query, attention.key)
    np.testing.assert_array_equal(exchanged.key, attention.query)
    assert (plain.weighting, exchanged.weighting) == ("exponential", "softmax")
    np.testing.assert_array_equal(plain.query, attention.query)
    assert plain.scale == attention.scale
