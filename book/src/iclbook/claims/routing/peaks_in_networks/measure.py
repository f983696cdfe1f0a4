"""The loss of every program along training, and its response to more of the program's data."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import xarray as xr

from iclbook.claims.routing import _small_transformers, _times
from icllab.diagnostics.curves.peaks import peaks
from icllab.tasks.string_programs import power_law

VERSION = 2

OPTIMIZER = optax.adam(2e-3)
FROM = 25  # updates, in which the network learns which tokens are symbols
FLOOR = 1e-6  # nats: the least response that is told from none


def measure(point, *, key, squared=False, misplaced=False):
    """Every seed's learning times and peaks, and its curves at fewer records; the last program never comes.

    ``squared``: the response is replaced by the squared loss. ``misplaced``: it is that of the program before, 400
    updates late.
    """
    of_networks, of_batches = (jax.random.fold_in(key, i) for i in range(2))
    _, family = _small_transformers.sample_family(point.seed, point, key=of_networks)
    digits = np.asarray(jax.random.key_data(of_batches)).ravel().tolist()
    pi = np.append(power_law(len(point.program) - 1, point.zipf_exponent), 0.0)
    law = np.tile(pi, (point.updates, 1))
    rngs = [np.random.default_rng([seed, *digits]) for seed in point.seed]
    batches = [_small_transformers.Batches.from_frequencies(law, family, batch=point.batch, rng=rng) for rng in rngs]
    path = _small_transformers.descended(family, batches, optimizer=OPTIMIZER, every=point.every)

    def of_seed(i):
        resolution = jnp.asarray(point.resolution)
        records = _small_transformers.seen(family, path[i], family.prompts[i], jnp.asarray(pi), resolution)
        return np.asarray(records.losses), -np.diagonal(np.asarray(records.response), axis1=1, axis2=2)

    losses, responses = (np.stack(rows) for rows in zip(*map(of_seed, range(len(point.seed))), strict=True))
    if squared:
        responses = losses**2
    if misplaced:
        late = np.maximum(np.arange(responses.shape[1]) - 400 // point.every, 0)
        responses = np.roll(responses, 1, axis=-1)[:, late]
    return judged(losses, responses, point)


def judged(losses, responses, point):
    """Times and peaks of losses and responses [seed, record, program], and the curves at the steps asked for."""
    steps = point.every * np.arange(1, losses.shape[1] + 1)
    axes = ("seed", "step", "program")
    coordinates = {"seed": list(point.seed), "step": steps, "program": list(point.program)}
    losses, responses = (xr.DataArray(rows, coords=coordinates, dims=axes) for rows in (losses, responses))
    times = _times.times(losses, plateau=float(np.log(point.symbols)))
    tops = peaks(responses.sel(step=slice(FROM, None)).clip(FLOOR))
    columns = {name: times[name] for name in ("transitioned", "transition_time")}
    columns |= {name: tops[name] for name in ("peak_time", "rise", "rise_error", "fall", "fall_error", "peaked")}
    rows = {name: (("seed", "program"), column.transpose("seed", "program").values) for name, column in columns.items()}
    kept = {"program_loss": losses, "own_response": responses}
    return rows | {name: (axes, curve.sel(step=list(point.step)).values) for name, curve in kept.items()}
