"""Attention-only networks trained on periodic strings: what they copy as they train, and by which attention."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import icllab as icl
from iclbook.claims.induction import _networks
from iclbook.claims.induction.copying_in_context.claim import ABLATIONS, PREVIOUS
from icllab import models
from icllab.core.grid import tabulated
from icllab.core.prompt import TokenPrompt
from icllab.diagnostics.behaviour import heads
from icllab.tasks import PeriodicStrings
from icllab.tasks.sequences import AbstractTokens
from icllab.training import Record

VERSION = 2

CURVES = ("accuracy", "held_out_accuracy", "previous_token_score", "induction_score")


def measure(point, *, key, shuffled=False, layers=None, shifted=False, made_up=None):
    """Networks of one depth, all seeds.

    ``shuffled``: the tokens of a prompt of training come in any order. ``layers``: the depth whatever the cell's is.
    ``shifted``: the target of an ablation is the token's earlier self. ``made_up``: curves of :func:`gradual_curves`.
    """
    if made_up is not None:
        return tabulated(lambda seed: gradual_curves(point, seed), seed=point.seed)
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
        params, static = _networks.member_trajectory(run, 0)
        batch = test.sample_many(point.prompts, key=of_tests)
        curves, by_period, by_ablation = _copied(params, static, task, batch, jnp.asarray(point.period), shifted)
        columns = {name: (("step",), values) for name, values in zip(CURVES, curves, strict=True)}
        columns |= {"period_accuracy": (("period",), by_period), "ablation_accuracy": (("ablation",), by_ablation)}
        return {name: (axes, np.asarray(values, float)) for name, (axes, values) in columns.items()}

    return tabulated(at, seed=point.seed)


def gradual_curves(point, seed):
    """Made-up curves of both kinds in turn, each near its end exponentially, with the noise of the prompts."""
    rng, step, needs = np.random.default_rng(seed), np.asarray(point.step), seed % 2 == 0
    time = (900 if needs else 300) * np.exp(0.1 * rng.normal())

    def measured(chance):
        return rng.binomial(point.prompts, chance) / point.prompts

    curves = {name: 1 - 0.95 * np.exp(-step / time) for name in CURVES}
    curves["induction_score"] = 1 - 0.95 * np.exp(-step / (3 * time))
    columns = {name: (("step",), measured(chance)) for name, chance in curves.items()}
    columns["period_accuracy"] = (("period",), measured(np.full(len(point.period), 0.7)))
    left = np.array([0.1 if needs and name == PREVIOUS else 0.9 for name in point.ablation])
    return columns | {"ablation_accuracy": (("ablation",), measured(left))}


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
    block = models.BlockOptions(heads=1, mlp=None, norm="none")
    sizes = {"dim": task.vocabulary, "width": width, "layers": layers, "length": task.length}
    return models.Transformer(models.Tokens(task.vocabulary), **sizes, block=block, positions="learned", key=key)


@eqx.filter_jit
def _copied(params, static, task, batch, periods, shifted):
    """Curves of :data:`CURVES`, [curve, step]; after the last step accuracies by period, and under each ablation."""
    names = [f"block{i}.attention.pattern" for i in (0, len(static.blocks) - 1)]
    every = jax.vmap(task.period)(batch)
    copies, held_out = jax.vmap(task.copied)(batch), jax.vmap(task.of_held_out_pairs)(batch)
    trained = ((every >= task.shortest) & (every <= task.longest))[:, None]
    parts = copies & ~held_out & trained, copies & held_out & trained

    def at(step):
        def answer(prompt):
            trace = eqx.combine(step, static).trace(prompt)
            first, last = (trace.activations[name][0] for name in names)
            scores = heads.previous_token_score(first), heads.induction_score(last, prompt.tokens[:-1])
            return task.accuracy(trace.prediction, prompt), jnp.stack(scores)

        correct, scores = jax.vmap(answer)(batch)
        return jnp.stack([*(_mean(correct, part) for part in parts), *jnp.mean(scores, axis=0)])

    def under(ablation):
        def answer(prompt):
            masks = _kept(prompt.tokens[:-1], shifted)[ablation]

            def edit(name, value):
                for i, label in enumerate(names):  # of one layer both are the same pattern
                    value = value * masks[i][None] if name == label else value
                return value

            return task.accuracy(network.trace(prompt, edit).prediction, prompt)

        return jax.vmap(answer)(batch)

    network = eqx.combine(jax.tree.map(lambda leaf: leaf[-1], params), static)
    whole, *by_ablation = jax.lax.map(under, jnp.arange(1 + len(ABLATIONS)))
    by_period = [_mean(whole, copies & ~held_out & (every == period)[:, None]) for period in periods]
    without = [_mean(correct, parts[0]) for correct in by_ablation]
    return jnp.moveaxis(jax.lax.map(at, params), -1, 0), jnp.stack(by_period), jnp.stack(without)


def _kept(tokens, shifted=False):
    """Entries of the first pattern and of the last that are kept: of nothing set to zero, and under each ablation.

    ``shifted``: the target is the token's earlier self.
    """
    equal = tokens[:, None] == tokens[None]
    previous, repeats = jnp.eye(len(tokens), k=-1, dtype=bool), jnp.tril(equal, -1)
    target = repeats if shifted else jnp.pad(repeats[:, :-1], ((0, 0), (1, 0)))
    every = jnp.ones_like(equal)
    masks = {
        "previous token": (~previous, every),
        "same token": (~repeats, every),
        "induction target": (every, ~target),
        "all but induction target": (every, target),
    }
    return jnp.array([(every, every), *(masks[name] for name in ABLATIONS)], float)


def _mean(values, mask):
    return jnp.sum(jnp.where(mask, values, 0)) / jnp.sum(mask).astype(values.dtype)
