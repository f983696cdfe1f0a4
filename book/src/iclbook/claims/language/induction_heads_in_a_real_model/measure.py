"""Losses of repeated random tokens in a language model without some of its heads, and along paths between heads."""

import jax
import numpy as np

from iclbook.claims.language import _heads, _models
from icllab.core.grid import tabulated
from icllab.diagnostics import head_scores
from icllab.models.interventions.heads import head_weights
from icllab.tasks import RepeatedTokens

VERSION = 2


def measure(point, *, key, opened=None, chosen=None, permuted=False, misnamed=False, exchanged=False, network=None):
    """Losses and blocks, of prompts and random heads that each seed draws anew.

    ``opened``: the model, and ``chosen``: the number of heads, in the place of the point's. ``permuted``: the entries
    of each W_Q are permuted. ``misnamed``: random heads of the same blocks are taken for induction heads and
    previous-token heads. ``exchanged``: these are taken for each other.
    ``network``: a user's language model.
    """
    whole = _models.opened(opened or point.model, network).model
    task = RepeatedTokens(whole.embedding.arrangement.outputs or 0, point.period)

    def of_seed(seed):
        of_choice, of_test, of_sets = jax.random.split(jax.random.fold_in(key, seed), 3)
        rng = np.random.default_rng(np.asarray(jax.random.key_data(of_sets)))
        model = _heads.with_permuted_queries(whole, rng) if permuted else whole
        scores = head_scores(model, task, key=of_choice, prompts=point.choice)
        count, longest = chosen or point.chosen, max(point.head_rank) + 1
        ranked = [
            _heads.best(_heads.table(model, scores[name]), max(count, longest))
            for name in ("previous_token_score", "induction_score")
        ]
        if exchanged:
            ranked = ranked[::-1]
        named = true = [heads[:count] for heads in ranked]
        if misnamed:
            named = [_heads.others(model, rng, heads, true[0] + true[1]) for heads in true]
        excluded = {*true[0], *true[1], *named[0], *named[1]}
        draws = [[_heads.others(model, rng, heads, excluded) for heads in named] for _ in range(point.sets)]
        outputs = _heads.mean_outputs(model, task.sample_many(point.choice, key=of_choice))
        prompts = task.sample_many(point.prompts, key=of_test)
        weights = [[head_weights(model, heads) for heads in pair] for pair in (named, *draws)]

        def losses(heads):
            return np.asarray(_heads.losses(model, heads, outputs, task, prompts), float)

        def rise(senders, receivers, through):
            patched = _heads.path_losses(model, senders, receivers, through, outputs, task, prompts)
            return float(np.mean(patched[:, point.period :])) - repeated

        (senders, receivers), (random_senders, random_receivers) = weights[:2]
        paths = {name: (senders, receivers, name) for name in ("keys", "queries", "values")} | {
            "keys, from random heads": (random_senders, receivers, "keys"),
            "keys, of random heads": (senders, random_receivers, "keys"),
        }
        plain = losses(0 * senders)
        repeated = plain[:, point.period :].mean()
        rises = [losses(heads)[:, point.period :].mean() - repeated for _, heads in weights]
        blocks = np.full((2, longest), np.nan)
        for row, heads in zip(blocks, ranked, strict=True):
            row[: len(heads)] = [block for block, _ in heads[:longest]]
        return {
            "half_loss": (("half",), [plain[:, : point.period - 1].mean(), repeated]),
            "loss_rise": (("head_set",), [rises[0], np.mean(rises[1:])]),
            "block": (("head_kind", "head_rank"), blocks[:, list(point.head_rank)]),
            "path_rise": (("path",), [rise(*paths[name]) for name in point.path]),
        }

    return tabulated(of_seed, seed=point.seed)
