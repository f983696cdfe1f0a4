"""Prompts and a network of Singh et al. beside ours: moments of 100,000 prompts of either, and the same answers.

A difference of prompts is the largest over ten means, in standard errors: the query's class, slots of it, pairs of
slots of one class and of one label, slots that show the target, the target, the class and the label of the first slot,
slots of the query's class and exemplar, and the squared distance of items to their exemplars.
"""

import functools
import itertools
import sys
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from icllab.models import BlockOptions, Interleaved, Transformer
from icllab.models.networks.attention import Rotary
from icllab.tasks import ItemBursts, Mixture

PEER = "aadityasingh/icl-dynamics"
FILES = ("models.py", "samplers.py")
CLASSES, EXEMPLARS, DIM, PROMPTS = 12, 3, 16, 100_000


def VERSION(checkout):
    """The commit."""
    from peers import commit

    return commit(checkout, *FILES)


def imported(checkout):
    """Their samplers and networks; of nptyping, which only annotates, a stand-in where it is not installed."""
    annotations = types.ModuleType("nptyping")
    annotations.NDArray, annotations.Int = dict, int
    sys.modules.setdefault("nptyping", annotations)
    sys.path.insert(0, str(checkout))
    try:
        import models
        import samplers
    finally:
        sys.path.remove(str(checkout))
    return samplers, models


def statistics(items, labels, data):
    """Ten numbers of every prompt; an item's class and exemplar are those of the nearest row."""
    items, labels, rows = np.asarray(items), np.asarray(labels), data.reshape(-1, DIM)
    nearest = np.argmax(items @ rows.T - np.sum(rows**2, axis=1) / 2, axis=2)
    classes, context = nearest // EXEMPLARS, labels[:, :-1]
    upper = np.triu(np.ones((context.shape[1],) * 2, bool), 1)
    of_class = classes[:, :-1] == classes[:, -1:]
    return np.stack(
        [
            classes[:, -1],
            of_class.sum(axis=1),
            ((classes[:, :-1, None] == classes[:, None, :-1]) & upper).sum(axis=(1, 2)),
            ((context[:, :, None] == context[:, None]) & upper).sum(axis=(1, 2)),
            (context == labels[:, -1:]).sum(axis=1),
            labels[:, -1],
            classes[:, 0],
            context[:, 0],
            (nearest[:, :-1] == nearest[:, -1:]).sum(axis=1),
            ((items - rows[nearest]) ** 2).sum(axis=(1, 2)),
        ],
        axis=1,
    )


def standard_errors(one, other):
    """The largest difference of two samples' means; numbers that do not vary are equal up to rounding."""
    spread = np.sqrt(one.var(axis=0) / len(one) + other.var(axis=0) / len(other))
    return float(np.max(np.abs(one.mean(axis=0) - other.mean(axis=0)) / np.maximum(spread, 1e-6)))


def prompts(samplers):
    """Cases of prompts: text, names of both, their arrays and ours."""
    rng = np.random.default_rng(0)
    data = rng.normal(size=(CLASSES, EXEMPLARS, DIM)).astype(np.float32)
    vectors = jnp.asarray(rng.normal(size=(CLASSES, DIM)).astype(np.float32))
    p = jnp.arange(1.0, CLASSES + 1) ** -1.0
    pairs = jnp.asarray(list(itertools.combinations(range(5), 2)))

    def bursts(context_len, burstiness, **options):
        distribution = {"classes": jnp.arange(CLASSES), "class_distr": p, "num_seqs": PROMPTS}
        sizes = {"context_len": context_len, "burstiness": burstiness}
        return functools.partial(samplers.get_constant_burst_seq_idxs, **distribution, **sizes, **options)

    def theirs(classes, matched=False, **options):
        inds = {"allowed_inds": jnp.arange(EXEMPLARS), "match_query_and_distractors": matched}
        exemplars = functools.partial(samplers.get_exemplar_inds, **inds)
        sample = samplers.make_data_sampler(classes, exemplars, **options)(jax.random.key(1), jnp.asarray(data))
        return statistics(sample["examples"], sample["labels"], data)

    def task(pairs, burstiness, labels=CLASSES, **fields):
        sizes = {"pairs": pairs, "burstiness": burstiness, "zipf_exponent": 1.0}
        return ItemBursts(jnp.asarray(data), vectors[:labels], **sizes, **fields)

    def ours(law):
        sample = law.sample_many(PROMPTS, key=jax.random.key(2))
        return statistics(sample.items, sample.labels, data)

    def mixed(key):
        parts = [bursts(8, 2), bursts(8, 0, no_support=True)]
        return samplers.get_mixed_seq_idxs(key, jnp.array([0.3, 0.7]), parts)

    one, name = {"distractors": 1}, "get_constant_burst_seq_idxs"
    both = (task(8, 2, **one), task(8, 0, remainder="apart"))
    noisy, small = {"noise_variance": 0.01}, {"labelling": "random"}
    return (
        ("bursts of 2 with a distractor", name, theirs(bursts(8, 2)), ours(task(8, 2, **one))),
        ("bursts of 3 without", f"{name}(distractor=False)", theirs(bursts(8, 3, distractor=False)), ours(task(8, 3))),
        ("no burst", name, theirs(bursts(8, 0)), ours(task(8, 0))),
        (
            "no class of a burst in the rest",
            f"{name}(no_support=True)",
            theirs(bursts(8, 2, no_support=True)),
            ours(task(8, 2, remainder="apart", **one)),
        ),
        (
            "distinct classes in the rest",
            f"{name}(unique_rest=True)",
            theirs(bursts(8, 2, unique_rest=True)),
            ours(task(8, 2, remainder="distinct", **one)),
        ),
        (
            "labels drawn anew in every context",
            "fewshot_relabel",
            theirs(bursts(4, 2), fs_relabel=pairs),
            ours(task(4, 2, labels=5, **one, **small)),
        ),
        (
            "labels flipped between two classes",
            "fewshot_fliplabels",
            theirs(bursts(8, 2), fs_relabel="flip"),
            ours(task(8, 2, labelling="flipped", **one)),
        ),
        (
            "equal exemplars in a burst, noise",
            "get_exemplar_inds(match_query_and_distractors=True)",
            theirs(bursts(8, 2), matched=True, noise_scale=0.1),
            ours(task(8, 2, matched=True, **one, **noisy)),
        ),
        ("a mixture of two", "get_mixed_seq_idxs", theirs(mixed), ours(Mixture(both, [0.3, 0.7]))),
    )


def network(models, *, mlp):
    """Their network and ours with its weights, in float64: rotary positions, layer norm before each part."""
    width, labels, heads, depth = 16, 5, 2, 2
    sizes = {"embed_dim": width, "num_classes": labels, "num_heads": heads, "depth": depth, "causal": True}
    peer = models.SequenceClassifier((DIM,), mlp_ratio=4.0 if mlp else None, key=jax.random.PRNGKey(0), **sizes)
    # No bias is zero, and no scale of a norm is one.
    arrays, static = eqx.partition(peer, eqx.is_inexact_array)
    moved = jax.tree.map(lambda a: a + 0.1 * jnp.sin(jnp.arange(1.0, 1 + a.size)).reshape(a.shape), arrays)
    peer = eqx.combine(moved, static)
    hidden, rotary = (4 * width,) if mlp else None, Rotary(pairs="adjacent")
    block = BlockOptions(heads=heads, mlp=hidden, norm="pre", rotary=rotary)
    shape = {"dim": DIM, "width": width, "layers": depth, "block": block, "positions": "rotary"}
    model = Transformer(Interleaved(labels=labels), **shape, key=jax.random.key(0))

    def where(model):
        projection, readout, final = model.embedding.projection, model.readout, model.final_norm
        arrays = [projection.weight, projection.bias, readout.weight, readout.bias, final.scale, final.shift]
        for part in model.blocks:
            attention = part.attention
            arrays += [attention.query, attention.key, attention.value, attention.output]
            arrays += [array for norm in part.norms for array in (norm.scale, norm.shift)]
            arrays += [array for layer in part.mlp.layers for array in (layer.weight, layer.bias)] if mlp else []
        return arrays

    # The bias of their items is that of all our tokens, so that the rows of labels are less by it.
    items, table, final = peer.example_embed, peer.label_embed.weight.T, peer.transformer.norm
    arrays = [jnp.concatenate([items.weight.T, table - items.bias[None]]), items.bias]
    arrays += [peer.unembed.weight.T, peer.unembed.bias, final.weight, final.bias]
    for part in peer.transformer.blocks:
        arrays += [rows.T.reshape(width, heads, -1) for rows in jnp.split(part.attn.qkv.weight, 3)]
        arrays.append(part.attn.proj.weight.T.reshape(heads, -1, width))
        arrays += [array for norm in (part.norm1, part.norm2)[: 1 + mlp] for array in (norm.weight, norm.bias)]
        dense = (part.mlp.fc1, part.mlp.fc2) if mlp else ()
        arrays += [array for layer in dense for array in (layer.weight.T, layer.bias)]
    model = eqx.tree_at(where, model, arrays)
    exemplars = jax.random.normal(jax.random.key(1), (labels, 1, DIM))
    task = ItemBursts(exemplars, jnp.zeros((labels, DIM)), pairs=6, burstiness=2)
    prompt = task.sample(key=jax.random.key(2))
    answers = peer(prompt.items, prompt.labels, key=jax.random.PRNGKey(1))
    return float(jnp.max(jnp.abs(answers - model(prompt))))


def cases(checkout):
    """Every sampler, and the network with and without dense layers."""
    samplers, models = imported(checkout)
    for text, name, one, other in prompts(samplers):
        ours = "tasks.Mixture" if text.startswith("a mixture") else "tasks.ItemBursts"
        moments = {"difference": standard_errors(one, other), "unit": "standard errors", "tolerance": 4.0}
        yield {"case": text, "theirs": name, "ours": ours, **moments, "note": ""}
    with jax.enable_x64(True):
        for text, mlp in (("answers, attention only", False), ("answers, dense layers of 4 times the width", True)):
            answers = {"difference": network(models, mlp=mlp), "unit": "absolute", "tolerance": 1e-12, "note": ""}
            names = {"theirs": "SequenceClassifier", "ours": "models.Transformer(Interleaved(labels=L))"}
            yield {"case": text, **names, **answers}
