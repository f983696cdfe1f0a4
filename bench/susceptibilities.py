r"""Susceptibilities of trained networks: Hamiltonian Monte Carlo beside the linear response.

Transformers of one layer and 470 weights learn three programs of one symbol with noisy answers. There are twelve
prompts, so that the loss is exact, and Levenberg-Marquardt steps end at an exact minimum. Observables and tilts are
losses of two kinds. Those of programs, and of the whole, have their minimum there too: their covariance is of second
order. Those of other answers than were learned have a slope there: first order. Pairs of one and the other are mixed:
of these the linear response leaves out terms that are as large as it is.

Expected, written down before the networks of this key were drawn: at a localization of 1e6, where the posterior is
Gaussian, at least 95 % of all pairs lie within 3 standard errors, the root mean square of the distance in errors is
below 1.3, and at least half of the pairs of first and of second order have an error below a fifth of the linear
response. Exit status 1 if not.

Usage: python bench/susceptibilities.py [--networks 4] [--seed 11] [--resolutions 10 1] [--localizations 1e2 ... 1e6]
       [--leapfrogs 32]
"""

import argparse
import itertools
import sys
import time
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import machine
import numpy as np
import optax

from iclbook.claims.routing import _small_transformers as small
from icllab.diagnostics import HMC, LinearResponse, LocalPosterior, susceptibility, susceptibility_of_draws
from icllab.diagnostics.curvature.products import GaussNewton

POINT = {"program": "abc", "symbols": 4, "length": 1, "width": 6, "layers": 1, "heads": 2}
POINT |= {"noise": 0.2, "zipf_exponent": 1.0}
STEPS, RATE, POLISHED = 2000, 5e-3, 400  # of Adam on all prompts, and of Levenberg-Marquardt after it
STRONGEST = 1e6  # localization, where all is to agree
LEVEL = 1e-9  # gradient above which a point is no minimum
CHAINS = {"chains": 16, "warm_up": 100, "draws": 300, "mode": "vmap"}
WITHIN, SHARE, ROOT, RESOLVED = 3.0, 0.95, 1.3, 0.2


class Outputs:
    """Logits of all prompts at any weights, traced once for all functions of the same weights."""

    def __init__(self, family):
        self.family, self.prompts = family, np.asarray(family.prompts[0])
        self.last = (None, None)

    def __call__(self, w):
        """[context, string, symbol]."""
        if self.last[0] is not w:
            self.last = (w, jax.vmap(jax.vmap(lambda row: self._answer(w, row)))(jnp.asarray(self.prompts)))
        return self.last[1]

    def _answer(self, w, tokens):
        return self.family.logits(w, tokens)[0, : self.family.symbols]


class Loss(eqx.Module):
    """Cross-entropy with weighted answers."""

    outputs: Outputs = eqx.field(static=True)
    answers: Any  # [context, string, symbol]

    def __call__(self, w):
        """In nats."""
        return -jnp.sum(self.answers * jax.nn.log_softmax(self.outputs(w)))


def problem(outputs):
    """The loss, its tilts and the observables: name -> a loss."""
    right = np.eye(outputs.family.symbols)[outputs.prompts[:, :, -1]]
    strings, noise = right.shape[1], float(outputs.family.noise)
    noisy = (1 - noise) * right + noise / right.shape[2]
    next_answers = np.roll(noisy, -1, axis=0)  # of the next program
    mixed = np.concatenate([next_answers[:1], noisy[1:]])

    def mean(answers, context=None):
        weights = np.ones(len(answers)) / len(answers) if context is None else np.eye(len(answers))[context]
        return Loss(outputs, jnp.asarray(weights[:, None, None] * answers / strings))

    tilted = {"more a": mean(noisy, 0), "more c": mean(noisy, 2), "a as b": mean(mixed), "certain": mean(right)}
    observables = {"loss": mean(noisy), "loss a": mean(noisy, 0), "loss b": mean(noisy, 1)}
    observables |= {"a as b": mean(next_answers, 0), "b certain": mean(right, 1)}
    return mean(noisy), tilted, observables


SLOPED = ("a as b", "certain", "b certain")


@eqx.filter_jit
def trained(loss, w):
    """Weights at a minimum, the gradient there, and the Fisher matrix's eigenvalues."""
    optimizer = optax.adam(optax.cosine_decay_schedule(RATE, STEPS))
    share = jnp.sum(loss.answers, axis=2)

    def adam(state, _):
        w, memory = state
        with jax.numpy_dtype_promotion("standard"):
            move, memory = optimizer.update(jax.grad(loss)(w), memory)
        return (w + move, memory), None

    def rows(w):
        p, derivative = jax.nn.softmax(loss.outputs(w)), jax.jacrev(loss.outputs)(w)
        centred = derivative - jnp.sum(p[..., None] * derivative, axis=2, keepdims=True)
        return (jnp.sqrt(share[..., None] * p)[..., None] * centred).reshape(-1, w.size)

    def marquardt(state, _):
        w, damping = state
        b, slope = rows(w), jax.grad(loss)(w)
        inside = jnp.linalg.solve(b @ b.T + damping * jnp.eye(len(b)), b @ slope)
        moved = w - (slope - b.T @ inside) / damping
        better = loss(moved) <= loss(w)
        return (jnp.where(better, moved, w), jnp.where(better, damping / 3, damping * 4)), None

    (w, _), _ = jax.lax.scan(adam, (w, optimizer.init(w)), None, length=STEPS)
    (w, _), _ = jax.lax.scan(marquardt, (w, jnp.asarray(0.1)), None, length=POLISHED)
    b = rows(w)
    return w, jnp.linalg.norm(jax.grad(loss)(w)), jnp.linalg.eigvalsh(b @ b.T)


class ModelLoss(eqx.Module):
    """The loss of outputs whose second derivative is their Fisher matrix."""

    def __call__(self, z, _):
        """In nats, with the answers of the network itself."""
        right = jax.nn.softmax(jax.lax.stop_gradient(z))
        return -jnp.sum(right * jax.nn.log_softmax(z)) / z[..., 0].size


class Logits(eqx.Module):
    """Outputs as a function of weights and of data, of which there are none."""

    outputs: Outputs = eqx.field(static=True)

    def __call__(self, w, _):
        """The logits."""
        return self.outputs(w)


def compared(problem, w, eigenvalues, *, resolution, localization, leapfrogs, key):
    """Both routes, [observable, tilted] each, and the loss of the chains over that of the Gaussian."""
    loss, tilted, observables = problem
    curvature = GaussNewton(ModelLoss(), w, jnp.zeros(1), outputs=Logits(loss.outputs))
    nbeta = localization / resolution
    posterior = LocalPosterior.from_function(loss, w, nbeta=nbeta, localization=localization)
    functions = {"tilted": tilted, "observables": observables}
    route = LinearResponse(curvature=curvature, dense=w.size)
    response = susceptibility(posterior, route=route, **functions, key=key)
    draws = HMC(leapfrogs=leapfrogs, **CHAINS).sample(posterior, key=key)
    half = np.sum(eigenvalues / (eigenvalues + resolution)) / 2
    return response, susceptibility_of_draws(draws, **functions), nbeta * draws.losses.mean() / half


def kinds(dataset):
    """The order of every pair: [observable, tilted] of 1, 2, and 0 if it is mixed."""
    first, second = (np.isin(dataset[axis].values, SLOPED) for axis in ("observable", "tilted"))
    return np.where(first[:, None] & second[None], 1, np.where(first[:, None] | second[None], 0, 2))


def row(pairs):
    """Statistics of one resolution and localization over all networks, as numbers by name."""
    linear, chains, errors, order = (np.stack(part) for part in zip(*pairs, strict=True))
    distance, resolved = (chains - linear) / errors, errors < RESOLVED * np.abs(linear)
    numbers = {"within 3": np.mean(np.abs(distance) < WITHIN), "root": np.sqrt(np.mean(distance**2))}
    for name, number in (("first", 1), ("second", 2)):
        subset = (order == number) & resolved
        numbers[name] = np.median(chains[subset] / linear[subset]) if subset.any() else np.nan
        numbers[f"{name} resolved"] = subset.sum() / (order == number).sum()
    numbers["mixed root"] = np.sqrt(np.mean(distance[order == 0] ** 2))
    return numbers


def minima(task, family):
    """Number, weights and Fisher eigenvalues of the networks that end at a minimum."""
    networks = []
    for number, start in enumerate(family.weights):
        w, slope, eigenvalues = trained(task[0], start)
        norm, rank = float(jnp.linalg.norm(w)), int((eigenvalues > 1e-12 * eigenvalues[-1]).sum())
        excluded = "" if slope < LEVEL else "; left out, it is at no minimum"
        print(f"network {number}: |gradient| {slope:.0e}, |w| {norm:.1f}, rank {rank} of {w.size}{excluded}")
        if slope < LEVEL:
            networks.append((number, w, np.asarray(eigenvalues).clip(0)))
    return networks


def main():
    """Print the table; fail if the strongest localization is not as expected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=4)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--resolutions", type=float, nargs="+", default=[10.0, 1.0])
    parser.add_argument("--localizations", type=float, nargs="+", default=[1e2, 1e3, 1e4, 1e5, STRONGEST])
    parser.add_argument("--leapfrogs", type=int, default=32, help="of a trajectory: more at finer resolutions")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    print(machine.described("jax"))
    key = jax.random.key(arguments.seed)
    _, family = small.sample_family(range(arguments.networks), SimpleNamespace(**POINT), key=key)
    task = problem(Outputs(family))
    networks = minima(task, family)
    print("first, second: median ratio of chains to the linear response, of pairs with an error below a fifth of it")
    bad, lines = not networks, []
    for resolution, localization in itertools.product(arguments.resolutions, arguments.localizations):
        clock, pairs, fits, warnings = time.process_time(), [], [], []
        for number, w, eigenvalues in networks:
            response, chains, fit = compared(
                task,
                w,
                eigenvalues,
                resolution=resolution,
                localization=localization,
                leapfrogs=arguments.leapfrogs,
                key=jax.random.fold_in(key, number),
            )
            values = (response["susceptibility"].values, chains["susceptibility"].values)
            pairs.append((*values, chains["susceptibility_error"].values, kinds(chains)))
            fits.append(fit)
            warnings += [f"network {number}: {text}" for text in response.attrs["warnings"] + chains.attrs["warnings"]]
        numbers = {"resolution": resolution, "localization": localization, "loss / half": np.mean(fits)} | row(pairs)
        numbers |= {"warnings": len(warnings), "s": time.process_time() - clock}
        lines.append(numbers)
        print(f"resolution {resolution:g}, localization {localization:g}:", *warnings, sep="\n    ", flush=True)
        if localization >= STRONGEST:
            resolved = min(numbers["first resolved"], numbers["second resolved"])
            bad |= not (numbers["within 3"] >= SHARE and numbers["root"] < ROOT and resolved >= 0.5)
    machine.table([map(float, numbers.values()) for numbers in lines], lines[0])
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
