r"""Gradient flow of one layer of linear attention from a small start, in closed form.

Inputs :math:`\mathcal N(0, \lambda I)` in d dimensions, tasks :math:`\mathcal N(0, I)`, n examples with noise of
variance :math:`\rho`. The layer has a value u and a key-query matrix U, and both descend half the squared error of

.. math:: \hat y = u\,x_q^\top U\,\frac1n\sum_{i\le n}y_ix_i .

:math:`u^2 - \|U\|_F^2` is conserved. A start with :math:`u = \|U\|_F = \sigma` stays balanced, and has a closed form.
"""

from typing import NamedTuple

import numpy as np

from icllab.core.domains import NON_NEGATIVE, POSITIVE, Domain
from icllab.core.errors import expected, require_integer
from icllab.core.views import fields_html, fields_repr
from icllab.theory.parameters import Number, Numbers, plain, read

_ALIGNMENT = Domain(above=-1, most=1, hint="at -1 the flow ends at zero")


class Flow(NamedTuple):
    r"""Values at each time: u, :math:`\mathrm{tr}\,U/\sqrt d`, norm of the rest of U, error of the noiseless answer."""

    value: Number
    along: Number
    across: Number
    loss: Number

    __repr__ = fields_repr
    _repr_html_ = fields_html


def flow(
    time: Numbers,
    *,
    start: Numbers,
    dim: int,
    length: int,
    variance: Numbers = 1.0,
    noise_variance: Numbers = 0.0,
    alignment: Numbers = 1.0,
) -> Flow:
    r"""Gradient flow of half the mean squared error from a balanced start.

    .. math::
        \frac1{u^2} = \frac{\gamma\tau}{\sqrt d}
        + \frac1{D^2}\Bigl[\frac1{\sigma^2} + \frac\gamma{\sqrt d}\bigl((1-c^2)T - c\bigr)\Bigr], \qquad
        \frac Uu = \tau\,\frac I{\sqrt d} + \frac1D\Bigl(\frac{U_0}\sigma - c\,\frac I{\sqrt d}\Bigr),

    with :math:`T = \lambda^2\sqrt d\,t`, :math:`D = \cosh T + c\sinh T`, :math:`\tau = (\sinh T + c\cosh T)/D` and
    :math:`\gamma = \bigl((n+1+d)\lambda + \rho\bigr)/n`. For c = 1, from a multiple of the identity, it is logistic:

    .. math:: u^2 = \frac{\sqrt d/\gamma}{1+\bigl(\sqrt d/(\gamma\sigma^2)-1\bigr)e^{-2T}}, \quad U = \frac u{\sqrt d}I

    Args:
        time: :math:`t\ge0`; k steps of gradient descent on the whole squared error at a small rate r make t = 2rk.
        start: :math:`\sigma > 0`, u and the Frobenius norm of U at time 0.
        dim: :math:`d`, an integer of at least 1.
        length: :math:`n`, the number of examples in a context; an integer of at least 1.
        variance: :math:`\lambda > 0`, variance of each coordinate of the inputs.
        noise_variance: :math:`\rho\ge 0`, variance of the noise of the examples' labels.
        alignment: :math:`-1 < c = \mathrm{tr}\,U_0/(\sqrt d\,\sigma) \le 1`; 1 if d is 1.

    Source: the equations of the flow [ZhangFrei24].
    Derived: docs/gradient-descent.md, The flow from a small start.
    """
    require_integer("dim", dim)
    require_integer("length", length)
    scales = {"time": (time, NON_NEGATIVE), "start": (start, POSITIVE), "variance": (variance, POSITIVE)}
    t, sigma, lam, rho, c = read(
        **scales, noise_variance=(noise_variance, NON_NEGATIVE), alignment=(alignment, _ALIGNMENT)
    )
    if dim == 1 and np.any(c != 1):
        raise expected("alignment", "1 in one dimension", float(np.min(c)))
    root, gamma = np.sqrt(dim), ((length + 1 + dim) * lam + rho) / length
    scaled = lam**2 * root * t
    decay = np.exp(-scaled)
    denominator = 1 + c + (1 - c) * decay**2  # 2 D e^-T, which does not overflow
    across, along = 2 * decay / denominator, (1 + c - (1 - c) * decay**2) / denominator
    square = 1 / (gamma / root * along + across**2 * (sigma**-2 + gamma / root * ((1 - c**2) * scaled - c)))
    loss = dim * lam - 2 * lam**2 * root * square * along + lam**2 * gamma * square**2
    value = np.sqrt(square)
    return Flow(*map(plain, (value, value * along, value * across * np.sqrt(1 - c**2), loss)))
