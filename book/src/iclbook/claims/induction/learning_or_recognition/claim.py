r"""Learning a relation from the context, or recognising a known one: two tests that tell them apart.

Networks are trained on prompts of M *relations*, permutations of 16 items' labels. On a *new relation* task learning
is right, and task recognition with the probability r(M); on an *unseen item* of a known one recognition is right with
u(M), and learning at most with :math:`g = 1/(L - N)`. Measured are the *learned* and the *recognised fraction*,

.. math:: \lambda = (a_{\mathrm{new}} - r)/(1 - r), \qquad \rho = (a_{\mathrm{unseen}} - g)/(u - g).
"""

import functools

import numpy as np
import xarray as xr

from iclbook.claims.induction._learned import if_learned, mean_accuracy
from icllab.core.axes import Quantity
from icllab.core.statistics import first_rise
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Estimate, Finding, checks, estimates
from icllab.lab.results import fixed_values
from icllab.theory import label_relations

TESTS = ("known", "new relation", "unseen item")
DONE, NOT = 0.9, 0.1  # fractions that count as learned or recognised, and as neither
RESAMPLED = 2000  # bootstrap samples of seeds


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """Closed forms of recognition, and the two fractions of every network after training."""
    pairs, labels = (fixed_values(dataset)[name] for name in ("pairs", "label_count"))
    forms = (label_relations.recognition_on_a_new_relation, label_relations.recognition_on_an_unseen_item)
    formulas = (form(dataset.relations.values, pairs=pairs, labels=labels) for form in forms)
    r, u = (xr.DataArray(values, {"relations": dataset.relations}, "relations") for values in formulas)
    values = dict(zip(TESTS, (xr.ones_like(r), r, u), strict=True))
    formula = xr.concat([values[name] for name in dataset.test_set.values], dataset.test_set)
    dataset = dataset.assign(recognition_accuracy_theory=formula.transpose("relations", "test_set"))
    if dataset.sizes["test_set"] < len(TESTS):
        return dataset
    accuracy, g = dataset["accuracy"].isel(step=-1, drop=True), 1 / (labels - pairs)
    on_new, on_unseen = (accuracy.sel(test_set=name, drop=True) for name in TESTS[1:])
    return dataset.assign(learned_fraction=(on_new - r) / (1 - r), recognised_fraction=(on_unseen - g) / (u - g))


def check(dataset: xr.Dataset) -> list[Finding]:
    """Recognition is as predicted; one relation is recognised, many are learned; and how many it takes."""
    formula, last = dataset["recognition_accuracy_theory"].sel(test_set=TESTS[1]), dataset.isel(step=-1, drop=True)
    estimate = mean_accuracy(dataset["recognition_accuracy"], fixed_values(dataset)["prompts"])
    quantity = "accuracy of recognition on new relations"
    findings = checks.agrees("recognition", quantity, estimate, formula.drop_vars("test_set"), largest_error=0.05)
    if "learned_fraction" not in dataset:
        return findings
    findings += _fractions(last.isel(relations=0), "recognised", "learned")
    findings += _fractions(last.isel(relations=-1), "learned", "recognised")
    return findings + _crossings(last)


def _fractions(part: xr.Dataset, large: str, small: str) -> list[Finding]:
    """One fraction is nearly 1, the other nearly 0 or less."""
    findings = checks.above(large, f"{large} fraction", estimates.mean(part[f"{large}_fraction"]), DONE)
    findings += checks.below(small, f"{small} fraction", estimates.mean(part[f"{small}_fraction"]), NOT)
    return if_learned(findings, part["accuracy"].sel(test_set=TESTS[0]))


def _crossings(last: xr.Dataset) -> list[Finding]:
    """The number of relations at which each fraction crosses a half, from bootstrap samples of seeds."""
    seeds, x = last.sizes["seed"], np.log2(last.relations.values)
    resamples = np.random.default_rng(0).integers(seeds, size=(len(x), seeds, RESAMPLED))
    crossings = []
    for name, sign in (("recognised_fraction", -1), ("learned_fraction", 1)):
        values = sign * (last[name].transpose("relations", "seed").values - 0.5)
        samples = values[np.arange(len(x))[:, None, None], resamples].mean(axis=1)
        crossings.append((first_rise(x, values.mean(axis=1)), first_rise(x, samples.T)))
    (recognition, recognition_samples), (learning, learning_samples) = crossings
    finite = np.isfinite(recognition_samples) & np.isfinite(learning_samples)
    inside = bool(seeds > 1 and finite.mean() >= 0.9 and np.isfinite([recognition, learning]).all())
    findings = checks.complete("crossings", "both fractions cross a half inside the grid", inside)
    if not inside:
        return findings
    # A mean of n resampled values varies by the factor 1 - 1/n too little.
    wider, freedom = (seeds / (seeds - 1)) ** 0.5, seeds - 1
    later = Estimate(
        learning - recognition, wider * (learning_samples - recognition_samples)[finite].std(ddof=1), freedom=freedom
    )
    from_which = Estimate(learning, wider * learning_samples[finite].std(ddof=1), freedom=freedom)
    quantity = "log2 of the relations from which more than half is learned"
    findings += checks.above("neither", f"{quantity} - of those from which less is recognised", later)
    findings += checks.below("learned_from", quantity, from_which, 5)
    return if_learned(findings, last["accuracy"].sel(test_set=TESTS[0]))


def figure(dataset: xr.Dataset):
    """Accuracies on the two sets of prompts that tell, against the number of relations, and those of recognition."""
    part = dataset.isel(step=-1).sel(test_set=[name for name in TESTS[1:] if name in dataset.test_set])
    rows = [Panel("accuracy", "recognition_accuracy_theory")]
    return panels(part, rows, x="relations", hue="test_set", xscale="log", line_name="recognition")


ONE_AND_MANY = functools.partial(Control, axes={"relations": (1, 1024), "seed": (0, 1)})

claim = Claim(
    title="Relations learned or recognised",
    sentence=(
        "Trained on one relation of items to labels, networks recognise it; trained on many, they learn new ones in "
        "context and recognise none; in between, they do neither."
    ),
    conditions=(
        "16 items, N = 4 pairs, 1 to 1024 relations, SGD until the training loss is 0.05 nats, 10 seeds. Above 0.9 "
        "counts as done, below 0.1 as not; in between both are below a half. Learning begins below 32 relations."
    ),
    sources=("Reddy24", "Raventos23"),
    quantities=(
        "accuracy",
        Quantity("recognition_accuracy", "A", "accuracy of task recognition"),
        Quantity("learned_fraction", r"\lambda", "learned fraction"),
        Quantity("recognised_fraction", r"\rho", "recognised fraction"),
    ),
    static=("relations",),
    outputs=("test_set", "step"),
    fixed={"classes": 16, "label_count": 16, "pairs": 4, "dim": 31, "rows": 1024, "loss": 0.05, "prompts": 1024},
    sizes={
        "smoke": {"relations": (4, 64), "test_set": TESTS[1:2], "step": (0,), "seed": 3},
        "small": {"relations": (1, 2, 4, 8, 16, 64, 1024), "test_set": TESTS, "step": (0, 6000), "seed": 10},
        "medium": {"relations": tuple(2**i for i in range(11)), "test_set": TESTS, "step": (0, 12000), "seed": 8},
    },
    key=1,
    controls={
        "fresh_relations": ONE_AND_MANY(
            "trained on a relation of its own in every prompt: there is none to recognise", {"fresh": True}
        ),
        "leaked_relations": ONE_AND_MANY("the new relations of the test are those of the training", {"leaked": True}),
        "fewer_relations": Control(
            "one relation in sixteen is trained on",
            measure={"fewer": 16},
            axes={"relations": (16, 64, 1024), "seed": (0, 1, 2, 3)},
        ),
        "both": Control(
            "answers are learned from four relations on and recognised up to 64", measure={"made_up": (4, 64)}
        ),
    },
)
