"""What is chosen by cost, and what it says of it."""

import jax
import jax.numpy as jnp
import pytest

from icllab.core.errors import InputError
from icllab.diagnostics.sampling.posteriors import Posterior
from icllab.diagnostics.sampling.sampler_choice import OVERHEAD, chosen_method, chosen_mode


@pytest.mark.parametrize(
    ("seconds", "parameters", "samples", "method", "said"),
    [
        (0.001, 50_000, 4096, "hmc", "take 1 ms, below 5"),
        (0.4, 50_000, 0, "hmc", "there are no data to draw batches of"),
        (0.4, 50_000, 256, "hmc", "all 256 samples are one batch"),
        (0.02, 3000, 4096, "hmc", "below 50, at 3000 parameters, not above 20000"),
        (0.02, 50_000, 4096, "sgld", "4096 samples with 50000 parameters: batches of 256 cost less"),
        (0.4, 3000, 4096, "sgld", "take 4e+02 ms"),
    ],
)
def test_the_method_is_a_matter_of_cost(seconds, parameters, samples, method, said):
    found, reason = chosen_method(seconds, parameters, samples, 256)
    assert found == method
    assert said in reason


def test_the_mode_is_what_is_asked_for_or_faster(getkey):
    """Where a gradient is no overhead both are timed, and the reason has both times."""
    posterior = Posterior(lambda w: jnp.sum(w**2), jnp.zeros(2), jnp.ones(()), jnp.ones(()))
    starts = jnp.ones((4, 2))

    def chosen(mode, seconds):
        return chosen_mode(mode, posterior, starts, seconds, getkey())

    assert chosen("map", 0.0) == ("map", "asked for")
    assert chosen("auto", OVERHEAD / 2) == ("vmap", "a gradient takes 1 ms, below 2")
    assert chosen("auto", 0.2) == ("map", "a gradient takes 2e+02 ms, above 100")
    mode, reason = chosen("auto", 2 * OVERHEAD)
    assert mode in ("map", "vmap")
    assert "ms with map, " in reason
    with pytest.raises(InputError, match="mode: expected 'auto', 'map' or 'vmap', got 'fast'"):
        chosen("fast", 0.0)
    assert jax.numpy.all(starts == 1)
