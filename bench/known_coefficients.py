"""Learning coefficients at the defaults against losses whose coefficient is known: how often intervals hold it.

The losses are made by a rule: all normal crossings of one and two variables with powers up to three, those of three
variables with powers of sum up to five, and the square of four; sums of these; sums of powers; reduced-rank regression,
deep linear networks and linear attention; three strata of two layers. Those of even number are the ones that the shapes
of curves were looked at on; those of odd number ("held-out") were run once, when nothing was changed any more.

Usage: python bench/known_coefficients.py [--part all|even|held-out] [--seed 0] [--n 1e6]
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

from icllab.diagnostics import learning_coefficient
from icllab.theory import learning_coefficients as exact

VARIABLES, TERMS, WIDTH = 10, 4, 4  # of all losses, so that there are few programs: what is too many is not felt
LEAST = 0.90  # of the losses, whose intervals are to hold lambda, or to warn


class Monomials(eqx.Module):
    """Sum of products of even powers of the variables."""

    powers: jax.Array  # [term, variable, power / 2], one-hot
    scales: jax.Array

    def __call__(self, w):
        """The loss at a vector."""
        squares = w**2
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


def monomials(*terms):
    """The loss of terms in separate variables, and a minimum."""
    size = max(TERMS, len(terms))
    powers, scales, first = np.zeros((size, VARIABLES, 4)), np.zeros(size), 0
    powers[:, :, 0] = 1
    for j, term in enumerate(terms):
        scales[j] = 1
        for power in term:
            powers[j, first] = np.eye(4)[power]
            first += 1
    return Monomials(jnp.asarray(powers), jnp.asarray(scales)), jnp.zeros(VARIABLES)


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


def main():
    """Print the table; fail where intervals hold too few."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="all", choices=("all", "even", "held-out"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n", type=float, default=1e6)
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    print(machine.described("jax"))
    chosen = {"all": (0, 1), "even": (0,), "held-out": (1,)}[arguments.part]
    print(f"{'loss':<28} {'lambda':>7} m {'chains':>15} {'estimate':>15} {'interval':>16} held warned  P(m) CPU s")
    rows = []
    for number, (name, loss, at, localization, truth) in enumerate(known()):
        if number % 2 not in chosen:
            continue
        clock, key = time.process_time(), jax.random.fold_in(jax.random.key(arguments.seed), number)
        found = learning_coefficient(loss, at, n=arguments.n, localization=localization, key=key)
        low, high = found["interval"].values
        said = found.attrs["warnings"]
        held, warned = low <= truth.value <= high, bool(said)
        probability = found["multiplicity_probability"].values
        of_truth = probability[truth.multiplicity - 1] if truth.multiplicity <= len(probability) else 0.0
        of_chains = abs(float(found["mean_estimate"]) - truth.value) < 1.96 * float(found["mean_estimate_error"])
        rows.append((held, warned, (float(found["estimate"]) - truth.value) / float(found["mcse"]), of_chains))
        chains, limit = (
            f"{float(found[a]):.3f} ± {float(found[b]):.3f}"
            for a, b in (("mean_estimate", "mean_estimate_error"), ("estimate", "mcse"))
        )
        print(
            f"{name:<28} {truth.value:7.4f} {truth.multiplicity} {chains:>15} {limit:>15} {low:7.3f} {high:8.3f} "
            f"{held!s:>5} {warned!s:>5} {of_truth:5.2f} {time.process_time() - clock:6.1f}",
            flush=True,
        )
        for sentence in said:
            print(f"    {sentence}", flush=True)
    held, warned, apart, of_chains = (np.array(column) for column in zip(*rows, strict=True))
    print(f"{held.sum()} of {len(held)} intervals hold lambda, {(held | warned).sum()} hold it or warn;", end=" ")
    print(f"{of_chains.sum()} are within 1.96 errors of the chains at one temperature;", end=" ")
    print(f"root mean square of the distance in errors {np.sqrt(np.mean(apart**2)):.2f}, mean {apart.mean():+.2f}")
    return int(not np.mean(held | warned) >= LEAST)


if __name__ == "__main__":
    sys.exit(main())
