"""Verdicts of examinations of networks whose answer is known, at the lowest rung. Resumable, one line for each.

    .venv/bin/python bench/examine.py [--first 1] [--keys 20] [--only SUBJECT] [--out FILE] [--strangers FOLDER]

Each line of the file is one examination: subject, key, and the verdict of each section. ``--table`` counts the lines:
for each section the verdicts that are right, false and undecided over the subjects, with Wilson's intervals of 95 %.
The expected verdicts were written before the first examination; a section without an expectation is not counted. Two
networks are trained once, into a folder beside the file. ``--strangers`` adds the compiled programs of that folder, as
``bench/strangers.py`` reads it.
"""

import argparse
import contextlib
import json
import math
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import icllab as icl
from icllab import algorithms, constructions, models, tasks
from icllab.algorithms.descent import GradientDescentPlusPlus
from icllab.algorithms.estimators import NearestNeighbours
from icllab.core.protocols import AbstractPredictor
from icllab.core.user_files import named
from icllab.examination.examining import examine
from icllab.examination.measuring import Mean
from icllab.examination.section import UNDECIDED
from icllab.models.networks.transformer import BlockOptions
from icllab.theory import preconditioners

DIM, LENGTH, NOISE = 8, 16, 0.25
FRESH = tasks.LinearRegression.convention("raventos", dim=DIM, length=LENGTH)
STEP = {"dim": DIM, "normalised": True, "half": True}
REPEATED = tasks.RepeatedTokens(vocabulary=32, period=12)
ITEMS = tasks.parse("item_label classes=64 labels=8 pairs=8 dim=31 position_dim=17 burstiness=2 p_novel=0.5")
RUNS = Path("examinations-runs")


def pooled(count, task=FRESH):
    """The task with a pool of so many task vectors."""
    weights = tasks.WeightPool.init(task.weights, count, DIM, key=jax.random.key(count))
    return eqx.tree_at(lambda task: task.weights, task, weights)


class Together(AbstractPredictor):
    """A fixed combination of two predictors' answers."""

    first: AbstractPredictor
    second: AbstractPredictor
    share: float = eqx.field(static=True)

    def __call__(self, prompt):
        """The answer at every position."""
        return self.share * self.first(prompt) + (1 - self.share) * self.second(prompt)


class Targets(AbstractPredictor):
    """The target itself, which a predictor must not see."""

    def __call__(self, prompt):
        """The answer at every position."""
        return prompt.y


class Scaled(AbstractPredictor):
    """Answers in other units."""

    predictor: AbstractPredictor
    factor: float = eqx.field(static=True)

    def __call__(self, prompt):
        """The answer at every position."""
        return self.factor * self.predictor(prompt)


class Mispaired(AbstractPredictor):
    """A predictor that reads each label beside the input of the example after it."""

    predictor: AbstractPredictor

    def __call__(self, prompt):
        """The answer at every position."""
        return self.predictor(eqx.tree_at(lambda p: p.x, prompt, jnp.roll(prompt.x, 1, axis=0)))


class Mesa(AbstractPredictor):
    r"""A layer that solves least squares on its keys: :math:`v = G H^{-1} q`, :math:`H = KK^\top + \Lambda`.

    Source: [vonOswald25].
    """

    ridge: jax.Array
    keys: jax.Array

    def __call__(self, prompt):
        """The answer at every position."""
        k = prompt.x @ self.keys

        def answer(i):
            before = (jnp.arange(len(k)) < i)[:, None] * k
            matrix = before.T @ before + self.ridge * self.keys.T @ self.keys
            return k[i] @ jnp.linalg.solve(matrix, before.T @ prompt.y)

        return jax.vmap(answer)(jnp.arange(len(k)))


class NearestItem(AbstractPredictor):
    """The label of the item that is nearest to the query."""

    classes: int = eqx.field(static=True)
    positions = "last"

    def __call__(self, prompt):
        """Logits [1, class]."""
        near = jnp.argmin(jnp.sum((prompt.items[:-1] - prompt.items[-1:]) ** 2, -1))
        return 10 * jax.nn.one_hot(prompt.labels[near], self.classes)[None]


class ByHeart(AbstractPredictor):
    """The label of the nearest class mean, whatever the context shows."""

    means: jax.Array
    classes: int = eqx.field(static=True)
    positions = "last"

    def __call__(self, prompt):
        """Logits [1, class]."""
        near = jnp.argmax(self.means @ prompt.items[-1])
        return 3 * jax.nn.one_hot(near % self.classes, self.classes)[None]


class SameToken(AbstractPredictor):
    """The present token once more, at every position."""

    vocabulary: int = eqx.field(static=True)

    def __call__(self, prompt):
        """Logits [position, token]."""
        return 10 * jax.nn.one_hot(prompt.tokens[: prompt.positions], self.vocabulary)


def untrained(key):
    """A transformer at its initial weights."""
    block = BlockOptions(heads=4, mlp=(128,), norm="pre")
    options = {"dim": DIM, "width": 32, "layers": 2, "block": block, "positions": "learned", "length": LENGTH}
    return models.Transformer(models.Interleaved(), **options, key=key)


def descent(layers, rate=0.5):
    """Steps of descent at a fixed rate."""
    return algorithms.GradientDescent(rate, layers=layers, **STEP)


def trained(task):
    """A transformer after 4000 steps on a task, from its store if that is there."""
    options = {"steps": 4000, "batch": 64, "key": jax.random.key(8), "store": RUNS / f"{type(task.weights).__name__}"}
    return icl.fit(untrained(jax.random.key(6)), task, **options).predictor


RIDGE = algorithms.bayes_optimal(FRESH)
FEW, POOLED = pooled(4), pooled(64)
SHORT = tasks.LinearRegression.convention("raventos", dim=DIM, length=DIM)  # dMMSE and ridge are far apart
HALVES = pooled(8, SHORT)
ENDS = algorithms.bayes_optimal(HALVES), algorithms.bayes_optimal(SHORT)
OPTIMAL = float(preconditioners.optimal(np.eye(DIM), length=LENGTH, noise_variance=NOISE)[0][0, 0])
# Name -> network of a key, task, and the expected verdicts by section.
SUBJECTS = {
    "descent_1": (lambda key: constructions.gradient_descent(descent(1)), FRESH, {
        "contract": "sound", "in_context": "learns in context", "algorithm": "1 step of descent"}),
    "descent_3": (lambda key: constructions.gradient_descent(descent(3)), FRESH, {
        "contract": "sound", "in_context": "learns in context", "algorithm": "3 steps of descent"}),
    "gdpp_2": (lambda key: GradientDescentPlusPlus.scalar(0.5, 0.2, layers=2, **STEP), FRESH, {
        "contract": "sound", "in_context": "learns in context", "algorithm": "2 steps of GD++"}),
    "ridge": (lambda key: RIDGE, FRESH, {
        "contract": "sound", "in_context": "learns in context", "algorithm": "ridge", "theory": "agrees with ridge",
        "elsewhere": "holds up everywhere"}),
    "ridge_on_a_pool": (lambda key: RIDGE, POOLED, {
        "contract": "sound", "in_context": "learns in context", "algorithm": "ridge", "memorising": "general"}),
    "dmmse": (lambda key: algorithms.bayes_optimal(POOLED), POOLED, {
        "contract": "sound", "in_context": "learns in context", "algorithm": "dMMSE", "memorising": "memorised",
        "elsewhere": "fails on fresh tasks"}),
    "nearest": (lambda key: NearestNeighbours(1), FRESH, {"contract": "sound", "algorithm": "nearest"}),
    "averaging": (lambda key: Mean(), FRESH, {
        "in_context": "does not learn in context", "algorithm": "mean"}),
    "mesa": (lambda key: Mesa(jnp.asarray(NOISE), jax.random.normal(jax.random.key(3), (DIM, DIM))), FRESH, {
        "contract": "sound", "in_context": "learns in context", "algorithm": "ridge", "theory": "agrees with ridge"}),
    "untrained": (lambda key: untrained(jax.random.key(5)), FRESH, {
        "contract": "sound", "in_context": "does not learn in context", "algorithm": "none of these"}),
    "mispaired": (lambda key: Mispaired(RIDGE), FRESH, {
        "in_context": "does not learn in context", "algorithm": "none of these"}),
    "half_and_half": (lambda key: Together(RIDGE, NearestNeighbours(1), 0.5), FRESH, {
        "contract": "sound", "in_context": "learns in context", "algorithm": "none of these"}),
    "cheat": (lambda key: Together(RIDGE, Targets(), 0.5), FRESH, {"contract": "not causal"}),
    "other_units": (lambda key: Scaled(RIDGE, 10.0), FRESH, {
        "contract": "other units", "in_context": "does not learn in context", "algorithm": "none of these"}),
    "half_pool": (lambda key: Together(*ENDS, 0.5), HALVES, {
        "contract": "sound", "in_context": "learns in context", "algorithm": "none of these"}),
    "linear_attention": (lambda key: constructions.gradient_descent(descent(1, OPTIMAL)), FRESH, {
        "contract": "sound", "in_context": "learns in context", "algorithm": "1 step of descent",
        "theory": "agrees with optimum of one linear layer"}),
    "trained_on_few": (lambda key: trained(FEW), FEW, {
        "contract": "sound", "in_context": "learns in context", "memorising": "memorised",
        "elsewhere": "fails on fresh tasks"}),
    "trained_on_fresh": (lambda key: trained(FRESH), FRESH, {"contract": "sound", "in_context": "learns in context"}),
    "nearest_item": (lambda key: NearestItem(8), ITEMS, {
        "contract": "sound", "in_context": "learns in context", "algorithm": "nearest item",
        "memorising": "general"}),
    "by_heart": (lambda key: ByHeart(ITEMS.means, 8), ITEMS, {
        "contract": "sound", "algorithm": "none of these", "memorising": "memorised"}),
    "same_token": (lambda key: SameToken(32), REPEATED, {
        "contract": "sound", "in_context": "does not learn in context", "algorithm": "same token"}),
    "induction": (lambda key: constructions.induction_head(32, tokens=24, read=10.0), REPEATED, {
        "contract": "sound", "in_context": "learns in context", "algorithm": "induction", "heads": "carried by heads"}),
}  # fmt: skip


# Program of a compiled folder -> its folder, the function that loads it, what its task goes without, and the verdicts.
COMPILED = {
    "tracr_induction": ("tracr_induction", "induction", "", {
        "contract": "sound", "in_context": "learns in context", "algorithm": "induction", "heads": "carried by heads"}),
    "tracr_not_causal": ("tracr_induction", "induction_not_causal", "", {"contract": "not causal"}),
    "firebrand_induction": ("firebrand_induction", "load", "", {
        "contract": "sound", "in_context": "learns in context", "algorithm": "induction", "heads": "carried by heads"}),
    "firebrand_two_places": ("firebrand_induction", "load", "distinct", {"algorithm": "induction, newest"}),
}  # fmt: skip


def compiled(folder):
    """The compiled programs of a folder, as subjects."""
    import strangers

    subjects = {}
    RUNS.mkdir(exist_ok=True)
    ids = (RUNS / "ids.npy").resolve()
    for name, (place, function, without, wanted) in COMPILED.items():
        make, text = strangers.ADAPTERS[place]
        if without:
            text = text.replace(f"{without}=true", "")
        with contextlib.chdir(folder / place):
            network = make(icl.network(f"network.py:{function}").module)
            if place == "firebrand_induction":
                words = named("network.py:vocabulary")[1]()
                np.save(ids, [words[str(number)] for number in range(16)])
                text += f" first={words['<bos>']} ids={ids}"
            subjects[name] = (lambda key, network=network: network), tasks.parse(text), wanted
    return subjects


def examined(name, seed):
    """One examination, as a line of the file."""
    make, task, wanted = SUBJECTS[name]
    key, start = jax.random.key(seed), time.perf_counter()
    found = examine(make(key), task, key=key, size="small", only=list(wanted))
    verdicts = {s.name: s.finding.verdict if s.finding else f"{s.status}: {s.reason}" for s in found.sections}
    return {"subject": name, "key": seed, "seconds": time.perf_counter() - start, "verdicts": verdicts}


def wilson(hits, count):
    """Wilson's interval of 95 % of a proportion."""
    if not count:
        return math.nan, math.nan
    z, share = 1.96, hits / count
    centre, half = share + z**2 / (2 * count), z * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return (centre - half) / (1 + z**2 / count), (centre + half) / (1 + z**2 / count)


def table(lines):
    """Print right, false and undecided verdicts by section, and the subjects with more than one false one."""
    counts, false_of = {}, {}
    for line in lines:
        for section, wanted in SUBJECTS[line["subject"]][2].items():
            verdict = line["verdicts"].get(section, "missing")
            kind = "right" if verdict == wanted else "undecided" if verdict == UNDECIDED else "false"
            counts.setdefault(section, {"right": 0, "false": 0, "undecided": 0})[kind] += 1
            if kind == "false":
                false_of.setdefault((line["subject"], section), []).append(verdict)
    print("| section | examinations | right | false | undecided |\n|---|---|---|---|---|")
    for section, row in counts.items():
        total = sum(row.values())
        parts = [
            f"{row[k] / total:.1%} ({wilson(row[k], total)[0]:.1%} to {wilson(row[k], total)[1]:.1%})" for k in row
        ]
        print(f"| {section} | {total} | {' | '.join(parts)} |")
    for (subject, section), verdicts in false_of.items():
        print(f"false: {subject}, {section}: {len(verdicts)} times, such as {verdicts[0]!r}")


def main():
    """Examine what the file lacks, and print the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--first", type=int, default=1, help="the first key")
    options.add_argument("--keys", type=int, default=20, help="the number of keys")
    options.add_argument("--strangers", type=Path, help="folder of compiled programs")
    options.add_argument("--only", default="", help="subjects whose name has this text")
    options.add_argument("--out", type=Path, default=Path("examinations.jsonl"))
    options.add_argument("--table", action="store_true", help="count what is there; examine nothing")
    options = options.parse_args()
    icl.cache_compilations()
    if options.strangers:
        SUBJECTS.update(compiled(options.strangers.resolve()))
    lines = [json.loads(text) for text in options.out.read_text().splitlines()] if options.out.is_file() else []
    there = {(line["subject"], line["key"]) for line in lines}
    for name in SUBJECTS:
        for seed in range(options.first, options.first + options.keys):
            if options.only in name and (name, seed) not in there and not options.table:
                lines.append(examined(name, seed))
                with options.out.open("a") as file:
                    file.write(json.dumps(lines[-1]) + "\n")
                print(json.dumps(lines[-1]), flush=True)
    table([line for line in lines if line["subject"] in SUBJECTS and line["key"] >= options.first])


if __name__ == "__main__":
    main()
