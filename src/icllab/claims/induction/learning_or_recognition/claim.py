r"""Learning a relation from the context, or recognising a known one: two tests that tell them apart.

A *relation* gives 16 items their labels: it is a permutation. Networks of the reduced size are trained on prompts of M
relations, drawn uniformly and shown by N = 4 pairs; the query is one of the four items. Who *learns* the relation from
the context (looks the query up there) is always right, and so is who *recognises* it (knows all M by heart, and finds
out which one it is). They part on two other sets of prompts:

- *new relation*: a relation drawn afresh for each prompt, in the training only by chance. Who learns is right. Who
  recognises falls to the known relation that agrees with the most pairs, and is right with the probability r(M) of
  :func:`~icllab.theory.label_relations.recogniser_on_a_new_relation`.
- *unseen item*: a known relation, with a query that is none of the four items. Who recognises is right with the
  probability u(M) of :func:`~icllab.theory.label_relations.recogniser_on_an_unseen_item`. Who learns finds nothing in
  the context, and is right at most with the probability 1/(L - N).

The *learned* and the *recognised share* of a network place its two accuracies between these,

.. math:: \lambda = \frac{a_{\mathrm{new}} - r}{1 - r}, \qquad
          \rho = \frac{a_{\mathrm{unseen}} - \frac1{L-N}}{u - \frac1{L-N}} ,

so that (0, 1) is recognition and (1, 0) learning. They are two measurements: a network may do both, or neither.

At ``smoke`` networks are not trained: there the recogniser alone is compared with its closed form.
"""

import numpy as np
import xarray as xr

from icllab.core.statistics import mean_and_error
from icllab.experiments.checks import Finding, Outcome, agreement, exactly, exceeds
from icllab.experiments.experiment import Experiment, World
from icllab.experiments.results import fixed_values
from icllab.figures.curves import curves
from icllab.theory import label_relations

TESTS = ("known", "new relation", "unseen item")
RESAMPLED = 2000  # bootstrap samples of seeds
LEARNED = 0.9  # accuracy on the training law of a network that has learned it


def measure(point, *, key):
    """One cell: all seeds at one number of relations."""
    import jax

    from icllab.claims.induction import _accuracy as induction_tests
    from icllab.claims.induction import _networks as induction_networks
    from icllab.tasks import LabelRelations

    accuracy = np.empty((len(point.test_set), len(point.step), len(point.seed)))
    recogniser = np.full(len(point.seed), np.nan)
    sizes = {"classes": point.classes, "labels": point.labels, "pairs": point.pairs, "dim": point.dim}
    starts = induction_networks.networks(
        induction_networks.task(key=key, **sizes), seeds=point.seed, key=jax.random.fold_in(key, 2**31 - 1)
    )
    for s, seed in enumerate(point.seed):
        of_task, of_table, of_prompts, of_tests = jax.random.split(jax.random.fold_in(key, seed), 4)
        items = induction_networks.task(key=of_task, **sizes)
        law = LabelRelations.drawn(items, point.relations, rows=point.rows, key=of_table)
        networks = {0: starts.member(s)}
        if max(point.step) > 0:
            run = induction_tests.trained_until(
                law, networks[0], loss=point.loss, memory=100, steps=max(point.step), key=of_prompts
            )
            networks[max(point.step)] = run.member(0)
        tests = {"known": law, "new relation": law.new_relations(), "unseen item": law.unseen_items()}
        table = np.asarray(law.table)[: point.relations]
        for t, name in enumerate(point.test_set):
            how = {"key": jax.random.fold_in(of_tests, t), "prompts": point.prompts}
            if name == TESTS[1]:
                shown = jax.tree.map(np.asarray, induction_tests.drawn(tests[name], **how))
                recogniser[s] = _recognised(table, shown, seed)
            for u, step in enumerate(point.step):
                accuracy[t, u, s] = induction_tests.right(networks[step], tests[name], **how)
    return {
        "accuracy": (("test_set", "step", "seed"), accuracy),
        "recogniser_accuracy": (("seed",), recogniser),
    }


def _recognised(table, prompts, seed):
    """The accuracy of one who takes a relation of the table that agrees with the most pairs, any one of several."""
    items = prompts.classes % table.shape[1]
    ties = np.random.default_rng(seed)
    right = np.empty(len(items))
    for i, (shown, asked) in enumerate(zip(prompts.labels, items, strict=True)):
        agreed = (table[:, asked[:-1]] == shown[:-1]).sum(axis=1)
        chosen = ties.choice(np.flatnonzero(agreed == agreed.max()))
        right[i] = table[chosen, asked[-1]] == shown[-1]
    return right.mean()


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """The recogniser's closed forms, and the two shares of every network after training."""
    fixed = fixed_values(dataset)
    sizes = {"pairs": fixed["pairs"], "labels": fixed["labels"]}
    new = label_relations.recogniser_on_a_new_relation(dataset.relations.values, **sizes)
    return _shared(dataset, np.asarray(new))


def _shared(dataset: xr.Dataset, new: np.ndarray) -> xr.Dataset:
    fixed = fixed_values(dataset)
    pairs, labels = fixed["pairs"], fixed["labels"]
    unseen = label_relations.recogniser_on_an_unseen_item(dataset.relations.values, pairs=pairs, labels=labels)
    forms = {"known": np.ones(len(new)), "new relation": new, "unseen item": unseen}
    formula = np.stack([forms[name] for name in dataset.test_set.values], axis=1)
    dataset = dataset.assign(recogniser_theory=(("relations", "test_set"), formula))
    if dataset.sizes["test_set"] < len(TESTS):
        return dataset
    last, guess = dataset["accuracy"].isel(step=-1, drop=True), 1 / (labels - pairs)
    r, u = (dataset["recogniser_theory"].sel(test_set=name, drop=True) for name in TESTS[1:])
    with np.errstate(divide="ignore", invalid="ignore"):  # a recogniser that is always right leaves nothing to learn
        learned = (last.sel(test_set="new relation", drop=True) - r) / (1 - r)
    recognised = (last.sel(test_set="unseen item", drop=True) - guess) / (u - guess)
    return dataset.assign(learned_share=learned, recognised_share=recognised)


def check(dataset: xr.Dataset) -> list[Finding]:
    """The recogniser is as predicted; one relation is recognised, many are learned; and how many it takes."""
    findings = [
        _recogniser(dataset.sel(relations=m), fixed_values(dataset)["prompts"]) for m in dataset.relations.values
    ]
    several = dataset.sizes["relations"] > 1 and "learned_share" in dataset
    if several:
        few, many = (dataset.isel(relations=end) for end in (0, -1))
        findings += _shares(few, "recognised_share", "learned_share")
        findings += _shares(many, "learned_share", "recognised_share")
        findings += _order(dataset)
    several = exactly("several numbers of relations", 1, several, otherwise=Outcome.UNDECIDED)
    return [*findings, several]


def _recogniser(part: xr.Dataset, prompts: int) -> Finding:
    """The closed form against one who looks at the same prompts."""
    measured = part["recogniser_accuracy"].transpose("seed").values
    mean, error = mean_and_error(measured)
    # Of few seeds the scatter may be small by chance; that of the prompts is known.
    error = np.maximum(error, np.sqrt(mean * (1 - mean) / (prompts * len(measured))))
    predicted = float(part["recogniser_theory"].sel(test_set="new relation"))
    what = f"recogniser's accuracy on new relations, M={int(part.relations)}"
    return agreement(what, predicted, float(mean), float(error), largest_error=0.05)


def _shares(part: xr.Dataset, large: str, small: str) -> list[Finding]:
    """One share is above a half, the other below."""
    names = {"learned_share": "learned share", "recognised_share": "recognised share"}
    at = f"M={int(part.relations)}"
    return [
        _trained(part, part[large].values - 0.5, f"{names[large]} above a half, {at}"),
        _trained(part, 0.5 - part[small].values, f"{names[small]} below a half, {at}"),
    ]


def _order(dataset: xr.Dataset) -> list[Finding]:
    """The number of relations at which each share crosses a half, from bootstrap samples of seeds."""
    seeds, x = dataset.sizes["seed"], np.log2(dataset.relations.values)
    chosen = np.random.default_rng(0).integers(seeds, size=(len(x), seeds, RESAMPLED))
    at = np.arange(len(x))[:, None, None]
    places = {}
    for name, sign in (("recognised_share", -1), ("learned_share", 1)):
        values = sign * (dataset[name].transpose("relations", "seed").values - 0.5)
        whole, samples = values.mean(axis=1)[:, None], values[at, chosen].mean(axis=1)
        places[name] = _rises(x, whole)[0], _rises(x, samples)
    (lost, of_lost), (learned, of_learned) = places["recognised_share"], places["learned_share"]
    inside = np.isfinite(of_lost) & np.isfinite(of_learned)
    what = (
        "log2 of the relations from which more than half is learned, less log2 of those from which less is recognised"
    )
    if seeds < 2 or inside.mean() < 0.9 or not np.isfinite([lost, learned]).all():
        return [exactly(f"{what}: both inside the grid", 1, 0, otherwise=Outcome.UNDECIDED)]
    apart = (of_learned - of_lost)[inside]
    return [
        _trained(dataset, np.array([]), what, (learned - lost, float(apart.std(ddof=1)))),
        _trained(
            dataset,
            np.array([]),
            f"5 less log2 of the relations from which more than half is learned, {learned:.2f}",
            (5 - learned, float(of_learned[inside].std(ddof=1))),
        ),
    ]


def _rises(x: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Where every column of ``[x, column]`` first rises through zero, by straight lines; infinite where it does not."""
    above = columns >= 0
    first = above.argmax(axis=0)
    there = above.any(axis=0) & (first > 0)
    after, column = np.maximum(first, 1), np.arange(columns.shape[1])
    low, high = columns[after - 1, column], columns[after, column]
    with np.errstate(divide="ignore", invalid="ignore"):
        place = x[after - 1] - low * (x[after] - x[after - 1]) / (high - low)
    return np.where(there, place, np.inf)


def _trained(part: xr.Dataset, samples: np.ndarray, what: str, found: tuple[float, float] | None = None) -> Finding:
    """Whether the mean over seeds is above zero; undecided where a network has not learned its own law."""
    mean, error = found or tuple(map(float, mean_and_error(samples)))
    least = float(part["accuracy"].isel(step=-1).sel(test_set="known").min())
    if not least >= LEARNED:
        advice = f"a network is right on {least:.2f} of its own law; longer training would tell"
        return Finding(what, 0.0, mean, error, 3 * error, Outcome.UNDECIDED, advice)
    return exceeds(what, mean, error)


def figure(dataset: xr.Dataset):
    """Accuracies on the two sets of prompts that tell, against the number of relations, and the recogniser's."""
    shown = dataset.isel(step=-1).sel(test_set=[name for name in TESTS[1:] if name in dataset.test_set])
    return curves(
        shown,
        x="relations",
        y="accuracy",
        hue="test_set",
        line="recogniser_theory",
        line_x="relations",
        line_name="recogniser",
        xscale="log",
    )


def _any_relation(dataset: xr.Dataset) -> xr.Dataset:
    """One who knows the relations and takes any of them, whatever the context shows."""
    return _shared(dataset, np.full(dataset.sizes["relations"], 1 / fixed_values(dataset)["labels"]))


def _always_right(dataset: xr.Dataset) -> xr.Dataset:
    return _shared(dataset, np.ones(dataset.sizes["relations"]))


experiment = Experiment(
    claim=(
        "Trained on one relation of items to labels, a small attention network recognises it and learns nothing from "
        "the context; trained on many, it is right on relations it has never seen and recognises none. A second "
        "relation is enough to lose most of recognition, but more are needed to learn; between them it does neither."
    ),
    sources=("Reddy24", "Raventos23"),
    static=("relations",),
    fixed={"classes": 16, "labels": 16, "pairs": 4, "dim": 31, "rows": 1024, "loss": 0.05, "prompts": 1024},
    sizes={
        "smoke": {"relations": (64,), "test_set": TESTS[1:2], "step": (0,), "seed": 3},
        "small": {"relations": (1, 2, 4, 8, 16, 64, 1024), "test_set": TESTS, "step": (0, 6000), "seed": 4},
        "medium": {
            "relations": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
            "test_set": TESTS,
            "step": (0, 12000),
            "seed": 8,
        },
    },
    precision="float32",
    measure=measure,
    theory=theory,
    check=check,
    figure=figure,
    worlds={
        "any_relation": World("the recogniser takes any relation that it knows", theory=_any_relation),
        "who_learns": World("the recogniser looks the query up in the context", theory=_always_right),
    },
)
