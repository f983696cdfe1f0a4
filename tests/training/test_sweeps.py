"""Which numbers differ between members, and where each of them goes."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from training.predictors import slope, task

from icllab.algorithms import Ridge
from icllab.core.errors import InputError
from icllab.training.sweeps import Sweep, product, replaced, require_places, seed_numbers, swept_optimizer, swept_values
from icllab.training.train_loop import default_mode


def test_combinations_have_the_last_axis_fastest():
    found = product({"seed": [4, 7], "optimizer.rate": np.asarray([0.1, 0.2, 0.3], np.float32)})
    assert found["seed"].tolist() == [4, 4, 4, 7, 7, 7]
    np.testing.assert_array_equal(found["optimizer.rate"], np.tile(np.asarray([0.1, 0.2, 0.3], np.float32), 2))
    assert found["optimizer.rate"].dtype == np.float32
    assert product({}) == {}


def test_a_number_of_seeds_or_which():
    assert seed_numbers(3) == (0, 1, 2)
    assert seed_numbers(range(5, 7)) == (5, 6)
    assert seed_numbers((9, 2)) == (9, 2)


@pytest.mark.parametrize("values", [[], [np.nan], [[1.0]], ["a"], 3.0])
def test_what_is_swept_is_a_list_of_finite_numbers(values):
    with pytest.raises(InputError, match="ridge: expected a sequence of finite numbers to sweep"):
        swept_values("ridge", values)


@pytest.mark.parametrize(
    ("values", "mode", "message"),
    [
        ({"rate": [0.1]}, "auto", "sweep: expected names like 'optimizer.rate' or 'task.noise_variance', got 'rate'"),
        ({"model.ridge": [0.1]}, "auto", "sweep: expected names like 'optimizer.rate' or 'task.noise_variance', got"),
        ({"task.": [0.1]}, "auto", "sweep: expected names like 'optimizer.rate' or 'task.noise_variance', got 'task.'"),
        ({"task.rho": [0.1, np.inf]}, "auto", "task.rho: expected a sequence of finite numbers to sweep, got"),
        ({}, "pmap", "mode: expected 'auto', 'map' or 'vmap', got 'pmap'"),
    ],
)
def test_what_is_no_sweep_is_refused_in_one_line(values, mode, message):
    with pytest.raises(InputError) as caught:
        Sweep(values, mode=mode)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_sweep_is_what_it_was_made_of(precision):
    """In JAX's float type when it is used, and no longer tied to the mapping it was made of."""
    values = {"optimizer.rate": range(1, 4)}
    sweep = Sweep(values)
    values["task.rho"] = range(2)
    assert list(sweep.arrays) == ["optimizer.rate"]
    np.testing.assert_array_equal(sweep.arrays["optimizer.rate"], [1, 2, 3])
    assert sweep.arrays["optimizer.rate"].dtype == precision


def test_a_number_goes_where_its_name_says_in_the_type_that_is_there(precision):
    numbers = {"task.noise_variance": jnp.asarray(2.0), "predictor.ridge": jnp.asarray(0.3)}
    old = task()
    new = replaced(old, "task", numbers)
    assert float(new.noise_variance) == 2.0
    assert eqx.tree_equal(eqx.tree_at(lambda t: t.noise_variance, new, old.noise_variance), old)
    assert new.noise_variance.dtype == precision
    assert float(replaced(Ridge(1.0), "predictor", numbers).ridge) == pytest.approx(0.3)


def test_an_optimiser_without_swept_numbers_is_the_object_itself():
    plain = optax.sgd(0.1)
    assert swept_optimizer(plain, {"task.noise_variance": jnp.ones(())}) is plain
    numbers = {"optimizer.rate": jnp.ones(()), "optimizer.momentum": jnp.zeros(()), "task.noise_variance": jnp.ones(())}
    assert swept_optimizer(lambda rate, momentum: (float(rate), float(momentum)), numbers) == (1, 0)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("optimizer.rat", "unknown keyword of the optimizer 'rat'; did you mean 'rate'"),
        ("task.noise_varianc", "noise_varianc"),
        ("task.length", "task.length: expected a number that is a leaf, got 'int'"),
        ("predictor.w", r"predictor.w: expected a number that is a leaf, got 'float32\[3\]'"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused(name, message, getkey):
    with pytest.raises(InputError, match=message):
        require_places([name], task=task(), predictor=slope(key=getkey()), optimizer=lambda rate: optax.sgd(rate))


def test_the_mode_depends_on_the_device_and_on_no_clock(monkeypatch):
    assert (default_mode(1), default_mode(3)) == ("map", "map")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert (default_mode(1), default_mode(3)) == ("map", "vmap")
