"""Few-shot prompts of the same pairs with right labels, shuffled labels and new symbols: how likely the answer is."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from iclbook.claims.language import _models
from icllab.core.grid import tabulated
from icllab.tasks import FewShot, pair_tables

VERSION = 1

TABLES = {
    "capitals": pair_tables.CAPITALS,
    "antonyms": pair_tables.ANTONYMS,
    "kinds": pair_tables.KINDS,
    "feelings": pair_tables.FEELINGS,
}
START = {"smollm2-135m": "<|endoftext|>", "glassllm-en": ""}
"""What stands at the beginning of a text of each model."""
STEP = 16
"""Prompts are padded to a multiple of so many tokens, so that few programs are compiled."""
BATCH = 8


def measure(point, *, key, learner=False, network=None):
    """Scores [shots, shown, seed] of the right answer; NaN where symbols have no answer.

    ``learner``: the answers of :func:`_learned` in place of the model's. ``network``: a user's language model.
    """
    model, tokenizer, beginning = _models.opened(point.model, network)
    start, pairs = START.get(point.model, beginning), TABLES[point.table]
    answers = len({answer for _, answer in pairs})

    def of_prompts(shots, shown):
        balanced = answers == 2 and shots % 2 == 0
        if shown == "symbols" and not (balanced and shots):
            scores = np.full((3, len(point.seed)), np.nan)
        else:
            task = FewShot.from_pairs(pairs, tokenizer, shots=shots, labels=shown, balanced=balanced, prefix=start)
            keys = [k for s in point.seed for k in jax.random.split(jax.random.fold_in(key, s), point.prompts)]
            scores = _learned(task, keys) if learner else _scores(model, *_sampled(task, keys))
            scores = np.reshape(scores, (3, len(point.seed), point.prompts)).mean(axis=2)
        return {q: (("seed",), row) for q, row in zip(("log_likelihood", "accuracy", "choice"), scores, strict=True)}

    return tabulated(of_prompts, shots=point.shots, shown=point.shown)


def _learned(task, keys):
    """Scores of a learner that knows the table's kinds and not their answers.

    An answer is as likely as the query's kind has it among the examples, with one more of each.
    """
    scores = []
    for k in keys:
        examples, shown, query = (np.asarray(task.classes)[np.asarray(part)] for part in task.draw(key=k))
        counts = 1.0 + np.bincount(shown[examples == query], minlength=len(task.answers))
        right = counts.argmax() == query
        scores.append([np.log(counts[query] / counts.sum()), right, counts[query] > np.delete(counts, query).max()])
    return np.array(scores, float).T


def _sampled(task, keys):
    """Prompts, cut to a multiple of ``STEP`` tokens, with the first tokens of the answers that each could have.

    They are drawn one by one: compiling a program for each task would take longer.
    """
    prompts = [task.sample(key=k) for k in keys]
    candidates = [task.shown_answers(key=k)[:, 0] for k in keys]
    prompts = jax.tree.map(lambda *rows: np.pad(np.stack(rows), ((0, 0), (0, STEP))), *prompts)
    size = -(-int(prompts.mask.sum(axis=1).max()) // STEP) * STEP
    return jax.tree.map(lambda rows: jnp.asarray(rows[:, :size]), prompts), jnp.stack(candidates)


@eqx.filter_jit
def _scores(model, prompts, candidates):
    """Scores of each prompt: log-likelihood of the answer, whether it is the likeliest, and so among the table's.

    Among the table's answers first tokens are compared.
    """

    def of_prompt(inputs):
        prompt, first = inputs
        logits, targets = model(prompt), prompt.tokens[1:]
        logs = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[:, None], axis=1)[:, 0]
        right = jnp.all((jnp.argmax(logits, axis=1) == targets) | ~prompt.scored)
        at_query = logits[prompt.query]
        target = targets[prompt.query]
        others = jnp.max(jnp.where(first == target, -jnp.inf, at_query[first]))
        scores = jnp.sum(jnp.where(prompt.scored, logs, 0)), right, at_query[target] > others
        return jnp.stack([score.astype(float) for score in scores])

    return jax.lax.map(of_prompt, (prompts, candidates), batch_size=BATCH).T
