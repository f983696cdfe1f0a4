r"""The loss landscape of an induction head with three parameters, and gradient flow on it.

A prompt has N item-label pairs, 2N tokens, and a query, which is one of the items; its label is one of L. The first
layer attends from a label to the item before it with strength :math:`\beta`, the second from the query to the label
whose item it is with strength :math:`\alpha`, and the classifier reads that label with strength :math:`\xi`:

.. math::
    y = \frac{e^\beta}{e^\beta + N}, \qquad
    z = \frac{e^{\alpha y+\beta_2}}{Z}, \quad z' = \frac{e^{\beta_2}}{Z}, \quad
    Z = e^{\alpha y+\beta_2} + (N-1)\,e^{\beta_2} + N + 1,

.. math::
    \mathcal L = \ln\bigl[1 + (N-1)\,e^{-\xi(z-z')} + (L-N)\,e^{-\xi z}\bigr].

z is the attention from the query to the right label and z' that to each other label; the remaining N + 1 tokens, items
and the query itself, have score zero. :math:`\beta_2` is what the second layer gives to labels for being labels; zero
in the landscape of Reddy's essay, where z' is that of every other token. With ``leak_corrected`` the first layer's
attention counts from what it is without training, :math:`y = (e^\beta-1)/(e^\beta+N)`. Throughout ``pairs`` is N, at
least 1, and ``labels`` is L, at least N; other numbers, and parameters that are not finite, raise an ``InputError``.

What the landscape says of a network is a matter of experiment: it is an account of three numbers, not a limit of any
network.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.integrate import solve_ivp
from scipy.special import expit

from icllab.core.domains import FINITE, NON_NEGATIVE, POSITIVE
from icllab.core.errors import expected, require_integer
from icllab.core.views import fields_html, fields_repr
from icllab.theory.parameters import Array, Floats, Number, Numbers, plain, read, require_pairs

LEVELS = (0.9, 0.5, 0.1)  # shares of ln N whose crossings are timed


class Flow(NamedTuple):
    """A path of steepest descent, at the solver's own steps: they are dense where the loss falls.

    Attributes:
        time: Time of each step.
        parameters: beta, alpha, xi, and beta2 if it was started, [step, parameter].
        loss: In nats, at each step.
        crossings: Share of ln N -> when the loss first falls through it; NaN if it does not in the time given.
    """

    time: Array
    parameters: Array
    loss: Array
    crossings: dict[float, float]

    __repr__ = fields_repr
    _repr_html_ = fields_html


def previous_token_attention(beta: Numbers, *, pairs: int, leak_corrected: bool = False) -> Number:
    r"""Attention of a label's token to the item before it, in the first layer.

    .. math:: y = \frac{e^\beta}{e^\beta+N}, \qquad\text{or, leak-corrected,}\qquad y = \frac{e^\beta-1}{e^\beta+N}

    The label of pair k sees 2k tokens, one of them with score :math:`\beta`: :math:`e^\beta/(e^\beta+2k-1)`. Over the
    labels 2k has the mean N + 1, and y is the attention there. Leak-corrected, what attention takes up by chance is
    taken off, and y is zero at :math:`\beta = 0`.

    Args:
        beta: :math:`\beta`, the strength of attention in the first layer, from a label to the item before it; a logit,
            finite.
        pairs: :math:`N`, the number of item-label pairs in a prompt; an integer of at least 1.
        leak_corrected: Whether the attention of the first layer counts from what it is at :math:`\beta = 0`.

    Source: [Reddy24].
    Derived: docs/abrupt-learning.md, The landscape.
    """
    require_integer("pairs", pairs)
    (b,) = read(beta=(beta, FINITE))
    return plain(_first_layer(b, pairs, leak_corrected)[0])


def loss(
    beta: Numbers,
    alpha: Numbers,
    xi: Numbers,
    *,
    pairs: int,
    labels: int,
    beta2: Numbers = 0.0,
    leak_corrected: bool = False,
) -> Number:
    r"""The loss in nats, :math:`\mathcal L` of this module.

    At the origin it is :math:`\ln L`. With :math:`\alpha = \beta_2 = 0` it falls in :math:`\xi` to :math:`\ln N`, which
    it reaches only as :math:`\xi\to\infty`: any one of the context's labels, whichever. ``beta``, ``alpha``, ``xi`` and
    ``beta2`` are numbers or arrays that broadcast.

    Args:
        beta: :math:`\beta`, the strength of attention in the first layer, from a label to the item before it; a logit,
            finite.
        alpha: :math:`\alpha`, the strength of attention in the second layer, from the query to the label of its item; a
            logit, finite.
        xi: :math:`\xi`, the strength with which the classifier reads that label; a logit, finite.
        pairs: :math:`N`, the number of item-label pairs in a prompt; an integer of at least 1.
        labels: :math:`L`, the number of labels; an integer of at least :math:`N`.
        beta2: :math:`\beta_2`, what the second layer gives to labels for being labels; a logit, finite.
        leak_corrected: Whether the attention of the first layer counts from what it is at :math:`\beta = 0`.

    Source: [Reddy24].
    Derived: docs/abrupt-learning.md, The landscape.
    """
    return plain(_terms(beta, alpha, xi, beta2, pairs, labels, leak_corrected).loss())


def gradient(
    beta: Numbers,
    alpha: Numbers,
    xi: Numbers,
    *,
    pairs: int,
    labels: int,
    beta2: Numbers | None = None,
    leak_corrected: bool = False,
) -> Array:
    r"""The gradient of the loss, in closed form.

    .. math:: \nabla\mathcal L = -\sum_k\pi_k\nabla v_k, \qquad v = \bigl(0,\ \xi(z-z'),\ \xi z\bigr)

    with :math:`\pi_k` the shares of the three terms of :math:`e^{\mathcal L}`. At the origin it is
    :math:`\bigl(0,\ 0,\ -\frac{L-N}{L(2N+1)}\bigr)`: weak, along :math:`\xi` alone, and nothing at all where
    :math:`L = N`.

    Arguments are those of :func:`loss`; ``beta2=None`` leaves it at zero and its derivative out. The last axis is in
    the order beta, alpha, xi, and beta2 if it is given.

    Source: [Reddy24].
    Derived: docs/abrupt-learning.md, Derivatives of the landscape.
    """
    slope = _terms(beta, alpha, xi, beta2, pairs, labels, leak_corrected).gradient()
    return slope[..., :3] if beta2 is None else slope


def hessian(
    beta: Numbers,
    alpha: Numbers,
    xi: Numbers,
    *,
    pairs: int,
    labels: int,
    beta2: Numbers | None = None,
    leak_corrected: bool = False,
) -> Array:
    r"""The matrix of second derivatives of the loss, in closed form.

    .. math::
        \nabla^2\mathcal L = \sum_k\pi_k\bigl(\nabla v_k\nabla v_k^\top - \nabla^2v_k\bigr)
        - \nabla\mathcal L\,\nabla\mathcal L^\top

    Arguments and the order of the last two axes are those of :func:`gradient`.

    Source: [Reddy24].
    Derived: docs/abrupt-learning.md, Derivatives of the landscape.
    """
    curvature = _terms(beta, alpha, xi, beta2, pairs, labels, leak_corrected).hessian()
    return curvature[..., :3, :3] if beta2 is None else curvature


def fisher_information(
    beta: Numbers,
    alpha: Numbers,
    xi: Numbers,
    *,
    pairs: int,
    labels: int,
    beta2: Numbers | None = None,
    leak_corrected: bool = False,
) -> Array:
    r"""The Fisher matrix of the answers, which are probabilities of labels, in closed form.

    .. math:: F = \sum_k\pi_k\nabla v_k\nabla v_k^\top - \nabla\mathcal L\,\nabla\mathcal L^\top

    It is the curvature of their divergence from those at the point, :math:`E\,\mathrm{KL}(p_w\Vert p_{w'})` at
    :math:`w' = w`, and does not ask which answer is right. The answers depend on :math:`\beta` and :math:`\alpha`
    through :math:`\alpha y(\beta)` alone, so that without :math:`\beta_2` the rank of F is at most two, and the
    learning coefficient of that divergence at most one.

    Arguments and the order of the last two axes are those of :func:`gradient`.

    Derived: docs/abrupt-learning.md, What the answers depend on.
    """
    terms = _terms(beta, alpha, xi, beta2, pairs, labels, leak_corrected)
    shares, slopes, slope = terms._shares(), terms._slopes(), terms.gradient()
    outer = np.einsum("k...,ki...,kj...->...ij", shares, slopes, slopes)
    information = outer - slope[..., :, None] * slope[..., None, :]
    return information[..., :3, :3] if beta2 is None else information


def escape_rate(*, pairs: int, beta: Numbers = 0.0, leak_corrected: bool = False) -> Number:
    r"""Rate at which gradient flow leaves the plateau, which is a saddle if every label is in the context.

    .. math:: h = \frac{(N-1)\,y(\beta)}{N(2N+1)}, \qquad \delta(t) \approx \delta(0)\,e^{ht}

    For :math:`L = N` the gradient is exactly zero where :math:`\alpha = \xi = 0`, and not for other :math:`\alpha` and
    :math:`\xi` near by: the Hessian there has the eigenvalues 0 and :math:`\pm h`. A start at a distance
    :math:`\delta` leaves in a time that grows like :math:`h^{-1}\ln(1/\delta)`, along :math:`\alpha = \xi`: with both
    positive to the induction head, with both negative to its opposite, a query that attends to everything but its own
    label and is read with the opposite sign. So the plateau is a delay, not a bar. Leak-corrected and at
    :math:`\beta = 0`, h is zero and the escape slower than exponential.

    Args:
        pairs: :math:`N`, the number of item-label pairs in a prompt; an integer of at least 1.
        beta: :math:`\beta`, the strength of attention in the first layer, from a label to the item before it; a logit,
            finite.
        leak_corrected: Whether the attention of the first layer counts from what it is at :math:`\beta = 0`.

    Derived: docs/abrupt-learning.md, The saddle.
    """
    y = np.asarray(previous_token_attention(beta, pairs=pairs, leak_corrected=leak_corrected))
    return plain((pairs - 1) * y / (pairs * (2 * pairs + 1)))


def flow(
    start: Sequence[float],
    *,
    pairs: int,
    labels: int,
    time: float,
    rates: Sequence[float] | None = None,
    levels: Sequence[float] = LEVELS,
    leak_corrected: bool = False,
) -> Flow:
    r"""Steepest descent from a point, and the times at which the loss falls below fractions of :math:`\ln N`.

    .. math:: \dot w_i = -\rho_i\,\partial_i\mathcal L, \qquad w = (\beta, \alpha, \xi\,[, \beta_2])

    The loss crosses :math:`0.9\ln N` at the end of the plateau and :math:`0.1\ln N` at the foot of the cliff. From the
    origin with L > N it is still above :math:`\ln N` when the cliff comes.

    Args:
        start: :math:`\beta, \alpha, \xi` of the start, finite, as in :func:`loss`; and :math:`\beta_2`, if it is to
            flow.
        pairs: :math:`N`, the number of item-label pairs; an integer of at least 2: with one there is nothing to match.
        labels: :math:`L`, the number of labels; an integer of at least :math:`N`.
        time: Duration of the flow, :math:`> 0`, in the inverse unit of the rates.
        rates: :math:`\rho_i\ge 0`, the rate of each parameter; None for 1.
        levels: Fractions of :math:`\ln N`, :math:`> 0`, whose crossings are timed.
        leak_corrected: Whether the attention of the first layer counts from what it is at :math:`\beta = 0`.

    Source: [Reddy24].
    Derived: docs/abrupt-learning.md, The cliff in time.
    """
    require_integer("pairs", pairs, least=2)
    (w,) = read(start=(np.asarray(start), FINITE))
    if w.shape not in ((3,), (4,)):
        raise expected("start", "beta, alpha, xi, and optionally beta2", f"shape {w.shape}")
    (rate,) = read(rates=(np.ones_like(w) if rates is None else np.asarray(rates), NON_NEGATIVE))
    if rate.shape != w.shape:
        raise expected("rates", f"{len(w)} numbers, as in start", f"shape {rate.shape}")
    (shares,), (until,) = read(levels=(np.atleast_1d(levels), POSITIVE)), read(time=(time, POSITIVE))
    require_pairs(pairs, labels)

    def at(w: Array) -> "_Terms":
        return _Terms(w[0], w[1], w[2], w[3] if len(w) == 4 else np.zeros_like(w[0]), pairs, labels, leak_corrected)

    def falls_through(share: float) -> Any:
        def event(_: float, w: Array) -> float:
            return float(at(w).loss() - share * np.log(pairs))

        event.direction = -1  # pyright: ignore[reportFunctionMemberAccess]
        return event

    solution = solve_ivp(
        lambda _, w: -rate * at(w).gradient()[: len(w)],
        (0.0, float(until)),
        w,
        method="LSODA",
        rtol=1e-9,
        atol=1e-12,
        events=[falls_through(share) for share in shares],
    )
    first = [float(times[0]) if len(times) else np.nan for times in solution.t_events]  # pyright: ignore[reportOptionalIterable]
    return Flow(
        solution.t, solution.y.T, np.asarray(at(solution.y).loss()), dict(zip(shares.tolist(), first, strict=True))
    )


class _Terms:
    """The three terms of exp(loss) and their derivatives in beta, alpha, xi, beta2; parameters of one shape."""

    def __init__(
        self, beta: Floats, alpha: Floats, xi: Floats, beta2: Floats, pairs: int, labels: int, leak_corrected: bool
    ) -> None:
        y, self.y1, self.y2 = _first_layer(beta, pairs, leak_corrected)
        self.alpha, self.xi, self.y = alpha, xi, y
        score = alpha * y
        scores = np.stack([score + beta2, beta2, np.zeros_like(score)])
        total = np.logaddexp.reduce(scores + _log_counts(1, pairs - 1, pairs + 1, ndim=score.ndim))
        right, wrong, buffer = np.exp(scores - total)
        self.right, self.wrong, self.buffer = right, wrong, (pairs + 1) * buffer
        self.elsewhere = (pairs - 1) * wrong + self.buffer  # 1 - right, without a difference
        # z - z' from the larger of the two: nothing cancels where they are close, nothing overflows.
        gap = np.where(score > 0, -right, wrong) * np.expm1(-np.abs(score))
        self.read = np.stack([gap, right])
        terms = _log_counts(pairs - 1, labels - pairs, ndim=score.ndim) - xi * self.read
        self.logs = np.concatenate([np.zeros_like(score)[None], terms])

    def loss(self) -> Floats:
        return np.logaddexp.reduce(self.logs)

    def gradient(self) -> Array:
        return 0.0 - np.einsum("k...,ki...->...i", self._shares(), self._slopes())  # no negative zero

    def hessian(self) -> Array:
        shares, slopes, gradient = self._shares(), self._slopes(), self.gradient()
        outer = np.einsum("k...,ki...,kj...->...ij", shares, slopes, slopes)
        curvature = np.einsum("k...,kij...->...ij", shares, self._curvatures())
        return outer - curvature - gradient[..., :, None] * gradient[..., None, :]

    def _shares(self) -> Array:
        """The second and third term of exp(loss) over the sum of all three; the first term is always 1."""
        return np.exp(self.logs[1:] - self.loss())

    def _slopes(self) -> Array:
        """Derivatives of v in the parameters, [term, parameter, ...]."""
        by_score, xi = self._by_score(), self.xi
        return np.stack(
            [xi * by_score * self.alpha * self.y1, xi * by_score * self.y, self.read, xi * self.buffer * self.read], 1
        )

    def _curvatures(self) -> Array:
        """Second derivatives of v, [term, parameter, parameter, ...]."""
        by_score, by_beta2, xi = self._by_score(), self.buffer * self.read, self.xi
        turn = self.elsewhere - self.right
        twice = turn * by_score
        by_beta2_and_score = self.buffer * self.right * np.stack([turn + 2 * self.wrong, turn])
        along_beta, along_alpha = self.alpha * self.y1, self.y
        zero = np.zeros_like(by_score)
        beta_beta = xi * (twice * along_beta**2 + by_score * self.alpha * self.y2)
        beta_alpha = xi * (twice * along_beta * along_alpha + by_score * self.y1)
        beta_xi, beta_beta2 = by_score * along_beta, xi * by_beta2_and_score * along_beta
        alpha_alpha, alpha_xi = xi * twice * along_alpha**2, by_score * along_alpha
        alpha_beta2 = xi * by_beta2_and_score * along_alpha
        beta2_beta2 = xi * by_beta2 * (2 * self.buffer - 1)
        rows = [
            [beta_beta, beta_alpha, beta_xi, beta_beta2],
            [beta_alpha, alpha_alpha, alpha_xi, alpha_beta2],
            [beta_xi, alpha_xi, zero, by_beta2],
            [beta_beta2, alpha_beta2, by_beta2, beta2_beta2],
        ]
        return np.moveaxis(np.stack([np.stack(row) for row in rows]), 2, 0)

    def _by_score(self) -> Array:
        """The first derivative of z - z' and z in the score of the right label; the second is 1 - 2z times it."""
        return self.right * np.stack([self.elsewhere + self.wrong, self.elsewhere])


def _log_counts(*counts: int, ndim: int) -> Array:
    """Logarithms of the counts along a new first axis; minus infinity for a count of 0."""
    with np.errstate(divide="ignore"):
        return np.log(np.array(counts, np.float64)).reshape(-1, *[1] * ndim)


def _terms(
    beta: Numbers, alpha: Numbers, xi: Numbers, beta2: Numbers, pairs: int, labels: int, leak_corrected: bool
) -> _Terms:
    require_pairs(pairs, labels)
    second = 0.0 if beta2 is None else beta2
    b, a, x, b2 = read(beta=(beta, FINITE), alpha=(alpha, FINITE), xi=(xi, FINITE), beta2=(second, FINITE))
    return _Terms(b, a, x, b2, pairs, labels, leak_corrected)


def _first_layer(beta: Floats, pairs: int, leak_corrected: bool) -> tuple[Floats, Floats, Floats]:
    """y and its first two derivatives."""
    y = expit(beta - np.log(pairs))
    first = y * (1 - y)
    second = first * (1 - 2 * y)
    if not leak_corrected:
        return y, first, second
    slope = (pairs + 1) / pairs
    above_chance = np.where(beta > 0, -y, (1 - y) / pairs) * np.expm1(-np.abs(beta))
    return above_chance, slope * first, slope * second
