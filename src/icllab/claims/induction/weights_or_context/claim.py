r"""In context or in weights: what the distribution of the training prompts makes a network learn.

A query of a bursty prompt of known classes can be answered in two ways: from the context, which shows its class with
its label, or from the weights. Both lower the same loss, so that what is learned first leaves the other nothing to
learn from. Networks are trained on bursty prompts of K classes until the loss is small, and asked two sets of prompts
that tell:

- *IC*: novel classes. Only the context knows their labels; from the weights, 1/L are right.
- *purged*: known classes, with the query's class not in the context. From the weights all are right, from the context
  few.

The advantage of the context is the accuracy on the first less that on the second. Each setting changes one of: the
number B of items that a class has in a prompt, the noise :math:`\epsilon` within classes, the exponent
:math:`\alpha` of the classes' frequencies :math:`p(k) \propto k^{-\alpha}`. Starts, prompts and vectors of a seed are
the same in all settings of one K.

At ``smoke`` networks are not trained: there it is seen that they begin at chance.
"""

import numpy as np
import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from icllab.claims.induction._learned import if_learned
from icllab.core.axes import Quantity
from icllab.core.grid import Seeds
from icllab.core.statistics import mean_and_error
from icllab.experiments import checks, estimates
from icllab.experiments.checks import Finding
from icllab.experiments.estimates import Estimate
from icllab.experiments.experiment import Control, Experiment
from icllab.experiments.results import fixed_values
from icllab.figures import style
from icllab.figures.labels import named

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
SHOWN = {"IC": "novel classes: in context", "purged": "class not in context: in weights"}


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """Chance on novel classes, whose labels are drawn uniformly; and what the two accuracies say together."""
    dataset, accuracy = dataset.assign(chance_accuracy=1 / fixed_values(dataset)["label_count"]), dataset["accuracy"]
    if not {"IC", "purged"} <= set(dataset.test_set.values.tolist()):
        return dataset
    in_context, in_weights = (accuracy.sel(test_set=name, drop=True) for name in ("IC", "purged"))
    advantage, lesser = in_context - in_weights, np.minimum(in_context, in_weights)
    return dataset.assign(context_advantage=advantage, lesser_accuracy=lesser)


def check(dataset: xr.Dataset) -> list[Finding]:
    """Chance before training; afterwards, which way wins where, and what each change of the prompts does."""
    findings, last = _untrained(dataset), dataset.isel(step=-1, drop=True)
    settings = set(last.setting.values.tolist())
    trained = "context_advantage" in dataset and int(dataset.step[-1]) > 0
    several = trained and last.sizes["classes"] > 1
    if trained and PLAIN in settings:
        plain = last.sel(setting=PLAIN, drop=True)
        findings += _in_weights(plain.isel(classes=0))
        if several:
            findings += _in_context(plain.isel(classes=-1)) + _slope(plain)
        for setting in (name for name in (BURSTIER, NOISIER) if name in settings):
            change = last["context_advantage"].sel(setting=setting) - plain["context_advantage"]
            what = "advantage of the context - that in the plain setting"
            found = checks.above("change", what, estimates.mean(change).average("classes"))
            findings += if_learned(found, _own(last.sel(setting=[PLAIN, setting])))
        if several and SKEWED in settings:
            both = last.isel(classes=-1).sel(setting=[PLAIN, SKEWED])
            change = both["lesser_accuracy"].sel(setting=SKEWED) - both["lesser_accuracy"].sel(setting=PLAIN, drop=True)
            what = "lesser of both accuracies - that in the plain setting"
            findings += if_learned(checks.above("both", what, estimates.mean(change)), _own(both))
    wanted = bool(several and {PLAIN, BURSTIER, NOISIER, SKEWED} <= settings)
    return findings + checks.complete("grid", "trained in all settings at several numbers of classes", wanted)


def _own(part: xr.Dataset) -> xr.DataArray:
    """Accuracies on the training task."""
    return part["accuracy"].sel(test_set="training")


def _untrained(dataset: xr.Dataset) -> list[Finding]:
    """No network is better or worse than chance on novel classes before training, in the mean over all starts."""
    before = dataset["accuracy"].sel(test_set="IC", step=0, drop=True).mean("setting").stack(start=("classes", "seed"))
    found = estimates.mean(before, over="start")
    # Of few seeds the scatter may be small by chance; that of the prompts is known.
    least = np.sqrt(found.value * (1 - found.value) / (fixed_values(dataset)["prompts"] * before.size))
    found = Estimate(found.value, np.maximum(found.error, least))
    what = "accuracy on novel classes before training"
    return checks.covers("untrained", what, found, dataset["chance_accuracy"], largest_error=0.02)


def _in_weights(part: xr.Dataset) -> list[Finding]:
    """Few classes: the context neither suffices nor matters."""
    advantage = estimates.mean(-part["context_advantage"])
    findings = checks.above("in_weights", "accuracy in weights - in context", advantage, 0.5)
    if "swapped" in part.test_set:
        swapped = estimates.mean(part["accuracy"].sel(test_set="swapped", drop=True))
        findings += checks.below("swapped_in_weights", "accuracy under swapped labels", swapped, 0.5)
    return if_learned(findings, _own(part))


def _in_context(part: xr.Dataset) -> list[Finding]:
    """Many classes: the context suffices, and is followed where it contradicts the weights."""
    swapped = estimates.mean(part["accuracy"].sel(test_set="swapped", drop=True))
    advantage = estimates.mean(part["context_advantage"])
    findings = checks.above("in_context", "accuracy in context - in weights", advantage, 0.5)
    findings += checks.above("swapped_in_context", "accuracy under swapped labels", swapped, 0.5)
    return if_learned(findings, _own(part))


def _slope(part: xr.Dataset) -> list[Finding]:
    """Slope of the advantage on log2 K: a weighted sum of means, each with its error over seeds."""
    x = np.log2(part.classes)
    weights = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
    advantage = estimates.mean(part["context_advantage"])
    slope = Estimate(
        (weights * advantage.value).sum("classes"), ((weights * advantage.error) ** 2).sum("classes") ** 0.5
    )
    what = "rise of the advantage of the context with every doubling of the classes"
    return if_learned(checks.above("slope", what, slope), _own(part))


def figure(dataset: xr.Dataset):
    """Both accuracies over settings and numbers of classes: means, and standard errors over seeds, rounded up."""
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
                known = np.isfinite(error[row, column])
                text = f"{value:.2f}" + (f" ± {np.ceil(100 * error[row, column]) / 100:.2f}" if known else "")
                axes.text(column, row, text, ha="center", va="center", fontsize=6.2, color=colour)
            axes.set_title(title)
            axes.set_xticks(range(len(classes)), [f"{k:g}" for k in classes])
            axes.set_yticks(range(len(order)), [_named(one) for one in order])
            axes.set_xlabel(named(dataset, "classes").label)
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


FEW_AND_MANY = {"classes": (64, 512), "setting": (PLAIN,), "seed": (0, 1)}

experiment = Experiment(
    claim=(
        "On bursty prompts small attention networks learn few classes in weights and many in context; burstiness and "
        "within-class noise favour context, Zipfian frequencies allow both."
    ),
    conditions=(
        "N = 4 pairs, 16 labels, 64 to 512 classes, SGD until the training loss is 0.05 nats, 4 seeds. B from 1 to 2, "
        "noise from 0.1 to 0.5, Zipf exponent from 0 to 1."
    ),
    sources=("Reddy24",),
    quantities=(
        "accuracy",
        Quantity("context_advantage", r"A_{\mathrm{IC}} - A_{\mathrm{IW}}", "accuracy in context less in weights"),
        Quantity("lesser_accuracy", r"\min A", "lesser of the accuracies in context and in weights"),
        Quantity("chance_accuracy", "1/L", "accuracy of a guess"),
    ),
    static=("classes",),
    outputs=("test_set", "step"),
    fixed={"label_count": 16, "pairs": 4, "loss": 0.05, "prompts": 2048},
    sizes={
        "smoke": {"classes": (16,), "setting": (PLAIN,), "test_set": ("IC",), "step": (0,), "seed": 4},
        "small": {
            "classes": (64, 128, 256, 512),
            "setting": (PLAIN, BURSTIER, NOISIER, SKEWED),
            "test_set": TESTS,
            "step": (0, 6000),
            "seed": 4,
        },
        "medium": {
            "classes": (32, 64, 128, 256, 512, 1024, 2048),
            "setting": tuple(SETTINGS),
            "test_set": TESTS,
            "step": (0, 12000),
            "seed": Seeds(6, block=1),
        },
    },
    theory=theory,
    check=check,
    figure=figure,
    controls={
        "novel_classes": Control(
            "trained on classes that are new in every prompt: the weights have nothing to learn",
            measure={"trained_on": "IC"},
            axes=FEW_AND_MANY,
            size="small",
        ),
        "plain_prompts": Control(
            "trained on prompts whose context is drawn without regard to the query: it tells nothing",
            measure={"trained_on": "IW"},
            axes=FEW_AND_MANY,
            size="small",
        ),
    },
)
