"""Ctrl-C ends every diagnostic that samples or trains within two seconds, and what is finished is kept."""

import _thread
import signal
import subprocess
import sys
import threading
import time
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import icllab as icl
from icllab import models, tasks
from icllab.core import progress
from icllab.diagnostics import (
    HMC,
    MALA,
    NUTS,
    SGLD,
    SGNHT,
    SMC,
    LinearResponse,
    LocalPosterior,
    MapSolver,
    Quadrature,
    RMSpropSGLD,
    SpectrumSolver,
    coefficient_at_temperature,
    context_map,
    context_rank,
    free_energy,
    hessian_spectrum,
    learning_coefficient,
    posterior_draws,
    susceptibility,
)
from icllab.diagnostics.curvature.products import Hessian
from icllab.models.contexts.exact_family import FastWeights

PROMPT = 2.0  # seconds from Ctrl-C to the end
FOREVER = 10**7
POINT = np.linspace(-0.1, 0.1, 3, dtype=np.float32)
TASK = tasks.LinearRegression.convention("timaeus", dim=2, length=3)


def bowl(w):
    return jnp.sum(w**2) / 2


def slow_bowl(w):
    """A gradient of some milliseconds."""
    matrix = jnp.outer(jnp.cos(jnp.arange(300.0)), jnp.sin(jnp.arange(300.0)))
    for _ in range(4):
        matrix = jnp.tanh(matrix @ matrix.T / 300)
    return jnp.sum(w**2) * (1 + jnp.sum(matrix * jnp.sum(w)) ** 2)


def of_samples(w, samples):
    return jnp.mean((samples @ w) ** 2) / 2


def family():
    rng = np.random.default_rng(0)
    shapes = (2, 2), (2, 2), (2,)
    return FastWeights(*(jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes), normalised=False)


def by_sampler(sampler):
    data = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    posterior = LocalPosterior.from_function(of_samples, POINT, data=data, nbeta=10.0, localization=1.0)
    return lambda: coefficient_at_temperature(posterior, sampler=sampler, checks=(), key=jax.random.key(0))


def mapped(function, solver):
    context = TASK.sample(key=jax.random.key(1))
    options: Any = {"key": jax.random.key(2), "queries": 8, "solver": solver}
    return lambda: function(family(), TASK, context, subspace=lambda model: model.slow, **options)


LONG: Any = {"chains": 4, "warm_up": FOREVER, "draws": 8}
NEAR, SLOW_NEAR = (LocalPosterior(loss, POINT, nbeta=9.0, localization=1.0) for loss in (bowl, slow_bowl))
COLD = LocalPosterior(slow_bowl, POINT, nbeta=1e6, localization=1.0)
FIRST = {"first": lambda w: w[0]}
ADAM = MapSolver(method="adam", adam_steps=FOREVER)
DIAGNOSTICS = {
    "HMC": by_sampler(HMC(**LONG)),
    "MALA": by_sampler(MALA(**LONG)),
    "SGLD": by_sampler(SGLD(batch=8, mode="vmap", **LONG)),
    "SGLD, in groups": by_sampler(SGLD(batch=8, mode="map", **LONG)),
    "SGNHT": by_sampler(SGNHT(batch=8, **LONG)),
    "RMSpropSGLD": by_sampler(RMSpropSGLD(batch=8, **LONG)),
    "NUTS": by_sampler(NUTS(chains=4, warm_up=8, draws=10**6)),
    "SMC": lambda: learning_coefficient(COLD, sampler=SMC(repeats=2), key=jax.random.key(0)),
    "free energy": lambda: free_energy(COLD, sampler=SMC(repeats=2), key=jax.random.key(0)),
    "draws": lambda: posterior_draws(NEAR, sampler=HMC(**LONG), key=jax.random.key(0)),
    "susceptibility": lambda: susceptibility(
        NEAR,
        tilted={"other": slow_bowl},
        observables=FIRST,
        route=HMC(**LONG),
        key=jax.random.key(0),
    ),
    "quadrature": lambda: Quadrature(points=321).sample(SLOW_NEAR, key=jax.random.key(0)),
    "linear response": lambda: susceptibility(
        SLOW_NEAR,
        tilted={"other": bowl},
        observables=FIRST,
        route=LinearResponse(dense=0, probes=10**5, curvature=Hessian(slow_bowl, POINT)),
        key=jax.random.key(0),
    ),
    "Hessian": lambda: hessian_spectrum(slow_bowl, np.zeros(1500, np.float32), key=jax.random.key(0)),
    "density": lambda: hessian_spectrum(
        slow_bowl,
        np.zeros(9, np.float32),
        key=jax.random.key(0),
        solver=SpectrumSolver(dense=0, extreme=1, probes=10**5),
    ),
    "context map": mapped(context_map, ADAM),
    "context rank": mapped(context_rank, ADAM),
    "fit": lambda: icl.fit(
        models.LinearAttention.lu(dim=2, std=0.1, key=jax.random.key(0)),
        TASK,
        steps=FOREVER,
        key=jax.random.key(1),
        optimizer=optax.sgd(1e-3),
    ),
}


@pytest.fixture
def interrupt(monkeypatch):
    """Press Ctrl-C some time after the second look at a clock by a loop; ``seconds`` is when."""
    moment, looks = types.SimpleNamespace(seconds=float("nan")), []

    def press():
        moment.seconds = time.monotonic()
        _thread.interrupt_main()

    def noticed(function):
        def look(*arguments, **options):
            looks.append(function)
            if len(looks) == 6:
                threading.Timer(1.5, press).start()
            return function(*arguments, **options)

        return look

    clocks = {name: noticed(getattr(time, name)) for name in ("perf_counter", "monotonic")}
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(**clocks))
    return moment


@pytest.mark.slow
@pytest.mark.parametrize("name", DIAGNOSTICS)
def test_an_interrupt_ends_it(name, interrupt):
    with pytest.raises(KeyboardInterrupt):
        DIAGNOSTICS[name]()
    assert time.monotonic() - interrupt.seconds < PROMPT


LIMIT = """
import jax, jax.numpy as jnp
from icllab.core import progress
from icllab.diagnostics import HMC, LocalPosterior, learning_coefficient
from icllab.diagnostics.singular import coefficients

keep = progress.keep

def kept(part):
    keep(part)
    print("begun", flush=True)

coefficients.keep = kept
posterior = LocalPosterior(lambda w: jnp.sum(w**2), jnp.zeros(2), n=1e9)
try:
    learning_coefficient(posterior, sampler=HMC(chains=4, warm_up=10, draws=20), key=jax.random.key(0), checks=())
except KeyboardInterrupt as stop:
    print(len(stop.finished), stop.finished[0].estimate.size)
    raise
"""


@pytest.mark.slow
def test_a_signal_ends_a_process_and_finished_chains_are_kept():
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", LIMIT], text=True, **pipes)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    pressed = time.monotonic()
    out, err = process.communicate(timeout=60)
    # The interpreter and XLA need some time to end.
    assert time.monotonic() - pressed < PROMPT + 3
    count, size = map(int, out.splitlines()[-1].split())
    assert count == 1
    assert size == 1
    assert "Interrupted: learning coefficient, " in err
