"""Loss curves of every rung, with five labels and with sixteen."""

import jax
import jax.numpy as jnp
import numpy as np

from iclbook.claims.induction import _networks
from iclbook.claims.induction.ladder import rungs
from iclbook.claims.induction.ladder.claim import FEW, HORIZONS, LEAKED, OF_FLOW
from icllab.core.grid import tabulated
from icllab.models import ItemLabelNetwork, MinimalHead
from icllab.theory import induction_landscape

VERSION = 2

STEP = 0.05  # of descent on orthogonal prompts
STARTED = 0.01  # standard deviation of strengths at the start


def measure(point, *, key, formed=0.0, faster=None, simulated="even", leaked=""):
    """One rung.

    Heads of strengths begin with both attentions ``formed``; ``faster`` is the reader in its rung, ``simulated`` the
    attention of the landscape's simulation. A ``leaked`` rung is the network of the seed before, of ``LEAKED`` seeds.
    """
    key = jax.random.key(0) if leaked else key  # one for all rungs
    is_leaked = point.rung == leaked
    rung = "network" if is_leaked else simulated if point.rung == "even" else point.rung

    def curves(seed, label_count):
        origin = (seed - 1) % LEAKED if is_leaked else seed
        cell_key = jax.random.fold_in(jax.random.fold_in(key, origin), label_count)
        until = HORIZONS.get(rung, OF_FLOW)[label_count > FEW]
        times = np.linspace(0.0, until, len(point.record))
        # The same strengths on every rung: the landscape and its simulation are one curve.
        start = np.random.default_rng(seed).normal(0, STARTED, 3) + formed * np.array([1.0, 1.0, 0.0])
        if rung in HORIZONS:
            times = np.round(times)
            losses = trained(rung, point, cell_key, label_count, times, start)
        else:
            ratio = point.faster if faster is None else faster
            losses = descended(rung, point, start, label_count, times, ratio)
        return {"label_loss": (("record",), losses), "record_time": (("record",), times)}

    return tabulated(curves, seed=point.seed, label_count=point.label_count)


def descended(rung, point, start, labels, times, faster):
    """Losses of a head of strengths on orthogonal prompts, or of the landscape's flow."""
    sizes = {"pairs": point.pairs, "labels": labels}
    if rung in ("landscape", "reader"):
        rates = (1.0, 1.0, faster if rung == "reader" else 1.0)
        flow = induction_landscape.flow(start.tolist(), time=times[-1], rates=rates, **sizes)
        path = [np.interp(times, flow.time, row) for row in flow.parameters.T]
        return np.asarray(induction_landscape.loss(*path, **sizes))
    between = max(round(float(times[1]) / STEP), 1)
    schedule = {"kind": rung, "records": len(times), "between": between} | sizes
    return np.asarray(rungs.descended(jnp.asarray(start, jnp.float32), float(times[1]) / between, **schedule))


def trained(rung, point, key, labels, times, start):
    """Losses of a model trained by SGD on prompts with random items."""
    of_task, of_network, of_prompts, of_tests = jax.random.split(key, 4)
    task = _networks.task(key=of_task, labels=labels, pairs=point.pairs)
    if rung == "buffers":
        model = rungs.SeparateBuffers.from_task(task, key=of_network)
    elif rung == "network":
        model = ItemLabelNetwork.from_task(task, key=of_network)
    else:
        model = MinimalHead.reading(labels=labels, beta1=start[0], alpha=start[1], xi=start[2])
    steps = [int(time) for time in times]
    run = _networks.train(
        task,
        model,
        steps=steps,
        key=of_prompts,
        batch=point.batch,
        trainable=without_labels if rung == "items" else None,
    )
    batch = task.sample_many(point.prompts, key=of_tests)
    return np.asarray(rungs.losses(*_networks.member_trajectory(run, 0), task, batch), float)


def without_labels(head):
    """The strengths that the landscape has."""
    return head.beta1, head.alpha, head.classifier.xi
