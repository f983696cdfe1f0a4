r"""What has to be learned before the head works: interventions during training, and when the jump comes.

Networks of the reduced size (N = 4 pairs, L = 16 labels, fresh classes in every prompt) are trained from one start many
times over, each time with one operation of the induction head done for them or kept from them:

- *previous token*: every label looks at the item before it (the pattern of layer 1 is clamped);
- *match*: the query looks at the right label (the pattern of layer 2 is clamped), which needs no previous token;
- *copy*: the attention on each label is the answer, and no classifier is needed;
- *classifier frozen*: it stays as it was drawn; attention alone is trained;
- *no layer 1*, *no layer 2*, *no attention*: a head, or both, add nothing;
- *layer 1 grafted*, *layer 2 grafted*, *classifier grafted*: a part starts from the network trained without
  intervention, and is trained on; the rest starts as always.

T is the step at which the accuracy on novel classes first reaches 0.9. An effect is the mean over seeds of
:math:`\ln T - \ln T_0`, with :math:`T_0` of the same start and prompts without intervention. A run that does not get
there is censored at its last step: where there are such, groups are compared by the log-rank test.
"""

import dataclasses
import functools

import numpy as np
import xarray as xr

from icllab.core.statistics import mean_and_error
from icllab.experiments.checks import Finding, Outcome, agreement, exactly, exceeds
from icllab.experiments.experiment import Experiment, World
from icllab.experiments.results import fixed_values
from icllab.figures import style

NONE = "none"
CLAMPS = ("previous token", "match", "copy")
FROZEN, GRAFTS = "classifier frozen", ("layer 1 grafted", "layer 2 grafted", "classifier grafted")
BLIND = "no attention"
ABLATIONS = ("no layer 1", "no layer 2", BLIND)
INTERVENTIONS = (NONE, *CLAMPS, FROZEN, *GRAFTS, *ABLATIONS)
REACHED = 0.9  # accuracy at which a network has made its transition
SOONER = (*CLAMPS, *GRAFTS)
ORDER = (  # the later one first
    ("previous token", "copy"),
    ("copy", "match"),
    ("classifier grafted", "layer 1 grafted"),
    ("layer 1 grafted", "layer 2 grafted"),
)
LARGEST_P = 0.01  # of a log-rank test that tells
STEPS = tuple(range(0, 3001, 50))


def measure(point, *, key, unablated=False):
    """One cell: every intervention from the start of every seed. ``unablated``: layer 2 finds the match."""
    import jax

    from icllab.claims.induction import _accuracy as induction_tests
    from icllab.claims.induction import _networks as induction_networks
    from icllab.models import ablated, copy_clamped, grafted, match_clamped, previous_token_clamped

    changed = {
        "previous token": previous_token_clamped,
        "match": match_clamped,
        "copy": copy_clamped,
        "no layer 1": functools.partial(ablated, layer=1),
        "no layer 2": functools.partial(ablated, layer=2),
        BLIND: match_clamped if unablated else lambda network: ablated(ablated(network, 1), 2),
    }
    parts = {
        "layer 1 grafted": lambda network: network.layers[0],
        "layer 2 grafted": lambda network: network.layers[1],
        "classifier grafted": lambda network: network.classifier,
    }
    accuracy = np.empty((len(point.intervention), len(point.seed), len(point.step)))
    sizes = {"dim": point.dim, "labels": point.labels, "pairs": point.pairs}
    starts = induction_networks.networks(
        induction_networks.task(key=key, **sizes), seeds=point.seed, key=jax.random.fold_in(key, 2**31 - 1)
    )
    for s, seed in enumerate(point.seed):
        of_task, of_prompts, of_tests = jax.random.split(jax.random.fold_in(key, seed), 3)
        law, start, last = induction_networks.task(key=of_task, **sizes), starts.member(s), max(point.step)

        def curve(network, law=law, of_prompts=of_prompts, of_tests=of_tests, last=last, **how):
            how |= {"loss": point.loss, "memory": 20, "steps": last, "keep": point.step}
            run = induction_tests.trained_until(law, network, key=of_prompts, **how)
            asked = {"key": of_tests, "prompts": point.prompts, "steps": point.step}
            return run.member(0), induction_tests.right_on_the_way(run, law, **asked)

        without = {NONE, *GRAFTS} & set(point.intervention)
        donor, base = curve(start) if without else (start, None)
        for i, name in enumerate(point.intervention):
            if name == NONE:
                accuracy[i, s] = base
            elif name == FROZEN:
                accuracy[i, s] = curve(start, trainable=lambda network: network.layers)[1]
            elif name in parts:
                accuracy[i, s] = curve(grafted(start, donor, parts[name]))[1]
            else:
                accuracy[i, s] = curve(changed[name](start))[1]
    return {"accuracy": (("intervention", "seed", "step"), accuracy)}


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """Times, and the level of a network that has no attention."""
    return _timed(dataset, 1 / fixed_values(dataset)["labels"])


def _timed(dataset: xr.Dataset, blind: float) -> xr.Dataset:
    from icllab.diagnostics import transitions

    accuracy = dataset["accuracy"].isel(dim=0, drop=True)
    found = [
        transitions(accuracy.sel(intervention=name, drop=True), plateau=0.0, end=1.0, level=REACHED, edges=(0.5, 0.95))
        for name in accuracy.intervention.values
    ]
    over = ("intervention", "seed")
    columns = {
        name: (over, np.stack([np.asarray(one[name].values, float) for one in found]))
        for name in ("transition_time", "observed_time", "transitioned")
    }
    median = [float(one["median_time"]) for one in found]
    return dataset.assign(columns).assign(median_time=("intervention", median), blind_accuracy=blind)


def check(dataset: xr.Dataset) -> list[Finding]:
    """What each intervention does to the time of the jump, and which operation it waits for."""
    there = [name for name in INTERVENTIONS if name in dataset.intervention]
    findings = [_blind(dataset)] if BLIND in there else []
    compared = there if NONE in there else []
    findings += [_sooner(dataset, name) for name in SOONER if name in compared]
    findings += [_more(dataset, *pair) for pair in ORDER if set(pair) <= set(compared)]
    findings += [_later(dataset, name) for name in (FROZEN, *ABLATIONS) if name in compared]
    findings += [_count(dataset, name) for name in ABLATIONS if name in compared]
    wanted = set(there) == set(INTERVENTIONS)
    findings.append(exactly("all interventions", 1, wanted, otherwise=Outcome.UNDECIDED))
    return findings


def _blind(dataset: xr.Dataset) -> Finding:
    """Without any attention the query's token is all there is to answer by, whatever the training."""
    last = dataset["accuracy"].sel(intervention=BLIND).isel(step=-1, dim=0).transpose("seed").values
    mean, error = mean_and_error(last)
    # Of few seeds the scatter may be small by chance; that of the prompts is known.
    least = np.sqrt(mean * (1 - mean) / (fixed_values(dataset)["prompts"] * len(last)))
    what = "accuracy without attention, after training"
    error = float(np.maximum(error, least))
    return agreement(what, float(dataset["blind_accuracy"]), float(mean), error, largest_error=0.02)


def _sooner(dataset: xr.Dataset, name: str) -> Finding:
    return _more(dataset, NONE, name, "ln T without intervention")


def _more(dataset: xr.Dataset, later: str, sooner: str, called: str = "") -> Finding:
    """Pairs of one start. A run that was cut off has the logarithm of its last step, and its time is longer."""
    (a, a_there), (b, b_there) = (_logs(dataset, name) for name in (later, sooner))
    mean, error = (float(one) for one in mean_and_error(a - b))
    finding = exceeds(f"{called or f'ln T, {later},'} less ln T, {sooner}", mean, error)
    # Cut off on the later side the difference is larger than it looks, on the other side smaller.
    sound = {Outcome.HOLDS: b_there, Outcome.FAILS: a_there, Outcome.UNDECIDED: True}[finding.outcome]
    advice = "runs were cut off before they got there; longer ones would tell"
    return finding if sound else dataclasses.replace(finding, outcome=Outcome.UNDECIDED, advice=advice)


def _logs(dataset: xr.Dataset, name: str) -> tuple[np.ndarray, bool]:
    """Log times of every seed, and whether none was cut off."""
    part = dataset.sel(intervention=name).transpose("seed", ...)
    return np.log(np.maximum(part["observed_time"].values, 1.0)), bool((part["transitioned"] > 0).all())


def _later(dataset: xr.Dataset, name: str) -> Finding:
    """The log-rank test against the same starts left alone, which counts runs that were cut off as what they are."""
    from icllab.diagnostics import delay

    what = f"exact p of the log-rank test that it comes later, {name}"
    groups = [_group(dataset, one) for one in (NONE, name)]
    if not groups[0]["transitioned"].any():
        return Finding(
            what, 0.0, 1.0, 0.0, LARGEST_P, Outcome.UNDECIDED, "it does not come without intervention either"
        )
    found = delay(*groups)
    p, later = float(found["exact_p_value"]), float(found["log_rank"]) < 0
    outcome = Outcome.UNDECIDED if p > LARGEST_P else Outcome.HOLDS if later else Outcome.FAILS
    return Finding(what, 0.0, p, 0.0, LARGEST_P, outcome, "more seeds would tell" if p > LARGEST_P else "")


def _count(dataset: xr.Dataset, name: str) -> Finding:
    """None at all; says nothing where none comes without intervention."""
    count, others = (int(_group(dataset, one)["transitioned"].sum()) for one in (name, NONE))
    finding = exactly(f"transitions, {name}", 0, count)
    return finding if others else dataclasses.replace(finding, outcome=Outcome.UNDECIDED)


def _group(dataset: xr.Dataset, name: str) -> xr.Dataset:
    part = dataset.sel(intervention=name, drop=True)[["observed_time", "transitioned"]]
    return part.assign(transitioned=part["transitioned"].astype(bool))


def figure(dataset: xr.Dataset):
    """The time of every run, open where it was cut off; medians by Kaplan and Meier as bars."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    names = [name for name in INTERVENTIONS if name in dataset.intervention]
    with style.context():
        figure = Figure(figsize=(style.COLUMN, 0.85 + 0.22 * len(names)), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        for row, name in enumerate(names):
            part = dataset.sel(intervention=name)
            time, there = part["observed_time"].values, part["transitioned"].values > 0
            colour = style.INK if name == NONE else style.CATEGORIES[0]
            spread = row + np.linspace(-0.24, 0.24, len(time)) if len(time) > 1 else np.array([float(row)])
            look = {"linestyle": "none", "color": colour, "markeredgewidth": 0.7, "clip_on": False}
            axes.plot(time[there], spread[there], "o", markersize=3.0, **look)
            axes.plot(time[~there], spread[~there], ">", markersize=3.4, markerfacecolor="white", **look)
            median = float(part["median_time"])
            if np.isfinite(median):
                axes.plot([median] * 2, [row - 0.36, row + 0.36], color=colour, linewidth=1.4)
        axes.set_xscale("log")
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(axis="x")
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(f"step at which the accuracy reaches {REACHED:g}")
        shown = [
            Line2D([], [], linestyle="none", marker="o", markersize=3.0, color=style.INK, label="one run"),
            Line2D([], [], linestyle="none", marker=">", markersize=3.4, color=style.INK, label="cut off before"),
            Line2D([], [], color=style.INK, linewidth=1.4, label="median"),
        ]
        shown[1].set_markerfacecolor("white")
        figure.legend(handles=shown, loc="outside upper left", ncols=3)
    return figure


def _of_the_context(dataset: xr.Dataset) -> xr.Dataset:
    return _timed(dataset, 1 / fixed_values(dataset)["pairs"])


FIXED = {"labels": 16, "pairs": 4, "loss": 0.15, "prompts": 512}

experiment = Experiment(
    claim=(
        "The jump comes sooner when any one operation of the induction head is done for the network: least for the "
        "attention to the previous token, more for the copy, most for the match. Of the parts of a trained network, "
        "layer 2 brings it forward most and the classifier least. Without either layer it does not come, nor with a "
        "frozen classifier in this time."
    ),
    sources=("Reddy24",),
    static=("dim",),
    fixed=FIXED,
    sizes={
        "smoke": {"dim": (31,), "intervention": (BLIND,), "step": (0, 100), "seed": 3},
        "small": {"dim": (31,), "intervention": INTERVENTIONS, "step": STEPS, "seed": 10},
        "medium": {"dim": (31,), "intervention": INTERVENTIONS, "step": tuple(range(0, 8001, 50)), "seed": 20},
    },
    precision="float32",
    measure=measure,
    theory=theory,
    check=check,
    figure=figure,
    worlds={
        "any_label_of_the_context": World("who has no attention names a label of the context", theory=_of_the_context),
        "unablated": World(
            "layer 2 looks at the right label where attention should add nothing",
            measure=functools.partial(measure, unablated=True),
        ),
    },
)
