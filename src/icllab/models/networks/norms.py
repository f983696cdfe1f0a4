"""Norms of the tokens of a residual stream."""

import functools
from typing import TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class LayerNorm(eqx.Module):
    r"""Normalise every token to mean 0 and variance 1 over its entries, then scale and shift.

    .. math:: \mathrm{LN}(h) = g \odot \frac{h - \bar h}{\sqrt{\mathrm{Var}\,h + \epsilon}} + b
    """

    scale: Float[Array, " width"]
    shift: Float[Array, " width"]
    epsilon: float = eqx.field(static=True)

    def __init__(self, width: int, *, epsilon: float = 1e-5):
        self.scale = jnp.ones(width)
        self.shift = jnp.zeros(width)
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "token width"]) -> Float[Array, "token width"]:
        """Normalise every token separately."""
        return normalised(x, self.epsilon) * self.scale[None] + self.shift[None]


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def normalised(x: Float[Array, "token width"], epsilon: float) -> Float[Array, "token width"]:
    r"""Every token with mean 0 and variance 1 over its entries.

    Its derivative is written out, in what the function has computed already:

    .. math:: dn = \frac{dx - \overline{dx} - n\, \overline{n \odot dx}}{\sqrt{\mathrm{Var}\,x + \epsilon}}
    """
    return _normalised(x, epsilon)[0]


def _normalised(x: Array, epsilon: float) -> tuple[Array, Array]:
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    rate = jax.lax.rsqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + epsilon)
    return centred * rate, rate


@normalised.defjvp
def _(epsilon: float, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    normal, rate = _normalised(primals[0], epsilon)
    change = tangents[0]
    means = jnp.mean(change, axis=-1, keepdims=True) + normal * jnp.mean(normal * change, axis=-1, keepdims=True)
    return normal, rate * (change - means)


class RMSNorm(eqx.Module):
    r"""Normalise every token to mean square 1 over its entries, then scale.

    .. math:: \mathrm{RMS}(h) = (g + g_0) \odot \frac{h}{\sqrt{\overline{h^2} + \epsilon}}

    The offset :math:`g_0` is 0, or 1 in Gemma, whose scales are trained as differences from one.

    Source: [ZhangSennrich19].
    """

    scale: Float[Array, " width"]
    epsilon: float = eqx.field(static=True)
    offset: float = eqx.field(static=True, default=0.0)

    def __init__(self, width: int, *, epsilon: float = 1e-5, offset: float = 0.0):
        self.scale = jnp.ones(width) - offset
        self.epsilon = epsilon
        self.offset = offset

    def __call__(self, x: Float[Array, "token width"]) -> Float[Array, "token width"]:
        """Normalise every token separately."""
        scale = self.scale + self.offset if self.offset else self.scale
        return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self.epsilon) * scale[None]


Norm: TypeAlias = LayerNorm | RMSNorm
NORM_KINDS = {"layer": LayerNorm, "rms": RMSNorm}
