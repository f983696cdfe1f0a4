r"""Exact learning coefficients: the effective number of parameters of a model whose true parameter is a singularity.

With a loss :math:`L(w)`, :math:`K(w) = L(w) - L(w^*) \ge 0` near a minimum :math:`w^*`, and a prior :math:`\varphi`,

.. math:: \int e^{-nK(w)}\varphi(w)\,dw \;\sim\; c\, n^{-\lambda} (\log n)^{m-1}

as n grows. :math:`\lambda` is the learning coefficient (the real log canonical threshold; half the number of
parameters where the model is regular), m its multiplicity. Both depend on :math:`K` and :math:`\varphi` up to factors
that are bounded away from zero and infinity, and on the set of parameters that is integrated over: of a whole model
they are those of its worst point, and of a neighbourhood those of a stratum, which may be larger.

Sizes, widths and powers are integers of at least 1, ranks integers from 0 to the smallest size, if nothing else is
said; other numbers raise an ``InputError`` that names them.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from icllab.core.domains import POSITIVE, Domain
from icllab.core.errors import expected, require_integer
from icllab.core.views import fields_html, fields_repr
from icllab.theory.parameters import Number, Numbers, plain, read

_ABOVE_ONE = Domain(above=1, hint="log n is the scale, and must be > 0")
_OVER_MINUS_ONE = Domain(above=-1, hint="the prior must be integrable")


class LearningCoefficient(NamedTuple):
    r"""The order of a free energy, :math:`\lambda\log n - (m-1)\log\log n`.

    Attributes:
        value: :math:`\lambda`.
        multiplicity: m, at least 1.
    """

    value: float
    multiplicity: int = 1

    __repr__ = fields_repr
    _repr_html_ = fields_html

    def at(self, nbeta: Numbers) -> Number:
        r"""The expected value of an estimate at a finite inverse temperature.

        .. math:: n\beta\,E_{n\beta}[K] = \lambda - \frac{m-1}{\log n\beta} + o\Bigl(\frac1{\log n\beta}\Bigr)

        with the inverse temperature :math:`n\beta > 1`, which broadcasts.

        Derived: docs/singular-learning.md, What an estimate estimates.
        """
        (nbeta,) = read(nbeta=(nbeta, _ABOVE_ONE))
        return plain(self.value - (self.multiplicity - 1) / np.log(nbeta))


def regular(parameters: int) -> LearningCoefficient:
    r"""A regular model: the Hessian at the minimum is invertible.

    .. math:: \lambda = d/2, \qquad m = 1

    for d ``parameters``, at least 0. Of a quadratic form d is the rank: directions in which :math:`K` is constant count
    nothing, if the prior is proper.

    Args:
        parameters: :math:`d`, the number of parameters, or the rank of a quadratic form; an integer of at least 0.

    Source: [Watanabe09].
    """
    require_integer("parameters", parameters, least=0)
    return LearningCoefficient(parameters / 2)


def normal_crossing(powers: Sequence[int], weights: Sequence[float] | None = None) -> LearningCoefficient:
    r"""A normal crossing; a resolution of singularities brings every other case to this form.

    .. math:: K = \prod_i w_i^{2k_i}, \quad \varphi = \prod_i |w_i|^{h_i}: \qquad
              \lambda = \min_i \frac{h_i+1}{2k_i}, \quad m = \text{the number of } i \text{ that attain it}

    ``powers`` are the :math:`k_i`, integers of at least 0 and not all 0; ``weights`` the :math:`h_i > -1`, as many, or
    0 everywhere.

    Args:
        powers: :math:`k_i`, half the power of each coordinate in :math:`K`; integers of at least 0, not all 0.
        weights: :math:`h_i > -1`, the power of each coordinate in the prior, as many; None for 0.

    Source: [Watanabe09].
    """
    for power in powers:
        require_integer("powers", power, least=0)
    if not any(powers):
        raise expected("powers", "at least one above 0: otherwise K is constant", tuple(powers))
    weights = [0.0] * len(powers) if weights is None else weights
    if len(weights) != len(powers):
        raise expected("weights", f"one for each of the {len(powers)} powers", f"{len(weights)}")
    (h,) = read(weights=(weights, _OVER_MINUS_ONE))
    return _least([(float(above) + 1) / (2 * k) for k, above in zip(powers, h, strict=True) if k])


def power_of_norm(dim: int, power: int) -> LearningCoefficient:
    r"""A power of the distance.

    .. math:: K = |w|^{2k}, \ w \in \mathbb R^d: \qquad \lambda = \frac{d}{2k}, \quad m = 1

    with ``dim`` d and ``power`` k.

    Args:
        dim: :math:`d`, the number of parameters; an integer of at least 1.
        power: :math:`k`, half the power of the distance; an integer of at least 1.

    Source: [Watanabe09].
    """
    require_integer("dim", dim)
    require_integer("power", power)
    return LearningCoefficient(dim / (2 * power))


def quasi_homogeneous(weights: Sequence[float]) -> LearningCoefficient:
    r"""A quasi-homogeneous germ that vanishes at the origin alone.

    .. math:: K(t^{a_1}w_1, \dots, t^{a_d}w_d) = t\,K(w): \qquad \lambda = \sum_i a_i, \quad m = 1

    ``weights`` are the :math:`a_i > 0`, at least one. With :math:`K = \sum_i w_i^{2k_i}` they are :math:`1/2k_i`;
    :math:`w_1^2 + w_2^4` has 3/4.

    Args:
        weights: :math:`a_i > 0`, the weight of each coordinate; at least one.

    Source: [Watanabe09].
    """
    (a,) = read(weights=(weights, POSITIVE))
    if a.size == 0:
        raise expected("weights", "at least one", tuple(weights))
    return LearningCoefficient(float(np.sum(a)))


def of_sum(*terms: LearningCoefficient) -> LearningCoefficient:
    r"""A sum of at least one term in separate variables: the learning coefficients add up.

    .. math:: K = \sum_j K_j(u_j): \qquad \lambda = \sum_j\lambda_j, \quad m = 1 + \sum_j (m_j - 1)

    Source: [Watanabe09].
    """
    if not terms:
        raise expected("terms", "at least one learning coefficient", "none")
    return LearningCoefficient(sum(t.value for t in terms), 1 + sum(t.multiplicity - 1 for t in terms))


def of_product(*factors: LearningCoefficient) -> LearningCoefficient:
    r"""A product of at least one factor in separate variables: the factor that vanishes most easily decides.

    .. math:: K = \prod_j K_j(u_j): \qquad \lambda = \min_j\lambda_j, \quad m = \sum_{\lambda_j = \lambda} m_j

    Source: [Watanabe09].
    """
    return _least([factor.value for factor in factors], [factor.multiplicity for factor in factors])


def reduced_rank_regression(inputs: int, hidden: int, outputs: int, rank: int) -> LearningCoefficient:
    r"""Two linear layers, or reduced-rank regression, over all parameters.

    Of :math:`y = BAx + \text{noise}` with M ``inputs``, H ``hidden`` units, N ``outputs``, and a truth of ``rank`` r:

    .. math::
        \lambda = \begin{cases}
        \frac18\bigl[-(H+r)^2 - M^2 - N^2 + 2(H+r)(M+N) + 2MN + e\bigr]
            & N+r\le M+H,\ M+r\le N+H,\ H+r\le M+N \\
        \frac12 (HM - Hr + Nr) & M+H < N+r \\
        \frac12 (HN - Hr + Mr) & N+H < M+r \\
        \frac12 MN & M+N < H+r
        \end{cases}

    In the first case :math:`e = 0, m = 1` if :math:`M+H+N+r` is even, and :math:`e = 1, m = 2` if it is odd;
    :math:`m = 1` in the others. It is the coefficient at the worst point of the set of true parameters; a trained
    network sits at some point, for which there is :func:`reduced_rank_stratum`.

    Args:
        inputs: :math:`M`, the number of inputs; an integer of at least 1.
        hidden: :math:`H`, the number of hidden units; an integer of at least 1.
        outputs: :math:`N`, the number of outputs; an integer of at least 1.
        rank: :math:`r`, the rank of the true map; an integer from 0 to the smallest of the sizes.

    Source: [Aoyagi05].
    """
    _sizes((inputs, hidden, outputs), rank)
    m, h, n, r = inputs, hidden, outputs, rank
    if m + h < n + r:
        return LearningCoefficient((h * m - h * r + n * r) / 2)
    if n + h < m + r:
        return LearningCoefficient((h * n - h * r + m * r) / 2)
    if m + n < h + r:
        return LearningCoefficient(m * n / 2)
    odd = (m + h + n + r) % 2
    eight = -((h + r) ** 2) - m**2 - n**2 + 2 * (h + r) * (m + n) + 2 * m * n + odd
    return LearningCoefficient(eight / 8, 1 + odd)


def reduced_rank_stratum(
    inputs: int, hidden: int, outputs: int, rank: int, *, rank_in: int, rank_out: int
) -> LearningCoefficient:
    r"""Two linear layers near a true parameter whose layers have given ranks.

    With :math:`\operatorname{rank} A = r+a` (``rank_in``), :math:`\operatorname{rank} B = r+b` (``rank_out``) and
    :math:`\operatorname{rank} BA = r`, in a small neighbourhood,

    .. math::
        \lambda = \tfrac12\bigl[r(M+N) - r^2 + a(N-r) + b(M-r-a)\bigr] + \lambda_0(M-r-a,\; H-r-a-b,\; N-r-b),

    where :math:`\lambda_0` is :func:`reduced_rank_regression` at rank 0 (zero where a size is), whose multiplicity it
    has, and whose letters. The coefficient is at least that of the whole model.

    Args:
        inputs: :math:`M`, the number of inputs; an integer of at least 1.
        hidden: :math:`H`, the number of hidden units; an integer of at least 1.
        outputs: :math:`N`, the number of outputs; an integer of at least 1.
        rank: :math:`r`, the rank of the true map; an integer from 0 to the smallest of the sizes.
        rank_in: :math:`r+a`, the rank of the layer next to the inputs; an integer from :math:`r` to :math:`M`.
        rank_out: :math:`r+b`, the rank of the layer next to the outputs; an integer from :math:`r` to :math:`N`.

    Raises:
        InputError: Not all of :math:`r+a\le M`, :math:`r+b\le N` and :math:`r+a+b\le H` hold.

    Derived: docs/singular-learning.md, Strata of two linear layers.
    """
    _sizes((inputs, hidden, outputs), rank)
    a, b = rank_in - rank, rank_out - rank
    for name, value, largest in (("rank_in", rank_in, inputs), ("rank_out", rank_out, outputs)):
        require_integer(name, value, least=0)
        if not rank <= value <= largest:
            raise expected(name, f"an integer from {rank}, the product's rank, to {largest}", value)
    if rank + a + b > hidden:
        requirement = f"rank_in + rank_out - rank to be at most {hidden}, the hidden units"
        raise expected("rank_out", requirement, f"{rank_in} + {rank_out} - {rank}")
    m, h, n = inputs - rank - a, hidden - rank - a - b, outputs - rank - b
    flat = (rank * (inputs + outputs) - rank**2 + a * (outputs - rank) + b * (inputs - rank - a)) / 2
    transverse = reduced_rank_regression(m, h, n, 0) if min(m, h, n) else LearningCoefficient(0.0)
    return LearningCoefficient(flat + transverse.value, transverse.multiplicity)


def deep_linear(widths: Sequence[int], rank: int) -> LearningCoefficient:
    r"""A linear network of any depth, over all parameters.

    Of :math:`y = W_L\cdots W_1x + \text{noise}` with at least two ``widths`` :math:`H_1, \dots, H_{L+1}` (inputs and
    outputs included), a truth of ``rank`` r and :math:`D_j = H_j - r`, there is a set :math:`\Sigma` of :math:`l+1`
    layers with

    .. math::
        \max_\Sigma D < \min_{\Sigma^c} D, \qquad \sum_\Sigma D \ge l\,\max_\Sigma D, \qquad
        \sum_\Sigma D < l\,\min_{\Sigma^c} D .

    With :math:`s = \sum_\Sigma D`, :math:`c = \lceil s/l\rceil` and :math:`a = s - (c-1)l`,

    .. math::
        \lambda = \frac{r(H_1+H_{L+1}) - r^2}2 + \frac{a(l-a)}{4l} - \frac{l(l-1)}4\Bigl(\frac sl\Bigr)^2
                  + \frac12\sum_{i<j\in\Sigma} D_iD_j, \qquad m = a(l-a)+1 .

    Args:
        widths: :math:`H_1, \dots, H_{L+1}`, from inputs to outputs; at least two integers of at least 1.
        rank: :math:`r`, the rank of the true map; an integer from 0 to the smallest width.

    Source: [Aoyagi24].
    """
    if len(widths) < 2:
        raise expected("widths", "at least two, for inputs and outputs", tuple(widths))
    _sizes(tuple(widths), rank)
    bottleneck = _bottleneck([width - rank for width in widths])
    many, s = len(bottleneck) - 1, sum(bottleneck)
    a = s - (-(-s // many) - 1) * many
    pairs = (s**2 - sum(d**2 for d in bottleneck)) / 2
    ends = (rank * (widths[0] + widths[-1]) - rank**2) / 2
    value = ends + a * (many - a) / (4 * many) - (many - 1) * s**2 / (4 * many) + pairs / 2
    return LearningCoefficient(value, a * (many - a) + 1)


def tanh_network(hidden: int) -> LearningCoefficient:
    r"""One hidden layer of tanh units with one input and one output, if the true function is zero.

    .. math::
        y = \sum_{j\le H} a_j\tanh(b_jx), \quad i = \lfloor\sqrt H\rfloor: \qquad
        \lambda = \frac{H + i^2 + i}{4i+2}, \quad m = \begin{cases}2 & i^2 = H\\ 1 & \text{else}\end{cases}

    with H ``hidden`` units.

    Args:
        hidden: :math:`H`, the number of hidden units; an integer of at least 1.

    Source: [AoyagiNagata12].
    """
    require_integer("hidden", hidden)
    i = math.isqrt(hidden)
    return LearningCoefficient((hidden + i * i + i) / (4 * i + 2), 2 if i * i == hidden else 1)


def gaussian_mixture(free_means: int) -> LearningCoefficient:
    r"""A mixture of two Gaussians of known variance on the line, if the true distribution is one Gaussian.

    The truth is :math:`\mathcal N(0, 1)`:

    .. math::
        \begin{aligned}
        (1-a)\,\mathcal N(0,1) + a\,\mathcal N(b,1): &\quad \lambda = \tfrac12,\ m = 2 \\
        (1-a)\,\mathcal N(b_1,1) + a\,\mathcal N(b_2,1): &\quad \lambda = \tfrac34,\ m = 1
        \end{aligned}

    over all parameters, with one or two ``free_means``; of the first, m = 2 is at :math:`a = b = 0`.

    Args:
        free_means: Number of means that are parameters; 1 or 2.

    Source: [Yamazaki03].
    """
    if free_means not in (1, 2):
        raise expected("free_means", "1 or 2", free_means)
    return LearningCoefficient(0.5, 2) if free_means == 1 else LearningCoefficient(0.75)


def linear_attention(dim: int, key_width: int, task_rank: int) -> LearningCoefficient:
    r"""Linear attention of one head that learns linear regression in context, as reduced-rank regression.

    With :math:`\hat y = x^\top B A h` and :math:`h = \frac1\ell\sum_i x_iy_i`, in the mean over contexts, tasks
    :math:`w` and inputs of covariance :math:`I`,

    .. math::
        K = \lVert (BA - M^*)\,E[hh^\top]^{1/2}\rVert_F^2, \qquad M^* = E[wh^\top]\,E[hh^\top]^{-1},

    a reduced-rank regression of d (``dim``) inputs and outputs with k (``key_width``) hidden units. The dimension of
    the space of tasks, ``task_rank``, is the rank of :math:`M^*`; above k the minimum is no longer the target, and it
    is refused.

    Args:
        dim: :math:`d`, the dimension of inputs and outputs; an integer of at least 1.
        key_width: :math:`k`, the width of keys and queries; an integer of at least 1.
        task_rank: Dimension of the space of tasks, the rank of :math:`M^*`; an integer from 0 to the smaller of
            :math:`d` and :math:`k`.

    Derived: docs/singular-learning.md, Linear attention is reduced-rank regression.
    """
    return reduced_rank_regression(dim, key_width, dim, task_rank)


def _bottleneck(differences: list[int]) -> list[int]:
    """The layers that Aoyagi's condition selects: the fewest narrowest ones that satisfy it."""
    ascending = sorted(differences)
    for count in range(2, len(ascending) + 1):
        inside, s, many = ascending[:count], sum(ascending[:count]), count - 1
        outside = ascending[count] if count < len(ascending) else math.inf
        if inside[-1] < outside and s >= many * inside[-1] and s < many * outside:
            return inside
    raise AssertionError(f"no set of layers for {differences}")  # tested to be impossible


def _least(values: list[float], multiplicities: list[int] | None = None) -> LearningCoefficient:
    if not values:
        raise expected("terms", "at least one learning coefficient", "none")
    least, pairs = min(values), zip(values, multiplicities or [1] * len(values), strict=True)
    return LearningCoefficient(least, sum(m for value, m in pairs if math.isclose(value, least, rel_tol=1e-12)))


def _sizes(sizes: tuple[int, ...], rank: int) -> None:
    for size in sizes:
        require_integer("sizes", size)
    require_integer("rank", rank, least=0)
    if rank > min(sizes):
        raise expected("rank", f"an integer from 0 to {min(sizes)}, the smallest size", rank)
