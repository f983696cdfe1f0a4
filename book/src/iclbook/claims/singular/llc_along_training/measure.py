"""Losses along descent, their change points, and coefficients of the answers at checkpoints."""

import jax
import numpy as np
import xarray as xr

from iclbook.claims.singular import _ranks as ranks
from iclbook.claims.singular._linear_attention import estimate_row
from iclbook.claims.singular.llc_along_training.claim import BREAKS, EVERY, RANKS
from icllab.core.grid import tabulated
from icllab.diagnostics import HMC, LocalPosterior, coefficient_at_temperature
from icllab.diagnostics.curves.breakpoints import change_points

VERSION = 3

SIZES = (1.0, 0.7, 0.5)  # of the tasks


def measure(point, *, key, start=None, together=False, backwards=False):
    """One cell; from weights of another ``start``, with all ranks ``together``, or with the weights ``backwards``."""
    machine = ranks.Machine.init(point.dim, point.length, [SIZES[0]] * RANKS if together else SIZES)
    levels, _ = machine.plateau_losses(RANKS)

    def at(seed):
        of_start, of_chains, of_breaks = jax.random.split(jax.random.fold_in(key, seed), 3)
        width = point.start if start is None else start
        path, losses = ranks.descend(machine, ranks.small_weights(of_start, point.dim, RANKS, width))
        losses = np.asarray(losses)
        planted = [EVERY * int(np.argmax(losses < level)) for level in (levels[:-1] + levels[1:]) / 2]
        if backwards:
            path = jax.tree.map(lambda leaf: leaf[::-1], path)
        curve = losses[np.asarray(point.step) // EVERY]
        breaks = change_points(
            xr.DataArray(curve[None], {"step": list(point.step)}, ("member", "step")), key=of_breaks, max_breaks=BREAKS
        )
        intervals = np.full((BREAKS, 2), np.nan)
        reported = breaks["change_interval"].values[breaks["reported"].values]
        intervals[: len(reported)] = reported
        columns = {"learning_coefficient": [], "learning_coefficient_error": [], "sampler_warnings": []}
        for i, checkpoint in enumerate(point.checkpoint):
            w = jax.tree.map(lambda leaf, i=checkpoint // EVERY: leaf[i], path)
            chains = coefficient_at_temperature(
                LocalPosterior.from_function(
                    ranks.Divergence(machine, machine(w)), w, nbeta=point.nbeta, localization=1.0
                ),
                checks=(),
                sampler=HMC(chains=point.chains, warm_up=point.warm_up),
                key=jax.random.fold_in(of_chains, i),
            )
            row = estimate_row(chains)
            for name, column in columns.items():
                column.append(row[name])
        return {
            "exact_loss": (("step",), curve),
            "break_interval": (("change", "side"), intervals),
            "planted_step": (("jump",), np.array(planted, float)),
            **{name: (("checkpoint",), np.array(column, float)) for name, column in columns.items()},
        }

    return tabulated(at, seed=point.seed)
