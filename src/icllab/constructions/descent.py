"""Attention whose layers are the steps of gradient descent.

In all of them the label slot of example i holds, after l layers, what step l has left of its label, and the slot of the
query minus the prediction; the answer is read with a minus.
"""

from functools import singledispatch
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from icllab.algorithms.descent import Descent, NormalisedDescent
from icllab.algorithms.functional import FunctionalDescent, GaussianProcess
from icllab.constructions.softmax import descending_classifier
from icllab.core.errors import expected
from icllab.core.protocols import AbstractModel
from icllab.models.linear.generalised import GeneralisedAttention
from icllab.models.linear.linear_attention import MASKED, LinearAttention


def gradient_descent(algorithm: Any, *, answers: str = "every", form: str = "tokens") -> AbstractModel:
    r"""The attention that implements gradient descent: one layer for each step, the same answers to rounding.

    ===========================  ======================================================================
    algorithm                    weights
    ===========================  ======================================================================
    ``GradientDescent``          :math:`P_l = \mathrm{diag}(0, 1)`, :math:`Q_l = -\mathrm{diag}(\eta_lI, 0)`
    ``PreconditionedDescent``    :math:`P_l = \mathrm{diag}(0, 1)`, :math:`Q_l = -\mathrm{diag}(A_l^\top, 0)`
    ``GradientDescentPlusPlus``  :math:`P_l = \mathrm{diag}(B_l, 1)`, :math:`Q_l = -\mathrm{diag}(A_l^\top, 0)`
    ``FunctionalDescent``        :math:`V_l = \mathrm{diag}(0, -\eta_l)`, :math:`B_l = C_l = I`, h the kernel;
                                 with noise a diagonal head :math:`V_l' = \mathrm{diag}(0, -\eta_l\rho)`
    ``NormalisedDescent``        queries :math:`-w`, keys and values :math:`y_jx_j`, output :math:`\eta_l`, a softmax
    ===========================  ======================================================================

    with twice the :math:`Q_l` where the objective has no factor 1/2, and sums divided by n where the objective is. The
    first three are a :class:`~icllab.models.linear.linear_attention.LinearAttention`, the fourth is a
    :class:`~icllab.models.linear.generalised.GeneralisedAttention`, and the last a
    :class:`~icllab.models.networks.transformer.Transformer` whose answer is the product of w and the query.

    Args:
        algorithm: One of those above.
        answers: ``"every"`` position, as the algorithm does, or the ``"last"`` only.
        form: Form of a linear attention: ``"tokens"``, or ``"gram"``, whose cost does not grow with the prompt.

    Raises:
        InputError: No construction is known for the algorithm, or the Gram form for it.

    Source: [vonOswald23], [Ahn23], [Cheng24], [ZhangCao26].
    Derived: docs/constructions.md, Gradient descent; docs/constructions.md, GD++;
    docs/constructions.md, Gradient descent on functions; docs/constructions.md, Descent on the exponential loss.
    """
    return _attention(algorithm, answers, form)


@singledispatch
def _attention(algorithm: object, answers: str, form: str) -> AbstractModel:
    options = "GradientDescent, PreconditionedDescent, GradientDescentPlusPlus, NormalisedDescent or FunctionalDescent"
    raise expected("algorithm", f"a {options}", type(algorithm).__name__)


@_attention.register
def _(algorithm: Descent, answers: str, form: str) -> LinearAttention:
    """P = diag(B, 1) and Q = -diag(A', 0), where A' includes the factor of the gradient."""
    a, b = algorithm.matrices(jnp.result_type(*jax.tree.leaves(algorithm)))
    factor, dim = 1.0 if algorithm.half else 2.0, algorithm.dim
    p = jnp.pad(b, ((0, 0), (0, 1), (0, 1))).at[:, dim, dim].set(1)
    q = jnp.pad(-factor * jnp.swapaxes(a, 1, 2), ((0, 0), (0, 1), (0, 1)))
    return LinearAttention(p, q, **MASKED, answers=answers, normalised=algorithm.normalised, form=form)


@_attention.register
def _(algorithm: NormalisedDescent, answers: str, form: str) -> AbstractModel:
    _require_tokens(form)
    return descending_classifier(algorithm, answers)


def _require_tokens(form: str) -> None:
    if form != "tokens":
        raise expected("form", "'tokens' (other forms are for linear attention only)", form)


@_attention.register
def _(algorithm: FunctionalDescent, answers: str, form: str) -> GeneralisedAttention:
    _require_tokens(form)
    layers, dim = algorithm.layers, algorithm.dim
    rate = jnp.broadcast_to(algorithm.rate, (layers,))
    corner = jnp.zeros((layers, dim + 1, dim + 1), rate.dtype)
    noise = algorithm.noise_variance.astype(rate.dtype)
    without = not isinstance(noise, Tracer) and float(noise) == 0
    identity = jnp.broadcast_to(jnp.eye(dim, dtype=rate.dtype), (layers, dim, dim))
    temperature = jnp.broadcast_to(algorithm.temperature.astype(rate.dtype), (layers,))
    diagonal = None if without else corner.at[:, dim, dim].set(-rate * noise)
    arrays = (corner.at[:, dim, dim].set(-rate), identity, identity, temperature, diagonal)
    layout: dict[str, Any] = {
        "similarity": algorithm.kernel,
        "axis": "keys",
        "sign": -1,
        "normalised": algorithm.normalised,
    }
    return GeneralisedAttention(*arrays, **layout, answers=answers)


def gaussian_process(
    process: GaussianProcess, *, rate: float, layers: int, dim: int, answers: str = "every"
) -> GeneralisedAttention:
    r"""Attention whose answer tends to the posterior mean of a Gaussian process under label noise as layers are added.

    .. math::
        |\hat y_i - \hat y_i^{(L)}| \le \max_m|1 - \eta(\lambda_m + \rho)|^L\;|k_i|\,|\alpha|, \qquad
        (K_i + \rho I)\,\alpha = y_{<i}

    with :math:`\lambda_m` the eigenvalues of :math:`K_i`: the construction of :class:`FunctionalDescent` with the noise
    variance in its diagonal heads, and without division by the number of examples, which would make the rate and the
    noise depend on it. Without the diagonal heads the limit interpolates the labels, noise and all.

    Args:
        process: The process, with its kernel and noise variance.
        rate: :math:`\eta`, below 2 over the largest :math:`\lambda_m + \rho` of any prompt.
        layers: L.
        dim: Dimension of inputs.
        answers: Positions that are answered, ``"every"`` or ``"last"``.

    Source: the construction without noise [Cheng24].
    Derived: docs/constructions.md, Bayes under label noise.
    """
    law: dict[str, Any] = {name: getattr(process, name) for name in ("kernel", "temperature", "noise_variance")}
    algorithm = FunctionalDescent(rate, **law, layers=layers, dim=dim, normalised=False)
    return _attention(algorithm, answers, "tokens")  # pyright: ignore[reportReturnType]
