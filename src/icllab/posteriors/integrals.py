r"""Expectations of local posteriors without sampling: closed forms, Mellin integrals and quadrature, in NumPy.

All are under :math:`\exp(-tL(w) - \frac\gamma2|w-w^*|^2)`, with the normal density of precision :math:`\gamma` as the
prior of the free energy, and :math:`K = L - L(w^*)`. The stated error is the change at twice the spacing.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import loggamma, logsumexp

ROUNDING = 1e-10  # relative error of a sum in float64, stated where nothing else limits it
REACH = 9.0  # of a grid, in standard deviations of the localization
BLOCK = 1024  # nodes that are evaluated at once
DEEP = 60.0  # nats below the heaviest node, beyond which a node is left out


class Moments(NamedTuple):
    r"""Mean and variance of :math:`tK`, the free energy, and covariances of losses of samples with a query's loss.

    Each with its error.
    """

    level: tuple[float, float]
    variance: tuple[float, float]
    free_energy: tuple[float, float]
    covariance: tuple[np.ndarray, float] | None = None


def independent(*parts: Moments) -> Moments:
    """Moments of a sum of losses in separate variables."""

    def total(pairs: list[tuple[float, float]]) -> tuple[float, float]:
        return sum(value for value, _ in pairs), math.hypot(*(error for _, error in pairs))

    return Moments(
        total([part.level for part in parts]),
        total([part.variance for part in parts]),
        total([part.free_energy for part in parts]),
    )


def _compared(fine: Sequence[Any], coarse: Sequence[Any]) -> Moments:
    """Moments of a fine rule, and perhaps covariances, with their distance from a coarse one as the error."""
    level, variance, free_energy = (
        (float(a), float(abs(a - b)) + ROUNDING * max(1.0, abs(float(a))))
        for a, b in zip(fine[:3], coarse, strict=False)
    )
    if len(fine) == 3:
        return Moments(level, variance, free_energy)
    gap = float(np.abs(fine[3] - coarse[3]).max(initial=0.0)) + ROUNDING
    return Moments(level, variance, free_energy, (fine[3], gap))


def quadratic(curvatures: np.ndarray, t: float, gamma: float) -> Moments:
    r""":math:`K = \frac12\sum_ih_iu_i^2`: mean :math:`\frac12\sum_iq_i` and variance :math:`\frac12\sum_iq_i^2`.

    With the shares :math:`q_i = th_i/(th_i+\gamma)`.
    """
    ratio = t * np.asarray(curvatures, float) / gamma
    share = ratio / (1 + ratio)
    values = (share.sum() / 2, (share**2).sum() / 2, np.log1p(ratio).sum() / 2)
    return _compared(values, values)


def product_of_norms(scale: float, factors: Sequence[tuple[int, int]], t: float, gamma: float) -> Moments:
    r""":math:`K = c\prod_i|u_i|^{2k_i}` with :math:`u_i\in\mathbb R^{d_i}`, as a Mellin integral.

    .. math::
        E_0\bigl[(tK)^je^{-tK}\bigr] = \frac1{2\pi i}\int\Gamma(z+j)\,(ct)^{-z}
        \prod_i\Bigl(\frac2\gamma\Bigr)^{-k_iz}\frac{\Gamma(d_i/2-k_iz)}{\Gamma(d_i/2)}\,dz

    along a line between 0 and :math:`\lambda`, with ``factors`` :math:`(d_i, k_i)` and the prior's mean :math:`E_0`.
    """
    least = min(dim / (2 * power) for dim, power in factors)
    line = least * (1 - 1 / (2 + least * abs(math.log(scale * t))))

    def moments(step: float) -> list[complex]:
        z = line + 1j * np.arange(-80, 80 + step, step)
        logs = -z * math.log(scale * t)
        for dim, power in factors:
            logs = logs - power * z * math.log(2 / gamma) + loggamma(dim / 2 - power * z) - loggamma(dim / 2)
        return [np.exp(logs + loggamma(z + j)).sum() * step / (2 * math.pi) for j in range(3)]

    fine, coarse = (_of_moments(*(m.real for m in moments(step))) for step in (0.004, 0.008))
    return _compared(fine, coarse)


def _of_moments(zeroth: float, first: float, second: float) -> tuple[float, float, float]:
    return first / zeroth, second / zeroth - (first / zeroth) ** 2, -math.log(zeroth)


def _eigenvalues(
    count: int, freedom: int, points: int, low: float = -50.0, gaps: tuple[float, float] = (-30.0, 60.0)
) -> tuple[np.ndarray, np.ndarray]:
    """Nodes of the eigenvalues of a Wishart matrix, [node, eigenvalue], and logarithms of their weights.

    The logarithm of the smaller of two, and that of the gap between the logarithms, have equal spacing.
    """
    y = np.linspace(low, math.log(300.0), points)
    power = (freedom - count + 1) / 2
    if count == 1:
        return np.exp(y)[:, None], power * y - np.exp(y) / 2
    log_gap = np.linspace(gaps[0], math.log(gaps[1]), points // 2)
    gap = np.exp(log_gap)[None]
    logs = 2 * power * y[:, None] + power * gap - np.exp(y)[:, None] / 2 * (1 + np.exp(gap))
    logs = logs + y[:, None] + np.log(np.expm1(gap)) + log_gap[None]
    nodes = np.stack(np.broadcast_arrays(np.exp(y)[:, None], np.exp(y[:, None] + gap)), axis=-1).reshape(-1, 2)
    kept = logs.ravel() > logs.max() - DEEP
    return nodes[kept], logs.ravel()[kept]


def _of_shares(ratios: np.ndarray, logs: np.ndarray, repeats: int) -> tuple[float, float, float]:
    """Moments of sums of squares with the ratios th/gamma, [node, square], each ``repeats`` times."""
    share = ratios / (1 + ratios)
    posterior = logs - repeats / 2 * np.log1p(ratios).sum(1)
    total = logsumexp(posterior)
    weight, mean = np.exp(posterior - total), repeats / 2 * share.sum(1)
    level = float(weight @ mean)
    variance = float(weight @ (repeats / 2 * (share**2).sum(1) + (mean - level) ** 2))
    return level, variance, float(logsumexp(logs) - total)


def two_layers_of_zero(sizes: tuple[int, int, int], scale: float, t: float, gamma: float) -> Moments:
    r""":math:`K = \frac c2|BA|^2`, localized at zero, by the eigenvalues of a Wishart matrix.

    Given the smallest side's Gram matrix with eigenvalues :math:`x_i`, in units of :math:`1/\gamma`, the other layer is
    normal: :math:`tK` has the mean :math:`\frac N2\sum_iq_i` with :math:`q_i = x_i/(x_i+\gamma^2/ct)`. The smallest of
    the three sizes is at most 2.
    """
    inner, outer = sorted((sizes[0], sizes[2]))
    count, freedom = sorted((inner, sizes[1]))

    def moments(points: int) -> tuple[float, float, float]:
        x, logs = _eigenvalues(count, freedom, points)
        return _of_shares(scale * t / gamma**2 * x, logs, outer)

    fine, coarse = moments(1201), moments(601)
    return _compared(fine, coarse)


def three_layers_of_zero(sizes: tuple[int, int, int, int], scale: float, t: float, gamma: float) -> Moments:
    r""":math:`K = \frac c2|CBA|^2`, localized at zero: given A and C, B is normal with products of eigenvalues."""
    (first, of_first), (last, of_last) = sorted(sizes[:2]), sorted(sizes[2:])

    steep = scale * t / gamma**3

    def moments(points: int) -> tuple[float, float, float]:
        low, gaps = -math.log(1 + steep) - 12, (-7.0, 40.0)
        (x, of_x) = _eigenvalues(first, of_first, points, low, gaps)
        (y, of_y) = _eigenvalues(last, of_last, points, low, gaps)
        sums, of_x, of_y = np.zeros(4), np.exp(of_x - of_x.max()), np.exp(of_y - of_y.max())
        for values, weights in zip(np.array_split(x, 200), np.array_split(of_x, 200), strict=True):
            ratios = steep * values[:, None, :, None] * y[None, :, None, :]
            share = ratios / (1 + ratios)
            mean, prior = share.sum((2, 3)) / 2, weights[:, None] * of_y[None]
            mass = prior / np.sqrt(np.prod(1 + ratios, axis=(2, 3)))
            square = (share**2).sum((2, 3)) / 2 + mean**2
            sums += [prior.sum(), mass.sum(), (mass * mean).sum(), (mass * square).sum()]
        return _of_moments(*(sums[1:] / sums[0]))

    fine, coarse = moments(101), moments(71)
    return _compared(fine, coarse)


def on_plane(loss: Callable[[Any, Any], Any], t: float, gamma: float, points: tuple[int, int]) -> Moments:
    """Moments of a loss of two variables, zero at the point, by the trapezoidal rule with equal spacing."""
    reach = REACH / math.sqrt(gamma)
    x, y = (np.linspace(-reach, reach, count) for count in points)
    sums = np.zeros((2, 3))
    for i in range(0, points[0], BLOCK):
        rows = x[i : i + BLOCK, None]
        energy = t * loss(rows, y[None])
        weight = np.exp(-energy - gamma / 2 * (rows**2 + y[None] ** 2)) * gamma / (2 * math.pi)
        for level, (part, w) in enumerate(((energy, weight), (energy[::2, ::2], weight[::2, ::2] * 4))):
            sums[level] += [w.sum(), (part * w).sum(), (part**2 * w).sum()]
    sums *= (x[1] - x[0]) * (y[1] - y[0])
    fine, coarse = (_of_moments(*row) for row in sums)
    return _compared(fine, coarse)


class Conditional(NamedTuple):
    """Losses given some variables v: of samples and of the query, with what the others, normal, add to moments."""

    losses: np.ndarray  # conditional means of the losses, [node, sample]
    evidence: np.ndarray  # log of the integral over the normal variables and exp(-tL), [node]
    variance: np.ndarray  # conditional variance of the mean loss, [node]
    query: np.ndarray  # conditional mean of the query's loss, [node]
    covariance: np.ndarray  # conditional covariances with the query, [node, sample]


def residuals(
    design: np.ndarray,
    targets: np.ndarray,
    *,
    centre: np.ndarray,
    t: float,
    gamma: float,
    scale: float,
    offsets: np.ndarray | float = 0.0,
) -> Conditional:
    r"""Losses :math:`\frac12r_i^2 + o_i` with residuals :math:`r = y - Fa` that are linear in normal variables a.

    ``design`` F is [node, sample, variable] and ``targets`` y [node or 1, sample]; the last sample is the query, which
    is not part of :math:`L = c\sum_i(\frac12r_i^2+o_i)`, with ``scale`` c.
    """
    f, y, query, of_query = design[:, :-1], targets[:, :-1], design[:, -1], targets[:, -1]
    gram = np.einsum("nia,nib->nab", f, f)
    precision = t * scale * gram + gamma * np.eye(f.shape[2])
    right = t * scale * np.einsum("nia,ni->na", f, np.broadcast_to(y, f.shape[:2])) + gamma * centre
    mean = np.linalg.solve(precision, right[..., None])[..., 0]
    solved = np.linalg.solve(precision, np.swapaxes(design, 1, 2))  # [node, variable, sample]
    spread = np.einsum("nia,nai->ni", design, solved)
    mu, mu_query = y - np.einsum("nia,na->ni", f, mean), of_query - np.einsum("na,na->n", query, mean)
    across = np.einsum("nia,na->ni", f, solved[:, :, -1])
    turned = np.linalg.solve(precision, gram)
    pull = np.einsum("nia,ni->na", f, mu)
    variance = np.einsum("nab,nba->n", turned, turned) / 2
    variance = variance + np.einsum("na,na->n", pull, np.linalg.solve(precision, pull[..., None])[..., 0])
    least = t * scale * ((mu**2).sum(1) / 2 + np.sum(np.broadcast_to(offsets, f.shape[1:2])))
    evidence = -least - gamma / 2 * ((mean - centre) ** 2).sum(1)
    evidence = evidence - np.linalg.slogdet(precision / gamma)[1] / 2
    return Conditional(
        (mu**2 + spread[:, :-1]) / 2 + offsets,
        evidence,
        scale**2 * variance,
        (mu_query**2 + spread[:, -1]) / 2,
        across**2 / 2 + mu * mu_query[:, None] * across,
    )


def losses_alone(losses: np.ndarray, *, t: float, scale: float) -> Conditional:
    """Losses [node, sample] of all variables, none of them integrated; the last sample is the query."""
    zero = np.zeros_like(losses[:, :-1])
    evidence = -t * scale * losses[:, :-1].sum(1)
    return Conditional(losses[:, :-1], evidence, zero[:, 0] if zero.shape[1] else evidence * 0, losses[:, -1], zero)


def on_grid(
    of_nodes: Callable[[np.ndarray], Conditional],
    centre: np.ndarray,
    *,
    t: float,
    gamma: float,
    scale: float,
    at_point: float,
    width: float,
    points: int = 401,
) -> Moments:
    r"""Moments by the trapezoidal rule over some variables v around their ``centre``.

    Nodes are :math:`v = v^* + s\sinh x` with ``width`` s, out to nine standard deviations of the localization;
    ``scale`` times the sum of the losses is L, and ``at_point`` is :math:`L(w^*)`.
    """
    size, ends = len(centre), math.asinh(REACH / math.sqrt(gamma) / width)
    x = np.linspace(-ends, ends, points)
    v = width * np.sinh(x)
    line = np.log(width * np.cosh(x) * (x[1] - x[0])) - gamma / 2 * v**2 + math.log(gamma / (2 * math.pi)) / 2
    places = np.indices((points,) * size).reshape(size, points**size).T
    nodes, logs, even = v[places], line[places].sum(1), (places % 2 == 0).all(1)
    blocks = [of_nodes(centre + nodes[i : i + BLOCK]) for i in range(0, len(nodes), BLOCK)]
    evidence = logs + np.concatenate([block.evidence for block in blocks])
    keep = evidence > evidence.max() - DEEP
    masks = [keep[i : i + BLOCK] for i in range(0, len(nodes), BLOCK)]
    columns = (
        np.concatenate([field[mask] for field, mask in zip(column, masks, strict=True)])
        for column in zip(*blocks, strict=True)
    )
    picked = Conditional(*columns)
    results = []
    for which, extra in ((np.ones(keep.sum(), bool), 0.0), (even[keep], size * math.log(2))):
        results.append(_summed(picked, evidence[keep] + extra, which, t=t, scale=scale, at_point=at_point))
    return _compared(*results)


def _summed(
    picked: Conditional, evidence: np.ndarray, which: np.ndarray, *, t: float, scale: float, at_point: float
) -> tuple[float, float, float, np.ndarray]:
    """Level, variance, free energy and covariances with the query's loss, from some of the nodes."""
    total = float(logsumexp(evidence[which]))
    weight = np.exp(evidence[which] - total)
    losses, query = picked.losses[which], picked.query[which]
    loss = scale * losses.sum(1)
    mean = float(weight @ loss)
    variance = float(weight @ (picked.variance[which] + (loss - mean) ** 2))
    between = (weight * (query - weight @ query)) @ (losses - weight @ losses)
    covariance = weight @ picked.covariance[which] + between
    return t * (mean - at_point), t**2 * variance, -total - t * at_point, covariance
