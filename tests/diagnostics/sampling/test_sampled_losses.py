"""The loss as a function of one vector; batches beside all of the data, exactly."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.diagnostics.sampling.posteriors import Posterior
from icllab.diagnostics.sampling.sampled_losses import (
    Batches,
    at_point,
    batch_noise,
    gradient_seconds,
    require_mean,
    sample_count,
    vector_loss,
)


def squares(parameters, samples):
    """Two terms of a linear model: each a mean over samples."""
    error = samples["x"] @ parameters["w"] * parameters["scale"] - samples["y"]
    return jnp.stack([jnp.mean(error**2) / 2, jnp.mean(jnp.abs(error))])


@eqx.filter_jit
def everywhere(loss, w):
    """Of all the data, the terms and the gradient of their sum."""

    def total(w):
        terms = loss(w)
        return jnp.sum(terms), terms

    gradient, terms = jax.grad(total, has_aux=True)(w)
    return terms, gradient


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


@pytest.fixture
def problem():
    with jax.enable_x64(True):
        data = {"x": normal(23, 3), "y": normal(23, seed=1)}
        at = {"w": normal(3, seed=2), "scale": jnp.asarray(1.5), "name": "kept", "count": jnp.arange(2)}
        yield (*vector_loss(squares, at, data), at, data)


def test_a_tree_is_a_vector_and_the_rest_stays(problem):
    loss, centre, at, data = problem
    assert centre.shape == (4,)
    error = np.asarray(data["x"]) @ np.asarray(at["w"]) * 1.5 - np.asarray(data["y"])
    wanted = [np.mean(error**2) / 2, np.mean(np.abs(error))]
    np.testing.assert_allclose(everywhere(loss, centre)[0], wanted, rtol=1e-14)
    again, _ = vector_loss(squares, at, data)
    assert again.unravel == loss.unravel  # static: equal ones share their program
    host = {"w": np.ones(3), "scale": np.ones(())}
    np.testing.assert_array_equal(vector_loss(squares, host, data)[1], np.ones(4))
    with jax.enable_x64(False):  # then numbers of the host are those of the device
        assert vector_loss(squares, host | {"scale": jnp.ones(())}, data)[1].dtype == jnp.float32


def test_all_the_data_are_seen_whatever_the_batch(problem):
    """23 samples in batches of 5: baseline and gradient."""
    loss, centre, _, _ = problem
    known = at_point(loss, centre, batch=5)
    assert known.terms.shape == (23, 2)
    terms, gradient = everywhere(loss, centre)
    np.testing.assert_allclose(known.baseline, terms, rtol=1e-13)
    np.testing.assert_allclose(known.slope, gradient, rtol=1e-12)
    assert 0 < gradient_seconds(loss, centre, batch=5) < 10


def test_the_noise_of_few_samples_is_exact(problem):
    """Of 23 samples, each a group of its own: a batch with replacement has their variance over its size."""
    loss, centre, _, data = problem
    alone = jax.tree.map(lambda leaf: np.asarray(leaf)[:, None], data)
    slopes = jax.jit(jax.vmap(jax.grad(lambda one, w: jnp.sum(loss.of(w, one)), argnums=1), in_axes=(0, None)))(
        alone, centre
    )
    for batch in (5, 20):
        wanted = float(np.sum(np.asarray(slopes).var(0))) / batch
        assert batch_noise(loss, centre, batch=batch) == pytest.approx(wanted, rel=1e-10)
    first = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[:1]), data)
    assert batch_noise(*vector_loss(squares, {"w": jnp.ones(3), "scale": jnp.ones(())}, first), batch=1) == 0


def test_the_noise_of_large_batches_is_not_lost():
    """Of 300 samples, in order of what they answer: within 0.4, two errors of 75 groups in one dimension."""
    with jax.enable_x64(True):
        x, noise = normal(300, 3), jnp.asarray(np.sort(normal(300, seed=1)))
        loss, centre = vector_loss(lambda w, few: jnp.mean((few[0] @ w - few[1]) ** 2) / 2, jnp.zeros(3), (x, noise))
        exact = float(np.sum((np.asarray(noise)[:, None] * np.asarray(x)).var(0)))
        for batch in (30, 150, 256, 299):
            assert batch_noise(loss, centre, batch=batch) * batch == pytest.approx(exact, rel=0.4)


@eqx.filter_jit
def seen_through(batches, w, key):
    return batches.evaluated(w, batches.sample(key))


@eqx.filter_jit
def seen_whole(posterior, w):
    return posterior.evaluated(w)


@pytest.mark.parametrize("control", [False, True])
def test_a_batch_at_the_point_is_exactly_nothing(problem, getkey, control):
    """There its loss less its own is zero, and with the control variate its gradient is that of all the data."""
    loss, centre, _, _ = problem
    known = at_point(loss, centre, batch=5)
    posterior = Posterior(loss, centre, jnp.asarray(7.0), jnp.asarray(2.0))
    batches = Batches(posterior, known.terms, known.slope if control else None, 5)
    above, slope, terms = seen_through(batches, centre, getkey())
    np.testing.assert_allclose([above, *np.asarray(terms)], 0, atol=1e-15)
    whole = seen_whole(posterior, centre)[1]
    assert np.allclose(slope, whole, rtol=1e-12) == control


def test_batches_are_all_the_data_in_the_mean(problem, getkey):
    """Loss and gradient of 4000 batches of 5, within four standard errors, themselves below a tenth of the gradient."""
    loss, centre, _, _ = problem
    known = at_point(loss, centre, batch=5)
    posterior = Posterior(loss, centre, jnp.asarray(7.0), jnp.asarray(2.0))
    batches = Batches(posterior, known.terms, None, 5)
    w, keys = jnp.asarray(np.asarray(centre) + 0.3), jax.random.split(getkey(), 4000)
    above, slope, _ = jax.jit(jax.vmap(lambda key: batches.evaluated(w, batches.sample(key))))(keys)
    whole_loss, whole_slope, _ = seen_whole(posterior, w)
    found = np.concatenate([slope, np.asarray(above)[:, None]], axis=1)
    wanted = np.append(whole_slope, float(whole_loss) - known.baseline.sum())
    error = found.std(0) / np.sqrt(len(found))
    assert (error < 0.1 * np.linalg.norm(wanted)).all()
    assert (np.abs(found.mean(0) - wanted) < 4 * error).all()


def test_what_is_no_point_and_what_are_no_data():
    wanted = "at: expected a tree of arrays of one floating-point type, got "
    came = (({"n": np.arange(3)}, "['int64']"), ([0.0, 0.0], "['float']"), ({"a": 0.0, "b": 1}, "['float', 'int']"))
    for at, said in (*came, (None, "None")):
        with pytest.raises(InputError) as error:
            vector_loss(squares, at, None)
        assert str(error.value).startswith(wanted + said + "; jnp.asarray")
    mixed = {"a": jnp.ones(2, jnp.float16), "b": jnp.ones(2, jnp.float32)}
    with pytest.raises(InputError, match=r"one floating-point type, got \['float16', 'float32'\]"):
        vector_loss(squares, mixed, None)
    with pytest.raises(InputError, match=r"data: expected arrays with one leading axis of samples, got \[2, 3\]"):
        sample_count((jnp.ones(2), jnp.ones(3)))


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda w, x: (x @ w) ** 2, "the same shape of all samples as of one, got [(20,), (1,)]; return the mean"),
        (lambda w, x: x, "a scalar, or a vector of terms whose sum it is, got (20, 3)"),
        (lambda w, x: 1.0, "a scalar, or a vector of terms whose sum it is, got 'float'"),
        (lambda w, x: jnp.sum((x @ w) ** 2), "of 8 of them, got "),
        (lambda w, x: jnp.stack([jnp.mean(x @ w), jnp.sum(x @ w)]), "a sum is to be divided by the number of samples"),
    ],
)
def test_what_is_no_mean_over_samples(loss, said):
    """Also where the loss at the point is zero, as is a sum of it."""
    with pytest.raises(InputError) as error:
        require_mean(*vector_loss(loss, jnp.zeros(3), normal(20, 3)))
    assert str(error.value).startswith("loss: expected ")
    assert said in str(error.value)


def test_what_is_a_mean_over_samples(problem):
    """A scalar or a vector, of many samples or of one, and where it is infinite beside the point."""
    loss, centre, _, _ = problem
    require_mean(loss, centre)
    require_mean(*vector_loss(lambda w, x: jnp.mean((x @ w) ** 2), jnp.zeros(3), jnp.ones((1, 3))))

    def inside(w, x):
        return jnp.where(jnp.abs(w).max() > 1e-3, jnp.inf, jnp.mean((x @ w - 1) ** 2))

    require_mean(*vector_loss(inside, jnp.zeros(3), normal(20, 3)))
    require_mean(*vector_loss(lambda w: w**2, jnp.zeros(3), None))
    with pytest.raises(InputError, match=r"a vector of terms whose sum it is, got \(3, 3\)"):
        require_mean(*vector_loss(lambda w: jnp.outer(w, w), jnp.zeros(3), None))
