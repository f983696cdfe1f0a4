"""Losses of few-shot prompts and of repeated tokens without function-vector heads, or without induction heads."""

import jax
import jax.numpy as jnp
import numpy as np

from iclbook.claims.language import _heads, _models
from icllab.core.grid import tabulated
from icllab.diagnostics import head_effects, head_scores
from icllab.models.interventions.heads import head_weights
from icllab.tasks import FewShot, RepeatedTokens, pair_tables

VERSION = 2
TABLES = {"antonyms": pair_tables.ANTONYMS, "capitals": pair_tables.CAPITALS}


def measure(point, *, key, copied=False, permuted=False, network=None):
    """Losses without heads, of prompts and random heads that each seed draws anew.

    ``copied``: the query of a few-shot prompt is one of its examples, whose shuffled label is the answer. ``permuted``:
    the entries of each W_Q are permuted. ``network``: a user's language model.
    """
    whole, tokenizer, _ = _models.opened(point.model, network)
    vocabulary = whole.embedding.arrangement.outputs or 0
    fields = {"shots": point.shots, "vocabulary": vocabulary}
    right, shuffled = (
        FewShot.from_pairs(TABLES[point.table], tokenizer, labels=labels, **fields) for labels in ("right", "shuffled")
    )
    repeated = RepeatedTokens(vocabulary, point.period)

    def of_seed(seed):
        of_choice, of_test, of_sets = jax.random.split(jax.random.fold_in(key, seed), 3)
        rng = np.random.default_rng(np.asarray(jax.random.key_data(of_sets)))
        model = _heads.with_permuted_queries(whole, rng) if permuted else whole
        examples = right.sample_many(point.choice, key=of_choice)
        effects = head_effects(
            model,
            shuffled,
            key=of_choice,
            prompts=point.choice,
            outputs=_heads.mean_outputs(model, examples, _at_query),
            tokens=_at_query,
        )
        scores = head_scores(model, repeated, key=of_choice, prompts=point.choice)
        ranked = [_heads.table(model, part) for part in (-effects["first_order_effect"], scores["induction_score"])]
        first = [_heads.best(part, point.chosen) for part in ranked]
        alone = _heads.best(ranked[1], point.chosen, first[0])
        excluded = {*first[0], *first[1], *alone}
        random = [_heads.others(model, rng, heads, excluded) for heads in first]
        sets = [head_weights(model, heads) for heads in (*first, alone, *random)]

        def losses(task, scored):
            """The mean losses, of no ablation and of each."""
            outputs = _heads.mean_outputs(model, task.sample_many(point.choice, key=of_choice))
            answered = copied and task is right
            prompts = (
                _copied(shuffled, point.prompts, of_test) if answered else task.sample_many(point.prompts, key=of_test)
            )
            runs = [_heads.losses(model, heads, outputs, task, prompts) for heads in (0 * sets[0], *sets)]
            return [np.nanmean(np.asarray(run, float)[:, scored], axis=1).mean() for run in runs]

        plain, *without = np.transpose([losses(right, slice(None)), losses(repeated, slice(point.period, None))])
        return {
            "task_loss": (("task",), plain),
            "loss_rise": (("head_set", "task"), without - plain),
            "overlap": len(set(first[0]) & set(first[1])),
        }

    return tabulated(of_seed, seed=point.seed)


def _at_query(prompt):
    return jnp.arange(prompt.positions) == prompt.query


def _copied(task, count, key):
    """Prompts of shuffled labels whose query is their third example; that example's label is the answer."""

    def prompt(key):
        examples, shown, _ = task.draw(key=key)
        labels = task.answers[task.classes[shown]]
        return task.prompt(examples, labels, examples[2], labels[2])

    return jax.vmap(prompt)(jax.random.split(key, count))
