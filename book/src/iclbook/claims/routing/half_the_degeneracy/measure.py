"""Degeneracy of the map and both coefficients, at weights that are drawn and that are trained."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import icllab as icl
from iclbook.claims.routing.half_the_degeneracy.claim import POINTS, VARIED
from icllab.core.grid import tabulated
from icllab.diagnostics import SMC, LocalPosterior, ZeroShot, context_coefficients, context_rank
from icllab.models.contexts.exact_family import FastWeights
from icllab.tasks import LinearRegression
from icllab.training import Record

VERSION = 1

RATE, BATCH = 0.01, 128


def measure(point, *, key, at_zero=False):
    """One cell; with ``at_zero`` both layers are zero where both vary."""
    of_weights, of_training, of_context, of_queries, of_annealing = jax.random.split(key, 5)
    task = LinearRegression.convention("timaeus", dim=point.dim, length=point.length)
    context = task.sample(key=of_context)

    def weights(kind):
        model = FastWeights.init(
            dim=point.dim,
            hidden=point.hidden,
            std=1.0,
            normalised=True,
            key=jax.random.fold_in(of_weights, POINTS.index(kind)),
        )
        if kind == "drawn":
            return model, 1.0
        run = icl.fit(
            model,
            task,
            steps=point.updates,
            key=of_training,
            batch=BATCH,
            optimizer=optax.adam(RATE),
            record=Record([0, point.updates], held_out=1024, progress=False),
        )
        losses = run.dataset["held_out_loss"].mean(("member", "position")).values
        return run.member(0), float(losses[-1] / losses[0])

    models = {kind: weights(kind) for kind in point.point}

    def at(**coordinates):
        kind, varied = coordinates["point"], coordinates["varied"]
        model, ratio = models[kind]
        if at_zero and varied == "A and B":
            model = eqx.tree_at(lambda m: (m.down, m.up), model, replace_fn=jnp.zeros_like)
        rank = context_rank(
            model,
            task,
            context,
            subspace=lambda m: m.slow,
            weights=(lambda m: m.down) if varied == "A" else (lambda m: (m.down, m.up)),
            key=of_queries,
        )
        chosen = {"down": model.down} | ({"up": model.up} if varied == "A and B" else {})
        h = model.context(context)[-1]

        def context_map(w):
            return model.slow + w.get("up", model.up) @ (w["down"] @ h)

        image = context_map(chosen)

        def zero_shot(u):
            return jnp.sum((u - image) ** 2) / 2  # of answers x.u to normal x

        order = POINTS.index(kind) * len(VARIED) + VARIED.index(varied)
        coefficients = context_coefficients(
            LocalPosterior.from_function(
                lambda w: zero_shot(context_map(w)), chosen, nbeta=point.nbeta, localization=point.localization
            ),
            ZeroShot(zero_shot, context_map),
            key=jax.random.fold_in(of_annealing, order),
            sampler=SMC(particles=point.particles, repeats=point.repeats),
        )
        sides = coefficients.sel(side=list(point.side))
        warnings = [text for text in coefficients.attrs["warnings"] if text.startswith(tuple(point.side))]
        return {
            "learning_coefficient": (("side",), sides["estimate"].values),
            "learning_coefficient_error": (("side",), sides["estimate_error"].values),
            "coefficient_difference": ((), float(coefficients["difference"])),
            "coefficient_difference_error": ((), float(coefficients["difference_error"])),
            "map_degeneracy": ((), float(rank.degeneracy)),
            "map_converged": ((), float(rank.converged)),
            "training_ratio": ((), ratio),
            "annealing_warnings": ((), np.float64(len(warnings))),
        }

    return tabulated(at, point=point.point, varied=point.varied)
