r"""Contexts as changes of weights in networks that predict the next token: steps, ranks, gaps and directions.

Four tables, each with its nulls. *Steps*: cosine of f_c(w) - w with gradient steps on the context and on others, and
the fraction of the context's effect that the best step leaves. The first of the others has the context's tokens in
random order. *Ranks*: rank and degeneracy of the map, in the trained network and with the entries of every array
permuted. *Gaps*: the coefficient without context minus that with it, of quadratic losses at n beta = 1000, against the
degeneracy and the context's effect. *Directions*: overlap of the weights' directions of two codes of
``routing/codes``.

Networks: two layers of width 32 trained on fresh Markov chains; glassllm and SmolLM2-135M on texts that they generate;
two layers trained on codes. The dense layers move, of language models those of the last block.

Usage: python bench/contexts.py [--only chains|codes|glassllm|smollm] [--seeds 3] [--models models]
"""

import argparse
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import machine
import numpy as np
import optax
from scipy.stats import spearmanr

import icllab as icl
from iclbook.claims.routing import _codes
from iclbook.claims.routing.codes import claim, measure
from icllab.core.prompt import TokenPrompt
from icllab.core.protocols import AbstractPredictor
from icllab.diagnostics import MapSolver, QuerySource, context_rank, gradient_step_comparison
from icllab.diagnostics.contexts.distances import divergence, metric_root
from icllab.diagnostics.contexts.queries import answers_after, answers_alone, last_answer
from icllab.diagnostics.contexts.subspaces import parameter_mask, permute, with_parameters
from icllab.models import BlockOptions, Tokens, Transformer, pretrained
from icllab.tasks import MarkovPool, RepeatedTokens
from icllab.theory.quadratic_posterior import gaussian_coefficient
from icllab.training import Record

SOLVER = MapSolver(method="gauss_newton", steps=40, products=80, tolerance=1e-2)
SHORT_SOLVER = MapSolver(method="gauss_newton", steps=15, products=30, tolerance=0.05)  # of a language model
CHAINS = MarkovPool(vocabulary=6, tokens=26)
CONTEXTS, LENGTHS = 4, (2, 4, 8, 16, 22)  # a query of two tokens follows a context
NBETA, LOCALIZATION = 1000.0, 1.0
ANSWERS = 16  # tokens of a language model whose logits are answers of a rank
# Folder, number of contexts, and number of queries of a rank, half of which are for the fit.
LANGUAGE = {"glassllm": ("glassllm-en", 6, 32), "smollm": ("smollm2-135m", 3, 16)}
DEEP = 8  # blocks from which a language model is replaced by its tail


class Among(AbstractPredictor):
    """The logits of a few tokens."""

    network: Any
    tokens: Any

    def __call__(self, prompt):
        """Logits [position, token]."""
        return self.network(prompt)[:, self.tokens]


class Tail(AbstractPredictor):
    """The last block and the readout, on streams of known sequences of tokens; NaN after others."""

    network: Transformer
    tokens: Any
    streams: Any

    @property
    def positions(self):
        """Which positions it answers."""
        return "last"

    @classmethod
    def of(cls, network, rows):
        """Compute the streams [row, token, width] of rows of tokens, which are padded with 0."""
        size = max(map(len, rows))
        rows = jnp.asarray(np.unique([[*row, *[0] * (size - len(row))] for row in rows], axis=0))
        name = f"block{len(network.blocks) - 2}"
        last = eqx.tree_at(lambda network: network.blocks, network, network.blocks[-1:])
        return cls(last, rows, _streams(network, rows, name))

    def __call__(self, prompt):
        """Logits [1, token] of the last position."""
        ids = prompt.tokens[:-1]
        same = (self.tokens[:, : len(ids)] == ids).all(axis=1)
        stream = jnp.where(same.any(), self.streams[jnp.argmax(same), : len(ids)], jnp.nan)
        trace = self.network.trace(prompt, lambda name, value: stream if name == "embedding" else value)
        return self.network.answers(trace.activations["readout"][-1:])


@eqx.filter_jit
def _streams(network, rows, name):
    def stream(row):
        return network.trace(TokenPrompt(jnp.append(row, 0))).activations[name]

    return jax.lax.map(stream, rows, batch_size=8)


class WithSlots(AbstractPredictor):
    """A network of codes that answers with symbols; slots that a prompt lacks do nothing."""

    network: Transformer
    slots: int = eqx.field(static=True)

    def __call__(self, prompt):
        """Logits [position, symbol]."""
        absent = self.slots + _codes.CELLS + 2 - len(prompt.tokens)
        idle = jnp.full(absent, _codes.SYMBOLS + _codes.NOTHING, jnp.int32)
        return self.network(TokenPrompt(jnp.concatenate([idle, prompt.tokens])))[absent:, : _codes.SYMBOLS]


def chain_network(seed):
    """Train two layers on chains, a new one in each prompt."""
    of_network, of_prompts = jax.random.split(jax.random.key(seed))
    block = BlockOptions(heads=2, mlp=(64,), norm="pre")
    sizes = {"dim": CHAINS.vocabulary, "width": 32, "layers": 2, "length": CHAINS.length, "positions": "learned"}
    network = eqx.filter_jit(lambda key: Transformer(Tokens(CHAINS.vocabulary), **sizes, block=block, key=key))
    options = {"steps": 2500, "batch": 64, "optimizer": optax.adam(3e-3), "record": Record([0], progress=False)}
    return icl.fit(network(of_network), CHAINS, **options, key=of_prompts).predictor


def dense(model):
    """The dense layers of a transformer, or of the one within."""
    while hasattr(model, "network"):
        model = model.network
    return [block.mlp for block in model.blocks]


def permuted(model, key):
    """The model with the entries of every array permuted."""
    return with_parameters(model, permute(eqx.filter(model, eqx.is_inexact_array), key))


def steps(network, task, contexts, queries, *, where, key, solver=SOLVER):
    """Rows [gap, cosine and gap of three gradients, own, shuffled and others] of each context."""
    rng, rows = np.random.default_rng(0), []
    for i in range(len(contexts.tokens)):
        context, rest = contexts.tokens[i], jnp.delete(contexts.tokens, i, axis=0)
        shuffled = jnp.asarray(rng.permutation(np.asarray(context)))
        draws = jax.vmap(TokenPrompt)(jnp.concatenate([shuffled[None], rest]))
        result = gradient_step_comparison(
            network, task, TokenPrompt(context), subspace=where, queries=queries, draws=draws, solver=solver, key=key
        )
        if not result["converged"]:
            continue
        row = [float(result["gap"])]
        for name in ("cosine", "best_step_gap"):
            others = result[f"other_{name}"]
            row += [*result[name].values, *others[:, 0].values, *others[:, 1:].mean("draw").values]
        rows.append(row)
    return np.array(rows).reshape(len(rows), -1)


def print_steps(name, rows, contexts):
    """Print means and standard errors over networks, or over contexts of one."""
    print(f"\n{name}: {contexts} contexts; the map leaves {_mean(rows[:, 0])} of the effect")
    for j, quantity in ((1, "cosine"), (10, "fraction left by the best step")):
        for k, gradient in enumerate(("answer", "sequence", "examples")):
            own, shuffled, others = (_mean(rows[:, j + k + 3 * shift]) for shift in range(3))
            print(f"  {quantity}, {gradient}: own {own}, shuffled {shuffled}, others {others}")


def ranks(model, task, context, queries, *, where, key):
    """Rank of a context's map, and the coefficients without the context and with it."""
    result = context_rank(model, task, context, subspace=where, weights=where, queries=queries, solver=SOLVER, key=key)
    half = jax.tree.map(lambda leaf: leaf[: len(leaf) // 2], queries.prompts)
    alone = jax.vmap(lambda prompt: prompt.alone(prompt.positions - 1, size=queries.length))(half)
    effect = divergence("logits", answers_after(model, context, alone), answers_alone(model, alone)).mean()
    without, after = (
        gaussian_coefficient(np.clip(values, 0, None), nbeta=NBETA, localization=LOCALIZATION)
        for values in (spectrum(result.weights, where, alone), result.eigenvalues)
    )
    return {
        "rank": result.rank,
        "query_rank": result.query_rank,
        "degeneracy": result.degeneracy,
        "without": without,
        "gap": without - after,
        "effect": float(effect),
        "converged": result.converged,
    }


def spectrum(model, where, queries):
    """Eigenvalues of the Fisher matrix of answers to queries."""
    jacobian = np.asarray(_jacobian(model, parameter_mask(model, where), queries), float)
    jacobian = jacobian.reshape(-1, jacobian.shape[-1]) / np.sqrt(len(jacobian))
    return np.linalg.eigvalsh(jacobian @ jacobian.T)


@eqx.filter_jit
def _jacobian(model, mask, queries):
    def of_query(query):
        columns = jax.jacrev(lambda part: last_answer(eqx.combine(part, model), query))(eqx.filter(model, mask))
        answer = last_answer(model, query)
        return [metric_root("logits", answer, leaf).reshape(len(answer), -1) for leaf in jax.tree.leaves(columns)]

    return jnp.concatenate(jax.vmap(of_query)(queries), axis=-1)


def chain_queries():
    """All pairs of tokens as queries, once for the fit and once more."""
    pairs = np.array(list(itertools.product(range(CHAINS.vocabulary), repeat=2)))
    pairs = np.concatenate([pairs, np.zeros((len(pairs), 1), int)], axis=1)
    return QuerySource(jax.vmap(TokenPrompt)(jnp.asarray(np.concatenate([pairs, pairs]), jnp.int32)), 2)


def of_chains(seeds):
    """Steps, ranks and gaps of networks on chains."""
    tables, rows = [], []
    for seed in range(seeds):
        network, key = chain_network(seed), jax.random.key(100 + seed)
        contexts = TokenPrompt(CHAINS.sample_many(6, key=key).tokens[:, : LENGTHS[-1] + 2])
        found = steps(network, CHAINS, contexts, chain_queries(), where=dense, key=key)
        tables.append(found.mean(axis=0))
        for length, i in itertools.product(LENGTHS, range(CONTEXTS)):
            context = TokenPrompt(contexts.tokens[i, : length + 2])
            for name, model in (("trained", network), ("permuted", permuted(network, key))):
                if name == "trained" or length == LENGTHS[-1]:
                    row = ranks(model, CHAINS, context, chain_queries(), where=dense, key=key)
                    rows.append(row | {"network": name, "seed": seed, "length": length})
    print_steps(f"chains, {seeds} networks", np.array(tables), len(contexts.tokens))
    print_ranks("chains", rows, seeds)


def print_ranks(title, rows, seeds):
    """Print ranks and gaps by the context's length, and their rank correlations."""
    print(f"\n{title}: rank of f_c, rank without context, degeneracy, coefficient without, gap, effect in nats")
    lost = np.mean([not row["converged"] for row in rows])
    print(f"  fits that did not converge: {lost:.2f}; they are left out")
    rows = [row for row in rows if row["converged"]]
    names = ("rank", "query_rank", "degeneracy", "without", "gap", "effect")
    for network, length in dict.fromkeys((row["network"], row["length"]) for row in rows):
        part = [row for row in rows if (row["network"], row["length"]) == (network, length)]
        values = [_mean(_by_seed(part, name)) for name in names]
        print(f"  {network}, context of {length}: " + ", ".join(values))
    trained = [row for row in rows if row["network"] == "trained"]
    for name in ("degeneracy", "effect"):
        kept = [[row for row in trained if row["seed"] == seed] for seed in range(seeds)]
        found = [spearmanr([r[name] for r in part], [r["gap"] for r in part]).statistic for part in kept]
        size = np.mean([len(part) for part in kept])
        print(f"  rank correlation of gap and {name}: {_mean(found)}; of a permutation 0 ± {(size - 1) ** -0.5:.2f}")


def of_language_model(path, count, rank_queries):
    """Steps and ranks in a language model, on texts that it generates; a large one is replaced by its tail."""
    lm, title = pretrained.open(path), path.name
    starts = ["Alice ", "The Queen ", "They ", "What ", "The Hatter ", "She ", "One ", "But "]
    texts = lm.generate(starts * 5, tokens=40, temperature=1.0, key=jax.random.key(0))
    ids = [lm.tokens(start + text) for start, text in zip(starts * 5, texts, strict=True)]
    ids = np.array([row[:28] for row in ids if len(row) >= 28], np.int32)
    contexts, rest = jax.vmap(TokenPrompt)(jnp.asarray(ids[:count, :26])), ids[6:]
    task = RepeatedTokens(vocabulary=lm.model.embedding.arrangement.vocabulary, period=13)
    prompts = jnp.asarray(np.concatenate([rest[:, k : k + 4] for k in (2, 14)]))
    queries = QuerySource(jax.vmap(TokenPrompt)(prompts), 3)

    def last(model):
        return dense(model)[-1]

    rows = list(sequences(contexts.tokens, prompts))

    def tail(model):
        return Tail.of(model, rows) if len(model.blocks) > DEEP else model

    network = tail(lm.model)
    found = steps(network, task, contexts, queries, where=last, key=jax.random.key(1), solver=SHORT_SOLVER)
    print_steps(f"{title}, {len(found)} converged fits", found, len(contexts.tokens))
    few = QuerySource(jax.tree.map(lambda leaf: leaf[:rank_queries], queries.prompts), 3)
    common = jnp.asarray(np.argsort(-np.bincount(ids.ravel(), minlength=task.vocabulary))[:ANSWERS])
    found = []
    for name, model in (("trained", network), ("permuted", tail(permuted(lm.model, jax.random.key(2))))):
        for i, length in itertools.product(range(min(count, CONTEXTS)), (4, 24)):
            context = TokenPrompt(contexts.tokens[i, : length + 2])
            row = ranks(
                Among(model, common), task, context, few, where=lambda m: last(m).layers[-1], key=jax.random.key(3)
            )
            found.append(row | {"network": name, "seed": 0, "length": length})
    print_ranks(f"{title}, last weights of the last block", found, 1)


def sequences(contexts, queries):
    """Yield all rows of tokens that :func:`steps` and :func:`ranks` show a network."""
    rng = np.random.default_rng(0)
    for context in np.asarray(contexts):
        yield from (context, rng.permutation(context))
        yield from ([token] for token in context)
        for query in np.asarray(queries)[:, :3]:
            yield query
            yield from ([*context[:length], *query] for length in (4, 24))


CODES = (
    ("f", (2,)),
    ("f", (5,)),
    ("g", (2,)),
    ("r", (2,)),
    ("rf", (1, 4)),
    ("fr", (1, 4)),
    ("fg", (1, 4)),
    ("gff", (1, 4, 6)),
)
KINDS = ("same code, other slots", "same answers, other code", "other answers")


def of_codes(seeds):
    """Overlaps of the directions of codes, in trained and permuted networks."""
    point = SimpleNamespace(**claim.claim.fixed, code_length=claim.LENGTHS)
    data = np.array(list(itertools.product(range(_codes.SYMBOLS), repeat=_codes.CELLS)))
    rows = {}
    for seed in range(seeds):
        of_network, of_prompts = jax.random.split(jax.random.key(200 + seed))
        trained, _ = measure.split(np.random.default_rng(seed), point, None)
        task = _codes.Codes.init(["", *trained], slots=point.slots)
        start = _codes.transformer(task, *claim.NETWORKS[claim.DEEP], key=of_network)
        network = measure.train(start, task, point, key=of_prompts)
        asked = np.concatenate([data, np.full((len(data), 1), task.vocabulary - 1), data[:, :1]], axis=1)
        queries = QuerySource(jax.vmap(TokenPrompt)(jnp.asarray(np.concatenate([asked, asked]), jnp.int32)), 4)
        for name, inner in (("trained", network), ("permuted", permuted(network, of_prompts))):
            model = WithSlots(inner, point.slots)
            results = {}
            for code, slots in CODES:
                row = np.full(point.slots, _codes.NOTHING)
                row[list(slots)] = [_codes.INSTRUCTIONS.index(i) for i in code]
                context = TokenPrompt(jnp.asarray([*(row + _codes.SYMBOLS), 0, 0], jnp.int32))
                options = {"subspace": dense, "weights": dense, "queries": queries, "solver": SOLVER}
                results[code, slots] = context_rank(model, task, context, **options, key=of_prompts)
            lost = np.mean([not result.converged for result in results.values()])
            size = np.mean([result.rank for result in results.values()])
            print(f"codes, network {seed}, {name}: mean rank {size:.1f}, fits that did not converge {lost:.2f}")
            for first, second in itertools.combinations(results, 2):
                kind = KINDS[(first[0] != second[0]) + (_codes.effect(first[0]) != _codes.effect(second[0]))]
                overlap = results[first].overlap(results[second])
                rows.setdefault((name, kind), {}).setdefault(seed, []).append(overlap)
    print("\noverlap of the directions of two codes")
    for (name, kind), by_seed in rows.items():
        print(f"  {name}, {kind}: {_mean([np.mean(values) for values in by_seed.values()])}")


def _by_seed(rows, name):
    """Means over contexts of each network, or the values of one network."""
    seeds = sorted({row["seed"] for row in rows})
    values = [[row[name] for row in rows if row["seed"] == seed] for seed in seeds]
    return values[0] if len(seeds) == 1 else [np.mean(part) for part in values]


def _mean(values):
    values = np.asarray(values, float)
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{values.mean():.2f} ± {values.std(ddof=1) / len(values) ** 0.5:.2f}"


def main():
    """Print the tables."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--only", choices=("chains", "codes", *LANGUAGE))
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--models", type=Path, default="models")
    options = options.parse_args()
    print(machine.described("jax", "numpy"))
    if options.only in (None, "chains"):
        of_chains(options.seeds)
    if options.only in (None, "codes"):
        of_codes(options.seeds)
    for name, (folder, *counts) in LANGUAGE.items():
        if options.only in (None, name):
            of_language_model(options.models / folder, *counts)


if __name__ == "__main__":
    main()
