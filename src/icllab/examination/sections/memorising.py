r"""Memorised or general: the network between dMMSE of its pool (p = 1) and ridge (p = 0), on pool and fresh tasks.

p is that of :func:`icllab.diagnostics.identification.mixtures.mixture_weight`. It never stands alone: an untrained
network has a p too. The verdict asks two things. Is the network nearer to dMMSE than to ridge on its pool? And how much
larger is its loss on fresh tasks than ridge's?
"""

from typing import TYPE_CHECKING

import jax
import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from icllab.core.spelling import with_error
from icllab.diagnostics.behaviour.answers import sample_prompts
from icllab.diagnostics.identification.mixtures import mixture_weight
from icllab.examination.measuring import Paired, Zero, bayes, losses
from icllab.examination.section import UNDECIDED, Finding, Section, Size, tail
from icllab.examination.sections import known_classes
from icllab.examination.subject import Subject

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def measure(subject: Subject, size: Size, key: PRNGKeyArray) -> xr.Dataset:
    """p with its distances, and losses at the last position, on the pool and on fresh tasks; or of known classes."""
    if subject.kind == "item labels":
        return known_classes.measure(subject, size, key)
    ends = bayes(subject)
    worlds = {"pool": subject.task, "fresh": subject.task.fresh()}
    parts = []
    for i, task in enumerate(worlds.values()):
        own = jax.random.fold_in(key, i)
        part = mixture_weight(subject.network, ends["dMMSE"], ends["ridge"], task, key=own, prompts=size.prompts)
        prompts = sample_prompts(task, key=own, prompts=size.prompts)
        last = losses(subject.network, task, prompts)[:, -1]
        rivals = {name: losses(end, task, prompts)[:, -1] for name, end in ends.items()}
        zero = losses(Zero(), task, prompts)[:, -1]
        pairs = {"loss": last, "excess": last - rivals["ridge"], "possible": zero - rivals["ridge"]}
        pairs |= {f"loss_of_{name}": samples for name, samples in rivals.items()}
        for name, samples in pairs.items():
            mean, error = Paired.of(samples)
            part = part.assign({name: mean, f"{name}_error": error})
        nearer = part["distance_to_second"] - part["distance_to_first"]
        parts.append(part.assign(nearer_to_pool=nearer, samples=("prompt", last)))
    dataset = xr.concat(parts, xr.DataArray(list(worlds), dims="tasks", name="tasks"), combine_attrs="drop")
    return dataset.assign_attrs(kind=subject.kind, warnings=[])


def judge(dataset: xr.Dataset) -> Finding:
    r"""Memorised, general, both, neither, or undecided.

    With distances :math:`\delta_M`, :math:`\delta_G` on the pool and :math:`\delta` between the two predictors: the
    network follows dMMSE if :math:`\delta_M < \delta_G` and :math:`\delta_M < \delta/2`, and ridge if
    :math:`\delta_G < \delta_M` and :math:`\delta_G < \delta/2`. It generalises if its loss on fresh tasks is nearer to
    ridge's than to that of the answer zero.
    """
    if dataset.attrs["kind"] == "item labels":
        return known_classes.judge(dataset)
    pool, fresh = dataset.sel(tasks="pool"), dataset.sel(tasks="fresh")
    distances = {name: float(pool[f"distance_{name}"]) for name in ("to_first", "to_second", "between")}
    errors = {name: float(pool[f"distance_{name}_error"]) for name in distances}
    half, half_error = distances["between"] / 2, errors["between"] / 2
    p, p_error = float(pool["mixture_weight"]), float(pool["mixture_weight_error"])
    excess, excess_error = float(fresh["excess"]), float(fresh["excess_error"])
    level, level_error = float(fresh["possible"]) / 2, float(fresh["possible_error"]) / 2

    def near(name: str) -> tuple[float, float]:
        """p-values that the network is not, and that it is, within half the squared distance of the two."""
        gap, error = half - distances[name], float(np.hypot(errors[name], half_error))
        return tail(gap, error), tail(-gap, error)

    (not_first, is_first), (not_second, is_second) = near("to_first"), near("to_second")
    gap, gap_error = level - excess, float(np.hypot(excess_error, level_error))
    not_general, is_general = tail(gap, gap_error), tail(-gap, gap_error)
    options = {
        "memorised": max(not_first, is_general),
        "general": max(not_second, not_general),
        "memorised and general": max(not_first, not_general),
        "neither": max(is_first, is_second),
    }
    verdict = min(options, key=options.__getitem__)
    p_value = options[verdict]
    if p_value > 0.05:
        verdict = UNDECIDED
    odds = float(pool["log_odds"])
    stated = f", log odds {odds:.2g}" if np.isfinite(odds) else ""
    loss = with_error(float(fresh["loss"]), float(fresh["loss_error"]))
    ridge = with_error(float(fresh["loss_of_ridge"]), float(fresh["loss_of_ridge_error"]))
    to_first, to_second, between = (f"{distance:.3g}" for distance in distances.values())
    sentence = (
        f"On its pool p = {with_error(p, p_error)}{stated}, with squared distances {to_first} to dMMSE, {to_second} to "
        f"ridge, {between} apart; on fresh tasks the loss is {loss}, ridge {ridge}."
    )
    null = f"on fresh tasks p = {float(fresh['mixture_weight']):.3g} ± {float(fresh['mixture_weight_error']):.1g}"
    smallest = f"a difference of {2.8 * p_error:.2g} in p"
    change = "distances below half of that between dMMSE and ridge, and the loss on fresh tasks"
    what = "p on the pool: 0 ridge, 1 dMMSE"
    return Finding(verdict, sentence, p, p_error, what, null, smallest, change, p_value)


def figure(dataset: xr.Dataset) -> "Figure":
    """Distances to both predictors on the pool; or accuracies on novel and on known classes."""
    from icllab.examination.drawing import bars

    if dataset.attrs["kind"] == "item labels":
        return bars(dataset, "accuracy", "world", line=float(dataset.attrs["chance"]))
    names = {"to_first": "to dMMSE", "to_second": "to ridge", "between": "dMMSE to ridge"}
    parts = {
        suffix: ("distance", [float(dataset.sel(tasks="pool")[f"distance_{name}{suffix}"]) for name in names])
        for suffix in ("", "_error")
    }
    table = xr.Dataset({f"squared_distance{s}": part for s, part in parts.items()}, {"distance": list(names.values())})
    return bars(table, "squared_distance", "distance")


def lacks(subject: Subject) -> str:
    """The pool or the classes of training, without which nothing was memorised that could be named."""
    if subject.kind == "item labels":
        known = getattr(subject.task, "means", None) is not None and hasattr(subject.task, "swapped_labels")
        return "" if known else "all classes of the task are novel: none can be in weights"
    if subject.kind != "regression":
        return "the question needs a pool of tasks of regression, or known classes of items"
    return "" if subject.pool else "give the tasks it was trained on (pool=FILE), if they were finitely many"


SECTION = Section(
    name="memorising",
    question="Has the network memorised its tasks, or does it generalise?",
    measure=measure,
    judge=judge,
    lacks=lacks,
    code="diagnostics.mixture_weight(network, dmmse, ridge, task, key=key)",
    figure=figure,
    batches=8.0,
    programs=14,
)
