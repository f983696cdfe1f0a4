"""Attention-only networks trained on periodic strings: what they copy as they train, and by which attention."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import icllab as icl
from icllab import models
from icllab.claims.induction.copying_in_context.claim import ABLATIONS
from icllab.core.grid import tabulated
from icllab.core.prompt import TokenPrompt
from icllab.diagnostics.behaviour import heads
from icllab.tasks import PeriodicStrings
from icllab.tasks.sequences import AbstractTokens
from icllab.training import Record

VERSION = 1

CURVES = ("accuracy", "held_out_accuracy", "previous_token_score", "induction_score")


def measure(point, *, key, shuffled=False, layers=None):
    """Networks of one depth, all seeds.

    ``shuffled``: the tokens of a prompt of training come in any order. ``layers``: the depth whatever the cell's is.
    """
    sizes = {"vocabulary": point.vocabulary, "tokens": point.tokens}
    task = PeriodicStrings(shortest=point.shortest, longest=point.longest, held_out=point.held_out, **sizes)
    test = PeriodicStrings(shortest=min(point.period), longest=max(point.period), **sizes)
    training = Shuffled(task) if shuffled else task

    def at(seed):
        of_network, of_prompts, of_tests = jax.random.split(jax.random.fold_in(key, seed), 3)
        start = _network(task, layers=layers or point.layers, width=point.width, key=of_network)
        run = icl.fit(
            start,
            training,
            steps=max(point.step),
            key=of_prompts,
            batch=point.batch,
            optimizer=adam,
            sweep={"optimizer.rate": [point.learning_rate]},
            record=Record([0], keep=point.step, progress=False),
        )
        params = jax.tree.map(jnp.asarray, run.trajectory.stacked(0))
        rest = jax.tree.map(lambda leaf: leaf[0] if eqx.is_array(leaf) else leaf, run.trajectory.rest)
        asked = test.sample_many(point.prompts, key=of_tests)
        curves, by_period, ablated = _copied(params, rest, task, asked, jnp.asarray(point.period))
        found = {name: (("step",), values) for name, values in zip(CURVES, curves, strict=True)}
        found |= {"period_accuracy": (("period",), by_period), "ablation_accuracy": (("ablation",), ablated)}
        return {name: (axes, np.asarray(values, float)) for name, (axes, values) in found.items()}

    return tabulated(at, seed=point.seed)


class Shuffled(AbstractTokens):
    """Prompts of a task whose tokens come in any order: as often as before, and no pair of them comes again."""

    task: PeriodicStrings

    @property
    def vocabulary(self):
        """Tokens of the task."""
        return self.task.vocabulary

    @property
    def tokens(self):
        """Tokens of a prompt."""
        return self.task.tokens

    def sample(self, *, key):
        """One sequence."""
        of_order, of_prompt = jax.random.split(key)
        return TokenPrompt(jax.random.permutation(of_order, self.task.sample(key=of_prompt).tokens))


def adam(rate):
    """One object for all cells."""
    return optax.adam(rate)


@eqx.filter_jit
def _network(task, *, layers, width, key):
    """One head a layer and nothing but attention."""
    shape = {"dim": task.vocabulary, "width": width, "layers": layers}
    block = models.BlockOptions(heads=1, mlp=None, norm="none")
    return models.Transformer(
        models.Tokens(task.vocabulary), block=block, positions="learned", length=task.length, key=key, **shape
    )


@eqx.filter_jit
def _copied(params, rest, task, asked, periods):
    """Curves of :data:`CURVES`, [curve, step]; after the last step accuracies by period, and under each ablation."""
    names = [f"block{i}.attention.pattern" for i in (0, len(rest.blocks) - 1)]
    every = jax.vmap(task.period)(asked)
    seen, held_out = jax.vmap(task.copied)(asked), jax.vmap(task.of_held_out_pairs)(asked)
    trained = ((every >= task.shortest) & (every <= task.longest))[:, None]
    parts = seen & ~held_out & trained, seen & held_out & trained

    def at(step):
        def one(prompt):
            trace = eqx.combine(step, rest).trace(prompt)
            first, last = (trace.activations[name][0] for name in names)
            scores = heads.previous_token_score(first), heads.induction_score(last, prompt.tokens[:-1])
            return task.accuracy(trace.prediction, prompt), jnp.stack(scores)

        correct, scores = jax.vmap(one)(asked)
        return jnp.stack([*(_mean(correct, part) for part in parts), *jnp.mean(scores, axis=0)])

    def under(ablation):
        def one(prompt):
            kept = _kept(prompt.tokens[:-1])[ablation]

            def edit(name, value):
                for i, called in enumerate(names):  # of one layer both are the same pattern
                    value = value * kept[i][None] if name == called else value
                return value

            return task.accuracy(network.trace(prompt, edit).prediction, prompt)

        return jax.vmap(one)(asked)

    network = eqx.combine(jax.tree.map(lambda leaf: leaf[-1], params), rest)
    whole, *ablated = jax.lax.map(under, jnp.arange(1 + len(ABLATIONS)))
    by_period = [_mean(whole, seen & ~held_out & (every == period)[:, None]) for period in periods]
    without = [_mean(correct, parts[0]) for correct in ablated]
    return jnp.moveaxis(jax.lax.map(at, params), -1, 0), jnp.stack(by_period), jnp.stack(without)


def _kept(tokens):
    """Entries of the first pattern and of the last that are kept: of nothing set to zero, and under each ablation."""
    same = tokens[:, None] == tokens[None]
    previous, repeated = jnp.eye(len(tokens), k=-1, dtype=bool), jnp.tril(same, -1)
    target = jnp.pad(repeated[:, :-1], ((0, 0), (1, 0)))
    every = jnp.ones_like(same)
    kept = {
        "previous token": (~previous, every),
        "same token": (~repeated, every),
        "induction target": (every, ~target),
        "all but induction target": (every, target),
    }
    return jnp.array([(every, every), *(kept[name] for name in ABLATIONS)], float)


def _mean(values, where):
    return jnp.sum(jnp.where(where, values, 0)) / jnp.sum(where).astype(values.dtype)
