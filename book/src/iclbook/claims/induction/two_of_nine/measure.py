"""Item-label networks taken apart into the nine interactions of their scores, along training."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from iclbook.claims.induction import _networks
from iclbook.claims.induction.two_of_nine.claim import CONTRASTS, INTERACTIONS, KEPT, RIVAL
from icllab.core.grid import tabulated
from icllab.diagnostics.behaviour import interactions

VERSION = 1

MEASURES = ("accuracy", "item_label_attention", "target_attention")


def measure(point, *, key, kept=KEPT, learn=True, made_up=None):
    """Contrasts of all terms, and what a network does with those that are ``kept`` in each layer.

    Unless they ``learn``, networks stay as they start. ``made_up``: numbers of :func:`contents`, of no network.
    """
    if made_up is not None:
        return tabulated(lambda seed, step: contents(point, seed), seed=point.seed, step=point.step)
    rows = [CONTRASTS.index(name) for name in point.contrast]
    columns = [INTERACTIONS.index(name) for name in point.interaction]
    layers = [[INTERACTIONS if names is None else names for names in kept[name]] for name in point.kept]
    weights = np.array([[interactions.weights(names) for names in pair] for pair in layers])

    def apart(network, task, batch):
        accuracies, contrasts, first, second, logits = map(np.asarray, _apart(network, task, batch, weights))
        overlap, spread, error = interactions.overlaps(logits, np.asarray(batch.labels))
        return {
            "score_contrast": (("contrast", "interaction"), contrasts[np.ix_(rows, columns)]),
            "first_pattern": (("row", "column"), first),
            "second_pattern": (("right_pair", "column"), second),
            **{name: (("kept",), values) for name, values in zip(MEASURES, accuracies.T, strict=True)},
            "overlap": overlap,
            "overlap_spread": spread,
            "overlap_error": error,
        }

    def along_training(seed):
        begin = _networks.start(seed, key=key, pairs=point.pairs, labels=point.label_count)
        batch = begin.task.in_context().sample_many(point.prompts, key=begin.of_tests)
        if max(point.step) == 0 or not learn:
            return tabulated(lambda step: apart(begin.network, begin.task, batch), step=point.step)
        run = _networks.train(
            begin.task, begin.network, steps=(0, *point.step), key=begin.of_prompts, batch=point.batch
        )
        return tabulated(lambda step: apart(run.trajectory.at(step).member(0), begin.task, batch), step=point.step)

    return tabulated(along_training, seed=point.seed)


def contents(point, seed):
    """Made-up numbers of a head that needs neither of the two terms, with the noise of the prompts."""
    rng = np.random.default_rng(seed)
    accuracies = [{"two": 0.3, "three": 0.2}.get(name, 0.97) for name in point.kept]
    score = np.where(np.array(point.interaction) == RIVAL, 4.0, 0.05) * np.ones((len(point.contrast), 1))
    score[:, point.interaction.index("content-buffer")] = 0.5
    patterns = {"first_pattern": (point.row, point.column), "second_pattern": (point.right_pair, point.column)}
    axes = {"first_pattern": ("row", "column"), "second_pattern": ("right_pair", "column")}
    kept = {name: (("kept",), rng.binomial(point.prompts, accuracies) / point.prompts) for name in MEASURES}
    return {
        "score_contrast": (("contrast", "interaction"), score * np.exp(0.1 * rng.normal(size=score.shape))),
        **{name: (axes[name], np.full([len(part) for part in shape], 1 / 9)) for name, shape in patterns.items()},
        **kept,
        "overlap": 15 + 0.3 * rng.normal(),
        "overlap_spread": abs(0.3 * rng.normal()),
        "overlap_error": 0.3,
    }


@eqx.filter_jit
def _apart(network, task, batch, weights):
    """Measure a network on prompts in one compiled program; ``weights`` [kept, layer, interaction]."""
    accuracies = jax.lax.map(
        lambda pair: interactions.with_terms(network, task, batch, (pair[0], pair[1])), jnp.asarray(weights, float)
    )
    patterns = interactions.mean_patterns(network, batch)
    return accuracies, interactions.mean_contrasts(network, batch), *patterns, interactions.logits_of(network, batch)
