"""First-order responses of the loss of some data to a higher weight of one of its examples."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def solve(
    rows: Float[Array, "row parameter"], resolution: Float[Array, ""], vectors: Float[Array, "parameter *side"]
) -> Float[Array, "parameter *side"]:
    r""":math:`(B^\top B + \rho)^{-1} v`, written as :math:`(v - B^\top(BB^\top + \rho)^{-1}Bv)/\rho`."""
    inner = rows @ rows.T + resolution * jnp.eye(len(rows))
    return (vectors - rows.T @ jnp.linalg.solve(inner, rows @ vectors)) / resolution


def response_size(
    gradients: Float[Array, "example parameter"],
    shares: Float[Array, " example"],
    rows: Float[Array, "row parameter"],
    resolution: Float[Array, ""],
) -> Float[Array, ""]:
    r"""Root mean square, over examples, of the susceptibility of their mean loss to the weight of one of them.

    .. math:: \chi_i = -g^\top (B^\top B + \rho)^{-1} (g_i - g), \qquad g = \sum_i p_i g_i

    for the gradients :math:`g_i` of examples, their shares :math:`p_i` and the Gauss-Newton matrix :math:`B^\top B` of
    the same data. Random weights of the examples, uniform on the simplex, have this response over
    :math:`\sqrt{n + 1}`, in the root mean square.

    Args:
        gradients: Gradients of the losses of examples.
        shares: Shares of the examples in the data; they sum to 1.
        rows: B, a row for each output of each input, with the share of the input in it.
        resolution: :math:`\rho`.

    Derived: docs/routing.md, Blind detection.
    """
    mean = shares @ gradients
    chi = (gradients - mean[None]) @ solve(rows, resolution, mean)
    return jnp.sqrt(shares @ chi**2)
