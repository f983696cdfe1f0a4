r"""Of the nine interactions of content, position and buffer two make an induction head, and a third finds the labels.

The score of a key for a query is a sum of nine terms, one for each part of the query and of the key. A term counts by
its *contrast*: its value at the keys a head is to attend to, above its mean over others. Of a trained network are
measured the contrasts of all terms, in the first layer for the item before a label, in the second for the right label
among labels and for labels among all tokens; and what the network does when its scores have some of the terms only.

The landscape takes the overlaps :math:`\zeta_{ij} = \gamma_i^\top\ell_i - \gamma_i^\top\ell_j` of readers and labels
as one number :math:`\xi`. Their spread over i and j is measured too.
"""

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from icllab.core.axes import quantity
from icllab.core.statistics import mean_and_error
from icllab.experiments.checks import Finding, Outcome, exactly, exceeds
from icllab.experiments.experiment import Experiment, World
from icllab.experiments.results import fixed_values
from icllab.figures import style

CONTRASTS = ("previous", "match", "label")
PARTS = ("content", "position", "buffer")
INTERACTIONS = tuple(f"{query}-{key}" for query in PARTS for key in PARTS)
ONE, TWO, THIRD = "position-position", "content-buffer", "position-position"
# Which terms each layer keeps; None: all.
KEPT = {
    "all": (None, None),
    "two": ((ONE,), (TWO,)),
    "three": ((ONE,), (TWO, THIRD)),
    "without the first": (tuple(name for name in INTERACTIONS if name != ONE), None),
    "without the second": (None, tuple(name for name in INTERACTIONS if name != TWO)),
}
MOST = 0.75  # of a contrast
GOOD = 0.9  # accuracy of a network that has learned
SPREAD = 0.1  # of the mean overlap


def measure(point, *, key):
    """One cell: networks of all seeds, taken apart after every kept step."""
    import jax
    import jax.numpy as jnp

    from icllab.claims.induction import _networks as induction_networks
    from icllab.diagnostics.behaviour import interactions

    of_networks = jax.random.fold_in(key, 2**31 - 1)
    changes = {"pairs": point.pairs, "labels": point.label_count}
    drawn = induction_networks.networks(induction_networks.task(key=key, **changes), seeds=point.seed, key=of_networks)
    shape = (len(point.seed), len(point.step))
    contrasts, measures = np.empty((*shape, 3, 9)), np.empty((*shape, len(point.kept), 3))
    overlaps, tokens = np.empty((*shape, 3)), 2 * point.pairs + 1
    first, second = np.empty((*shape, tokens, tokens)), np.empty((*shape, point.pairs, tokens))
    sides = [
        [jnp.asarray(interactions.weights(INTERACTIONS if side is None else side)) for side in KEPT[name]]
        for name in point.kept
    ]
    for s, seed in enumerate(point.seed):
        of_task, of_prompts, of_test = jax.random.split(jax.random.fold_in(key, seed), 3)
        law = induction_networks.task(key=of_task, **changes)
        how = {"steps": (0, *point.step), "key": of_prompts, "batch": point.batch}
        run = induction_networks.trained(law, drawn.member(s), **how)
        asked = law.in_context().sample_many(point.prompts, key=of_test)
        for t, step in enumerate(point.step):
            network = run.trajectory.at(step).member(0)
            contrasts[s, t] = interactions.mean_contrasts(network, asked)
            first[s, t], second[s, t] = interactions.mean_patterns(network, asked)
            for k, kept in enumerate(sides):
                measures[s, t, k] = interactions.with_terms(network, law, asked, (kept[0], kept[1]))
            logits = np.asarray(interactions.logits_of(network, asked))
            overlaps[s, t] = interactions.overlaps(logits, np.asarray(asked.labels))
    rows = [CONTRASTS.index(name) for name in point.contrast]
    columns = [INTERACTIONS.index(name) for name in point.interaction]
    dims = ("seed", "step")
    named = ("accuracy", "item_label_attention", "target_attention")
    return {
        "score_contrast": ((*dims, "contrast", "interaction"), contrasts[:, :, rows][..., columns]),
        "first_pattern": ((*dims, "row", "column"), first),
        "second_pattern": ((*dims, "right_pair", "column"), second),
        **{name: ((*dims, "kept"), measures[..., i]) for i, name in enumerate(named)},
        **{name: (dims, overlaps[..., i]) for i, name in enumerate(("overlap", "overlap_spread", "overlap_error"))},
    }


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """Shares of the contrasts, and one over the number of pairs: the accuracy of naming any label of the context."""
    total = dataset["score_contrast"].sum("interaction")
    kept = xr.full_like(dataset["accuracy"].isel(seed=0, step=0, drop=True), 1 / fixed_values(dataset)["pairs"])
    return dataset.assign(contrast_share=dataset["score_contrast"] / total, accuracy_line=kept)


def check(dataset: xr.Dataset) -> list[Finding]:
    """The shares of the two, what is left with them alone and without them, the third, and the spread of overlaps."""
    dataset = dataset.isel(step=-1)
    there = (dataset["accuracy"].sel(kept="all") > GOOD).values
    findings = [exactly("seeds that learn", there.size, int(there.sum()), otherwise=Outcome.UNDECIDED)]
    several = int(there.sum()) > 1
    findings.append(exactly("several seeds that learn", 1, several, otherwise=Outcome.UNDECIDED))
    if not several:
        return findings
    dataset = dataset.isel(seed=there)
    share = dataset["contrast_share"]
    for contrast, interaction in (("previous", ONE), ("match", TWO)):
        own = share.sel(contrast=contrast, interaction=interaction).values
        findings.append(_above(f"share of {interaction} in the contrast '{contrast}'", own, MOST))
    labels = share.sel(contrast="label")
    third = labels.sel(interaction=THIRD).values
    findings.append(_above(f"share of {THIRD} above {TWO} in 'label'", third - labels.sel(interaction=TWO).values))
    accuracy = {str(name): dataset["accuracy"].sel(kept=name).values for name in dataset.kept.values}
    chance = 1 / fixed_values(dataset)["pairs"]
    if {"two", "three"} <= set(accuracy):
        findings.append(_above("accuracy with the two alone", accuracy["two"], MOST))
        findings.append(
            _above("accuracy with the third besides, above that of two", accuracy["three"] - accuracy["two"])
        )
    for name in (name for name in ("without the first", "without the second") if name in accuracy):
        findings.append(_above(f"accuracy of all above {name}", accuracy["all"] - accuracy[name], 0.2))
    if "without the second" in accuracy:
        near = 2 * chance - accuracy["without the second"]
        findings.append(_above("2/N above the accuracy without the second", near))
    spread = (dataset["overlap_spread"] / dataset["overlap"]).values
    findings.append(_above("spread of the overlaps over their mean", spread, SPREAD))
    missing = len(set(KEPT) - set(accuracy))
    findings.append(exactly("ways of taking apart that are missing", 0, missing, otherwise=Outcome.UNDECIDED))
    return findings


def _above(what: str, samples: np.ndarray, bound: float = 0.0) -> Finding:
    mean, error = mean_and_error(samples)
    return exceeds(what, float(mean), float(error), bound=bound)


def figure(dataset: xr.Dataset):
    """The two operations, drawn from the attention of the networks; below, the contrasts of all nine terms."""
    last = dataset.isel(step=-1)
    pairs = dataset.sizes["right_pair"]
    names = [part for k in range(1, pairs + 1) for part in (f"$x_{k}$", rf"$\ell_{k}$")] + ["$x_q$"]
    with style.context():
        drawn = Figure(figsize=(2 * style.COLUMN, 4.2), layout="constrained")
        FigureCanvasAgg(drawn)
        grid = drawn.subplot_mosaic([["first", "second"], ["terms", "terms"]], height_ratios=(1.25, 1))
        shown = (("first", last["first_pattern"], names), ("second", last["second_pattern"], names[1::2]))
        images = []
        for place, pattern, rows in shown:
            axes = grid[place]
            images.append(axes.imshow(pattern.mean("seed").values, vmin=0, vmax=1, cmap="Greys", aspect="auto"))
            axes.set_xticks(range(len(names)), names)
            axes.set_yticks(range(len(rows)), rows)
            axes.grid(visible=False)
            axes.set_xlabel("key")
        grid["first"].set(title="layer 1: a label looks at its item", ylabel="query")
        grid["second"].set(title="layer 2: $x_q$ looks at the right label", ylabel="the right label")
        drawn.colorbar(images[0], ax=[grid["first"], grid["second"]], label="attention", pad=0.01)
        _terms(grid["terms"], last)
    return drawn


def _terms(axes: Axes, last: xr.Dataset) -> None:
    """Means over seeds of all contrasts, with standard errors."""
    said = {
        "previous": "item before a label, layer 1",
        "match": "right label, layer 2",
        "label": "labels, layer 2",
    }
    there = [name for name in INTERACTIONS if name in last.interaction.values]
    for i, name in enumerate(name for name in CONTRASTS if name in last.contrast.values):
        values = last["score_contrast"].sel(contrast=name, interaction=there).transpose("interaction", "seed").values
        mean, error = mean_and_error(values)
        at = np.arange(len(there)) + 0.18 * (i - 1)
        look = {"color": style.CATEGORIES[i], "marker": style.marker(i), "label": said[name]}
        axes.errorbar(at, mean, np.nan_to_num(error), linestyle="none", **look)  # pyright: ignore[reportArgumentType]
    axes.set_xticks(range(len(there)), [name.replace("-", "\n") for name in there])
    axes.set(xlabel="part of the query, and below it of the key", ylabel=quantity("score_contrast").label)
    axes.legend(loc="upper right")


def _elsewhere(dataset: xr.Dataset) -> xr.Dataset:
    """All learn, all contrasts are of content with content, and nothing depends on what is taken away."""
    only = xr.where(dataset.interaction == "content-content", 1.0, 0.0)
    contrast = (xr.ones_like(dataset["score_contrast"]) * only).transpose(*dataset["score_contrast"].dims)
    return theory(dataset.assign(score_contrast=contrast, accuracy=xr.ones_like(dataset["accuracy"])))


def _one_number(dataset: xr.Dataset) -> xr.Dataset:
    """All learn, and all overlaps of readers and labels are the same."""
    same = {"overlap_spread": xr.zeros_like(dataset["overlap"]), "overlap": xr.ones_like(dataset["overlap"])}
    return theory(dataset.assign(same | {"accuracy": xr.ones_like(dataset["accuracy"])}))


SMALL = {
    "contrast": CONTRASTS,
    "interaction": INTERACTIONS,
    "row": tuple(range(9)),
    "column": tuple(range(9)),
    "right_pair": tuple(range(4)),
}

experiment = Experiment(
    claim=(
        "Of the nine interactions position with position carries most of what tells the item before a label from other "
        "tokens, in the first layer, and content with buffer most of what tells the right label from others, in the "
        "second: with these two alone a network answers most prompts rightly, and without the latter at chance. A "
        "third, position with position in the second layer, tells labels from items; and the overlaps that the "
        "landscape takes as one number spread by more than a tenth of their mean."
    ),
    sources=("Reddy24",),
    static=(),
    fixed={"pairs": 4, "label_count": 16, "batch": 128, "prompts": 1024},
    sizes={
        "smoke": SMALL | {"step": (20,), "kept": ("all", "two"), "seed": 2},
        "small": SMALL | {"step": (800, 3000), "kept": tuple(KEPT), "seed": 6},
        "medium": SMALL | {"step": (400, 800, 1200, 1600, 2000, 3000, 6000), "kept": tuple(KEPT), "seed": 12},
    },
    precision="float32",
    measure=measure,
    theory=theory,
    check=check,
    figure=figure,
    worlds={
        "elsewhere": World("contents are matched with contents", theory=_elsewhere),
        "one_number": World("all overlaps of readers and labels are the same", theory=_one_number),
    },
)
