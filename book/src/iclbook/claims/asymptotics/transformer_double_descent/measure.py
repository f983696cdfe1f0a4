"""Train transformers on the last token of a fixed set of prompts, one for every size of the set."""

import equinox as eqx
import jax
import numpy as np

from iclbook.claims.asymptotics._transformers import last_errors, train_annealed
from icllab.core.grid import tabulated
from icllab.models import Transformer
from icllab.tasks import FixedPrompts, LinearRegression

VERSION = 1


def measure(point, *, key, everything=False):
    """Errors on fresh tasks and on the prompts of the set; ``everything``: all are trained on the largest set."""
    dim, steps = point.dim, max(1, round(point.epochs * point.dim**2 / point.batch))
    counts = np.array([max(1, round(ratio * dim**2)) for ratio in point.prompt_ratio])

    def of_seed(seed):
        of_set, of_weights, of_batches, of_test = jax.random.split(jax.random.fold_in(key, seed), 4)
        task = LinearRegression.from_scaling(dim=dim, alpha=point.alpha, kappa=float("inf"), rho=point.rho, key=of_set)
        # Both sets have one shape, so that one program draws and tests them; training uses the start of the first.
        count = max(int(counts.max()), point.prompts)
        training, test = (FixedPrompts.from_task(task, count, key=k) for k in (of_set, of_test))
        network = Transformer.lu(dim=dim, layers=1, key=of_weights)
        weight = network.readout.weight  # pyright: ignore[reportAttributeAccessIssue]
        network = eqx.tree_at(lambda m: m.readout.weight, network, point.readout * weight)
        sizes = np.full(len(counts), counts.max()) if everything else counts
        run = train_annealed(network, training, point, steps=steps, key=of_batches, size=sizes)
        members = [run.member(t) for t in range(len(counts))]
        squares = np.asarray(training.prompts.y)[:, -1] ** 2
        fresh = [last_errors(member, test.prompts).mean() for member in members]
        training_errors = [
            last_errors(m, training.prompts)[:n].mean() / squares[:n].mean()
            for m, n in zip(members, counts, strict=True)
        ]
        return {
            "icl_error": (("prompt_ratio",), np.array(fresh)),
            "training_error": (("prompt_ratio",), np.array(training_errors)),
        }

    return tabulated(of_seed, seed=point.seed)
