"""Transformers trained on half of all short codes, and their accuracy at trained, new and longer codes."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import icllab as icl
from iclbook.claims.routing import _codes
from iclbook.claims.routing.codes.claim import NETWORKS
from icllab.core.grid import tabulated
from icllab.models.torch_derivatives import with_autograd
from icllab.training import Record

VERSION = 1

RATE = 5e-3  # of Adam at the start; a cosine leads to zero


def measure(point, *, key, few=None, scrambled=False, exchanged=False):
    """Accuracy of every seed at trained and new codes of each length.

    ``few``: number of codes that are trained, in the place of half of them. ``scrambled``: a code of training is
    answered as another code of its length. ``exchanged``: new codes that are longer than training's exchange their
    accuracies with the longest of the others.
    """

    def of_seed(seed):
        of_network, of_prompts, of_slots = jax.random.split(jax.random.fold_in(key, seed), 3)
        rng = np.random.default_rng([seed, *np.asarray(jax.random.key_data(of_prompts))])
        trained, new = split(rng, point, few)
        answers = ["", *permuted(rng, trained)] if scrambled else None
        task = _codes.Codes.init(["", *trained], slots=point.slots, answers=answers)
        network = _codes.transformer(task, *NETWORKS[point.network], key=of_network)
        network = train(network, task, point, key=of_prompts)
        groups = [sampled(rng, codes, length, point.codes) for codes in (trained, new) for length in point.code_length]
        table = group_accuracies(network, groups, point.slots, key=of_slots)
        table = table.reshape(2, len(point.code_length))
        return {"code_accuracy": (("group", "code_length"), exchange(table, point) if exchanged else table)}

    return tabulated(of_seed, seed=point.seed)


def split(rng, point, few):
    """Codes to train and other codes: halves of all up to the longest of training; longer ones are never trained."""
    codes = _codes.all_codes(range(1, point.longest + 1))
    order = rng.permutation(len(codes))
    count = len(codes) // 2 if few is None else few
    trained, new = ([codes[i] for i in rows] for rows in (order[:count], order[len(codes) // 2 :]))
    longer = [length for length in point.code_length if length > point.longest]
    drawn = rng.integers(len(_codes.INSTRUCTIONS), size=(len(longer), point.codes, max(longer, default=0)))
    for length, rows in zip(longer, drawn, strict=True):
        new += ["".join(_codes.INSTRUCTIONS[i] for i in row[:length]) for row in rows]
    return trained, new


def permuted(rng, codes):
    """Another code of the same length in the place of each, at random."""
    result = list(codes)
    for length in sorted({len(code) for code in codes}):
        places = [i for i, code in enumerate(codes) if len(code) == length]
        for place, source in zip(places, rng.permutation(places), strict=True):
            result[place] = codes[source]
    return result


def sampled(rng, codes, length, count):
    """At most ``count`` codes of a length, all different if codes are."""
    candidates = [code for code in codes if len(code) == length]
    return [candidates[i] for i in rng.permutation(len(candidates))[:count]]


def train(network, task, point, *, key):
    """Train a network on fresh prompts of the task."""
    optimizer = optax.adam(optax.cosine_decay_schedule(RATE, point.updates))
    record = Record([0], progress=False)
    options = {"steps": point.updates, "batch": point.batch, "optimizer": optimizer, "record": record}
    return icl.fit(network, task, **options, key=key).predictor


def group_accuracies(network, groups, slots, *, key):
    """Mean accuracy of each group of codes; NaN of an empty group."""
    codes = [code for group in groups for code in group]
    test = _codes.Codes.init(codes, slots=slots)
    keys = jax.random.split(key, len(codes))
    right = np.asarray(_codes.accuracies(with_autograd(network), test, jnp.arange(len(codes)), keys), float)
    ends = np.cumsum([len(group) for group in groups])[:-1]
    return np.array([part.mean() if len(part) else np.nan for part in np.split(right, ends)])


def exchange(table, point):
    """The table with the accuracies of longer new codes and of the longest others exchanged."""
    columns = np.arange(len(point.code_length))
    longer = columns[np.array(point.code_length) > point.longest]
    others = longer - len(longer)
    table = table.copy()
    table[1, [*others, *longer]] = table[1, [*longer, *others]]
    return table
