"""Whether the interval of a learning coefficient holds it: curves of known losses with the noise of populations."""

import math

import jax
import numpy as np

from icllab.diagnostics.singular.extrapolation import extrapolated
from icllab.diagnostics.singular.limits import DECADES, POINTS, POPULATIONS, RARELY, RECOGNISED
from icllab.diagnostics.singular.minimum_geometry import SURE, Geometry

STATISTIC = "icllab.diagnostics.singular.extrapolation.extrapolated"
CLAIMS = ()
FAMILY = (
    "Exact curves of two and a half decades up to n / log n with noise: quadratics of three to twelve curvatures over "
    "three decades and flat directions, crossings of two or three powers (m = 1, 2, 3), alone or beside quadratics, "
    "two matrices at rank 0, and quadratics whose curvatures change with a flat direction."
)
AXIS = "samples, $n$"
STRENGTHS = (1e3, 1e4, 1e5, 1e6, 1e7)
FALSE = dict.fromkeys(STRENGTHS, ("misses",))
REPLICATES = 100
NOISE = 0.01  # of a mean slope over all repeats, over the root of the slope
STEP, LOW, HIGH = 0.02, -160.0, 30.0


def verdicts(strength, *, replicates, key):
    """``"holds"`` or ``"misses"``, with ``", warned"`` if none of the considered curves fits."""
    answers = []
    for one in jax.random.split(key, replicates):
        rng = np.random.default_rng(np.asarray(jax.random.key_data(one)))
        log_t = math.log(strength / math.log(strength)) + np.linspace(-DECADES * math.log(10), 0, POINTS)
        kind = KINDS[rng.integers(len(KINDS))]
        energy, value, parameters, geometry = kind(rng, log_t)
        answers.append(verdict(log_t, energy, value, rng, parameters=parameters, hypotheses=[geometry]))
    return answers


def verdict(log_t, energy, value, rng, **known):
    """The verdict on one curve with noise."""
    slopes = np.diff(energy) / np.diff(log_t)
    spread = NOISE * math.sqrt(POPULATIONS.repeats) * np.sqrt(np.abs(slopes))
    noisy = slopes + spread * rng.normal(size=(POPULATIONS.repeats, len(slopes)))
    limit = extrapolated(np.stack([log_t[:-1], log_t[1:]], axis=1), noisy, **known)
    low, high = limit.interval
    held = "holds" if low - 1e-9 <= value <= high + 1e-9 else "misses"
    return held + (", warned" if limit.misfit < RARELY and limit.regular <= RECOGNISED else "")


def quadratic(rng, log_t):
    """Minus log Z of a quadratic, with lambda, the number of parameters and the geometry of the minimum."""
    h = np.exp(rng.uniform(-3, 3, rng.integers(3, 13)) * math.log(10) / 2)
    return np.log1p(np.exp(log_t)[:, None] * h).sum(1) / 2, len(h) / 2, len(h) + int(rng.integers(5)), Geometry(h, SURE)


def crossing(rng, log_t):
    """A product of even powers of standard normal variables, from the density of its logarithm."""
    powers = rng.integers(1, 4, rng.integers(2, 4))
    poles = 1 / (2 * powers)
    scale = math.exp(rng.normal())
    geometry = Geometry(np.zeros(0), 1 - SURE, 2 * int(powers.sum()))
    return free_energy(powers, log_t + math.log(scale)), poles.min(), len(powers) + int(rng.integers(5)), geometry


def beside(rng, log_t):
    """A crossing and a quadratic in separate variables."""
    one, other = crossing(rng, log_t), quadratic(rng, log_t)
    return *(a + b for a, b in zip(one[:3], other[:3], strict=True)), one[3]._replace(curvatures=other[3].curvatures)


def matrices(rng, log_t):
    """Half the squared norm of B A, B of two columns: given B, A is normal; an integral over the singular values."""
    rows, columns = rng.integers(2, 6, 2)
    s = np.exp(np.arange(-26, 4.2, 0.05))
    # Of B^T B: the eigenvalues x > y have the weight (x - y) (xy)^((rows - 3) / 2) e^(-(x + y) / 2).
    x, y = np.meshgrid(s, s)
    weight = np.abs(x - y) * (x * y) ** ((rows - 1) / 2) * np.exp(-(x + y) / 2)
    weight /= weight.sum()
    z = [float((weight * ((1 + t * x) * (1 + t * y)) ** (-columns / 2)).sum()) for t in np.exp(log_t)]
    # At rank 0, two hidden units: Aoyagi and Watanabe's cases.
    lower, upper = sorted((rows, columns))
    value = float(lower if upper >= lower + 2 else (4 * (rows + columns) - 4 - (upper - lower) ** 2) / 8)
    if upper < lower + 2 and (rows + columns) % 2:
        value += 1 / 8
    return -np.log(z), value, 2 * int(rows + columns), Geometry(np.zeros(0), 1 - SURE, 4)


def bent(rng, log_t):
    """Half of sum_i h_i (1 + v)^2 u_i^2 with a flat v, near v = 0: cut where it would vanish."""
    h = np.exp(rng.uniform(-1, 1, rng.integers(1, 5)))
    v = np.linspace(-0.9, 4, 2000)
    weight = np.exp(-(v**2) / 2)
    integrand = ((1 + np.exp(log_t)[:, None, None] * h * (1 + v[:, None]) ** 2) ** -0.5).prod(2)
    return -np.log(integrand @ weight / weight.sum()), len(h) / 2, len(h) + 1, Geometry(h, SURE)


KINDS = (quadratic, crossing, beside, matrices, bent)


def free_energy(powers, log_t):
    """-log E[exp(-t prod w_i^(2 k_i))] of standard normal w, from the density of the logarithm of the product."""
    y = LOW + STEP * np.arange(round((HIGH - LOW) / STEP))
    density = None
    for k in powers:
        w = np.exp(np.clip(y / (2 * k), -300, 5))
        factor = STEP * np.sqrt(2 / np.pi) * np.exp(-(w**2) / 2) * w / (2 * k)
        if density is None:
            density = factor
        else:  # index i stands for LOW + i STEP: of two, for twice LOW
            both = np.fft.irfft(np.fft.rfft(density, 2 * len(y)) * np.fft.rfft(factor, 2 * len(y)))
            first = round(-LOW / STEP)
            density = both[first : first + len(y)]
    return -np.log(np.exp(-np.exp(np.minimum(y + log_t[:, None], 6))) @ density)
