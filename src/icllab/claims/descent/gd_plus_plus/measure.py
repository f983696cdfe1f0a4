"""Linear attention trained with its inputs free to change, beside the best GD++ and the best gradient descent."""

import jax
import numpy as np

from icllab.claims.descent import _layers
from icllab.claims.descent.gd_plus_plus.claim import STARTS
from icllab.core.grid import tabulated
from icllab.tasks import LinearRegression
from icllab.theory import descent

DRAWS = 60_000  # sample covariances that numbers are fitted to


def measure(point, *, key, learn=True, form=None):
    """One cell: networks of one form and depth. ``form``: that of the networks, whatever they are called."""
    size = {"dim": point.dim, "length": point.length}
    task = LinearRegression.convention("ahn", **size)
    of_training, of_test, of_choice, of_draws = jax.random.split(key, 4)
    networks = _layers.networks(point, task, form or point.training, layers=point.layers, key=of_training, learn=learn)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(of_draws)))
    drawn = rng.normal(size=(DRAWS, point.dim, point.length))
    spectra = np.linalg.svd(drawn, compute_uv=False) ** 2 / point.length
    search = {**size, "layers": point.layers, "starts": STARTS}
    best = {
        "loss": descent.plus_plus(**search, spectra=spectra).best,  # what a ratio is taken to without a further name
        "plus": descent.plus_plus(**search).best,
        "free": descent.free_steps(**size, layers=point.layers),
    }
    attention = [_layers.running(of.rates, of.contractions, dim=point.dim)[1] for of in best.values()]
    # The same prompts for all seeds: networks are compared with each other too.
    judging = {"key": of_test, "prompts": point.prompts * point.dim**2}
    choosing = {"key": of_choice, "prompts": judging["prompts"] // 4}
    references = dict(zip(best, _layers.on_shared_prompts(attention, task, **judging), strict=True))

    def asked(seed):
        (own,), (choice,) = (_layers.on_shared_prompts([networks[seed]], task, **how) for how in (judging, choosing))
        found = {"test_loss": own.mean(), "chosen_loss": choice.mean(), "heaviest": _layers.heavy(own)}
        for name, reference in references.items():
            found[f"{name}_ratio"], found[f"{name}_ratio_error"] = _layers.ratio(own, reference)
        return found

    return tabulated(asked, seed=point.seed)
