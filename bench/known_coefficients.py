"""Learning coefficients at the defaults against losses whose coefficient is known: how often intervals hold it.

"known": all normal crossings of one and two variables with powers up to three, those of three variables with powers of
sum up to five, and the square of four; sums of these; sums of powers; reduced-rank regression, deep linear networks and
linear attention; three strata of two layers. Curves were looked at on these.
"drawn": losses drawn by a key: quadratics of curvatures over three decades, crossings of two and three powers with
coefficients, alone and beside squares, in turned coordinates with flat directions; networks of two and three random
layers of full rank, regular points; strata of two layers, in turned coordinates.

Usage: python bench/known_coefficients.py [--part known|drawn] [--count 40] [--seed 0] [--n 1e6]
"""

import argparse
import functools
import itertools
import sys
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import machine
import numpy as np

from icllab.diagnostics import LocalPosterior, learning_coefficient
from icllab.theory import learning_coefficients as exact

VARIABLES, TERMS, WIDTH = 10, 4, 4  # of all losses, so that there are few programs: what is too many is not felt
LEAST = 0.90  # of the intervals hold lambda, and of those that do not are warned of
MOST = 0.20  # of those that hold it are warned of


class Monomials(eqx.Module):
    """Sum of products of even powers of the variables."""

    powers: jax.Array  # [term, variable, power / 2], one-hot
    scales: jax.Array
    rotation: jax.Array

    def __call__(self, w):
        """The loss at a vector."""
        squares = (self.rotation @ w) ** 2
        each = jnp.stack([jnp.ones_like(squares), squares, squares**2, squares**3])
        return jnp.sum(self.scales * jnp.prod(jnp.einsum("jik,ki->ji", self.powers, each), axis=1))


class Layers(eqx.Module):
    """Half the squared distance of a product of matrices from its truth."""

    masks: jax.Array
    truth: jax.Array
    root: jax.Array

    def __call__(self, w):
        """The loss at the matrices, of which what the masks leave out is not felt."""
        found = functools.reduce(lambda below, layer: layer @ below, w * self.masks)
        return jnp.sum(((found - self.truth) * self.root) ** 2) / 2


def monomials(*terms, coefficients=None, rotation=None):
    """The loss of terms in separate variables, and a minimum."""
    size = max(TERMS, len(terms))
    powers, scales, first = np.zeros((size, VARIABLES, 4)), np.zeros(size), 0
    powers[:, :, 0] = 1
    scales[: len(terms)] = 1 if coefficients is None else coefficients
    for j, term in enumerate(terms):
        for power in term:
            powers[j, first] = np.eye(4)[power]
            first += 1
    rotation = np.eye(VARIABLES) if rotation is None else rotation
    return Monomials(jnp.asarray(powers), jnp.asarray(scales), jnp.asarray(rotation)), jnp.zeros(VARIABLES)


def layers(matrices, spectrum=()):
    """The loss of a product of matrices, and the matrices."""
    at, masks = np.zeros((2, len(matrices), WIDTH, WIDTH))
    for i, matrix in enumerate(matrices):
        rows, columns = matrix.shape
        at[i, :rows, :columns], masks[i, :rows, :columns] = matrix, 1
    truth = functools.reduce(lambda below, layer: layer @ below, at)
    root = np.append(np.sqrt(spectrum), np.ones(WIDTH - len(spectrum)))
    return Layers(jnp.asarray(masks), jnp.asarray(truth), jnp.asarray(root)[None]), jnp.asarray(at)


def plain(widths, rank):
    """Matrices of these widths whose product has this rank."""
    return [np.eye(b, a) * (np.arange(a) < rank) for a, b in itertools.pairwise(widths)]


def known():
    """Name, loss, minimum, localization and coefficient of every loss."""
    found = []

    def take(name, made, truth, localization=1.0):
        found.append((name, *made, localization, truth))

    for count in (1, 2, 3):
        for powers in itertools.combinations_with_replacement((1, 2, 3), count):
            if count < 3 or sum(powers) <= 5:
                take(f"crossing {powers}", monomials(powers), exact.normal_crossing(powers))
    take("crossing (1, 1, 1, 1)", monomials((1,) * 4), exact.normal_crossing((1,) * 4))
    for powers in ((1, 2), (2, 2), (1, 1, 3), (2, 3), (1, 1, 1, 1)):
        truth = exact.quasi_homogeneous([1 / (2 * power) for power in powers])
        take(f"powers {powers}", monomials(*[(power,) for power in powers]), truth)
    both = [((1, 1), (1, 1)), ((1, 2), (1, 2)), ((1, 1), (1,)), ((2, 3), (1,)), ((1, 1), (1, 2)), ((1, 1, 1), (1,))]
    for one, other in [*both, ((2, 2), (2,)), ((1, 3), (3,))]:
        truth = exact.of_sum(exact.normal_crossing(one), exact.normal_crossing(other))
        take(f"sum {one} + {other}", monomials(one, other), truth)
    regressions = [((2, 2, 2), 0), ((3, 2, 3), 1), ((4, 2, 4), 2), ((3, 3, 3), 0), ((3, 3, 3), 1), ((2, 1, 3), 0)]
    for widths, rank in [*regressions, ((4, 3, 4), 1), ((2, 3, 2), 1), ((4, 4, 4), 0), ((3, 1, 3), 1)]:
        truth = exact.reduced_rank_regression(*widths, rank)
        take(f"reduced rank {widths}, {rank}", layers(plain(widths, rank)), truth)
    networks = [((2, 2, 2, 2), 0), ((3, 2, 2, 3), 1), ((3, 3, 3, 3), 0), ((2, 3, 3, 2), 1), ((4, 2, 3, 4), 0)]
    for widths, rank in [*networks, ((3, 3, 2, 3), 1)]:
        take(f"deep linear {widths}, {rank}", layers(plain(widths, rank)), exact.deep_linear(widths, rank))
    for dim, width, rank in ((3, 2, 1), (3, 3, 2), (4, 2, 1), (2, 2, 1)):
        made = layers(plain((dim, width, dim), rank), 0.5 ** np.arange(dim))
        take(f"attention {(dim, width, rank)}", made, exact.linear_attention(dim, width, rank))
    strata = [((1, 1, 0), (1, 0, 0), 10.0), ((1, 1, 0), (1, 0, 1), 100.0), ((1, 1, 1), (1, 0, 0), 100.0)]
    for first, second, localization in strata:
        made = layers([np.diag(side).astype(float) for side in (first, second)])
        truth = exact.reduced_rank_stratum(3, 3, 3, 1, rank_in=sum(first), rank_out=sum(second))
        take(f"stratum {first}, {second}", made, truth, localization)
    return found


def drawn(count, seed):
    """Name, loss, minimum, localization (the default) and coefficient of losses that a key draws."""
    rng = np.random.default_rng([seed, 38])
    return [KINDS[i % len(KINDS)](rng) for i in range(count)]


def turned(rng, size):
    """A random rotation."""
    return np.linalg.qr(rng.normal(size=(size, size)))[0]


def drawn_quadratic(rng):
    """Curvatures over three decades."""
    size = int(rng.integers(3, 8))
    h = 10 ** rng.uniform(-1.5, 1.5, size)
    made = monomials(*[(1,)] * size, coefficients=h / 2, rotation=turned(rng, VARIABLES))
    return f"quadratic of {size}", *made, None, exact.regular(size)


def drawn_crossing(rng):
    """A crossing, alone or beside squares."""
    powers = tuple(int(k) for k in np.sort(rng.integers(1, 4, rng.integers(2, 4))))
    squares = int(rng.integers(0, 4))
    scales = np.exp(rng.normal(size=1 + squares))
    made = monomials(powers, *[(1,)] * squares, coefficients=scales, rotation=turned(rng, VARIABLES))
    truth = exact.normal_crossing(powers)
    if squares:
        truth = exact.of_sum(truth, exact.regular(squares))
    return f"crossing {powers} + {squares} squares", *made, None, truth


def drawn_network(rng):
    """Random matrices of full rank: a regular point."""
    widths = [int(width) for width in rng.integers(2, WIDTH + 1, rng.integers(3, 5))]
    matrices = [rng.normal(size=(b, a)) / np.sqrt(a) for a, b in itertools.pairwise(widths)]
    rank = min(widths)
    truth = exact.LearningCoefficient(rank * (widths[0] + widths[-1] - rank) / 2)
    return f"network {tuple(widths)}", *layers(matrices), None, truth


def drawn_stratum(rng):
    """Two layers whose product has a lower rank than they may have."""
    inputs, hidden, outputs = (int(width) for width in rng.integers(2, WIDTH + 1, 3))
    rank = int(rng.integers(0, min(inputs, hidden, outputs)))
    more_in = int(rng.integers(0, min(inputs, hidden) - rank + 1))
    more_out = int(rng.integers(0, min(outputs, hidden - more_in) - rank + 1))
    first, second = np.zeros((hidden, inputs)), np.zeros((outputs, hidden))
    for i in range(rank + more_in):
        first[i, i] = rng.uniform(0.5, 2)
    for i in [*range(rank), *range(rank + more_in, rank + more_in + more_out)]:
        second[i - (more_in if i >= rank + more_in else 0), i] = rng.uniform(0.5, 2)
    of_hidden = turned(rng, hidden)
    matrices = [of_hidden @ first @ turned(rng, inputs), turned(rng, outputs) @ second @ of_hidden.T]
    ranks = {"rank_in": rank + more_in, "rank_out": rank + more_out}
    truth = exact.reduced_rank_stratum(inputs, hidden, outputs, rank, **ranks)
    return f"stratum {(inputs, hidden, outputs)}, {tuple(ranks.values())}, {rank}", *layers(matrices), None, truth


KINDS = (drawn_quadratic, drawn_crossing, drawn_network, drawn_stratum)


def main():
    """Print the table; fail where intervals hold too few."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="known", choices=("known", "drawn"))
    parser.add_argument("--count", type=int, default=40, help="of drawn ones")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n", type=float, default=1e6)
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    print(machine.described("jax"))
    losses = known() if arguments.part == "known" else drawn(arguments.count, arguments.seed)
    rows, lines = [], []
    for number, (name, loss, at, localization, truth) in enumerate(losses):
        clock, key = time.process_time(), jax.random.fold_in(jax.random.key(arguments.seed), number)
        posterior = LocalPosterior.from_function(loss, at, n=arguments.n, localization=localization)
        found = learning_coefficient(posterior, key=key)
        low, high = found["interval"].values
        said = found.attrs["warnings"]
        held, warned = low - 1e-9 <= truth.value <= high + 1e-9, bool(said)
        probability = found["multiplicity_probability"].values
        of_truth = probability[truth.multiplicity - 1] if truth.multiplicity <= len(probability) else 0.0
        of_chains = abs(float(found["mean_estimate"]) - truth.value) < 1.96 * float(found["mean_estimate_error"])
        rows.append((held, warned, (float(found["estimate"]) - truth.value) / float(found["mcse"]), of_chains))
        chains, limit = (
            f"{float(found[a]):.3f} ± {float(found[b]):.3f}"
            for a, b in (("mean_estimate", "mean_estimate_error"), ("estimate", "mcse"))
        )
        seconds = time.process_time() - clock
        interval = f"{low:.3f} {high:.3f}"
        numbers = (truth.value, truth.multiplicity, chains, limit, interval, held, warned, float(of_truth), seconds)
        lines.append((name, *numbers))
        for sentence in said:
            print(f"{name}: {sentence}", flush=True)
    headers = ("lambda", "m", "chains", "estimate", "interval", "held", "warned", "P(m)", "CPU s")
    machine.table(lines, ("loss", *headers))
    held, warned, apart, of_chains = (np.array(column) for column in zip(*rows, strict=True))
    missed = warned[~held].sum()
    print(f"{held.sum()} of {len(held)} intervals hold lambda, {warned[held].sum()} of these warn;", end=" ")
    print(f"of the others {missed} warn; {of_chains.sum()} are within 1.96 errors of the chains;", end=" ")
    print(f"root mean square of the distance in errors {np.sqrt(np.mean(apart**2)):.2f}, mean {apart.mean():+.2f}")
    enough = held.mean() >= LEAST and warned[held].mean() <= MOST and missed >= LEAST * (~held).sum()
    return int(not enough)


if __name__ == "__main__":
    sys.exit(main())
