r"""Uniform and normal numbers made from random bits at little cost, for tasks that draw many small prompts.

A step of a small network costs less than drawing its prompts the ordinary way, where the inverse of the error function
is most of the time. Here normal numbers come in pairs from uniform ones,

.. math:: (g_1, g_2) = \sqrt{-2 \ln u}\; (\cos 2\pi v,\; \sin 2\pi v),

exact in distribution up to the resolution of the uniform numbers: 23 bits in float32, which bounds \|g\| by 5.65.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, UInt

# The series of sin 2 pi s for |s| <= 1/4; the first term left out is below 1e-17.
_SERIES = tuple((-1) ** k * (2 * math.pi) ** (2 * k + 1) / math.factorial(2 * k + 1) for k in range(11))


def uniform_and_normal(
    rows: int, uniform: int, normal: int, *, dtype: jnp.dtype, key: PRNGKeyArray
) -> tuple[Float[Array, "row uniform"], Float[Array, "row normal"]]:
    """Draw ``uniform`` uniform and ``normal`` standard normal numbers per row, from one draw of bits.

    ``dtype`` is float32 or float64, and ``key`` one of any generator.
    """
    pairs = (normal + 1) // 2
    bits = jax.random.bits(key, (rows, uniform + 2 * pairs), jnp.uint32)
    # Without the barrier the compiler draws the bits again wherever they are used.
    numbers = _uniform(jax.lax.optimization_barrier(bits), dtype)
    uniforms, u, v = jnp.split(numbers, [uniform, uniform + pairs], axis=1)
    radius = jnp.sqrt(-2 * jnp.log(1 - u))  # 1 - u is never zero
    cosine, sine = _cosine_and_sine(v)
    return uniforms, jnp.concatenate([radius * cosine, radius * sine], axis=1)[:, :normal]


def _uniform(bits: UInt[Array, "*shape"], dtype: jnp.dtype) -> Float[Array, "*shape"]:
    if jnp.finfo(dtype).bits == 64:
        return bits.astype(dtype) * 2.0**-32
    # The upper 23 bits as the fraction of a number in [1, 2).
    bits_of_one = jnp.uint32(0x3F800000)
    return jax.lax.bitcast_convert_type((bits >> jnp.uint32(9)) | bits_of_one, jnp.float32) - 1


def _cosine_and_sine(turn: Float[Array, "*shape"]) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
    """Cosine and sine of an angle in turns, from 0 to 1."""
    offset = turn - 0.5  # half a turn changes the sign of both, and leaves their distribution as it is
    size = jnp.abs(offset)
    sine = _sine(jnp.minimum(size, 0.5 - size))
    return _sine(0.25 - size), jnp.where(offset < 0, -sine, sine)


def _sine(turn: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Sine of an angle of at most a quarter turn in either direction."""
    square, total = turn * turn, jnp.full_like(turn, _SERIES[-1])
    for coefficient in reversed(_SERIES[:-1]):
        total = total * square + coefficient
    return turn * total
