"""Losses of linear attention that may change its inputs, beside the best GD++ and the best gradient descent."""

import jax

from iclbook.claims.descent import _best_steps, _layers
from icllab.core.grid import tabulated
from icllab.tasks import LinearRegression

VERSION = 2

DRAWS = 60_000  # sample covariances that numbers are fitted to
STARTS = 24  # of a search for the best numbers, at most: of three layers of GD++ one in four finds them


def measure(point, *, key, learn=True, form=None):
    """One cell: networks of one form and depth. ``form``: form of the networks instead of the cell's."""
    size = {"dim": point.dim, "length": point.length}
    task = LinearRegression.convention("ahn", **size)
    of_training, of_test, of_choice, of_draws = jax.random.split(key, 4)
    networks = _layers.networks(point, task, form or point.training, layers=point.layers, key=of_training, learn=learn)
    spectra, test_spectra = (
        _best_steps.sample_spectra(**size, draws=DRAWS, key=key) for key in jax.random.split(of_draws)
    )
    search = {"layers": point.layers, "starts": min(STARTS, 3**point.layers)}
    kinds = {"loss": "GD++", "free": "sizes"}
    best = {name: _best_steps.search_steps(spectra, kind=kind, **search) for name, kind in kinds.items()}
    attention = [_layers.step_models(of.rates, of.contractions, dim=point.dim)[1] for of in best.values()]
    # The same prompts for all seeds: networks are compared with each other too.
    prompts = point.prompts * point.dim**2
    losses = _layers.on_shared_prompts(attention, task, key=of_test, prompts=prompts)
    references = dict(zip(best, losses, strict=True))
    of_kind = {"key": of_choice, "prompts": prompts // 4}
    kept, kept_of_choice = _layers.ordinary(task, key=of_test, prompts=prompts), _layers.ordinary(task, **of_kind)
    free_loss, free_error = _best_steps.held_out_loss(best["free"], test_spectra)

    def measure_seed(seed):
        (errors,) = _layers.on_shared_prompts([networks[seed]], task, key=of_test, prompts=prompts)
        (choice,) = _layers.on_shared_prompts([networks[seed]], task, **of_kind)
        row = {"test_loss": errors.mean(), "chosen_loss": choice[kept_of_choice].mean()}
        row |= {"free_loss": free_loss, "free_loss_error": free_error, "heaviest": _layers.heaviest(errors[kept])}
        for name, reference in references.items():
            row[f"{name}_ratio"], row[f"{name}_ratio_error"] = _layers.ratio(errors[kept], reference[kept])
        row["whole_ratio"], row["whole_ratio_error"] = _layers.ratio(errors, references["loss"])
        return row

    return tabulated(measure_seed, seed=point.seed)
