r"""Linear attention that learns one principal component after another: plateaus, times of the drops, and the flow.

Inputs :math:`x\sim\mathcal N(0,\Lambda)` in D dimensions, tasks :math:`w\sim\mathcal N(0, I)`, N examples with label
noise of variance :math:`\rho`. H heads answer a query with

.. math:: \hat y = \sum_h v_h\,\beta^\top W_h\,x_q, \qquad \beta = \frac1N\sum_{i\le N}y_ix_i,

where :math:`W_h` is one matrix (*merged*) or :math:`K_h^\top Q_h` with keys and queries of R rows (*separate*). With
:math:`W = \sum_h v_hW_h` the error of the noiseless answer is

.. math:: L(W) = \mathrm{tr}\,\Lambda - 2\,\mathrm{tr}\,\Lambda^2W + \mathrm{tr}\,MW\Lambda W^\top, \qquad
          M = \mathbb E\,\beta\beta^\top = \tfrac{N+1}N\Lambda^2 + \tfrac{\mathrm{tr}\,\Lambda+\rho}N\Lambda.

Time is that of gradient flow on L: k steps of gradient descent at a small rate :math:`\eta` make :math:`t=\eta k`. If
the query's own label is noisy, :math:`\rho` is to be added to every error.
"""

from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.integrate import solve_ivp

from icllab.core.covariances import require_covariance
from icllab.core.domains import FINITE, NON_NEGATIVE, POSITIVE, Domain
from icllab.core.errors import IclError, expected, require_integer
from icllab.core.views import fields_html, fields_repr
from icllab.theory.parameters import Array, Number, Numbers, plain, read

Heads = Annotated[npt.ArrayLike, "arrays with a leading axis of heads"]

_FRACTION = Domain(above=0, below=1)
_SATURATES = 0.2  # of a head's last size: below it the gradient is that of the plateau, to (0.2)^3


class Flow(NamedTuple):
    r"""Times, values [time, head], keys and queries [time, head, row, D], W [time, D, D] and error [time].

    Of merged heads ``keys`` are the matrices :math:`W_h`, and ``queries`` is None.
    """

    time: Array
    values: Array
    keys: Array
    queries: Array | None
    matrix: Array
    loss: Array

    __repr__ = fields_repr
    _repr_html_ = fields_html


class Drops(NamedTuple):
    """Time of each drop in order, and the head that makes it."""

    time: Array
    head: Array

    __repr__ = fields_repr
    _repr_html_ = fields_html


def plateau_losses(covariance: npt.ArrayLike, *, length: int, noise_variance: float = 0.0) -> Array:
    r"""Error on each plateau, after :math:`m = 0, \dots, D` components.

    .. math:: L_m = \mathrm{tr}\,\Lambda
              - \sum_{d\le m}\frac{\lambda_d}{1 + \bigl(1 + (\mathrm{tr}\,\Lambda+\rho)/\lambda_d\bigr)/N}

    with eigenvalues :math:`\lambda_1\ge\dots\ge\lambda_D`. The last is the error of the best preconditioned step.

    Args:
        covariance: :math:`\Lambda`: Eigenvalues [D], or a matrix, none negative.
        length: :math:`N`, the number of examples in a context; an integer of at least 1.
        noise_variance: :math:`\rho\ge 0`, variance of the noise of the examples' labels.

    Source: without noise [Zhang25].
    Derived: docs/saddles.md, The plateaus.
    """
    values, weights = _spectrum(covariance, length, noise_variance)[1:3]
    return values.sum() - np.concatenate([[0.0], np.cumsum(values**2 * weights)])


def component_weights(covariance: npt.ArrayLike, *, length: int, noise_variance: float = 0.0) -> Array:
    r"""Value of W along each component after it is learned, in descending order of eigenvalues.

    .. math:: a_d = \frac1{(1+\frac1N)\lambda_d + (\mathrm{tr}\,\Lambda+\rho)/N}

    Zero where :math:`\lambda_d = 0`: nothing is learned there.

    Args:
        covariance: :math:`\Lambda`: Eigenvalues [D], or a matrix, none negative.
        length: :math:`N`, the number of examples in a context; an integer of at least 1.
        noise_variance: :math:`\rho\ge 0`, variance of the noise of the examples' labels.

    Derived: docs/saddles.md, The plateaus.
    """
    return _spectrum(covariance, length, noise_variance)[2]


def drop_times(
    covariance: npt.ArrayLike,
    *,
    length: int,
    start: Numbers,
    fraction: float = 0.5,
    noise_variance: float = 0.0,
) -> Array:
    r"""Times of the drops of D balanced heads of rank one, each along its component at the start.

    .. math:: \dot u = 2\lambda_d^2u^2(1-u^3/a_d), \qquad
              t_d = \frac{J(a_d^{-1/3}u_d) - J(a_d^{-1/3}u_0)}{2\lambda_d^2a_d^{1/3}}, \qquad
              J(z) = -\frac1z - \tfrac13\ln(1-z) + \tfrac16\ln(1+z+z^2) - \tfrac1{\sqrt3}\arctan\tfrac{2z+1}{\sqrt3}

    with :math:`v = u`, keys and queries :math:`u\,e_d`, and :math:`u_d^3 = f a_d`: from a small start about
    :math:`1/(2\lambda_d^2u_0)`.

    Args:
        covariance: :math:`\Lambda`: Eigenvalues [D], or a matrix, all positive.
        length: :math:`N`, the number of examples in a context; an integer of at least 1.
        start: :math:`u_0 > 0`, size of each head at time 0: a number, or one for each component.
        fraction: :math:`0 < f < 1`, part of :math:`a_d` at which the component counts as learned.
        noise_variance: :math:`\rho\ge 0`, variance of the noise of the examples' labels.

    Returns:
        One time for each component, from the largest eigenvalue; negative where a head starts beyond ``fraction``.

    Derived: docs/saddles.md, Times of the drops.
    """
    _, values, weights, _ = _spectrum(covariance, length, noise_variance)
    if values[-1] <= 0:
        raise expected(
            "covariance", "positive eigenvalues; a component with eigenvalue 0 is never learned", float(values[-1])
        )
    (f,) = read(fraction=(fraction, _FRACTION))
    (u,) = read(start=(start, POSITIVE))
    if u.shape not in ((), values.shape):
        raise expected("start", f"a number, or one for each of {len(values)} components", f"shape {u.shape}")
    if np.any(u**3 >= weights):
        raise expected("start", "sizes below those of learned components, a^(1/3)", float(np.max(u)))
    return _aligned_time(u, values, weights, f)


def merged_drop_time(
    start: Numbers,
    *,
    dim: int,
    length: int,
    variance: Numbers = 1.0,
    fraction: Numbers = 0.5,
    noise_variance: Numbers = 0.0,
) -> Number:
    r"""Time at which merged heads have learned a fraction of their single drop, for white inputs.

    .. math:: s(t) = \frac{s_\infty}{1+(s_\infty/s_0-1)e^{-4\lambda^2\sqrt D\,t}}, \qquad
              s_\infty = \frac{\sqrt D}{\lambda\,(1+\frac{1+D+\rho/\lambda}N)}, \qquad
              t_f = \frac{\ln(s_\infty/s_0-1) + \ln\frac f{1-f}}{4\lambda^2\sqrt D}

    where W is :math:`s\,I/\sqrt D`. Only the part of a start that grows counts, whatever the number of heads:
    :math:`s_0 = \sum_h\bigl(\tfrac12(v_h+\mathrm{tr}\,W_h/\sqrt D)\bigr)^2`, up to terms of higher order in its size.

    Args:
        start: :math:`0 < s_0 < s_\infty`: a finite number.
        dim: :math:`D`, an integer of at least 1.
        length: :math:`N`, the number of examples in a context; an integer of at least 1.
        variance: :math:`\lambda > 0`, variance of each coordinate of the inputs.
        fraction: :math:`0 < f < 1`, part of :math:`s_\infty`.
        noise_variance: :math:`\rho\ge 0`, variance of the noise of the examples' labels.

    Source: without noise [Zhang25].
    Derived: docs/saddles.md, Merged heads.
    """
    require_integer("dim", dim)
    require_integer("length", length)
    s, lam, f, rho = read(
        start=(start, POSITIVE),
        variance=(variance, POSITIVE),
        fraction=(fraction, _FRACTION),
        noise_variance=(noise_variance, NON_NEGATIVE),
    )
    last = np.sqrt(dim) / (lam * (1 + (1 + dim) / length) + rho / length)
    if np.any(s >= last):
        raise expected("start", f"a size below the last, {float(np.min(last)):.4g}", float(np.max(s)))
    return plain((np.log(last / s - 1) + np.log(f / (1 - f))) / (4 * lam**2 * np.sqrt(dim)))


def staged_drops(
    covariance: npt.ArrayLike,
    values: Heads,
    keys: Heads,
    queries: Heads,
    *,
    length: int,
    fraction: float = 0.5,
    noise_variance: float = 0.0,
) -> Drops:
    r"""Drops of separate heads of rank one from any small start, plateau by plateau.

    On a plateau the gradient is constant, :math:`2\lambda_d^2` on what is not yet learned. Then
    :math:`p_d = (k_d+q_d)/\sqrt2` and :math:`n_d = (k_d-q_d)/\sqrt2` are :math:`p_d(0)e^{2\lambda_d^2\theta}` and
    :math:`n_d(0)e^{-2\lambda_d^2\theta}`, and each head is a particle,

    .. math:: \dot\theta = v, \qquad
              \dot v = \sum_d\lambda_d^2\bigl(p_d(0)^2e^{4\lambda_d^2\theta} - n_d(0)^2e^{-4\lambda_d^2\theta}\bigr),

    that escapes in a finite time. The first to escape learns the largest component that is left, as it does from a
    start that is small enough, and the others go on without that component. Times go as one over the size of the start,
    to the duration of a drop. There are no more drops than heads, nor any of heads that rest.

    Args:
        covariance: :math:`\Lambda`: Eigenvalues [D] in decreasing order, or a matrix; positive.
        values: :math:`v_h` [head], finite.
        keys: :math:`k_h` [head, D], finite.
        queries: :math:`q_h`, likewise.
        length: :math:`N`, the number of examples in a context; an integer of at least 1.
        fraction: :math:`0 < f < 1`, part of :math:`a_d` at which the component counts as learned.
        noise_variance: :math:`\rho\ge 0`, variance of the noise of the examples' labels.

    Derived: docs/saddles.md, Times of the drops.
    """
    vectors, lam, weights, _ = _spectrum(covariance, length, noise_variance)
    (f,) = read(fraction=(fraction, _FRACTION))
    v, k, q = (np.array(read(**{n: (x, FINITE)})[0]) for n, x in zip(_HEADS, (values, keys, queries), strict=True))
    if v.ndim != 1 or k.shape != (len(v), len(lam)) or q.shape != k.shape:
        raise expected("keys", f"keys and queries [head, {len(lam)}] beside values [head]", (v.shape, k.shape, q.shape))
    p, n = ((k + q) @ vectors / np.sqrt(2), (k - q) @ vectors / np.sqrt(2))
    heads, clock, drops = list(range(len(v))), 0.0, []
    for d in range(min(len(lam), len(v))):
        rates = np.where(np.arange(len(lam)) < d, 0.0, lam**2)
        size = _SATURATES * np.cbrt(weights[d])
        escapes = {h: _particle(v[h], p[h], n[h], rates, size=size) for h in heads}
        first = min(escapes, key=lambda h: escapes[h][0])
        duration, _, speed = escapes[first]
        if np.isinf(duration):  # the heads that are left rest
            break
        duration += float(_aligned_time(abs(speed), lam[d], weights[d], f))
        heads.remove(first)
        for h in heads:
            _, theta, v[h] = _particle(v[h], p[h], n[h], rates, duration=duration)
            p[h], n[h] = p[h] * np.exp(2 * rates * theta), n[h] * np.exp(-2 * rates * theta)
        clock += duration
        drops.append((clock, first))
    return Drops(np.array([time for time, _ in drops]), np.array([head for _, head in drops], int))


def flow(
    values: Heads,
    keys: Heads,
    queries: Heads | None = None,
    *,
    covariance: npt.ArrayLike,
    length: int,
    times: npt.ArrayLike,
    noise_variance: float = 0.0,
) -> Flow:
    r"""Gradient flow of the error of all heads, by integration.

    .. math:: \dot v_h = \langle W_h, G\rangle, \quad \dot K_h = v_hQ_hG^\top, \quad \dot Q_h = v_hK_hG, \quad
              \dot W_h = v_hG \;\text{(merged)}, \qquad G = -\partial L/\partial W = 2(\Lambda^2 - MW\Lambda)

    Args:
        values: :math:`v_h` [head] at time 0, finite.
        keys: :math:`K_h` [head, row, D], or without queries :math:`W_h` [head, D, D]; finite.
        queries: :math:`Q_h`, likewise; None: merged heads.
        covariance: :math:`\Lambda`: Eigenvalues [D] (a diagonal matrix), or a matrix, none negative.
        length: :math:`N`, the number of examples in a context; an integer of at least 1.
        times: Times of the answer, increasing and not negative.
        noise_variance: :math:`\rho\ge 0`, variance of the noise of the examples' labels.

    Derived: docs/saddles.md, The flow.
    """
    sigma, moment = _spectrum(covariance, length, noise_variance)[3]
    (t,) = read(times=(times, NON_NEGATIVE))
    t = np.atleast_1d(t)
    if t.ndim != 1 or np.any(np.diff(t) <= 0):
        raise expected("times", "increasing numbers", "times in another order")
    arrays = [np.array(read(**{name: (x, FINITE)})[0]) for name, x in zip(_HEADS, (values, keys), strict=False)]
    arrays += [] if queries is None else [np.array(read(queries=(queries, FINITE))[0])]
    dim, shapes = len(sigma), [array.shape for array in arrays]
    rows = shapes[1][1:2] if queries is not None else (dim,)
    if len(shapes[0]) != 1 or any(shape != (*shapes[0], *rows, dim) for shape in shapes[1:]):
        raise expected("keys", f"[head, row, {dim}], and queries or merged heads with as many rows", shapes)
    ends = np.cumsum([array.size for array in arrays])[:-1]

    def parts(state: Array) -> list[Array]:
        return [part.reshape(shape) for part, shape in zip(np.split(state, ends), shapes, strict=True)]

    def rate(_: float, state: Array) -> Array:
        v, k, *q = parts(state)
        heads = np.swapaxes(k, 1, 2) @ q[0] if q else k
        gradient = 2 * (sigma @ sigma - moment @ np.tensordot(v, heads, 1) @ sigma)
        scaled = v[:, None, None] * gradient
        changes = [q[0] @ np.swapaxes(scaled, 1, 2), k @ scaled] if q else [scaled]
        return np.concatenate([np.sum(heads * gradient, axis=(1, 2)), *(change.ravel() for change in changes)])

    start = np.concatenate([array.ravel() for array in arrays])
    solution = solve_ivp(rate, (0.0, float(t[-1])), start, method="LSODA", t_eval=t, rtol=1e-8, atol=1e-12)
    if not solution.success:
        raise IclError(f"flow: expected an integration to t = {t[-1]:g}, got: {solution.message}")
    states = [np.stack(rows) for rows in zip(*map(parts, solution.y.T), strict=True)]
    heads = np.swapaxes(states[1], 2, 3) @ states[2] if len(states) == 3 else states[1]
    matrix = np.einsum("th,thij->tij", states[0], heads)
    loss = np.trace(sigma) - 2 * np.einsum("ij,tji->t", sigma @ sigma, matrix)
    loss = loss + np.einsum("tij,tij->t", moment @ matrix, matrix @ sigma)
    return Flow(t, states[0], states[1], states[2] if len(states) == 3 else None, matrix, loss)


_HEADS = ("values", "keys", "queries")


def _spectrum(
    covariance: npt.ArrayLike, length: int, noise_variance: float
) -> tuple[Array, Array, Array, tuple[Array, Array]]:
    r"""Eigenvectors, eigenvalues from the largest, :math:`a_d`, and the matrices :math:`\Lambda` and M."""
    require_integer("length", length)
    (noise,) = read(noise_variance=(noise_variance, NON_NEGATIVE))
    (array,) = read(covariance=(covariance, FINITE))
    if array.ndim not in (1, 2) or array.size == 0 or array.shape[0] != array.shape[-1]:
        raise expected("covariance", "a vector [D] or a symmetric matrix [D, D]", f"shape {array.shape}")
    sigma = np.diag(array) if array.ndim == 1 else (array + array.T) / 2
    require_covariance("covariance", np.diag(array) if array.ndim == 1 else array)
    values, vectors = np.linalg.eigh(sigma)
    values, vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1]
    excess = (values.sum() + noise) / length
    below = (1 + 1 / length) * values + excess
    weights = np.divide(1.0, below, out=np.zeros_like(values), where=values > 0)
    return vectors, values, weights, (sigma, (1 + 1 / length) * sigma @ sigma + excess * sigma)


def _aligned_time(size: Numbers, value: Numbers, weight: Numbers, fraction: Numbers) -> Numbers:
    """Time from ``size`` to the cube root of ``fraction`` of ``weight`` of a balanced head along one component."""

    def integral(z: Numbers) -> Numbers:
        angle = np.arctan((2 * z + 1) / np.sqrt(3)) / np.sqrt(3)
        return -1 / z - np.log1p(-z) / 3 + np.log1p(z + z**2) / 6 - angle

    last = np.cbrt(weight)
    return (integral(np.cbrt(fraction)) - integral(size / last)) / (2 * np.square(value) * last)


def _particle(
    v: float, p: Array, n: Array, rates: Array, *, duration: float = np.inf, size: float = np.inf
) -> tuple[float, float, float]:
    """Time, theta and v of a head on a plateau after a duration, or when it reaches a size; infinite if never."""
    scale = float(np.sqrt(v**2 + np.sum(p**2 + n**2)))
    if scale == 0 or abs(v) >= size:
        return (np.inf if scale == 0 else 0.0), 0.0, v
    horizon = min(duration, 1e4 / (rates.max() * scale))  # a head that has not escaped by then rests

    def rate(_: float, state: Array) -> Array:
        force = rates * ((p * np.exp(2 * rates * state[0])) ** 2 - (n * np.exp(-2 * rates * state[0])) ** 2)
        return np.array([state[1], force.sum()])

    def reached(_: float, state: Any) -> float:
        return min(abs(state[1]) - size, 1.0)

    reached.terminal = True  # pyright: ignore[reportFunctionMemberAccess]
    solution = solve_ivp(rate, (0.0, horizon), [0.0, v], method="LSODA", events=reached, rtol=1e-9, atol=1e-13)
    time = solution.t[-1] if solution.status == 1 or horizon == duration else np.inf
    return float(time), float(solution.y[0, -1]), float(solution.y[1, -1])
