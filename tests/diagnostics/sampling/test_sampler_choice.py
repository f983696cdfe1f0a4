"""What is chosen by cost, and what it says of it."""

import jax
import jax.numpy as jnp
import pytest

from icllab.diagnostics import HMC, SGLD
from icllab.diagnostics.sampling.posteriors import Posterior
from icllab.diagnostics.sampling.sampler_choice import OVERHEAD, chosen_mode, chosen_sampler


@pytest.mark.parametrize(
    ("seconds", "parameters", "samples", "sampler", "said"),
    [
        (0.001, 50_000, 4096, HMC, "take 1 ms, below 5"),
        (0.4, 50_000, 0, HMC, "there are no data to draw batches of"),
        (0.4, 50_000, 256, HMC, "all 256 samples are one batch"),
        (0.02, 3000, 4096, HMC, "below 50, at 3000 parameters, not above 20000"),
        (0.02, 50_000, 4096, SGLD, "4096 samples with 50000 parameters: batches of 256 cost less"),
        (0.4, 3000, 4096, SGLD, "take 4e+02 ms"),
    ],
)
def test_the_sampler_is_a_matter_of_cost(seconds, parameters, samples, sampler, said):
    found, reason = chosen_sampler(seconds, parameters, samples)
    assert found == sampler()
    assert said in reason


def test_the_mode_is_the_faster_one(getkey):
    """Where a gradient is no overhead both are timed, and the reason has both times."""
    posterior = Posterior(lambda w: jnp.sum(w**2), jnp.zeros(2), jnp.ones(()), jnp.ones(()))
    starts = jnp.ones((4, 2))

    def chosen(seconds):
        return chosen_mode(posterior, starts, seconds, getkey())

    assert chosen(OVERHEAD / 2) == ("vmap", "a gradient takes 1 ms, below 2")
    assert chosen(0.2) == ("map", "a gradient takes 2e+02 ms, above 100")
    mode, reason = chosen(2 * OVERHEAD)
    assert mode in ("map", "vmap")
    assert "ms with map, " in reason
    assert jax.numpy.all(starts == 1)
