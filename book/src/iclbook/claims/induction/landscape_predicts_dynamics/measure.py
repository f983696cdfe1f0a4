"""The landscape's numbers read off trained networks, and fits of its flow to their losses."""

import jax
import numpy as np

from iclbook.claims.induction import _networks
from iclbook.claims.induction.landscape_predicts_dynamics.claim import NUMBERS
from icllab.core.grid import tabulated
from icllab.diagnostics.behaviour import interactions
from icllab.diagnostics.curves import flow_fits
from icllab.theory import induction_landscape

VERSION = 1

STRENGTHS = ("beta", "alpha", "xi", "beta2")


def measure(point, *, key, rates=None, pause=0.0):
    """Curves of every seed and fits to their losses.

    ``rates``: of a descent on the landscape itself, in a network's place. ``pause``: 1000 steps for which it stands
    still where half of ln N is left.
    """
    columns = [NUMBERS.index(name) for name in point.number]

    def curves(seed):
        numbers = trained(seed, point, key) if rates is None else descended(seed, point, rates, pause)
        columns_out = {"landscape_number": (("step", "number"), numbers[:, columns])}
        return columns_out | {"other_attention": (("step",), numbers[:, 4]), "label_loss": (("step",), numbers[:, 5])}

    table = tabulated(curves, seed=point.seed)
    if hasattr(point, "form"):
        with jax.enable_x64(True):
            table |= fits(table["label_loss"][1], point, key)
    return table


def trained(seed, point, key):
    """xi, y, z, xi by division, z' and the loss of a network along training, [step, 6]."""
    begin = _networks.start(seed, key=key, pairs=point.pairs, labels=point.label_count)
    run = _networks.train(begin.task, begin.network, steps=point.step, key=begin.of_prompts, batch=point.batch)
    batch = begin.task.in_context().sample_many(point.prompts, key=begin.of_tests)
    networks = (run.trajectory.at(step).member(0) for step in point.step)
    return np.stack([read(network, begin.task, batch) for network in networks])


def read(network, task, batch):
    """The landscape's numbers of one network: the readout given both patterns of an induction head, and by division."""
    quotient, y, z, other_attention, loss = np.asarray(interactions.landscape_coordinates(network, task, batch), float)
    coordinates = np.asarray(interactions.landscape_coordinates(_networks.clamp_patterns(network), task, batch), float)
    return np.array([coordinates[0], y, z, quotient, other_attention, loss])


def descended(seed, point, rates, pause=0.0):
    """Numbers as in :func:`trained` of the flow from near the origin, at ``rates`` per 1000 steps."""
    sizes = {"pairs": point.pairs, "labels": point.label_count}
    start, times = np.random.default_rng(seed).normal(0, 0.01, 3), np.asarray(point.step) / 1000
    flow = induction_landscape.flow(start.tolist(), time=times[-1], rates=rates, **sizes)
    half = float(np.interp(-np.log(point.pairs) / 2, -np.asarray(flow.loss), flow.time))
    times = np.minimum(times, half) + np.maximum(times - half - pause, 0.0)
    beta, alpha, xi = (np.interp(times, flow.time, row) for row in flow.parameters.T)
    y = np.asarray(induction_landscape.previous_token_attention(beta, pairs=point.pairs))
    weight = np.exp(alpha * y)
    z, other_attention = weight / (weight + 2 * point.pairs), 1 / (weight + 2 * point.pairs)
    return np.stack([xi, y, z, xi, other_attention, induction_landscape.loss(beta, alpha, xi, **sizes)], axis=1)


def fits(losses, point, key):
    """The best fit of every form to the loss of every seed, and the profiles of the rates."""
    options = {"pairs": point.pairs, "labels": point.label_count, "iterations": point.iterations}
    times, guess = np.asarray(point.step) / 1000.0, np.log(point.rate_guess)
    of_fits = np.asarray(jax.random.key_data(key)).ravel().tolist()

    def best(form):
        n = 4 if form == "four" else 3
        rng = np.random.default_rng([*of_fits, point.form.index(form)])
        if form == "common":  # from the origin, and one rate
            starts = np.concatenate([guess + np.linspace(-2, 2, 8)[:, None] * np.ones(n), np.zeros((8, n))], axis=1)
            free = np.zeros_like(starts)
            free[:, 0] = 1.0
        else:
            starts = rng.normal(0, 1, (point.restarts, 2 * n)) + guess * (np.arange(2 * n) < n)
            free = np.ones_like(starts)
        many, tied = len(starts), form == "common"
        problems = (np.tile(starts, (len(losses), 1)), np.tile(free, (len(losses), 1)))
        best_fits = flow_fits.fits(np.repeat(losses, many, 0), times, *problems, tied=tied, **options)
        return [flow_fits.best(best_fits[s * many : (s + 1) * many]) for s in range(len(losses))]

    def profile(centres):
        """Misfits with one rate held, the lowest from the best fit and from points near it, [seed, rate, factor]."""
        free = np.broadcast_to(1 - np.eye(6)[:3, None], (1 + point.perturbed, 3, len(point.factor), 6))
        away = np.random.default_rng([*of_fits, len(point.form)]).normal(0, 0.5, free.shape) * free
        away[0] = 0.0
        starts = centres[:, None, None, None] + np.log(point.factor)[:, None] * np.eye(6)[:3, None] + away
        values = np.repeat(losses, free[..., 0].size, 0)
        again = flow_fits.fits(
            values, times, starts.reshape(-1, 6), np.tile(free.reshape(-1, 6), (len(losses), 1)), **options
        )
        return np.nan_to_num([fit.rmse for fit in again], nan=np.inf).reshape(starts.shape[:-1]).min(1)

    def padded(values):
        whole = np.pad(values, (*[(0, 0)] * (values.ndim - 1), (0, 4 - values.shape[-1])), constant_values=np.nan)
        return whole[..., [STRENGTHS.index(name) for name in point.strength]]

    best_fits = {form: best(form) for form in point.form}
    table = {
        "misfit": (("seed", "form"), np.array([[fit.rmse for fit in row] for row in best_fits.values()]).T),
        "fitted_rate": [[padded(fit.rates) for fit in row] for row in best_fits.values()],
        "fitted_start": [[padded(fit.start) for fit in row] for row in best_fits.values()],
    }
    for name in ("fitted_rate", "fitted_start"):
        table[name] = (("seed", "form", "strength"), np.array(table[name]).swapaxes(0, 1))
    if "three" in best_fits:
        centres = np.stack([np.concatenate([np.log(fit.rates), fit.start]) for fit in best_fits["three"]])
        table["profile"] = (("seed", "factor", "strength"), padded(profile(centres).swapaxes(1, 2)))
    return table
