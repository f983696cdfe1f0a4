r"""In context or in weights: what the law of the training prompts makes a network learn.

A query of a bursty prompt of known classes can be answered in two ways: from the context, which shows its class with
its label, or by heart. Both lower the same loss, so that what is learned first leaves the other nothing to learn from.
Networks of the reduced size (N = 4 pairs, L = 16 labels) are trained on bursty prompts of K classes until the loss is
small, and asked two sets of prompts that tell:

- *IC*: novel classes. Only the context knows their labels; by heart, 1/L are right.
- *purged*: known classes, with the query's class not in the context. By heart all are right, from the context few.

The advantage of the context is the accuracy on the first less that on the second. Each setting changes one of: the
number B of items that a class has in a prompt, the noise :math:`\epsilon` within classes, the exponent
:math:`\alpha` of the classes' frequencies :math:`p(k) \propto k^{-\alpha}`. Starts, prompts and vectors of a seed are
the same in all settings of one K.

At ``smoke`` networks are not trained: there it is seen that they begin at chance.
"""

import numpy as np
import xarray as xr

from icllab.core.statistics import mean_and_error
from icllab.experiments.checks import Finding, Outcome, agreement, exactly, exceeds
from icllab.experiments.experiment import Experiment, World
from icllab.experiments.results import fixed_values
from icllab.figures import style

PLAIN, BURSTIER, NOISIER, SKEWED = "plain", "B = 2", "noise 0.5", "Zipf 1"
SETTINGS = {
    PLAIN: {},
    BURSTIER: {"burstiness": 2},
    "noise 0.3": {"within_class_noise": 0.3},
    NOISIER: {"within_class_noise": 0.5},
    "noise 1": {"within_class_noise": 1.0},
    "Zipf 0.5": {"zipf_exponent": 0.5},
    SKEWED: {"zipf_exponent": 1.0},
    "Zipf 1.5": {"zipf_exponent": 1.5},
}
TESTS = ("training", "IC", "swapped", "purged")
LEARNED = 0.9  # accuracy on the training law of a network that has learned it
SHOWN = {"IC": "novel classes: from the context", "purged": "class not in context: by heart"}


def measure(point, *, key):
    """One cell: all settings and seeds at one number of classes."""
    import jax

    from icllab.claims.induction import _accuracy as induction_tests
    from icllab.claims.induction import _networks as induction_networks

    accuracy = np.empty((len(point.setting), len(point.test_set), len(point.step), len(point.seed)))
    known = {"classes": point.classes, "labels": point.labels, "pairs": point.pairs, "no_repeats": False}
    starts = induction_networks.networks(
        induction_networks.task(key=key, **known), seeds=point.seed, key=jax.random.fold_in(key, 2**31 - 1)
    )
    for s, seed in enumerate(point.seed):
        of_task, of_prompts, of_tests = jax.random.split(jax.random.fold_in(key, seed), 3)
        for i, setting in enumerate(point.setting):
            law = induction_networks.task(key=of_task, **known, **SETTINGS[setting])
            networks = {0: starts.member(s)}
            if max(point.step) > 0:
                run = induction_tests.trained_until(
                    law, networks[0], loss=point.loss, memory=100, steps=max(point.step), key=of_prompts
                )
                networks[max(point.step)] = run.member(0)
            for t, name in enumerate(point.test_set):
                test = law if name == "training" else induction_networks.TESTS[name](law)
                for u, step in enumerate(point.step):
                    how = {"key": jax.random.fold_in(of_tests, t), "prompts": point.prompts}
                    accuracy[i, t, u, s] = induction_tests.right(networks[step], test, **how)
    return {"accuracy": (("setting", "test_set", "step", "seed"), accuracy)}


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """The accuracy of a network before training on novel classes, whose labels are drawn uniformly."""
    return _with_advantage(dataset, 1 / fixed_values(dataset)["labels"])


def _with_advantage(dataset: xr.Dataset, chance: float) -> xr.Dataset:
    dataset, accuracy = dataset.assign(chance_accuracy=chance), dataset["accuracy"]
    if not {"IC", "purged"} <= set(dataset.test_set.values.tolist()):
        return dataset
    in_context, by_heart = (accuracy.sel(test_set=name, drop=True) for name in ("IC", "purged"))
    advantage, lesser = in_context - by_heart, np.minimum(in_context, by_heart)
    return dataset.assign(context_advantage=advantage, lesser_accuracy=lesser)


def check(dataset: xr.Dataset) -> list[Finding]:
    """Chance before training; afterwards, which way wins where, and what each change of the law does."""
    findings = [_untrained(dataset)]
    last = dataset.isel(step=-1)
    trained = "context_advantage" in dataset and int(last.step) > 0
    if trained and PLAIN in last.setting:
        few, many = (last.sel(setting=PLAIN).isel(classes=end) for end in (0, -1))
        findings += _by_heart(few)
        if last.sizes["classes"] > 1:
            findings += _from_context(many)
            findings.append(_slope(last.sel(setting=PLAIN)))
    for setting, what in ((BURSTIER, "B from 1 to 2"), (NOISIER, "noise from 0.1 to 0.5")):
        if trained and {PLAIN, setting} <= set(last.setting.values.tolist()):
            change = last["context_advantage"].sel(setting=setting) - last["context_advantage"].sel(setting=PLAIN)
            both = last.sel(setting=[PLAIN, setting])
            findings.append(_trained(both, _mean_over(change), f"advantage of the context, {what}: its change"))
    if trained and {PLAIN, SKEWED} <= set(last.setting.values.tolist()) and last.sizes["classes"] > 1:
        both = last.isel(classes=-1).sel(setting=[PLAIN, SKEWED])
        change = both["lesser_accuracy"].sel(setting=SKEWED) - both["lesser_accuracy"].sel(setting=PLAIN)
        what = f"the lesser of both accuracies, Zipf exponent from 0 to 1, {int(both.classes)} classes: its change"
        findings.append(_trained(both, _mean_over(change), what))
    wanted = (
        trained
        and {PLAIN, BURSTIER, NOISIER, SKEWED} <= set(last.setting.values.tolist())
        and last.sizes["classes"] > 1
    )
    findings.append(
        exactly("trained in all settings at several numbers of classes", 1, wanted, otherwise=Outcome.UNDECIDED)
    )
    return findings


def _untrained(dataset: xr.Dataset) -> Finding:
    """No answer does better or worse than chance on novel classes before training, in the mean over all starts."""
    before = dataset["accuracy"].sel(test_set="IC", step=0).mean("setting").transpose("classes", "seed").values
    mean, error = mean_and_error(before.ravel())
    # Of few seeds the scatter may be small by chance; that of the prompts is known.
    least = np.sqrt(mean * (1 - mean) / (fixed_values(dataset)["prompts"] * before.size))
    return agreement(
        "accuracy on novel classes before training",
        float(dataset["chance_accuracy"]),
        float(mean),
        float(np.maximum(error, least)),
        largest_error=0.02,
    )


def _by_heart(part: xr.Dataset) -> list[Finding]:
    at = f"{int(part.classes)} classes"
    found = [_trained(part, _mean_over(-part["context_advantage"]), f"accuracy by heart less in context, {at}", 0.5)]
    if "swapped" in part.test_set:
        swapped = 0.5 - part["accuracy"].sel(test_set="swapped")
        found.append(_trained(part, _mean_over(swapped), f"a half less the accuracy under swapped labels, {at}"))
    return found


def _from_context(part: xr.Dataset) -> list[Finding]:
    at = f"{int(part.classes)} classes"
    swapped = part["accuracy"].sel(test_set="swapped") - 0.5
    return [
        _trained(part, _mean_over(part["context_advantage"]), f"accuracy in context less by heart, {at}", 0.5),
        _trained(part, _mean_over(swapped), f"accuracy under swapped labels above a half, {at}"),
    ]


def _slope(part: xr.Dataset) -> Finding:
    """Of the advantage on log2 K: a weighted sum of means, each with its error over seeds."""
    x = np.log2(part.classes.values)
    weights = (x - x.mean()) / np.sum((x - x.mean()) ** 2)
    mean, error = mean_and_error(part["context_advantage"].transpose("classes", "seed").values)
    found = float(weights @ mean), float(np.sqrt(weights**2 @ error**2))
    return _trained(part, found, "rise of the advantage of the context with every doubling of the classes")


def _mean_over(values: xr.DataArray) -> tuple[float, float]:
    """The mean over numbers of classes, whose seeds are independent, and its standard error."""
    if "classes" not in values.dims:
        mean, error = mean_and_error(values.transpose("seed").values)
        return float(mean), float(error)
    mean, error = mean_and_error(values.transpose("classes", "seed").values)
    return float(mean.mean()), float(np.sqrt(np.sum(error**2)) / len(error))


def _trained(part: xr.Dataset, found: tuple[float, float], what: str, bound: float = 0.0) -> Finding:
    """The finding, undecided where a network has not learned its own law."""
    least = float(part["accuracy"].sel(test_set="training").min())
    if not least >= LEARNED:
        advice = f"a network is right on {least:.2f} of its own law; longer training would tell"
        return Finding(what, bound, found[0], found[1], 3 * found[1], Outcome.UNDECIDED, advice)
    return exceeds(what, *found, bound=bound)


def figure(dataset: xr.Dataset):
    """Both accuracies over settings and numbers of classes: means, and standard errors over seeds, rounded up."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    last = dataset.isel(step=-1)
    order = [name for name in SETTINGS if name in last.setting]
    classes = last.classes.values
    with style.context():
        height = 1.0 + 0.34 * len(order)
        figure = Figure(figsize=(2 * style.COLUMN, height), layout="constrained")
        FigureCanvasAgg(figure)
        titles = {name: title for name, title in SHOWN.items() if name in last.test_set}
        grid = figure.subplots(1, len(titles), sharey=True, squeeze=False)[0]
        for axes, (name, title) in zip(grid, titles.items(), strict=True):
            values = last["accuracy"].sel(test_set=name, setting=order).transpose("setting", "classes", "seed").values
            mean, error = mean_and_error(values)
            axes.imshow(mean, vmin=0, vmax=1, cmap="cividis", aspect="auto")
            for (row, column), value in np.ndenumerate(mean):
                colour = "white" if value < 0.55 else style.INK
                text = f"{value:.2f}" + (
                    f" ± {np.ceil(100 * error[row, column]) / 100:.2f}" if np.isfinite(error[row, column]) else ""
                )
                axes.text(column, row, text, ha="center", va="center", fontsize=6.2, color=colour)
            axes.set_title(title)
            axes.set_xticks(range(len(classes)), [f"{k:g}" for k in classes])
            axes.set_yticks(range(len(order)), [_named(one) for one in order])
            axes.set_xlabel("classes, $K$")
            axes.grid(False)
            axes.tick_params(length=0)
            for spine in axes.spines.values():
                spine.set_visible(False)
        figure.colorbar(grid[0].images[0], ax=grid, label="accuracy", shrink=0.9)
    return figure


def _named(setting: str) -> str:
    """A setting as the figure's axis has it."""
    changed = SETTINGS[setting]
    if not changed:
        return r"$B = 1$, $\epsilon = 0.1$, $\alpha = 0$"
    symbols = {"burstiness": "B", "within_class_noise": r"\epsilon", "zipf_exponent": r"\alpha"}
    return ", ".join(f"${symbols[name]} = {value:g}$" for name, value in changed.items())


def _of_the_context(dataset: xr.Dataset) -> xr.Dataset:
    return _with_advantage(dataset, 1 / fixed_values(dataset)["pairs"])


STEPS = (0, 6000)

experiment = Experiment(
    claim=(
        "On bursty prompts of few classes a small attention network learns their labels by heart and not to read the "
        "context; on those of many classes it reads the context and knows hardly any label by heart. More items of a "
        "class in a prompt and more noise within classes favour the context, and where frequencies follow Zipf's law "
        "one network does some of both."
    ),
    sources=("Reddy24",),
    static=("classes",),
    fixed={"labels": 16, "pairs": 4, "loss": 0.05, "prompts": 2048},
    sizes={
        "smoke": {"classes": (16,), "setting": (PLAIN,), "test_set": ("IC",), "step": (0,), "seed": 4},
        "small": {
            "classes": (64, 128, 256, 512),
            "setting": (PLAIN, BURSTIER, NOISIER, SKEWED),
            "test_set": TESTS,
            "step": STEPS,
            "seed": 4,
        },
        "medium": {
            "classes": (32, 64, 128, 256, 512, 1024, 2048),
            "setting": tuple(SETTINGS),
            "test_set": TESTS,
            "step": (0, 12000),
            "seed": 6,
        },
    },
    precision="float32",
    measure=measure,
    theory=theory,
    check=check,
    figure=figure,
    worlds={
        "any_label_of_the_context": World("chance is one of the N labels shown", theory=_of_the_context),
    },
)
