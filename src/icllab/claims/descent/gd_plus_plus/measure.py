"""Linear attention trained with its inputs free to change, beside the best GD++ and the best gradient descent."""

import jax

from icllab.claims.descent import _best_steps, _layers
from icllab.core.grid import tabulated
from icllab.tasks import LinearRegression

VERSION = 1

DRAWS = 60_000  # sample covariances that numbers are fitted to
STARTS = 24  # of a search for the best numbers, at most: of three layers of GD++ one in four finds them


def measure(point, *, key, learn=True, form=None):
    """One cell: networks of one form and depth. ``form``: that of the networks, whatever they are called."""
    size = {"dim": point.dim, "length": point.length}
    task = LinearRegression.convention("ahn", **size)
    of_training, of_test, of_choice, of_draws = jax.random.split(key, 4)
    networks = _layers.networks(point, task, form or point.training, layers=point.layers, key=of_training, learn=learn)
    spectra, others = (_best_steps.drawn_spectra(**size, draws=DRAWS, key=key) for key in jax.random.split(of_draws))
    search = {"layers": point.layers, "starts": min(STARTS, 3**point.layers)}
    kinds = {"loss": "GD++", "free": "sizes"}  # "loss": what a ratio is taken to without a further name
    best = {name: _best_steps.searched(spectra, kind=kind, **search) for name, kind in kinds.items()}
    attention = [_layers.running(of.rates, of.contractions, dim=point.dim)[1] for of in best.values()]
    # The same prompts for all seeds: networks are compared with each other too.
    judging = {"key": of_test, "prompts": point.prompts * point.dim**2}
    choosing = {"key": of_choice, "prompts": judging["prompts"] // 4}
    references = dict(zip(best, _layers.on_shared_prompts(attention, task, **judging), strict=True))
    free_loss, free_error = _best_steps.left(best["free"], others)

    def asked(seed):
        (own,), (choice,) = (_layers.on_shared_prompts([networks[seed]], task, **how) for how in (judging, choosing))
        found = {"test_loss": own.mean(), "chosen_loss": choice.mean(), "heaviest": _layers.heavy(own)}
        found |= {"free_loss": free_loss, "free_loss_error": free_error}
        for name, reference in references.items():
            found[f"{name}_ratio"], found[f"{name}_ratio_error"] = _layers.ratio(own, reference)
        return found

    return tabulated(asked, seed=point.seed)
