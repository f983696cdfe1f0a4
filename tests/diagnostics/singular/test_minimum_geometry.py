"""Regular points are recognised, and what is left of a loss elsewhere has its order."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.diagnostics.sampling.local_loss import LocalLoss
from icllab.diagnostics.singular.minimum_geometry import SURE, UNSURE, geometries

SMALL = 1 - SURE


def geometry(loss, at, nbeta=1e3, data=None, localization=1.0):
    with jax.enable_x64(True):
        at = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), at)
        data = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), data)
        local = LocalLoss.from_loss(loss, at, data, pull=localization)
        return geometries(local, local.centre, nbeta, jax.random.key(0))


def product(layers):
    result = layers[0]
    for layer in layers[1:]:
        result = layer @ result
    return result


def layered(widths, seed, rank=None):
    """Half the squared distance of a product of random matrices from what it is; of a rank: the first columns only."""
    rng = np.random.default_rng(seed)
    layers = [rng.normal(size=(b, a)) for a, b in itertools.pairwise(widths)]
    if rank is not None:
        layers = [np.eye(b, a) * (np.arange(a) < rank) for a, b in itertools.pairwise(widths)]
    truth = product(layers)
    return lambda w: jnp.sum((product(w) - truth) ** 2) / 2, layers


@pytest.mark.parametrize(("widths", "rank"), [((3, 3, 3), 9), ((4, 3, 4), 15), ((2, 3, 3, 2), 4)])
def test_matrices_of_full_rank_are_regular(widths, rank):
    """The minima are a manifold that is curved: along its tangent the loss rises, and along itself it does not."""
    (whole,) = geometry(*layered(widths, 1))
    assert len(whole.curvatures) == rank
    assert whole.regular == SURE
    assert whole.order is None


@pytest.mark.parametrize(
    ("widths", "rank", "squares", "order"), [((3, 2, 3), 1, 5, 4), ((2, 2, 2), 0, 0, 4), ((2, 2, 2, 2), 0, 0, 6)]
)
def test_matrices_of_less_rank_are_not(widths, rank, squares, order):
    (whole,) = geometry(*layered(widths, 0, rank))
    assert (len(whole.curvatures), whole.order) == (squares, order)
    assert whole.regular == pytest.approx(SMALL)


@pytest.mark.parametrize("powers", [(1, 1), (2, 2), (3, 3), (1, 2, 3)])
def test_a_crossing_has_its_order(powers):
    (whole,) = geometry(
        lambda w: jnp.prod(jnp.stack([w[i] ** (2 * k) for i, k in enumerate(powers)])), np.zeros(len(powers))
    )
    assert (len(whole.curvatures), whole.order) == (0, 2 * sum(powers))
    assert whole.regular == pytest.approx(SMALL)


def test_flat_directions_are_regular():
    """With an offset, that rounds the loss, too."""
    for offset in (0.0, 10.0):
        (whole,) = geometry(lambda w, c=offset: 3 * w[0] ** 2 + w[1] ** 2 + c, np.zeros(4))
        np.testing.assert_allclose(whole.curvatures, [6, 2])
        assert whole.regular == SURE


def test_no_direction_is_left():
    (whole,) = geometry(lambda w: jnp.sum(w**2), np.zeros(3))
    assert len(whole.curvatures) == 3
    assert whole.regular == UNSURE


def test_a_curvature_that_is_not_resolved_need_not_count():
    """1e-7 at nbeta = 1e3: with it and without it."""
    loss = lambda w: w[0] ** 2 + 0.5e-7 * w[1] ** 2  # noqa: E731
    assert [len(one.curvatures) for one in geometry(loss, np.zeros(2))] == [2, 1]
    assert [len(one.curvatures) for one in geometry(loss, np.zeros(2), nbeta=1e9)] == [2]


def test_curvatures_of_the_noise_of_data_need_not_count():
    """Of 400 samples, curvatures of a fiftieth of the largest: alternatives end at the gap, and keep all else."""
    scale = np.array([1.0, 1.0, 0.1, 0.1])
    x = np.random.default_rng(0).normal(size=(400, 4)) * scale

    def loss(w, samples):
        return jnp.mean((samples @ w) ** 2) / 2

    alternatives = [len(one.curvatures) for one in geometry(loss, np.zeros(4), data=x)]
    assert alternatives[0] == 4
    assert 2 in alternatives
    assert 1 not in alternatives


def test_float32_has_its_rounding():
    """The rank of float32 is not that of its rounding."""
    layers = [np.eye(3) * (np.arange(3) < 1)] * 2
    at = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), layers)
    truth = jnp.asarray(product(layers), jnp.float32)
    local = LocalLoss.from_loss(lambda w: jnp.sum((product(w) - truth) ** 2) / 2, at, None, pull=1.0)
    (whole,) = geometries(local, local.centre, 1e3, jax.random.key(0))
    assert (len(whole.curvatures), whole.order) == (5, 4)
