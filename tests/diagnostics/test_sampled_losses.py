"""The loss as a function of one vector; batches beside all of the data, exactly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.diagnostics.posteriors import Posterior
from icllab.diagnostics.sampled_losses import Batches, at_point, gradient_seconds, sample_count, vector_loss


def squares(parameters, samples):
    """Two terms of a linear model: each a mean over samples."""
    error = samples["x"] @ parameters["w"] * parameters["scale"] - samples["y"]
    return jnp.stack([jnp.mean(error**2) / 2, jnp.mean(jnp.abs(error))])


@pytest.fixture
def problem(getkey):
    with jax.enable_x64(True):
        data = {"x": jax.random.normal(getkey(), (23, 3)), "y": jax.random.normal(getkey(), (23,))}
        at = {"w": jax.random.normal(getkey(), (3,)), "scale": jnp.asarray(1.5), "name": "kept", "count": jnp.arange(2)}
        yield (*vector_loss(squares, at, data), at, data)


def test_a_tree_is_a_vector_and_the_rest_stays(problem):
    loss, centre, at, data = problem
    assert centre.shape == (4,)
    np.testing.assert_allclose(loss(centre), squares(at, data), rtol=1e-14)
    again, _ = vector_loss(squares, at, data)
    assert again.unravel == loss.unravel  # static: equal ones share their program
    host = {"w": np.ones(3), "scale": np.ones(())}
    np.testing.assert_array_equal(vector_loss(squares, host, data)[1], np.ones(4))


def test_all_the_data_are_seen_whatever_the_batch(problem):
    """23 samples in batches of 5: baseline, gradient, and the scatter of the batches' gradients."""
    loss, centre, _, data = problem
    known = at_point(loss, centre, batch=5)
    assert known.terms.shape == (23, 2)
    np.testing.assert_allclose(known.baseline, loss(centre), rtol=1e-13)
    np.testing.assert_allclose(known.slope, jax.grad(lambda w: jnp.sum(loss(w)))(centre), rtol=1e-12)
    few = [jax.tree.map(lambda leaf, i=i: leaf[i : i + 5], data) for i in range(0, 20, 5)]
    slopes = np.stack([jax.grad(lambda w, one=one: jnp.sum(loss.of(w, one)))(centre) for one in few])
    assert float(known.noise) == pytest.approx(np.sum(slopes.var(0)), rel=1e-10)
    assert 0 < gradient_seconds(loss, centre, batch=5) < 10


@pytest.mark.parametrize("control", [False, True])
def test_a_batch_at_the_point_is_exactly_nothing(problem, getkey, control):
    """There its loss less its own is zero, and with the control variate its gradient is that of all the data."""
    loss, centre, _, _ = problem
    known = at_point(loss, centre, batch=5)
    posterior = Posterior(loss, centre, jnp.asarray(7.0), jnp.asarray(2.0))
    batches = Batches(posterior, known.terms, known.slope if control else None, 5)
    above, slope, terms = batches.evaluated(centre, batches.drawn(getkey()))
    np.testing.assert_allclose([above, *terms], 0, atol=1e-15)
    whole = posterior.evaluated(centre)[1]
    assert np.allclose(slope, whole, rtol=1e-12) == control


def test_batches_are_all_the_data_in_the_mean(problem, getkey):
    """Loss and gradient of 4000 batches of 5, within four standard errors, themselves below a tenth of the gradient."""
    loss, centre, _, _ = problem
    known = at_point(loss, centre, batch=5)
    posterior = Posterior(loss, centre, jnp.asarray(7.0), jnp.asarray(2.0))
    batches = Batches(posterior, known.terms, None, 5)
    w = centre + 0.3
    above, slope, _ = jax.jit(jax.vmap(lambda key: batches.evaluated(w, batches.drawn(key))))(
        jax.random.split(getkey(), 4000)
    )
    whole_loss, whole_slope, _ = posterior.evaluated(w)
    found = np.concatenate([slope, above[:, None]], axis=1)
    wanted = np.append(whole_slope, whole_loss - known.baseline.sum())
    error = found.std(0) / np.sqrt(len(found))
    assert (error < 0.1 * np.linalg.norm(wanted)).all()
    assert (np.abs(found.mean(0) - wanted) < 4 * error).all()


def test_what_is_no_point_and_what_are_no_data():
    with pytest.raises(InputError, match=r"at: expected a tree of arrays of one floating-point type, got \[\]"):
        vector_loss(squares, {"n": jnp.arange(3)}, None)
    mixed = {"a": jnp.ones(2, jnp.float16), "b": jnp.ones(2, jnp.float32)}
    with pytest.raises(InputError, match=r"one floating-point type, got \['float16', 'float32'\]"):
        vector_loss(squares, mixed, None)
    with pytest.raises(InputError, match=r"data: expected arrays with one leading axis of samples, got \[2, 3\]"):
        sample_count((jnp.ones(2), jnp.ones(3)))
