"""Coopetition: eight numbers against the gradient of all entries, fixed points against its Hessian, and limits."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.theory import coopetition

DIM = 5
FLOORS, COST = (0.1, 0.03), 0.2


def full_loss(vectors, targets, floors=FLOORS, cost=COST):
    """The loss of all entries [vector, entry], as tensors."""

    def error(names):
        product, target = (jnp.einsum("i,j,k->ijk", *rows[jnp.array(names)]) for rows in (vectors, targets))
        return jnp.mean((product - target) ** 2) / 2

    both = jnp.mean(jnp.outer(vectors[0], vectors[3]) ** 2)
    return (error([0, 1, 2]) + floors[0]) * (error([3, 1, 2]) + floors[1]) + cost / 2 * both


@jax.jit
def derivatives(vectors, targets, floors, cost):
    """Loss, gradient and Hessian."""
    arguments = vectors, targets, floors, cost
    return full_loss(*arguments), jax.grad(full_loss)(*arguments), jax.hessian(full_loss)(*arguments)


def reduced(vectors, targets):
    """Overlaps, sizes and squares of vectors and their targets."""
    squares = np.mean(targets**2, axis=1)
    overlaps = np.mean(vectors * targets, axis=1) / squares
    sizes = np.sqrt(np.mean((vectors - overlaps[:, None] * targets) ** 2, axis=1))
    return overlaps, sizes, squares


@pytest.fixture(scope="module")
def vectors():
    rng = np.random.default_rng(0)
    return rng.normal(size=(2, 4, DIM)).astype(np.float32) * np.array([0.7, 1.0], np.float32)[:, None, None]


def test_the_rates_of_eight_numbers_are_those_of_the_gradient_of_all_entries(vectors):
    start, targets = vectors
    step = 1e-3
    moved = start - step * np.asarray(jax.grad(full_loss)(jnp.array(start), jnp.array(targets)))
    x, r, squares = reduced(start.astype(float), targets.astype(float))
    x_after, r_after, _ = reduced(moved.astype(float), targets.astype(float))
    path = coopetition.flow(x, r, squares=squares, floors=FLOORS, cost=COST, dim=DIM, times=[0.0, step])
    np.testing.assert_allclose(path.overlaps[1] - path.overlaps[0], x_after - x, rtol=2e-3, atol=2e-7)
    np.testing.assert_allclose(path.sizes[1] - path.sizes[0], r_after - r, rtol=2e-3, atol=2e-7)


def test_errors_are_those_of_the_tensors(vectors):
    start, targets = vectors
    x, r, squares = reduced(start.astype(float), targets.astype(float))
    path = coopetition.flow(x, r, squares=squares, floors=FLOORS, cost=COST, dim=DIM, times=[0.0, 1.0])
    tensors = [
        np.mean((np.einsum("i,j,k->ijk", *start[m]) - np.einsum("i,j,k->ijk", *targets[m])) ** 2) / 2
        for m in ([0, 1, 2], [3, 1, 2])
    ]
    np.testing.assert_allclose(path.errors[0], tensors, rtol=1e-4)


@pytest.mark.parametrize(
    ("floors", "cost", "names"),
    [
        ((0.1, 0.0), 0.2, ["nothing", "second"]),
        ((0.0, 0.1), 0.2, ["nothing", "first"]),
        ((0.1, 0.02), 0.2, ["nothing"]),
        ((0.1, 0.02), 0.0, ["nothing", "both"]),
        ((0.0, 0.0), 0.2, ["nothing", "first", "second"]),
    ],
)
def test_fixed_points_are_those_of_the_full_loss(vectors, floors, cost, names):
    targets = vectors[1].astype(float)
    squares = np.mean(targets**2, axis=1)
    points = coopetition.fixed_points(*floors, cost=cost, squares=squares)
    assert [point.name for point in points] == names
    for point in points:
        at = jnp.array(point.overlaps[:, None] * targets, jnp.float32)
        loss, gradient, hessian = derivatives(at, jnp.array(targets, jnp.float32), jnp.array(floors), cost)
        np.testing.assert_allclose(loss, point.loss, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(gradient, 0.0, atol=1e-6)
        every = np.linalg.eigvalsh(np.asarray(hessian, float).reshape(4 * DIM, -1) * DIM)
        assert all(np.min(np.abs(every - value)) < 1e-4 for value in point.curvatures)
        assert every.min() > -1e-4
        assert point.attracts == (point.name != "nothing")
    if len(points) > 1 and cost and 0.0 in floors and floors != (0.0, 0.0):
        survivor = 3 if names[1] == "second" else 0
        slopes = (floors[0] + floors[1] + squares[[3 - survivor, 1, 2]].prod() / 2) * squares[[survivor, 1, 2]].prod()
        slopes = slopes * np.sum(1 / squares[[survivor, 1, 2]])
        want = sorted([0.0, 0.0, cost * squares[survivor], slopes])
        np.testing.assert_allclose(points[1].curvatures, want, atol=1e-12)


def test_the_point_that_attracts_is_where_flows_end():
    path = coopetition.flow(
        [0.3, 0.2, 0.25, 0.3], 4 * [0.3], squares=4 * [1.0], floors=(0.1, 0.0), cost=0.05, dim=10, times=[0, 100, 4000]
    )
    product = path.overlaps[:, 1] * path.overlaps[:, 2]
    assert product[1] * path.overlaps[1, 0] > 0.5  # the first mechanism comes
    np.testing.assert_allclose(product[2] * path.overlaps[2, [0, 3]], [0.0, 1.0], atol=1e-3)  # and goes


def test_what_survives_is_where_the_flow_rests_with_shared_factors_held():
    q, floor, cost, squares = 1.3, 0.01, 0.02, (1.2, 0.8, 1.1, 0.9)
    path = coopetition.flow(
        (0.2, q**0.5, q**0.5, 1 / q),
        4 * [0.0],
        squares=squares,
        floors=(0.1, floor),
        cost=cost,
        dim=1,
        times=[0.0, 4000.0],
        held=("b", "c"),
    )
    survives = coopetition.surviving_fraction(q, floor=floor, cost=cost, squares=squares)
    assert path.overlaps[-1, 0] * q == pytest.approx(survives, rel=0.1)  # the second gives way a little
    assert 0.2 < survives < 0.8
    assert coopetition.surviving_fraction(q, floor=0.0, cost=cost) == 0.0
    np.testing.assert_array_equal(path.overlaps[0, 1:3], path.overlaps[1, 1:3])


def test_shared_factors_grow_without_end_where_both_floors_are_positive():
    squares, times = (1.5, 0.8, 1.1, 0.9), [0.0, 1e5, 1e7, 1e9]
    path = coopetition.flow(4 * [1.0], 4 * [0.0], squares=squares, floors=(0.1, 0.1), cost=0.1, dim=4, times=times)
    product = path.overlaps[1:, 1] * path.overlaps[1:, 2]
    wanted: Any = coopetition.shared_growth(np.array(times[1:]), cost=0.1, dim=4, squares=squares)
    np.testing.assert_allclose(product / wanted, 1.0, atol=0.05)
    assert abs(product[-1] / wanted[-1] - 1) < 5e-3
    assert path.errors[-1].max() < 1e-3


def test_shared_factors_shorten_the_wait_of_a_small_aligned_start():
    start, times = 2e-3, np.linspace(0.0, 3000.0, 3001)
    law = {"squares": 4 * [1.0], "floors": (0.0, 0.0), "cost": 0.0, "dim": 2, "times": times}
    together = coopetition.flow(4 * [start], 4 * [0.0], **law)
    alone = coopetition.flow(3 * [start] + [0.0], 4 * [0.0], held=("d",), **law)
    waits = [np.interp(-0.25, -path.errors[:, 0], times) for path in (together, alone)]
    assert waits[0] / waits[1] == pytest.approx(np.log(1 + np.sqrt(2)) / np.sqrt(2), rel=0.02)
    assert waits[1] == pytest.approx(2 / (0.5 * start), rel=0.02)


def test_arguments_are_refused():
    law: Any = {"squares": 4 * [1.0], "floors": (0.1, 0.0), "cost": 0.1, "dim": 3, "times": [0.0, 1.0]}
    with pytest.raises(InputError, match="overlaps: expected one number for each"):
        coopetition.flow([1.0, 1.0], 4 * [0.1], **law)
    with pytest.raises(InputError, match="held"):
        coopetition.flow(4 * [1.0], 4 * [0.1], held=("e",), **law)
    with pytest.raises(InputError, match="times: expected increasing"):
        coopetition.flow(4 * [1.0], 4 * [0.1], **law | {"times": [1.0, 1.0]})
    with pytest.raises(InputError, match="floors: expected two"):
        coopetition.flow(4 * [1.0], 4 * [0.1], **law | {"floors": [0.1]})
    with pytest.raises(InputError, match="cost"):
        coopetition.surviving_fraction(1.0, floor=0.1, cost=0.0)
    with pytest.raises(InputError, match="first_floor"):
        coopetition.fixed_points(-0.1, 0.0, cost=0.1)
