"""Kernels for regression: functions of two inputs, not all of them positive semi-definite.

A kernel is symmetric and positive semi-definite: only then is there a space of functions whose gradient descent it
describes, and a Gaussian distribution whose covariance it is. Attention does not require this. So other
functions can be used here too, and ``warnings`` say so.

This table has the names of all of them; kernels, weightings and similarities are read from it.
"""

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from icllab.core.errors import expected

Kernel: TypeAlias = str | Callable[[Array, Array], Array]

# Functions of the inner product of two inputs, or of a key and a query.
ELEMENTWISE: dict[str, Callable[[Array], Array]] = {
    "linear": lambda inner: inner,
    "relu": jax.nn.relu,
    "exponential": jnp.exp,
}
SOFTMAX = "softmax"  # the exponential over its sum over the inputs that are there
NAMES = (*ELEMENTWISE, SOFTMAX)

_NEW = 64  # units of rounding of its own size below which nothing of an input's features is new


def arc_cosine(u: Float[Array, " dim"], v: Float[Array, " dim"]) -> Float[Array, ""]:
    r"""The kernel of an infinitely wide layer of rectified units.

    .. math:: K(u, v) = \frac{|u||v|}\pi\bigl(\sin\phi + (\pi - \phi)\cos\phi\bigr)
              = 2\,\mathbb E_{g\sim\mathcal N(0, I)}\,\mathrm{relu}(g^\top u)\,\mathrm{relu}(g^\top v),
              \qquad \phi = \angle(u, v)

    Positive semi-definite, as the rectified inner product is not.

    Source: [ChoSaul09].
    """
    size = jnp.sqrt(jnp.maximum((u @ u) * (v @ v), jnp.finfo(u.dtype).tiny))
    inner = u @ v
    # |u||v| sin φ, without the derivative of a root at zero.
    square = (u @ u) * (v @ v) - inner**2
    across = jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1)), 0)
    cosine = jnp.clip(inner / size, -1, 1)
    angle = jnp.where(square > 0, jnp.arctan2(across, inner), jnp.where(cosine < 0, jnp.pi, 0)).astype(u.dtype)
    return (across + (jnp.pi - angle) * inner) / jnp.pi


def gaussian(u: Float[Array, " dim"], v: Float[Array, " dim"]) -> Float[Array, ""]:
    r"""The Gaussian kernel, whose normalised rows are softmax attention with a bias :math:`-|v|^2/2` of each key.

    .. math:: K(u, v) = e^{-|u-v|^2/2}
    """
    return jnp.exp(-jnp.sum((u - v) ** 2) / 2)


FUNCTIONS = {"arc_cosine": arc_cosine, "gaussian": gaussian}  # which the text of a task names


def require_kernel(name: str, kernel: object, *, symmetric: bool = False, function: bool = True) -> None:
    """Raise unless ``kernel`` is a name (not the softmax if ``symmetric``) or, if ``function``, a function."""
    if function and callable(kernel):
        return
    names = tuple(ELEMENTWISE) if symmetric else NAMES
    if kernel not in names:
        options = ", ".join(names) + (" or a function" if function else "")
        raise expected(name, options, kernel, "a softmax is not symmetric" if kernel == SOFTMAX else "")


def gram(
    kernel: Kernel, temperature: Float[Array, ""], inputs: Float[Array, "position dim"]
) -> Float[Array, "position position"]:
    r"""The kernel of all pairs; rows are the first argument, columns the second.

    .. math:: K_{ij} = K(x_i/\sqrt T,\; x_j/\sqrt T), \qquad K(u, v) = u^\top v, \quad \mathrm{relu}(u^\top v), \quad
              \exp(u^\top v), \quad \text{or any function}

    For the softmax these are the exponentials before they are divided by their sum.
    On the unit sphere the exponential is a Gaussian kernel, :math:`e^{1/T}e^{-|x_i-x_j|^2/2T}`.
    """
    temperature = temperature.astype(inputs.dtype)
    if isinstance(kernel, str):
        return ELEMENTWISE["exponential" if kernel == SOFTMAX else kernel](inputs @ inputs.T / temperature)
    points = inputs / jnp.sqrt(temperature)
    return jax.vmap(lambda u: jax.vmap(lambda v: kernel(u, v))(points))(points)


def features_of(matrix: Float[Array, "position position"]) -> Float[Array, "position position"]:
    """U with U U' = K by Cholesky's algorithm; row i depends only on the inputs up to i.

    A pivot that is rounding, or negative, leaves a column of zeros: that input has no new feature.
    """
    row = jnp.arange(len(matrix))
    least = _NEW * jnp.finfo(matrix.dtype).eps * jnp.diagonal(matrix)

    def step(left: Array, place: Array) -> tuple[Array, Array]:
        pivot = left[place, place]
        sound = pivot > least[place]
        column = left[:, place] / jnp.sqrt(jnp.where(sound, pivot, jnp.ones_like(pivot)))
        feature = jnp.where(sound & (row >= place), column, jnp.zeros_like(column))
        return left - feature[:, None] * feature[None, :], feature

    return jax.lax.scan(step, matrix, row)[1].T


def repaired(matrix: Float[Array, "position position"]) -> Float[Array, "position position"]:
    r"""The matrix absolute value of a symmetric matrix, which flips the sign of negative eigenvalues.

    .. math:: |K| = U|\Lambda|U^\top = (K^2)^{1/2}, \qquad K = U\Lambda U^\top

    It makes a covariance of a matrix that is none. It is no function of two inputs any more: an entry depends on all
    inputs, and a part of the matrix repaired is not that part of the repaired matrix.

    Derived: docs/constructions.md, What is not a kernel.
    """
    values, vectors = jnp.linalg.eigh(matrix)
    return (vectors * jnp.abs(values)[None, :]) @ vectors.T


def kernel_warnings(kernel: Kernel) -> tuple[str, ...]:
    """Caveats of using a function as a kernel; none for the linear and the exponential kernel."""
    if kernel == "relu":
        return (
            "relu(<u, v>) is not positive semi-definite: there is no Gaussian distribution with this covariance and no "
            "space of functions in which this is gradient descent",
        )
    if kernel == SOFTMAX:
        return (
            "softmax is not a kernel: it is not symmetric and depends on all inputs; its limit of depth is the "
            "posterior mean of the exponential kernel only where all normalisers are equal",
        )
    if callable(kernel) and kernel not in FUNCTIONS.values():
        return ("whether this function is positive semi-definite is not known here; negative_part measures it",)
    return ()


def negative_part(kernel: Kernel, inputs: Float[Array, "point dim"], *, temperature: float = 1.0) -> Float[Array, ""]:
    r"""The most negative eigenvalue of a kernel matrix relative to the largest one.

    .. math:: \frac{\max(-\lambda_{\min}(K), 0)}{\lambda_{\max}(K)}

    Zero, or rounding, for a kernel. For :math:`\mathrm{relu}(u^\top v)` on the circle it tends to 1/15 as the points
    become dense: its Fourier coefficients at frequencies 0 and 4 are :math:`\frac1\pi` and :math:`-\frac1{15\pi}`.

    Args:
        kernel: A name or a symmetric function.
        inputs: The points.
        temperature: As in :func:`gram`.

    Raises:
        InputError: The name is not known, or it is the softmax, which is not symmetric.

    Derived: docs/constructions.md, What is not a kernel.
    """
    require_kernel("kernel", kernel, symmetric=True)
    matrix = gram(kernel, jnp.asarray(temperature, inputs.dtype), inputs)
    values = jnp.linalg.eigvalsh((matrix + matrix.T) / 2)
    return jnp.maximum(-values[0], 0) / values[-1]
