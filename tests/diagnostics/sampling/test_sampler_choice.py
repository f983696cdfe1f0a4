"""What is chosen by cost, and what it says of it."""

import itertools
import time

import jax
import jax.numpy as jnp
import pytest

from icllab.diagnostics import HMC, SGLD
from icllab.diagnostics.sampling.costs import OVERHEAD, chosen_mode, operations
from icllab.diagnostics.sampling.sampled_losses import gradient_seconds, vector_loss
from icllab.diagnostics.sampling.sampler_choice import chosen_sampler


@pytest.mark.parametrize(
    ("seconds", "samples", "sampler", "warm_up", "reason"),
    [
        (1e-5, 4096, HMC, 500, "nominally take 0.01 ms: chains fit into 15 nominal seconds"),
        (5e-4, 4096, HMC, 104, "chains fit"),
        (0.4, 0, HMC, 50, "there are no data to draw batches of"),
        (0.4, 256, HMC, 50, "all 256 samples are one batch"),
        (0.004, 4096, SGLD, 2000, "of 4096 samples: batches of 256 cost less"),
        (0.02, 4096, SGLD, 500, "batches of 256 cost less"),
        (0.4, 4096, SGLD, 200, "nominally take 4e+02 ms"),
    ],
)
def test_the_sampler_is_a_matter_of_cost(seconds, samples, sampler, warm_up, reason):
    choice, text = chosen_sampler(seconds, samples)
    assert choice == sampler(warm_up=warm_up)
    assert reason in text
    per_gradient = seconds * (sampler().batch / samples if sampler is SGLD else 1)
    assert choice.gradients * per_gradient <= 15.1 * max(1, sampler().gradients * per_gradient / 150)


def test_chains_run_side_by_side_where_a_gradient_is_overhead():
    assert chosen_mode(OVERHEAD / 2) == ("vmap", "a gradient takes nominally 1 ms, below 2")
    assert chosen_mode(0.2) == ("map", "a gradient takes nominally 2e+02 ms, not below 2")


def test_operations_are_those_of_products_loops_and_branches():
    a, b = jnp.zeros((3, 4)), jnp.zeros((4, 5))
    assert operations(lambda a, b: a @ b, a, b) == 2 * 3 * 4 * 5
    assert operations(lambda a: jax.lax.scan(lambda c, _: (c + a, None), a, length=7)[0], a) == 7 * 12
    assert operations(lambda a: jax.lax.cond(True, lambda a: a + 1 + 2, lambda a: a + 1, a), a) == 24
    assert operations(jax.jit(jnp.sin), a) == 12
    assert operations(jax.vmap(lambda row: row @ b), a) == 2 * 3 * 4 * 5


def test_a_cost_is_the_same_whatever_the_clock_says(monkeypatch):
    """The choice between a limit and one temperature was once a stopwatch's."""
    crossing, centre = vector_loss(lambda w: (w[0] * w[1]) ** 2, jnp.ones(2), None)
    mean, at = vector_loss(lambda w, rows: jnp.mean((rows["x"] @ w) ** 2), jnp.ones(3), {"x": jnp.ones((100, 3))})
    cost = gradient_seconds(crossing, centre, batch=8)
    whole, halves = (gradient_seconds(mean, at, batch=batch) for batch in (100, 50))
    assert 0 < cost < 1e-6
    assert whole == pytest.approx(halves, rel=0.2)
    for name in ("time", "perf_counter", "process_time", "monotonic"):
        ticks = itertools.count(1.0, 1000.0)
        monkeypatch.setattr(time, name, lambda ticks=ticks: next(ticks))
    assert gradient_seconds(crossing, centre, batch=8) == cost
    assert gradient_seconds(mean, at, batch=100) == whole
