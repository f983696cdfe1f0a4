r"""Log odds that a network memorises its K training tasks rather than generalises, after N steps of training.

A network that answers with the mixture :math:`pM + (1-p)G` of a memorising predictor M, the posterior mean over its
pool, and a generalising one G, that under the true prior, has the log odds :math:`\eta = \ln\frac p{1-p}`. Four
theories of :math:`\eta(K, N)`, each with three fitted numbers: a posterior over strategies, whose prior punishes
complexity; the same with free energies of singular models; a boundary that is a power law; and a race of two learning
curves. None of them sees a network.
"""

import numpy as np

from icllab.core.domains import FINITE, NON_NEGATIVE, POSITIVE
from icllab.core.errors import require_integer
from icllab.theory.parameters import Number, Numbers, plain, read


def posterior(
    steps: Numbers,
    *,
    loss_gap: Numbers,
    memorising_bits: Numbers,
    generalising_bits: Numbers,
    growth: Numbers,
    beta: Numbers,
    gamma: Numbers,
) -> Number:
    r"""Log odds of a posterior over two strategies with a prior :math:`2^{-C^\beta}`.

    .. math:: \eta = \gamma N^{1-\alpha}\,\Delta L - \ln 2\,\bigl(C_M^\beta - C_G^\beta\bigr)

    Args:
        steps: :math:`N > 0`, steps of training.
        loss_gap: :math:`\Delta L = L_G - L_M`, mean loss of the generalising predictor minus that of the memorising
            one on tasks of the pool, in nats a position; finite.
        memorising_bits: :math:`C_M\ge 0`, bits of the memorising predictor, with its pool: :func:`pool_bits`.
        generalising_bits: :math:`C_G\ge 0`, bits of the generalising predictor.
        growth: :math:`1-\alpha`, fitted power of the steps as which evidence grows; finite.
        beta: :math:`\beta > 0`, fitted power of complexities.
        gamma: :math:`\gamma > 0`, fitted evidence of a step, over its mean loss.

    Source: [Wurgaft25].
    Derived: docs/memorising-generalising.md, A posterior over strategies.
    """
    n, gap, memorising, generalising, a, b, c = read(
        steps=(steps, POSITIVE),
        loss_gap=(loss_gap, FINITE),
        memorising_bits=(memorising_bits, NON_NEGATIVE),
        generalising_bits=(generalising_bits, NON_NEGATIVE),
        growth=(growth, FINITE),
        beta=(beta, POSITIVE),
        gamma=(gamma, POSITIVE),
    )
    return plain(c * n**a * gap - np.log(2) * (memorising**b - generalising**b))


def pool_bits(tasks: Numbers, *, dim: int, code: Numbers = 4000.0, precision: int = 32) -> Number:
    r"""Description length of a memorising predictor, in bits.

    .. math:: C_M = c + bKd

    A generalising predictor has none of a pool, so that :math:`C_G = c`.

    Args:
        tasks: :math:`K\ge 0`, tasks of the pool.
        dim: :math:`d`, numbers of a task; an integer of at least 1.
        code: :math:`c\ge 0`, bits of a compressed program.
        precision: :math:`b`, bits of a number; an integer of at least 1. Gaussian ones are hardly compressible.

    Derived: docs/memorising-generalising.md, A posterior over strategies.
    """
    require_integer("dim", dim)
    require_integer("precision", precision)
    k, c = read(tasks=(tasks, NON_NEGATIVE), code=(code, NON_NEGATIVE))
    return plain(c + precision * dim * k)


def free_energy(
    steps: Numbers,
    *,
    loss_gap: Numbers,
    coefficient_gap: Numbers,
    growth: Numbers,
    gamma: Numbers,
    weight: Numbers,
) -> Number:
    r"""Log odds of two solutions of a singular model: minus the difference of their free energies.

    .. math:: \eta = \gamma N^{1-\alpha}\,\Delta L - w\,(\lambda_M - \lambda_G)\ln N

    At :math:`\alpha = 0` and :math:`w = 1` it is that of the Bayesian posterior after :math:`\gamma N` samples,
    up to a constant. A solution with p independent parameters has :math:`\lambda\le p/2`: of a pool of K tasks
    :math:`\lambda_M - \lambda_G\le Kd/2`.

    Args:
        steps: :math:`N > 0`, steps of training.
        loss_gap: :math:`\Delta L = L_G - L_M`, mean loss of the generalising predictor minus that of the memorising
            one on tasks of the pool, in nats a position; finite.
        coefficient_gap: :math:`\lambda_M - \lambda_G`, difference of learning coefficients; finite.
        growth: :math:`1-\alpha`, fitted power of the steps as which evidence grows; finite.
        gamma: :math:`\gamma > 0`, fitted evidence of a step, over its mean loss.
        weight: :math:`w > 0`, fitted weight of the learning coefficients.

    Derived: docs/memorising-generalising.md, Free energies.
    """
    n, gap, coefficients, a, c, k = read(
        steps=(steps, POSITIVE),
        loss_gap=(loss_gap, FINITE),
        coefficient_gap=(coefficient_gap, FINITE),
        growth=(growth, FINITE),
        gamma=(gamma, POSITIVE),
        weight=(weight, POSITIVE),
    )
    return plain(c * n**a * gap - k * coefficients * np.log(n))


def boundary(tasks: Numbers, steps: Numbers, *, scale: Numbers, exponent: Numbers, width: Numbers) -> Number:
    r"""Log odds that pass zero on a power law, :math:`N_c = aK^b`.

    .. math:: \eta = \frac{\ln N - \ln a - b\ln K}{w}

    Args:
        tasks: :math:`K > 0`, tasks of the pool.
        steps: :math:`N > 0`, steps of training.
        scale: :math:`a > 0`, fitted steps at which a single task is half memorised.
        exponent: :math:`b`, fitted; finite.
        width: :math:`w > 0`, fitted width in the logarithm of steps.

    Derived: docs/memorising-generalising.md, A boundary and a race.
    """
    k, n, a, b, w = read(
        tasks=(tasks, POSITIVE),
        steps=(steps, POSITIVE),
        scale=(scale, POSITIVE),
        exponent=(exponent, FINITE),
        width=(width, POSITIVE),
    )
    return plain((np.log(n / a) - b * np.log(k)) / w)


def race(
    tasks: Numbers, steps: Numbers, *, loss_gap: Numbers, memorising: Numbers, generalising: Numbers, exponent: Numbers
) -> Number:
    r"""Log odds of a race of two learning curves: the strategy with the lower loss so far is more likely.

    .. math:: \eta = \ln\frac{e_G}{e_M}, \qquad e_M = \Bigl(\frac{mK}N\Bigr)^s, \qquad
              e_G = \Delta L + \Bigl(\frac gN\Bigr)^s

    Losses are counted from that of the memorising predictor, and the time to memorise is proportional to the pool.

    Args:
        tasks: :math:`K > 0`, tasks of the pool.
        steps: :math:`N > 0`, steps of training.
        loss_gap: :math:`\Delta L = L_G - L_M\ge 0`, mean loss of the generalising predictor minus that of the
            memorising one on tasks of the pool, in nats a position.
        memorising: :math:`m > 0`, fitted steps a task.
        generalising: :math:`g > 0`, fitted steps.
        exponent: :math:`s > 0`, fitted exponent of both curves.

    Derived: docs/memorising-generalising.md, A boundary and a race.
    """
    k, n, gap, m, g, s = read(
        tasks=(tasks, POSITIVE),
        steps=(steps, POSITIVE),
        loss_gap=(loss_gap, NON_NEGATIVE),
        memorising=(memorising, POSITIVE),
        generalising=(generalising, POSITIVE),
        exponent=(exponent, POSITIVE),
    )
    return plain(np.logaddexp(np.log(np.maximum(gap, 1e-300)), s * np.log(g / n)) - s * np.log(m * k / n))
