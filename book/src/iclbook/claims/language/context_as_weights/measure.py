"""Changes of one layer's weights that are fitted to few-shot prompts, and answers with them at other queries."""

import string

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from iclbook.claims.language import _models
from icllab.core.grid import tabulated
from icllab.core.prompt import TokenPrompt
from icllab.diagnostics.contexts.ranks import cut_in_metric
from icllab.models.contexts.prefixes import Prefixed
from icllab.models.contexts.weight_changes import best_change
from icllab.tasks import FewShot
from icllab.tasks.pair_tables import ANTONYMS, CAPITALS

VERSION = 1

TABLES = {
    "letters": tuple(zip(string.ascii_lowercase, string.ascii_uppercase, strict=True)),
    "capitals": CAPITALS,
    "antonyms": ANTONYMS,
}
FOREIGN = {"letters": "letters", "capitals": "antonyms", "antonyms": "capitals"}
LAST = 29  # block of SmolLM2
RANKS = {"1": 1, "full": None}


def measure(point, *, key, strength=1.0, same_context=False, network=None):
    """Nats of the answers to held-out queries of every seed: alone, after each context, and with its changes.

    ``strength``: factor of each change. ``same_context``: each other context is the prompt itself. ``network``: a
    user's language model, whose blocks are those at the same depths as SmolLM2's.
    """
    model, tokenizer, beginning = _models.opened(point.model, network)
    beginning = _models.require_beginning(tokenizer, beginning)
    table, foreign = (single_tokens(TABLES[name], tokenizer) for name in (point.table, FOREIGN[point.table]))
    names, blocks = tuple(point.context), tuple(point.block)
    if network is not None:
        blocks = tuple(round(block * (len(model.blocks) - 1) / LAST) for block in blocks)

    def of_seed(seed):
        rng = np.random.default_rng([seed, *np.asarray(jax.random.key_data(key))])
        examples, others, remainder = np.split(rng.permutation(len(table[1])), [point.shots, 2 * point.shots])
        queries, far = remainder[: point.queries], rng.permutation(len(foreign[1]))[-point.shots :]
        contexts = {"own": (table, examples, examples), "other examples": (table, others, others)}
        contexts |= {"shuffled labels": (table, examples, np.roll(examples, 1)), "other table": (foreign, far, far)}
        questions, answers = table[0][queries], table[1][queries, 0]
        fitted, tested = np.arange(len(queries)) < len(queries) // 2, np.arange(len(queries)) >= len(queries) // 2
        bare = stacked([[beginning, *question, 0] for question in questions])
        logits, streams, reads = recorded(model, bare, blocks)
        with_context, changes = [], {}
        for name, (pairs, shown, labels) in contexts.items():
            rows = np.concatenate([pairs[0][shown], pairs[1][labels], np.tile(pairs[2], (len(shown), 1))], axis=1)
            prompt = TokenPrompt(jnp.asarray([beginning, *rows.ravel(), 0, 0], jnp.int32))  # a query and its answer
            after, streams_after, _ = recorded_after(model, prompt, stacked([[*q, 0] for q in questions]), blocks)
            with_context.append(nats(after, answers)[tested].mean())
            changes[name] = fits(reads[fitted], (streams_after - streams)[fitted])
            if name == "own":
                mixed = jnp.roll((streams_after - streams)[fitted], 1, axis=0)
                changes["permuted queries"] = fits(reads[fitted], mixed)
        changes = [changes["own" if same_context else name] for name in names]
        test_prompts = jax.tree.map(lambda leaf: leaf[tested], bare)
        changed_logits = changed(model, jnp.asarray(blocks), strength * jnp.stack(changes), test_prompts)
        return {
            "nats": (("context", "block", "map_rank"), nats(changed_logits, answers[tested]).mean(axis=-1)),
            "nats_after": (("context",), np.array([*with_context, with_context[0]])),
            "nats_alone": nats(logits, answers)[tested].mean(),
        }

    return tabulated(of_seed, seed=point.seed)


def single_tokens(pairs, tokenizer):
    """Tokens of questions, answers, and the end of an example, of the pairs whose item and answer are a token each."""
    task = FewShot.from_pairs(pairs, tokenizer, shots=1, template=" {} -> {}\n")
    questions, answers = np.asarray(task.questions), np.asarray(task.answers)[np.asarray(task.classes)]
    question_sizes, answer_sizes = (np.sum(rows >= 0, axis=1) for rows in (questions, answers))
    short = (question_sizes == question_sizes.min()) & (answer_sizes == 1)
    return questions[short, : question_sizes.min()], answers[short, :1], np.asarray(task.end)


def stacked(rows):
    """Prompts of token ids on a leading axis."""
    return jax.vmap(TokenPrompt)(jnp.asarray(rows, jnp.int32))


def nats(logits, answers):
    """Cross-entropy of the answers, over any axes before the query's."""
    return -np.asarray(jax.nn.log_softmax(logits))[..., np.arange(len(answers)), answers]


def last_values(trace, blocks):
    """Logits at the last token; the streams after blocks, and what the last layers of their dense layers read."""
    streams, reads = (
        jnp.stack([trace.activations[f"block{i}{part}"][-1] for i in blocks]) for part in ("", ".mlp.hidden0")
    )
    return trace.prediction[-1], streams, reads


@eqx.filter_jit
def recorded(model, prompts, blocks):
    """:func:`last_values` of every prompt."""
    return jax.vmap(lambda prompt: last_values(model.trace(prompt), blocks))(prompts)


@eqx.filter_jit
def recorded_after(model, context, queries, blocks):
    """:func:`last_values` of every query after a context."""
    prefixed = Prefixed.from_context(model, context)
    return jax.vmap(lambda query: last_values(prefixed.trace(query), blocks))(queries)


@jax.jit
def fits(reads, gains):
    """Changes [block, rank, inner, width] of last weights that give the stream after a block what it gains."""

    def fit(reads, gains):
        change, moments = best_change(reads, gains, affine=False).weight, reads.T @ reads / len(reads)
        return jnp.stack([change if r is None else cut_in_metric(change, moments, r) for r in RANKS.values()])

    return jax.vmap(fit, in_axes=1)(reads, gains)


@eqx.filter_jit
def changed(model, blocks, changes, prompts):
    """Logits [context, block, rank, query, token] at the last token, with each change in its block alone."""

    def weights(of):
        return [block.mlp.layers[-1].weight for block in of.blocks]

    def of_change(row):
        at, change = row
        new = [weight + jnp.where(at == i, change, jnp.zeros_like(change)) for i, weight in enumerate(weights(model))]
        network = eqx.tree_at(weights, model, new)
        return jax.vmap(lambda prompt: network(prompt)[-1])(prompts)

    lead = changes.shape[:3]
    places = jnp.broadcast_to(blocks[:, None], lead).reshape(-1)
    logits = jax.lax.map(of_change, (places, changes.reshape(-1, *changes.shape[3:])))
    return logits.reshape(*lead, *logits.shape[1:])
