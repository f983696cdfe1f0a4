"""What the layers hold of the labels: all of it in a construction, exactly; what a linear map can read elsewhere."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab import constructions
from icllab.algorithms import FunctionalDescent, GradientDescent, GradientDescentPlusPlus, PreconditionedDescent, Ridge
from icllab.core.errors import InputError
from icllab.diagnostics import probe_layers
from icllab.diagnostics.identification.layer_probe import truncate
from icllab.models import BlockOptions, DeepSets, Interleaved, Joined, Transformer
from icllab.tasks import LinearRegression

DIM, LENGTH = 2, 6
SHAPE = {"dim": DIM, "normalised": True, "half": True}
FEW = {"prompts": 40, "resamples": 50, "block": 40}


def task():
    return LinearRegression.convention("ahn", dim=DIM, length=LENGTH)


def matrices(seed, scale, layers):
    return scale * np.random.default_rng(seed).normal(size=(layers, DIM, DIM))


KERNEL = {"kernel": "exponential", "temperature": 4.0, "dim": DIM, "normalised": True}
ALGORITHMS = {
    "GD++": lambda: GradientDescentPlusPlus(matrices(0, 0.3, 2), matrices(1, 0.5, 2), layers=2, **SHAPE),
    "kernel": lambda: FunctionalDescent(0.3, layers=2, noise_variance=0.0, **KERNEL),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_construction_holds_what_its_steps_have_left(name, getkey):
    with jax.enable_x64(True):
        algorithm = ALGORITHMS[name]()
        network = constructions.gradient_descent(algorithm)
        result = probe_layers(network, algorithm, task(), key=getkey(), **FEW)
    assert result.attrs["probe"] == "label slot"
    assert result.sizes == {"layer": 3, "algorithm_step": 3, "slot": 2}
    off = result.slot_residual.transpose("slot", "layer", "algorithm_step").values
    for slot in range(2):
        assert np.all(np.diagonal(off[slot]) < 1e-10)
        # And of no other step.
        assert off[slot][~np.eye(3, dtype=bool)].min() > 1e-3
    share = result.r_squared.transpose("slot", "layer", "algorithm_step").values
    np.testing.assert_allclose(np.diagonal(share[0]), 1, atol=1e-12)
    # The model before the first step says nothing of the query.
    assert np.isnan(share[1][:, 0]).all()
    np.testing.assert_allclose(np.diagonal(share[1])[1:], 1, atol=1e-12)


def test_stopped_algorithms_keep_their_first_steps():
    full = PreconditionedDescent(matrices(0, 0.3, 3), layers=3, **SHAPE)
    np.testing.assert_array_equal(truncate(full, 2).preconditioner, full.preconditioner[:2])
    shared = GradientDescent(0.3, layers=3, **SHAPE)
    assert truncate(shared, 1).layers == 1
    assert float(truncate(shared, 1).rate) == float(shared.rate)
    with pytest.raises(InputError, match="layers: expected an integer from 1 to 3, got 4"):
        truncate(shared, 4)
    with pytest.raises(InputError, match="algorithm: expected an algorithm of descent, got 'Ridge'"):
        truncate(Ridge(1.0), 1)


@eqx.filter_jit
def built(key, model, *value, **fields):
    """A model as one program."""
    return model(*value, dim=DIM, **fields, key=key)


@functools.cache
def transformer(arrangement):
    block = BlockOptions(heads=2, mlp=None, norm="none")
    return built(jax.random.key(3), Transformer, arrangement, width=8, layers=2, block=block, positions="none")


LAST = Joined(answers="last", causal=False, query_is_key=False)


@pytest.mark.parametrize(
    "arrangement",
    [LAST, Interleaved()],
    ids=["joined", "interleaved"],
)
def test_a_linear_probe_reads_the_labels_off_the_embedding(arrangement, getkey):
    """They are linear in the embedding, so that R² is 1 there; what needs other examples is not, in layer 0."""
    network = transformer(arrangement)
    steps = [Ridge(0.1)]
    result = probe_layers(network, steps, task(), key=getkey(), fitting=40, **FEW)
    assert result.attrs["probe"] == "linear"
    example = result.r_squared.sel(slot="example").values
    assert example[0, 0] == pytest.approx(1, abs=1e-6)
    assert example[0, 1] < 0.6
    # The query's embedding knows no example: nothing is explained, but for what was fitted to noise.
    query = float(result.r_squared.sel(slot="query", layer=0, algorithm_step=1))
    assert query < 4 * float(result.r_squared_error.sel(slot="query", layer=0, algorithm_step=1))
    # The last block of joined tokens computes the query's row only.
    assert np.isnan(example[-1]).all()
    assert np.isfinite(result.r_squared.sel(slot="query").values[-1, 1])


def test_a_probe_is_judged_on_other_prompts(getkey):
    """With hardly more prompts than numbers a probe of the query fits noise; its R² on other prompts is negative."""
    result = probe_layers(transformer(LAST), [Ridge(0.1)], task(), key=getkey(), fitting=10, **FEW)
    assert float(result.r_squared.sel(slot="query", layer=1, algorithm_step=1)) < 0


def test_models_of_the_user_s_are_tried():
    with pytest.warns(UserWarning, match=r"predictor 'algorithm\[1\]' looks at its own target") as warning_records:
        probe_layers(transformer(LAST), [Ridge(0.1), lambda p: p.y], task(), key=jax.random.key(0), fitting=40, **FEW)
    assert len(warning_records) == 1


def test_a_model_may_be_a_function_of_numpy():
    def before(prompt):
        y = np.asarray(prompt.y)
        return np.concatenate([[0.0], np.cumsum(y)[:-1]])

    def traced(prompt):
        return jnp.concatenate([jnp.zeros(1), jnp.cumsum(prompt.y)[:-1]])

    options = {"key": jax.random.key(0), "fitting": 40, **FEW}
    result, equal = (
        probe_layers(transformer(LAST), [model], task(), **options).r_squared for model in (before, traced)
    )
    np.testing.assert_allclose(result, equal, rtol=1e-3, atol=1e-5)


def test_bad_input_is_refused_in_a_line(getkey):
    network = transformer(LAST)
    with pytest.raises(InputError, match="fitting: expected more prompts than the 9 numbers of a probe, got 9"):
        probe_layers(network, [Ridge(0.1)], task(), key=getkey(), fitting=9, **FEW)
    second = built(jax.random.key(0), DeepSets, width=4, hidden=(4,), pool="mean")
    with pytest.raises(InputError, match="model: expected LinearAttention, GeneralisedAttention or a Transformer"):
        probe_layers(second, [Ridge(0.1)], task(), key=getkey(), **FEW)
    with pytest.raises(InputError, match="algorithm: expected models that answer every position, at least one"):
        probe_layers(network, [], task(), key=getkey(), **FEW)
