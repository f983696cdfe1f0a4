"""Training of item-label networks until the context's labels are used, or until the last step."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from iclbook.claims.induction import _networks
from iclbook.claims.induction.initial_weights.measure import with_attention_scaled
from icllab.core.statistics import first_rise

LAST = 2000  # steps; a later time is censored
CHUNK, BETWEEN = 500, 50  # steps of one training, after which a network that has learned stops; steps between tests
RATE, PROMPTS = 0.2, 256  # at rates from 0.5 on units of the classifier die


def measure(cell: Mapping[str, float], seeds: Sequence[int]) -> list[tuple[float, bool]]:
    """The time of every seed, and whether training ended before."""
    return [time(cell, seed) for seed in seeds]


def time(cell: Mapping[str, float], seed: int) -> tuple[float, bool]:
    """Steps until accuracy on novel classes is half-way from 1/N to 1, or the last, and whether it is the last."""
    sizes: dict[str, Any] = {name: int(cell[name]) for name in ("pairs", "dim", "classes")}
    begin = _networks.start(0, key=jax.random.key(seed), zipf_exponent=cell["zipf"], **sizes)
    network, accuracy = with_attention_scaled(begin.network, (1.0, cell["start"])), []
    test = dataclasses.replace(begin.task.in_context(), means=None)  # which no test of novel classes needs
    half_way = (1 + 1 / sizes["pairs"]) / 2
    steps = range(BETWEEN, CHUNK + 1, BETWEEN)
    while len(accuracy) * BETWEEN < LAST and max(accuracy, default=0.0) < half_way:
        of_prompts = jax.random.fold_in(begin.of_prompts, len(accuracy))
        run = _networks.train(begin.task, network, steps=steps, key=of_prompts, rates=(RATE,), batch=int(cell["batch"]))
        tests = _networks.evaluate(run, test, key=begin.of_tests, prompts=PROMPTS)
        accuracy += tests["accuracy"][0].tolist()
        network = run.trajectory.at(CHUNK).member(0)
    curve = np.array([1 / sizes["pairs"], *accuracy]) - half_way
    steps_taken = float(first_rise(BETWEEN * np.arange(len(curve)), curve))
    return (LAST, True) if np.isnan(steps_taken) else (steps_taken, False)
