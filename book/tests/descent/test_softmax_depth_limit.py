"""What is particular to this claim: its check on made-up worlds, and that a layer repeated is a deep network."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.descent.softmax_depth_limit import claim, measure
from icllab import constructions
from icllab.algorithms import FunctionalDescent
from icllab.tasks import FunctionRegression, SphereInputs

LAYERS = np.array([1, 8, 64, 512])
NAMES = [claim.KEYS, claim.QUERIES, claim.EXPONENTIAL]


def made_up(seeds=claim.ENOUGH, apart=0.06, floor=1e-12, scatter=0.002, excess=1.0, even=0.0):
    """Distances that fall with depth to ``floor``; the limit of keys is ``apart`` from Bayes at random points."""
    rng = np.random.default_rng(0)
    shape = (2, 3, len(LAYERS), seeds)
    limit = np.maximum(3.0 * 0.9 ** (2.0 * LAYERS), floor)[:, None] * np.ones(shape)
    own = np.zeros((2, 3, seeds))
    own[0, 0] = apart * np.exp(0.1 * rng.normal(size=seeds))
    own[1, 0] = even
    bayes = limit + own[:, :, None]
    error = 4.0 + excess * bayes + scatter * rng.normal(size=shape)
    return xr.Dataset(
        {
            "limit_distance": (("dim", "setting", "predictor", "layers", "seed"), limit[None]),
            "bayes_distance": (("dim", "setting", "predictor", "layers", "seed"), bayes[None]),
            "function_error": (("dim", "setting", "predictor", "layers", "seed"), error[None]),
            "limit_scale": (("dim", "setting", "predictor", "seed"), np.full((1, 2, 3, seeds), 3.0)),
            "limit_bayes": (("dim", "setting", "predictor", "seed"), own[None]),
            "function_bayes": (("dim", "setting", "seed"), np.full((1, 2, seeds), 4.0)),
        },
        coords={"dim": [4], "setting": ["random", "even"], "predictor": NAMES, "layers": LAYERS},
    )


_, failing, _ = judged(claim.check)


def test_it_fails_where_a_limit_is_not_reached():
    found = failing(made_up(floor=0.01))
    assert "limit_reached[dim=4,setting=even,predictor=exponential,layers=512]" in found


def test_it_fails_where_a_deeper_network_is_farther():
    dataset = made_up()
    risen = dataset["limit_distance"].where(dataset.layers != 64, 2.9)
    assert len(failing(dataset.assign(limit_distance=risen))) == 2 * len(NAMES)


def test_it_fails_where_the_excess_is_not_the_squared_distance():
    (found,) = failing(made_up(excess=1.5))
    assert found.startswith("keys_excess[dim=4,")


def test_it_fails_where_equal_normalisers_do_not_make_one_limit_of_two():
    (found,) = failing(made_up(even=0.01))
    assert found.startswith("limit_is_bayes[dim=4,")
    assert "setting=even" in found
    assert claim.KEYS in found


@pytest.mark.parametrize("name", [NAMES[0], *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[1:])])
def test_one_layer_repeated_is_the_deep_network(name, getkey):
    with jax.enable_x64(True):
        fixed = claim.claim.with_fixed({"prompts": [2]})
        grid = fixed.grid("smoke", {"dim": [3]}, seeds=1)
        point = fixed.point(next(grid.cells()), grid.traced)
        task = FunctionRegression(3, 5, SphereInputs(1.0), kernel="exponential", temperature=0.5, noise_variance=0.0)
        prompts = measure.sample_prompts(task, False, jax.random.split(getkey(), 2))
        layer = measure.layer_of(name, point, 1.0)
        left, answer = measure.deeper(layer, prompts, jnp.zeros(2), jnp.asarray(2))
        _, answer = measure.deeper(layer, left, answer, jnp.asarray(3))
        kernel = "exponential" if name == claim.EXPONENTIAL else "softmax"
        rate = 0.3 * float(np.exp(-2.0)) if name == claim.EXPONENTIAL else 1.0
        law = {"kernel": kernel, "temperature": 0.5, "noise_variance": 0.0, "dim": 3, "normalised": False}
        deep = constructions.gradient_descent(FunctionalDescent(rate, layers=5, **law), answers="last")
        deep = dataclasses.replace(deep, axis=layer.axis)
        np.testing.assert_allclose(answer, jax.jit(jax.vmap(deep))(prompts)[:, 0], rtol=1e-12)
