r"""The best preconditioner for one layer of linear attention, and the stationary families of many layers.

Inputs :math:`x\sim\mathcal N(0, \Sigma)`, tasks :math:`w\sim\mathcal N(0, W)`, labels :math:`y_i = w^\top x_i +
\varepsilon_i` with noise of variance :math:`\rho` on the n examples. One preconditioned step of gradient descent from
zero answers a query with

.. math:: \hat y = x_q^\top A\,\frac1n\sum_{i\le n}y_ix_i .

Errors are those of the noiseless answer :math:`w^\top x_q`: if the query's own label is noisy, add :math:`\rho`.

A covariance is a vector [d] (a diagonal matrix) or a matrix [d, d]. One that is not finite, symmetric and positive
semidefinite, or of another dimension than the others, raises an ``InputError``, as do a ``length`` n that is no
positive integer and a negative noise.
"""

from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt

from icllab.core.covariances import require_covariance
from icllab.core.domains import FINITE, NON_NEGATIVE
from icllab.core.errors import expected, require_integer
from icllab.core.views import fields_html, fields_repr
from icllab.theory.parameters import Array, Number, plain, read

Covariance = Annotated[npt.ArrayLike | None, "eigenvalues"]  # or a symmetric matrix; None: the identity


class Optimum(NamedTuple):
    """The best preconditioner, and the error it reaches."""

    matrix: Array
    loss: float

    __repr__ = fields_repr
    _repr_html_ = fields_html


def optimal(
    covariance: npt.ArrayLike, *, length: int, task_covariance: Covariance = None, noise_variance: float = 0.0
) -> Optimum:
    r"""The preconditioner with the smallest error, and that error.

    .. math::
        A^* = \Bigl[\tfrac{n+1}n\Sigma + \tfrac{t+\rho}n W^{-1}\Bigr]^{-1}, \qquad
        \mathbb E(w^\top x_q - \hat y)^2
        = \sum_i\frac{\omega_i(\omega_i + t + \rho)}{(n+1)\,\omega_i + t + \rho}, \qquad
        t = \mathrm{tr}\,\Sigma W = \sum_i\omega_i

    with :math:`\omega_i` the eigenvalues of :math:`\Sigma W`. It is symmetric whatever :math:`\Sigma` and W. For
    :math:`W = \Sigma^{-1}` it is :math:`\frac n{n+d+1}\Sigma^{-1}`, with error :math:`\frac{d(d+1)}{n+d+1}`. Where a
    covariance is singular, :math:`A^*` is the best matrix that is zero on what is never seen.

    Args:
        covariance: :math:`\Sigma`, the covariance of the inputs: eigenvalues [d], :math:`> 0`, or a matrix.
        length: :math:`n`, the number of examples in a context; an integer of at least 1.
        task_covariance: :math:`W`, covariance of the tasks: a vector (diagonal) or a matrix without negative
            eigenvalues; None for the identity.
        noise_variance: :math:`\rho\ge 0`, variance of the noise of the examples' labels.

    Source: the isotropic distribution of tasks without noise [Ahn23].
    Derived: docs/constructions.md, The best single step.
    """
    _, inverse, (omega, vectors), excess = _whitened(covariance, length, task_covariance, noise_variance)
    share = _ratio(omega, (length + 1) / length * omega + excess / length)
    basis = inverse @ vectors
    return Optimum((basis * share) @ basis.T, _least(omega, length, excess))


def loss(
    preconditioner: npt.ArrayLike,
    covariance: npt.ArrayLike,
    *,
    length: int,
    task_covariance: Covariance = None,
    noise_variance: float = 0.0,
) -> float:
    r"""The error of one step with any preconditioner, symmetric or not.

    .. math::
        \mathbb E(w^\top x_q - \hat y)^2 = \mathrm{tr}\,\Sigma W - 2\,\mathrm{tr}\,\Sigma A\Sigma W
        + \mathrm{tr}\,\Sigma AMA^\top, \qquad
        M = \tfrac{n+1}n\Sigma W\Sigma + \tfrac{\mathrm{tr}\,\Sigma W+\rho}n\Sigma

    The last terms are summed as the distance from :math:`A^*`, so that nothing cancels near it. ``preconditioner`` is A
    [d, d], and the attention matrix that holds it is its transpose; the other arguments are those of :func:`optimal`.

    Derived: docs/constructions.md, The best single step.
    """
    root, _, (omega, vectors), excess = _whitened(covariance, length, task_covariance, noise_variance)
    (matrix,) = read(preconditioner=(preconditioner, FINITE))
    if matrix.shape != root.shape:
        raise expected(
            "preconditioner", f"a matrix {list(root.shape)}, to match the covariance", f"shape {matrix.shape}"
        )
    # In the eigenbasis of the whitened tasks M is diagonal.
    diagonal = (length + 1) / length * omega + excess / length
    off = vectors.T @ (root @ matrix @ root) @ vectors - np.diag(_ratio(omega, diagonal))
    return _least(omega, length, excess) + float(np.sum(off**2 * diagonal))


def family(
    covariance: npt.ArrayLike, rates: npt.ArrayLike, contractions: npt.ArrayLike | None = None
) -> tuple[Array, Array]:
    r"""The matrices of Ahn et al.'s stationary families for many layers.

    .. math:: A_l = a_l\,\Sigma^{-1}, \qquad B_l = b_l\,I

    For :math:`x = \Sigma^{1/2}u` with u rotation-invariant, and tasks :math:`w\sim\mathcal N(0, \Sigma^{-1})`,
    the gradient of the error with respect to all :math:`A_l` and :math:`B_l` vanishes at points of these forms: where
    it does with respect to the numbers :math:`a_l, b_l`. This is stationarity, not global optimality. The error there
    is that of :func:`icllab.theory.descent.loss`.

    ``covariance`` is :math:`\Sigma`, positive definite, ``rates`` are the :math:`a_l` and ``contractions`` the
    :math:`b_l`, as many; None for zeros, which leave the inputs alone. Returned are all :math:`A_l` and :math:`B_l`,
    each [L, d, d].

    Source: [Ahn23].
    Derived: docs/constructions.md, Many layers.
    """
    sigma = _covariance("covariance", covariance)
    (a,) = read(rates=(rates, FINITE))
    (b,) = read(contractions=(np.zeros_like(a) if contractions is None else contractions, FINITE))
    if a.ndim != 1 or a.shape != b.shape:
        raise expected("contractions", f"a number for each rate, shape {a.shape}", b.shape)
    values, vectors = np.linalg.eigh(sigma)
    if values[0] <= len(values) * np.finfo(float).eps * values[-1]:
        raise expected("covariance", "a positive definite matrix", f"an eigenvalue of {values[0]:.3g}")
    inverse = (vectors / values) @ vectors.T
    return a[:, None, None] * inverse, b[:, None, None] * np.eye(len(values))


def identity_distance(matrices: npt.ArrayLike, covariance: Covariance = None) -> Number:
    r"""Distance of matrices from a multiple of the identity, in coordinates in which the inputs are white.

    .. math::
        \mathrm{dist}(M) = \frac{\|\tilde M - \frac{\mathrm{tr}\,\tilde M}d I\|_F}{\|\tilde M\|_F}, \qquad
        \tilde M = D U^\top M U D, \qquad \Sigma = UD^2U^\top

    Zero for :math:`a\,\Sigma^{-1}`. For the contractions :math:`B_l`, which should be a multiple of the identity as
    they are, leave the covariance out.

    ``matrices`` is one [d, d] or a stack [..., d, d], none of them zero; ``covariance`` is :math:`\Sigma`, None for the
    identity. The distance is a number in [0, 1] for each matrix; a float for one.

    Source: [Ahn23].
    """
    (stack,) = read(matrices=(matrices, FINITE))
    if stack.ndim < 2 or stack.shape[-1] != stack.shape[-2]:
        raise expected("matrices", "square matrices [..., d, d]", f"shape {stack.shape}")
    dim = stack.shape[-1]
    if covariance is not None:
        sigma = _covariance("covariance", covariance)
        if len(sigma) != dim:
            raise expected("covariance", f"dimension {dim}, to match the matrices", len(sigma))
        values, vectors = np.linalg.eigh(sigma)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        stack = root.T @ stack @ root
    middle = np.trace(stack, axis1=-2, axis2=-1) / dim
    deviation = stack - middle[..., None, None] * np.eye(dim)
    return plain(np.linalg.norm(deviation, axis=(-2, -1)) / np.linalg.norm(stack, axis=(-2, -1)))


def _whitened(
    covariance: object, length: int, task_covariance: object, noise_variance: object
) -> tuple[Array, Array, tuple[Array, Array], float]:
    """The roots of the covariance and of its inverse, the spectrum of whitened tasks, and trace plus noise."""
    require_integer("length", length)
    (noise,) = read(noise_variance=(noise_variance, NON_NEGATIVE))
    sigma = _covariance("covariance", covariance)
    tasks = np.eye(len(sigma)) if task_covariance is None else _covariance("task_covariance", task_covariance)
    if tasks.shape != sigma.shape:
        raise expected("task_covariance", f"dimension {len(sigma)}, to match the covariance", len(tasks))
    values, vectors = np.linalg.eigh(sigma)
    roots = np.sqrt(np.where(values > len(values) * np.finfo(float).eps * values[-1], values, 0.0))
    root = (vectors * roots) @ vectors.T
    inverse = (vectors * _ratio(np.ones_like(roots), roots)) @ vectors.T
    omega, whitened_vectors = np.linalg.eigh(root @ tasks @ root)
    omega = np.maximum(omega, 0.0)
    return root, inverse, (omega, whitened_vectors), float(omega.sum() + noise)


def _least(omega: Array, length: int, excess: float) -> float:
    """The error of the best matrix, from the spectrum of whitened tasks and its trace plus noise."""
    return float(np.sum(_ratio(omega * (omega + excess), (length + 1) * omega + excess)))


def _ratio(above: Array, below: Array) -> Array:
    """The quotient, with 0 / 0 = 0."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def _covariance(name: str, value: object) -> Array:
    """A finite covariance as a matrix, positive semidefinite to rounding."""
    (array,) = read(**{name: (value, FINITE)})
    if array.ndim not in (1, 2) or array.size == 0 or array.shape[0] != array.shape[-1]:
        raise expected(name, "a vector [d] or a symmetric matrix [d, d]", f"shape {array.shape}")
    full = np.diag(array) if array.ndim == 1 else array
    require_covariance(name, full)
    return (full + full.T) / 2
