"""Item-label prompts of code that descends from Reddy's, beside ours: moments of 100,000 prompts of either.

A difference is the largest over nine means, in standard errors: slots of the query's class and of the target, pairs of
slots of one class and of one label, the target, the label and the known class of the first slot, the first place, and
the squared distance of the query to items of its class.
"""

import dataclasses
import sys

import jax
import numpy as np

from icllab.tasks import ItemLabel, PromptMixture

PEER = "jessegeerts/icl-data-dependence"
FILES = ("datasets_v2.py",)
CLASSES, LABELS, PAIRS, DIM, PLACES = 128, 32, 8, 63, 32
PROMPTS, BATCH = 100_000, 10_000
SHARED = (
    "theirs draws the classes of a novel prompt from 128, so that two may be one: 2.047 slots of the query's, not 2"
)
BLIND = "theirs draws classes uniformly where they do not repeat, whatever the Zipf exponent it is given"


def VERSION(checkout):
    """The commit."""
    from peers import commit

    return commit(checkout, *FILES)


def statistics(items, labels, shift, means):
    """Nine numbers of every prompt; items of one class are those at an angle whose cosine exceeds 0.8."""
    apart = np.sum((items[:, :-1] - items[:, -1:]) ** 2, axis=2)
    items, means = (rows / np.linalg.norm(rows, axis=-1, keepdims=True) for rows in (items, means))
    products, known = np.einsum("nid,njd->nij", items, items), items[:, 0] @ means.T
    same, alike = products[:, :-1, :-1] > 0.8, labels[:, :-1, None] == labels[:, None, :-1]
    near = products[:, -1, :-1] > 0.8
    upper = np.triu(np.ones((PAIRS, PAIRS), bool), 1)
    return np.stack(
        [
            near.sum(axis=1),
            (labels[:, :-1] == labels[:, -1:]).sum(axis=1),
            (same & upper).sum(axis=(1, 2)),
            (alike & upper).sum(axis=(1, 2)),
            labels[:, -1],
            labels[:, 0],
            np.where(np.max(known, axis=1) > 0.8, np.argmax(known, axis=1), -1),
            shift,
            np.where(near, apart, 0).sum(axis=1),
        ],
        axis=1,
    )


def standard_errors(one, other):
    """The largest difference of two samples' means."""
    spread = np.sqrt(one.var(axis=0) / len(one) + other.var(axis=0) / len(other))
    gap = np.abs(one.mean(axis=0) - other.mean(axis=0))
    return float(np.max(np.divide(gap, spread, out=np.where(gap > 0, np.inf, 0.0), where=spread > 0)))


def theirs(peer, vectors, means, options):
    """The statistics of their prompts, batch by batch: 100,000 at once are two gigabytes."""
    rows, shown = [], np.asarray(vectors)
    for _ in range(PROMPTS // BATCH):
        of_class = np.tile(np.arange(LABELS), CLASSES // LABELS)
        inputs, targets = peer.generate_input_seqs(shown, means, of_class, BATCH, PAIRS, PLACES, eps=0.1, **options)
        inputs = np.asarray(inputs)
        content = inputs[:, :, 2 * PLACES + 1 :]
        context = np.argmax(content[:, 1::2] @ shown.T, axis=2)
        target = np.argmax(np.asarray(targets), axis=1)
        if options.get("flip_labels"):  # there the test adds one to the target
            target = (target + 1) % LABELS
        shift = np.argmax(inputs[:, 0, : 2 * PLACES + 1], axis=1)
        rows.append(statistics(content[:, ::2], np.column_stack([context, target]), shift, means))
    return np.concatenate(rows)


def ours(task, means, seed):
    """The statistics of our prompts."""
    rows = []
    for key in jax.random.split(jax.random.key(seed), PROMPTS // BATCH):
        prompts = jax.tree.map(np.asarray, task.sample_many(BATCH, key=key))
        rows.append(statistics(prompts.items, prompts.labels, prompts.shift, means))
    return np.concatenate(rows)


def cases(checkout):
    """Every setting in which both have a distribution, and the two in which theirs is not the stated one."""
    sys.path.insert(0, str(checkout))
    try:
        import datasets_v2 as peer
    finally:
        sys.path.remove(str(checkout))
    np.random.seed(0)  # noqa: NPY002 (the peer draws from it)
    stated, code = (
        ItemLabel.convention(name, classes=CLASSES, key=jax.random.key(1)) for name in ("reddy", "reddy_code")
    )
    means, vectors = np.asarray(stated.means), np.asarray(stated.label_vectors)

    def task(base, exponent=0.0, mixture=(1.0, 0.0), **fields):
        fields = {"burstiness": 2, "mixture": PromptMixture(*mixture)} | fields
        return dataclasses.replace(base, zipf_exponent=exponent, **fields)

    p = np.arange(1.0, CLASSES + 1) ** -1.5
    p /= p.sum()
    name, bursty = "generate_input_seqs", {"B": 2, "p_B": 1.0, "P": p}
    novel, plain = {"B": 2, "p_B": 0.0, "p_C": 1.0}, {"B": 0, "P": p}
    mixed, distinct = {"B": 2, "p_B": 0.5, "p_C": 0.4, "P": p}, bursty | {"no_repeats": True}
    code_name, stated_name = ('tasks.ItemLabel.convention("reddy_code")', 'tasks.ItemLabel.convention("reddy")')
    rows = (
        ("bursty prompts, Zipf exponent 1.5", bursty, stated_name, task(stated, 1.5), ""),
        ("plain prompts", plain, stated_name, task(stated, 1.5, (0.0, 0.0)), ""),
        (
            "labels replaced by the next",
            bursty | {"flip_labels": True},
            stated_name,
            task(stated, 1.5, swapped=True),
            "",
        ),
        ("novel prompts, their rule", novel, code_name, task(code, 0.0, (1.0, 1.0)), ""),
        ("novel prompts, as stated", novel, stated_name, task(stated, 0.0, (1.0, 1.0)), SHARED),
        ("a mixture of all, their rule", mixed, code_name, task(code, 1.5, (0.5, 0.4)), ""),
        ("classes without repeats, their rule", distinct, code_name, task(code, 1.5, no_repeats=True), ""),
        ("classes without repeats, as stated", distinct, stated_name, task(stated, 1.5, no_repeats=True), BLIND),
    )
    for seed, (text, options, label, law, note) in enumerate(rows):
        difference = standard_errors(theirs(peer, vectors, means, options), ours(law, means, seed))
        yield {
            "case": text,
            "theirs": f"{name}({', '.join(f'{k}={v}' for k, v in options.items() if k != 'P')})",
            "ours": label,
            "difference": difference,
            "unit": "standard errors",
            "tolerance": 4.0,
            "note": note,
        }
