"""Loss of linear attention that cannot change its inputs, and the content of its label slots after each layer."""

import jax
import numpy as np

from iclbook.claims.descent import _best_steps, _layers
from icllab import diagnostics
from icllab.core.grid import tabulated
from icllab.tasks import LinearRegression
from icllab.theory import preconditioners

VERSION = 1

DRAWS = 60_000  # sample covariances that the best steps are found on
STARTS = 4  # of each search


def measure(point, *, key, learn=True, form="sparse", one_size=False):
    """One cell: networks of one depth. ``one_size``: the reference steps have one size."""
    size = {"dim": point.dim, "length": point.length}
    task = LinearRegression.convention("ahn", **size)
    of_training, of_test, of_probe, of_draws = jax.random.split(key, 4)
    networks = _layers.networks(point, task, form, layers=point.layers, key=of_training, learn=learn)
    spectra, test_spectra = (
        _best_steps.sample_spectra(**size, draws=DRAWS, key=spectra_key) for spectra_key in jax.random.split(of_draws)
    )
    tied, best = (
        _best_steps.search_steps(spectra, layers=point.layers, kind=kind, starts=STARTS)
        for kind in ("one size", "one size" if one_size else "sizes")
    )
    reference_loss, reference_error = _best_steps.held_out_loss(best, test_spectra)
    references = [_layers.step_models(steps.rates, dim=point.dim)[1] for steps in (best, tied)]

    def measure_seed(seed):
        network = networks[seed]
        models, prompts = [network, *references], point.prompts * point.dim**2
        test_key, probe_key = (jax.random.fold_in(root, seed) for root in (of_test, of_probe))
        errors, *reference_errors = _layers.on_shared_prompts(models, task, key=test_key, prompts=prompts)
        (ratio, error), (tied_ratio, tied_error) = (_layers.ratio(errors, reference) for reference in reference_errors)
        matrices = _layers.blocks(network)[0]
        sizes = np.trace(matrices, axis1=1, axis2=2) / point.dim
        order = np.argsort(np.argsort(-sizes))  # the rank of each layer's step among all
        algorithm = _layers.step_models(best.rates[order], dim=point.dim)[0]
        probe = diagnostics.probe_layers(network, algorithm, task, resamples=2, key=probe_key, prompts=point.probed)
        r_squared = probe["r_squared"].sel(slot="example").transpose("layer", "algorithm_step")
        layers = range(1, point.layers + 1)
        return {
            "test_loss": errors.mean(),
            "reference_loss": reference_loss,
            "reference_loss_error": reference_error,
            "heaviest": _layers.heaviest(errors),
            "loss_ratio": ratio,
            "loss_ratio_error": error,
            "tied_ratio": tied_ratio,
            "tied_ratio_error": tied_error,
            "step_size": (("layer",), align_layers(sizes, layers, point.layer)),
            "step_distance": (
                ("layer",),
                align_layers(preconditioners.identity_distance(matrices), layers, point.layer),
            ),
            "r_squared": (
                r_squared.dims,
                r_squared.reindex(layer=list(point.layer), algorithm_step=list(point.algorithm_step)).values,
            ),
        }

    return tabulated(measure_seed, seed=point.seed)


def align_layers(values, layers, axis):
    """Values of layers along an axis of layers, NaN where the network has none."""
    of = dict(zip(layers, np.asarray(values), strict=True))
    return np.array([of.get(layer, np.nan) for layer in axis])
