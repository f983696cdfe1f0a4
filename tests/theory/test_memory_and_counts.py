"""Memory and counts against gradient descent of the minimal network itself, with drawn chains, counts and frames."""

import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.theory import markov_pools, memory_and_counts

SIGNAL, NOISE = 1.0, 0.25  # mean squares of a deviation and of the error of counts
RESIDUAL = NOISE / (SIGNAL + NOISE)


def descended(chains, directions, kinetic, times, dim=200, contexts=20, step=0.04):
    """Memory and counts during gradient descent on drawn prompts; the memory by its projection on the deviations."""
    rng = np.random.default_rng(chains)
    v = rng.normal(size=(chains, dim)) * np.sqrt(SIGNAL / dim)
    v *= np.sqrt(SIGNAL / np.mean(np.sum(v**2, 1)))
    noise = rng.normal(size=(contexts, chains, dim)) * np.sqrt(NOISE / dim)
    frame = np.linalg.qr(rng.normal(size=(max(chains, directions), min(chains, directions))))[0]
    frame = frame.T if directions > chains else frame * np.sqrt(chains / directions)  # [chain, direction]
    weights, beta, rows = np.zeros((directions, dim)), 0.0, []
    estimates = v[None] + noise
    for i in range(round(times[-1] / step) + 1):
        memory = frame @ weights
        if any(abs(i * step - t) < step / 2 for t in times):
            rows.append((np.sum(memory * v) / np.sum(v**2), beta))
        errors = v - beta * estimates - memory
        of_beta = -np.mean(np.sum(errors * estimates, -1))
        of_weights = -frame.T @ errors.mean(0) / chains
        beta, weights = beta - step * of_beta / SIGNAL, weights - step * kinetic * of_weights
    return np.array(rows).T


@pytest.mark.parametrize(("chains", "directions"), [(3, 12), (12, 12), (40, 12)])
def test_the_flow_is_that_of_gradient_descent(chains, directions):
    times = [0.4, 2.0, 6.0]
    kinetic = 8.0
    memory, counts = descended(chains, directions, kinetic, times)
    parts = memory_and_counts.strengths(chains, time=times, kinetic=kinetic, directions=directions, residual=RESIDUAL)
    np.testing.assert_allclose(memory, parts.memory, atol=0.04)
    np.testing.assert_allclose(counts, parts.counts, atol=0.04)


def test_at_the_thresholds_the_descended_parts_are_equal():
    """First slopes are equal at K_1 chains, and final strengths at K_2 = w / (1 - r)."""
    memory, counts = descended(20, 40, 20.0, [0.08])
    assert memory[0] == pytest.approx(counts[0], rel=0.1)
    last = round(12 / (1 - RESIDUAL))
    memory, counts = descended(last, 12, 60.0, [40.0])
    assert memory[0] == pytest.approx(counts[0], rel=0.15)


def test_the_boundary_goes_from_one_threshold_to_the_other():
    for kinetic, directions in ((5.0, 30.0), (50.0, 10.0)):
        ends = [
            memory_and_counts.boundary(time=t, kinetic=kinetic, directions=directions, residual=0.2)
            for t in (1e-6, 1.0, 1e5)
        ]
        assert ends[0] == pytest.approx(kinetic, rel=1e-4)
        assert ends[2] == pytest.approx(directions / 0.8, rel=1e-4)
        assert min(ends[0], ends[2]) < ends[1] < max(ends[0], ends[2])


def test_counts_slow_the_memory_of_many_chains_by_the_inverse_of_the_residual():
    """Without competition half is held after ln 2 K / K_1; beside counts, which come first, 1 / r times later."""
    chains, residual = 1e4, 0.1
    fields = {"kinetic": 1.0, "directions": 1e6}
    alone = np.log(2) * chains
    half = memory_and_counts.strengths(chains, time=alone / residual, residual=residual, **fields).memory
    assert half == pytest.approx(0.5, abs=0.002)


def test_the_residual_is_that_of_the_levels():
    """By counting pairs in drawn sequences of drawn chains."""
    law = {"states": 3, "concentration": 0.5, "tokens": 16}
    rng = np.random.default_rng(3)
    losses, rates = [], []
    for _ in range(250):
        rows = rng.dirichlet(np.full(3, 0.5), 3)
        start = np.linalg.matrix_power(rows, 512)[0]
        rates.append(-start @ np.sum(rows * np.log(np.maximum(rows, 1e-300)), 1))
        for _ in range(5):
            token, counts = rng.choice(3, p=start / start.sum()), np.full((3, 3), 0.5)
            for _ in range(15):
                following = rng.choice(3, p=rows[token])
                losses.append(-np.log(counts[token, following] / counts[token].sum()))
                counts[token, following] += 1
                token = following
    expected = (np.mean(losses) - np.mean(rates)) / (np.log(3) - np.mean(rates))
    assert memory_and_counts.residual_of_counts(**law) == pytest.approx(expected, abs=0.03)
    assert markov_pools.fresh_levels(**law, unigram_concentration=1.5).bigram == pytest.approx(
        np.mean(losses), abs=0.02
    )


def test_refusals():
    with pytest.raises(InputError, match="residual"):
        memory_and_counts.strengths(3, time=1.0, kinetic=1.0, directions=2.0, residual=1.0)
    with pytest.raises(InputError, match="time"):
        memory_and_counts.boundary(time=0.0, kinetic=1.0, directions=2.0, residual=0.5)
    with pytest.raises(InputError, match="residual"):
        memory_and_counts.boundary(time=1.0, kinetic=1.0, directions=2.0, residual=1.0)
    with pytest.raises(InputError, match="kinetic"):
        memory_and_counts.boundary(time=1.0, kinetic=-1.0, directions=2.0, residual=0.5)
