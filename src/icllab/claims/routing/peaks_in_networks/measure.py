"""The loss of every program along training, and its response to more of the program's data."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from icllab.claims.routing import _small_transformers
from icllab.tasks.string_programs import power_law

VERSION = 1

OPTIMIZER = optax.adam(2e-3)
STILL = optax.sgd(0.0)


def measure(point, *, key, trained=True, shift=0):
    """Every seed's losses and responses; the last program never comes.

    Not ``trained``: at a rate of 0. ``shift``: by how many programs responses are out of place.
    """
    of_networks, of_batches = (jax.random.fold_in(key, i) for i in range(2))
    _, family = _small_transformers.sample_family(point.seed, point, key=of_networks)
    digits = np.asarray(jax.random.key_data(of_batches)).ravel().tolist()
    pi = np.append(power_law(len(point.program) - 1, point.zipf_exponent), 0.0)
    law = np.tile(pi, (point.step[-1], 1))
    rngs = [np.random.default_rng([seed, *digits]) for seed in point.seed]
    batches = [_small_transformers.Batches.from_frequencies(law, family, batch=point.batch, rng=rng) for rng in rngs]
    path = _small_transformers.descended(
        family, batches, optimizer=OPTIMIZER if trained else STILL, every=point.step[0]
    )[:, np.array(point.step) // point.step[0] - 1]

    def of_seed(i):
        resolution = jnp.asarray(point.resolution)
        records = _small_transformers.seen(family, path[i], family.prompts[i], jnp.asarray(pi), resolution)
        return np.asarray(records.losses), -np.diagonal(np.asarray(records.response), axis1=1, axis2=2)

    losses, responses = (np.stack(rows) for rows in zip(*map(of_seed, range(len(point.seed))), strict=True))
    axes = ("seed", "step", "program")
    return {"program_loss": (axes, losses), "own_response": (axes, np.roll(responses, -shift, axis=-1))}
