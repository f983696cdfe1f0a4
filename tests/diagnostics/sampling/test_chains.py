"""The loop that chains share: in both modes, of a loss and of its terms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diagnostics.sampling.gaussian import GAMMA, NBETA, H

from icllab.diagnostics import HMC
from icllab.diagnostics.sampling.posteriors import Posterior


@pytest.mark.slow
def test_one_after_the_other_is_side_by_side():
    """Both modes draw the same numbers; terms of the loss sum to it at every draw."""
    with jax.enable_x64(True):
        posterior = Posterior(lambda w: H * w**2 / 2, jnp.zeros(3), jnp.asarray(NBETA), jnp.asarray(GAMMA))
        summed = Posterior(lambda w: jnp.sum(H * w**2) / 2, jnp.zeros(3), jnp.asarray(NBETA), jnp.asarray(GAMMA))
        sampler, how = HMC(warm_up=20, draws=30), {"step_size": 0.1**2, "warm_up": 20}
        one, two = (
            sampler.draw(target, jnp.ones((4, 3)), mode=mode, key=jax.random.key(2), **how)
            for target, mode in ((posterior, "vmap"), (summed, "map"))
        )
        assert one.terms.shape == (4, 30, 3)
        np.testing.assert_allclose(jnp.sum(one.terms, axis=2), two.terms[:, :, 0], rtol=1e-9)
        np.testing.assert_allclose(one.last, two.last, rtol=1e-9)
        assert np.ptp(one.terms) > 0.01
