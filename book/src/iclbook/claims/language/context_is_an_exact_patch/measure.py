"""Patches of a language model for the queries of short texts: what each leaves at its own query and at others."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from iclbook.claims.language import _models
from icllab.core.grid import tabulated
from icllab.core.prompt import TokenPrompt
from icllab.diagnostics.contexts.distances import divergence
from icllab.models import best_patch, rank_one_patch

VERSION = 1

WORDS = {
    "name": "Anna Omar Lucy Peter Rosa Hugo Clara Ivan Nina Paul Greta Simon",
    "town": "London Paris Boston Madrid Dublin Vienna Oslo Prague",
    "job": "teacher doctor baker farmer sailor painter driver nurse",
    "thing": "apples books flowers horses candles letters stones boats",
    "day": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "place": "market river school church garden station",
}
CAST = {"name": 3, "town": 2, "job": 2, "thing": 3, "day": 2, "place": 2}
"""Number of words of each kind in a text: they come again, so that the beginning of a text tells of its end."""
SENTENCES = (
    "{name} lives in {town} and works as a {job}.",
    "Every {day} the {job} sells {thing} at the {place}.",
    "On {day} {name} went to the {place} to buy {thing}.",
    "The {job} of {town} has a room near the {place}.",
    "{name} and {name} met at the {place} on {day}.",
    "There were many {thing} at the {place}, and {name} took some of them home.",
    "When {name} came back from {town}, the {thing} were gone.",
    '"I have never seen such {thing}," said the {job}.',
)
UNRELATED = (
    "Water boils at a lower temperature on high mountains, because the air presses less on its surface. This is "
    "why rice takes longer to cook there than by the sea. A closed pot keeps the steam inside and raises the "
    "pressure again, so that the water becomes hotter than it would in the open. The same rule holds for every "
    "liquid. In a vacuum a glass of water boils at room temperature until it freezes, since each drop that turns "
    "into vapour takes heat from what is left. Engineers use the effect to dry coffee and fruit without heating "
    "them, and to keep machines cold in space."
)
"""A text of another kind."""


def measure(point, *, key, strength=1.0, same_context=False, same_query=False, network=None):
    """What the patches of every seed leave, a text with another beside it.

    ``strength``: factor of each patch. ``same_context``: the other texts are the text itself. ``same_query``: all
    queries of a text are its first. ``network``: a user's language model.
    """
    model, tokenizer, beginning = _models.opened(point.model, network)
    beginning, count = _models.require_beginning(tokenizer, beginning), point.queries
    apart = np.abs(np.subtract.outer(range(count), range(count)))

    def of_seed(seed):
        rng = np.random.default_rng([seed, *np.asarray(jax.random.key_data(key))])
        text, other, unrelated = (tokenizer.encode(words).ids for words in (passage(rng), passage(rng), UNRELATED))
        starts = np.zeros(point.fitted, int) if same_query else np.arange(point.fitted)
        full, bare = prompts(text, text, starts, point, beginning)
        befores = [text, text] if same_context else [other, unrelated]
        after_others = [prompts(text, before, starts, point, beginning)[0] for before in befores]
        answers = last_answers(model, full)
        effect = np.asarray(divergence("logits", answers, last_answers(model, bare)))
        *rows, queries = (jax.tree.map(lambda leaf: leaf[:count], batch) for batch in (full, *after_others, bare))
        worlds = [patched(model, batch, queries, answers[:count], strength) for batch in rows]
        best = best_patched(model, full, bare, answers, strength)
        at_own = [(world, apart == 0, effect[:count]) for world in worlds]
        others = [(worlds[0], where, effect[:count]) for where in (apart == 1, apart > 1)]
        places = [np.arange(point.fitted) % 2 == i for i in (0, 1)]
        cases = [at_own[0], *others, *at_own[1:], *((best, where, effect) for where in places)]
        left = [
            np.asarray(values)[where].sum() / np.broadcast_to(base, where.shape)[where].sum()
            for (values, _), where, base in cases
        ]
        errors = [np.asarray(values)[where].max() for (_, values), where, _ in cases]
        rows = {"effect_left": left, "logit_error": errors}
        return {name: (("patch",), np.array(row)) for name, row in rows.items()} | {"effect": effect.mean()}

    return tabulated(of_seed, seed=point.seed)


def passage(rng):
    """A text of a few people, towns and things."""
    cast = {kind: rng.choice(words.split(), CAST[kind], replace=False) for kind, words in WORDS.items()}
    sentences = []
    for template in np.concatenate([rng.permutation(SENTENCES) for _ in range(3)]):
        for kind, words in cast.items():
            for word in rng.permutation(words):
                template = template.replace(f"{{{kind}}}", word, 1)
        sentences.append(template)
    return " ".join(sentences)


def prompts(text, before, starts, point, beginning):
    """Stacked queries of a text, after the tokens before them or those of another text, and without.

    The last token of a query is answered; its context is the tokens before it.
    """
    rows, bare = [], []
    for start in starts:
        end = start + point.context_tokens
        query = [*text[end : end + point.query_tokens], 0]  # the last one is not read
        rows.append([beginning, *before[start:end], *query])
        bare.append([beginning, *query])
    return stacked(rows), stacked(bare)


def stacked(rows):
    """Prompts of token ids on a leading axis."""
    return jax.vmap(TokenPrompt)(jnp.asarray(rows, jnp.int32))


@eqx.filter_jit
def last_answers(model, prompts):
    """Logits after each query."""
    return jax.vmap(lambda prompt: model(prompt)[-1])(prompts)


@eqx.filter_jit
def patched(model, full, bare, answers, strength):
    """:func:`distances` [patch, query] of the answers with the patch of each query."""

    def of_patch(pair):
        patch = jax.tree.map(lambda leaf: strength * leaf, rank_one_patch(model, *pair))
        return distances(answers, last_answers(patch.applied(model), bare))

    return jax.lax.map(of_patch, (full, bare))


@eqx.filter_jit
def best_patched(model, full, bare, answers, strength):
    """:func:`distances` of the answers with the best patch, which is fitted to every other query."""
    fitted = [jax.tree.map(lambda leaf: leaf[::2], batch) for batch in (full, bare)]
    patch = jax.tree.map(lambda leaf: strength * leaf, best_patch(model, *fitted, affine=False))
    return distances(answers, last_answers(patch.applied(model), bare))


def distances(answers, given):
    """Divergence of given answers from those after the context, and the largest relative error of their logits."""
    errors = jnp.max(jnp.abs(given - answers), axis=-1) / jnp.max(jnp.abs(answers), axis=-1)
    return divergence("logits", answers, given), errors
