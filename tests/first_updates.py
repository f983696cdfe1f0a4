"""The rate of Adam, from what it does: its first update moves every weight by the rate, against the slope."""

import jax
import jax.numpy as jnp
import numpy as np

SLOPES = (-30.0, -0.01, 2.0)


def adam_rate(optimizer):
    """How far the first update moves weights; NaN where that depends on their slopes, as without Adam."""
    slopes = jnp.asarray(SLOPES)
    with jax.numpy_dtype_promotion("standard"):
        moves = np.asarray(optimizer.update(slopes, optimizer.init(slopes))[0])
    rates = -moves / np.sign(SLOPES)
    return float(rates.mean()) if np.ptp(rates) < 1e-4 * np.abs(rates).max() else np.nan
