"""Linear attention trained without a change of its inputs: its loss, and what its label slots hold after each layer."""

import jax
import numpy as np

from icllab import diagnostics
from icllab.claims.descent import _best_steps, _layers
from icllab.core.grid import tabulated
from icllab.tasks import LinearRegression
from icllab.theory import preconditioners

VERSION = 1

DRAWS = 60_000  # sample covariances that the best steps are found on
STARTS = 4  # of each search


def measure(point, *, key, learn=True, form="sparse", one_size=False):
    """One cell: networks of one depth. ``one_size``: the best steps are taken to be of one size."""
    size = {"dim": point.dim, "length": point.length}
    task = LinearRegression.convention("ahn", **size)
    of_training, of_test, of_probe, of_draws = jax.random.split(key, 4)
    networks = _layers.networks(point, task, form, layers=point.layers, key=of_training, learn=learn)
    spectra, others = (_best_steps.drawn_spectra(**size, draws=DRAWS, key=key) for key in jax.random.split(of_draws))
    tied, best = (
        _best_steps.searched(spectra, layers=point.layers, kind=kind, starts=STARTS)
        for kind in ("one size", "one size" if one_size else "sizes")
    )
    reference_loss, reference_error = _best_steps.left(best, others)
    references = [_layers.running(steps.rates, dim=point.dim)[1] for steps in (best, tied)]

    def asked(seed):
        network = networks[seed]
        how = {"key": jax.random.fold_in(of_test, seed), "prompts": point.prompts * point.dim**2}
        own, *others = _layers.on_shared_prompts([network, *references], task, **how)
        (ratio, error), (tied_ratio, tied_error) = (_layers.ratio(own, other) for other in others)
        matrices = _layers.blocks(network)[0]
        sizes = np.trace(matrices, axis1=1, axis2=2) / point.dim
        order = np.argsort(np.argsort(-sizes))  # the rank of each layer's step among all
        algorithm = _layers.running(best.rates[order], dim=point.dim)[0]
        how = {"key": jax.random.fold_in(of_probe, seed), "prompts": point.probed}
        probe = diagnostics.probe_layers(network, algorithm, task, resamples=2, **how)
        held = probe["r_squared"].sel(slot="example").transpose("layer", "algorithm_step")
        layers = range(1, point.layers + 1)
        return {
            "test_loss": own.mean(),
            "reference_loss": reference_loss,
            "reference_loss_error": reference_error,
            "heaviest": _layers.heavy(own),
            "loss_ratio": ratio,
            "loss_ratio_error": error,
            "tied_ratio": tied_ratio,
            "tied_ratio_error": tied_error,
            "step_size": (("layer",), placed(sizes, layers, point.layer)),
            "step_distance": (("layer",), placed(preconditioners.identity_distance(matrices), layers, point.layer)),
            "r_squared": (
                held.dims,
                held.reindex(layer=list(point.layer), algorithm_step=list(point.algorithm_step)).values,
            ),
        }

    return tabulated(asked, seed=point.seed)


def placed(values, layers, wanted):
    """The values of the layers wanted, NaN where the network has none."""
    of = dict(zip(layers, np.asarray(values), strict=True))
    return np.array([of.get(layer, np.nan) for layer in wanted])
