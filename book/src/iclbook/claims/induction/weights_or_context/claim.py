r"""In-context or in-weights learning, depending on the distribution of the training prompts.

Networks are trained on bursty prompts of K classes and asked two sets of prompts that tell: *IC*, novel classes, of
whose labels only the context knows, and *purged*, known classes without the query's in the context. The advantage of
the context is the accuracy on the first less that on the second. Each setting changes the number B of items that a
class has in a prompt, the noise :math:`\epsilon` within classes, or the exponent :math:`\alpha` of the classes'
frequencies :math:`k^{-\alpha}`. Starts, prompts and vectors of a seed are the same in all settings of one K.
"""

import functools

import numpy as np
import xarray as xr

from iclbook.claims.induction._learned import if_learned, mean_accuracy
from icllab.core.axes import Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, Outcome, checks, estimates
from icllab.lab.results import fixed_values

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


def theory(dataset: xr.Dataset, *, turned: bool = False) -> xr.Dataset:
    """Chance on novel classes, whose labels are drawn uniformly; and the joint meaning of the two accuracies.

    ``turned``: the networks of the fewest classes stand in the place of networks of the most, and so on.
    """
    if turned:
        dataset = dataset.assign_coords(classes=dataset.classes.values[::-1]).sortby("classes")
    dataset, accuracy = dataset.assign(chance_accuracy=1 / fixed_values(dataset)["label_count"]), dataset["accuracy"]
    if not {"IC", "purged"} <= set(dataset.test_set.values.tolist()):
        return dataset
    on_novel, in_weights = (accuracy.sel(test_set=name, drop=True) for name in ("IC", "purged"))
    return dataset.assign(context_advantage=on_novel - in_weights, lesser_accuracy=np.minimum(on_novel, in_weights))


def check(dataset: xr.Dataset) -> list[Finding]:
    """Chance before training; afterwards the winning mechanism, and the effect of each change of the prompts."""
    before = dataset["accuracy"].sel(test_set="IC", step=0, drop=True).mean("setting").stack(start=("classes", "seed"))
    estimate = mean_accuracy(before, fixed_values(dataset)["prompts"], over="start")
    at_chance = checks.agrees("untrained", "", estimate, dataset["chance_accuracy"], largest_error=0.02)
    at_chance = all(finding.outcome is Outcome.HOLDS for finding in at_chance)
    findings = checks.complete("untrained", "untrained networks are at chance on novel classes", at_chance)
    if "context_advantage" not in dataset:
        return findings
    last = dataset.isel(step=-1, drop=True)
    plain, quantity = last.sel(setting=PLAIN, drop=True), "advantage of the context - that in the plain setting"
    findings += _one_way(plain.isel(classes=0), "in weights") + _one_way(plain.isel(classes=-1), "in context")
    findings += _slope(plain)
    for setting in last.setting.values[last.setting.isin([BURSTIER, NOISIER])]:
        change = estimates.mean(last["context_advantage"].sel(setting=setting) - plain["context_advantage"])
        estimate = checks.above("change", quantity, change.average("classes"))
        findings += if_learned(estimate, _own(last.sel(setting=[PLAIN, setting])))
    if SKEWED not in last.setting:
        return findings
    ends = last.isel(classes=-1).sel(setting=[PLAIN, SKEWED])
    change = ends["lesser_accuracy"].sel(setting=SKEWED) - ends["lesser_accuracy"].sel(setting=PLAIN, drop=True)
    quantity = "lesser of both accuracies - that in the plain setting"
    return findings + if_learned(checks.above("both", quantity, estimates.mean(change)), _own(ends))


def _own(part: xr.Dataset) -> xr.DataArray:
    """Accuracies on the training task."""
    return part["accuracy"].sel(test_set="training")


def _one_way(part: xr.Dataset, way: str) -> list[Finding]:
    """The context suffices and prevails over the weights where they contradict; or neither."""
    sign, side, opposite = (1, checks.above, "in weights") if way == "in context" else (-1, checks.below, "in context")
    name, advantage = way.replace(" ", "_"), estimates.mean(sign * part["context_advantage"])
    findings = checks.above(name, f"accuracy {way} - {opposite}", advantage, 0.5)
    if "swapped" in part.test_set:
        swapped_accuracy = estimates.mean(part["accuracy"].sel(test_set="swapped", drop=True))
        findings += side(f"swapped_{name}", "accuracy under swapped labels", swapped_accuracy, 0.5)
    return if_learned(findings, _own(part))


def _slope(part: xr.Dataset) -> list[Finding]:
    """Slope of the advantage on log2 K: a weighted sum of means, each with its error over seeds."""
    x, advantage = np.log2(part.classes) - np.log2(part.classes).mean(), estimates.mean(part["context_advantage"])
    weights, quantity = x / (x**2).sum(), "rise of the advantage of the context with every doubling of the classes"
    return if_learned(checks.above("slope", quantity, advantage.combined(weights, "classes")), _own(part))


def figure(dataset: xr.Dataset):
    """Draw accuracies on novel classes, from the context, and without the class in it, from the weights."""
    last = dataset.isel(step=-1).sel(setting=[name for name in SETTINGS if name in dataset.setting])
    names = {"IC": "novel classes, in context", "purged": "known classes, not in context"}
    last = last.sel(test_set=[name for name in names if name in last.test_set])
    last = last.assign_coords(test_set=[names[name] for name in last.test_set.values])
    tests = [{"test_set": name} for name in last.test_set.values]
    rows = [Panel("accuracy", at=test, ylim=(-0.03, 1.03)) for test in tests]
    return panels(last, rows, x="classes", hue="setting", xscale="log")


ENDS = functools.partial(Control, axes={"classes": (64, 512), "setting": (PLAIN,), "seed": (0, 1)})

claim = Claim(
    title="Learning in weights or in context",
    sentence=(
        "On bursty prompts small attention networks learn few classes in weights and many in context; burstiness and "
        "within-class noise favour context, Zipfian frequencies allow both."
    ),
    conditions=(
        "N = 4 pairs, 16 labels, 64 to 512 classes, SGD until the training loss is 0.05 nats, 10 seeds. B from 1 to 2, "
        "noise from 0.1 to 0.5, Zipf exponent from 0 to 1."
    ),
    sources=("Reddy24",),
    quantities=(
        "accuracy",
        Quantity(
            "context_advantage", r"A_{\mathrm{IC}} - A_{\mathrm{IW}}", "accuracy in context minus accuracy in weights"
        ),
        Quantity("lesser_accuracy", r"\min A", "lesser of the accuracies in context and in weights"),
        Quantity("chance_accuracy", "1/L", "accuracy of guessing a label"),
    ),
    static=("classes",),
    outputs=("test_set", "step"),
    fixed={"label_count": 16, "pairs": 4, "loss": 0.05, "prompts": 2048},
    sizes={
        "smoke": {"classes": (16,), "setting": (PLAIN,), "test_set": ("IC",), "step": (0,), "seed": 4},
        "small": {"classes": (64, 128, 256, 512), "setting": (PLAIN, BURSTIER, NOISIER, SKEWED), "seed": 10}
        | {"test_set": TESTS, "step": (0, 6000)},
        "medium": {"classes": tuple(2**i for i in range(5, 12)), "setting": tuple(SETTINGS), "seed": Seeds(6, block=1)}
        | {"test_set": TESTS, "step": (0, 12000)},
    },
    key=1,
    controls={
        "novel_classes": ENDS(
            "trained on classes that are new in every prompt: the weights have nothing to learn", {"trained_on": "IC"}
        ),
        "plain_prompts": ENDS(
            "trained on prompts whose context is drawn without regard to the query", {"trained_on": "IW"}
        ),
        "fewer_bursts": Control(
            "the plain prompts are the burstier ones",
            measure={"exchanged": (PLAIN, BURSTIER)},
            axes={"classes": (128, 256), "setting": (PLAIN, BURSTIER), "seed": (0, 1, 2, 3)},
        ),
        "even_frequencies": Control(
            "the plain frequencies are the Zipfian ones",
            measure={"exchanged": (PLAIN, SKEWED)},
            axes={"classes": (512,), "setting": (PLAIN, SKEWED), "seed": (0, 1, 2, 3)},
        ),
        "turned": Control("networks of few classes are those of many", theory={"turned": True}),
    },
)
