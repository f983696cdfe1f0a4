"""What is particular to this claim: its check on made-up networks, and errors that are those of linear attention."""

import functools
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.descent.depth_needs_rotation import claim, measure
from icllab import constructions
from icllab.algorithms import PreconditionedDescent
from icllab.core.prompt import RegressionPrompt
from icllab.lab.checks import Outcome

SETTINGS = list(claim.SETTINGS)


@functools.cache
def drawn_lines(layers):
    """The claim's axes, and the lines of the best steps on them."""
    coords = {"dim": [6, 12], "layers": list(layers), "alpha": [4.0, 24.0], "setting": SETTINGS, "seed": np.arange(5)}
    attrs = {"configuration": json.dumps({"fixed": {"condition": 16.0}})}
    return claim.theory(xr.Dataset(coords=coords, attrs=attrs))


def made_up(fixed=0.0, rotated=0.0, one=0.9, finite=0.3, layers=(1, 2, 4)):
    """Networks at the lines of the best steps, ``fixed`` and ``rotated`` above them, and ``finite``/d of them more."""
    lines = drawn_lines(layers)
    above = xr.DataArray([fixed, rotated, 0.0], {"setting": SETTINGS}, ["setting"])
    line = xr.where(lines.setting == claim.SHARED, one * lines.tied_line, lines.free_line) + above
    seeds = xr.DataArray(np.linspace(-1e-3, 1e-3, 5), {"seed": np.arange(5)}, ["seed"])
    return lines.assign(test_loss=line * (1 + finite / lines.dim) * (1 + seeds))


outcomes, failing, outcome = judged(claim.check)


def test_it_holds_on_the_lines_and_needs_all_of_the_axes():
    assert outcome(made_up()) is Outcome.HOLDS
    assert outcome(made_up(layers=(1, 2))) is Outcome.UNDECIDED


def test_it_fails_off_the_lines():
    assert {name.partition("[")[0] for name in failing(made_up(fixed=0.03))} == {"curve", "floor", "gain"}
    found = failing(made_up(rotated=0.03))
    assert len([name for name in found if name.startswith("curve")]) == 4
    assert all("setting=rotated" in name for name in found)
    assert failing(made_up(one=1.0)) == [f"one_matrix[layers=4,alpha=24,setting={claim.SHARED}]"]


def test_it_fails_where_depth_does_not_do_what_is_claimed():
    dataset = made_up()
    flat = dataset["test_loss"].sel(layers=[1] * 3).assign_coords(layers=dataset.layers)
    gains = {
        name for name in failing(dataset.assign(test_loss=flat)) if "curve" not in name and "one_matrix" not in name
    }
    assert gains == {
        f"{name}[{at}]"
        for of in SETTINGS[:2]
        for name, at in (("gain", f"alpha=24,setting={of},layers=4"), ("trained", f"layers=4,setting={of}"))
    }
    some = dataset["test_loss"].where((dataset.layers < 4) | (dataset.seed > 2), 1.0)
    assert outcomes(dataset.assign(test_loss=some))["trained[layers=4,setting=fixed]"] is Outcome.UNDECIDED
    rotated = dataset["test_loss"].sel(setting=[claim.ROTATED] * 3).assign_coords(setting=dataset.setting)
    found = failing(dataset.assign(test_loss=rotated))
    assert {"curve[layers=1,alpha=24,setting=fixed]", "floor[alpha=24,setting=fixed]"} <= set(found)


def test_the_errors_of_matrices_are_those_of_linear_attention():
    rng, dim, length, layers = np.random.default_rng(0), 3, 7, 2
    matrices, spectrum = rng.normal(size=(layers, dim, dim)) / 2, np.array([2.0, 1.0, 0.25])
    inputs, turn = rng.normal(size=(length, dim)), measure.rotations(rng, 1, dim)[0].astype(float)
    x = inputs * np.sqrt(spectrum) @ turn.T
    steps = PreconditionedDescent(jnp.asarray(matrices, jnp.float32), layers=2, dim=3, normalised=True, half=True)
    network = constructions.gradient_descent(steps, answers="last", form="gram")

    def answer(task, query):
        prompt = jnp.asarray(np.vstack([x, query]), jnp.float32)
        return float(eqx.filter_jit(network)(RegressionPrompt(prompt, prompt @ jnp.asarray(task, jnp.float32)))[0])

    learned = np.array([[answer(task, query) for task in np.eye(dim)] for query in np.eye(dim)])
    left, covariance, tasks = (np.eye(dim) - learned, (turn * spectrum) @ turn.T, (turn / spectrum) @ turn.T)
    sample = inputs.T @ inputs / length
    arrays = (jnp.asarray(a, jnp.float32) for a in (matrices, sample[None], turn[None], spectrum))
    errors = measure.context_errors(*arrays)
    np.testing.assert_allclose(errors, [np.trace(tasks @ left.T @ covariance @ left) / dim], rtol=1e-4)


def test_sample_covariances_and_rotations_have_their_moments():
    rng, dim, length = np.random.default_rng(1), 3, 5
    samples, turns = measure.wisharts(rng, 40_000, dim, length), measure.rotations(rng, 4_000, dim)
    np.testing.assert_allclose(samples.mean(0), np.eye(dim), atol=0.015)
    np.testing.assert_allclose((samples @ samples).mean(0), (1 + (dim + 1) / length) * np.eye(dim), atol=0.04)
    np.testing.assert_allclose(turns @ np.swapaxes(turns, 1, 2), np.broadcast_to(np.eye(dim), turns.shape), atol=1e-5)
    np.testing.assert_allclose((turns**2).mean(0), np.full((dim, dim), 1 / dim), atol=0.02)
    np.testing.assert_allclose((turns**4).mean((0, 1)), np.full(dim, 3 / (dim * (dim + 2))), atol=0.015)


@pytest.mark.parametrize("flag", ["shared", "symmetric", "rotates"])
def test_a_training_obeys_its_flags(flag):
    rng, dim = np.random.default_rng(2), 3
    draws = [measure.wisharts(rng, 40, dim, 12), measure.rotations(rng, 40, dim)]
    samples, turns = ((jnp.asarray(a[:32].reshape(8, 4, dim, dim)), jnp.asarray(a[32:])) for a in draws)
    start, acts = 0.2 * jax.random.normal(jax.random.key(0), (2, dim, dim)), jnp.array([1.0, 1.0])
    spectrum, rate = jnp.array([4.0, 1.0, 0.25]), jnp.float32(0.05)
    flags = {name: jnp.asarray(name == flag) for name in ("rotates", "shared", "symmetric")}
    matrices, errors = measure.trained(start, samples, turns, spectrum, acts, rate, **flags)
    matrices, first = np.asarray(matrices), np.asarray(start)
    assert np.all(np.asarray(errors) > 0)
    assert (np.ptp(matrices, axis=0).max() < 1e-6) == (flag == "shared")
    assert (np.abs(matrices - np.swapaxes(matrices, 1, 2)).max() < 1e-6) == (flag == "symmetric")
    assert np.abs(matrices - first).max() > 0.02
    halved, _ = measure.trained(start, samples, turns, spectrum, acts.at[1].set(0.0), rate, **flags)
    assert not np.asarray(halved)[1].any()
