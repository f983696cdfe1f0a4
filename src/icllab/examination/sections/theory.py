r"""Theory at the same point: errors of ridge, of linear attention after training, and of its optimum.

A regression of dimension d with labels of variance :math:`s^2 = \mathrm{tr}(C_x C_w)` without noise has
:math:`\alpha = \ell/d`, :math:`\rho = \sigma^2/s^2`, :math:`\kappa = K/d` and, of N training prompts,
:math:`\tau = N/d^2`; all errors are multiples of :math:`s^2`. The formulas are predictions for one layer of linear
attention. For any other network they are a reference.
"""

import math
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from icllab.diagnostics.behaviour.answers import sample_prompts
from icllab.examination.measuring import Paired, losses
from icllab.examination.section import UNDECIDED, Finding, Section, Size, tail
from icllab.examination.subject import Subject
from icllab.models import LinearAttention
from icllab.tasks import LinearRegression, WeightPool
from icllab.tasks.regression_distributions import matrix
from icllab.theory import linear_attention, preconditioners

PROMPTS = 32
"""Multiple of the size's prompts: a squared error has a standard deviation of about 1.5 times its mean."""
MOST = 2**16  # prompts
WITHIN = 0.1
"""A loss within this fraction of a reference agrees with it."""


def point(subject: Subject) -> dict[str, float]:
    """The coordinates of the theory, and the variance of labels without noise."""
    task: Any = subject.task
    inputs, weights = _moments(task)
    signal = float(np.trace(inputs @ weights))
    pool = len(task.weights.weights) if isinstance(task.weights, WeightPool) else math.inf
    return {
        "alpha": task.length / task.dim,
        "rho": float(task.noise_variance) / signal,
        "kappa": pool / task.dim,
        "tau": math.inf if subject.trained_on is None else subject.trained_on / task.dim**2,
        "signal": signal,
        "isotropic": float(all(np.allclose(m, m[0, 0] * np.eye(task.dim)) for m in (inputs, weights))),
    }


def _moments(task: Any) -> list[np.ndarray]:
    """Second moments of inputs and of fresh task vectors."""
    fresh = task.fresh()
    moments = (fresh.inputs.second_moment(task.dim), matrix(fresh.weights.covariance, task.dim))
    return [np.asarray(moment, float) for moment in moments]


def measure(subject: Subject, size: Size, key: PRNGKeyArray) -> xr.Dataset:
    """The network's loss at the last position, on the pool and on fresh tasks, beside the formulas."""
    at, task = point(subject), subject.task
    tasks = {"pool": task, "fresh": task.fresh()} if subject.pool else {"fresh": task}
    count = min(PROMPTS * size.prompts, MOST)
    means = {
        name: Paired.of(losses(subject.network, one, sample_prompts(one, key=key, prompts=count))[:, -1])
        for name, one in tasks.items()
    }
    place = {name: at[name] for name in ("tau", "alpha", "kappa", "rho")}
    references = {"ridge": linear_attention.ridge_error(alpha=at["alpha"], rho=at["rho"])}
    if at["isotropic"]:
        references["linear attention, fresh tasks"] = linear_attention.icl_error(**place)
        if subject.pool:
            references["linear attention, pool"] = linear_attention.idg_error(**place)
    inputs, weights = _moments(task)
    options = {"length": task.length, "task_covariance": weights, "noise_variance": float(task.noise_variance)}
    least = preconditioners.optimal(inputs, **options)[1] + float(task.noise_variance)
    references["optimum of one linear layer"] = float(least) / at["signal"]
    values = {f"loss_{name}": value.mean for name, value in means.items()}
    values |= {f"loss_{name}_error": value.error for name, value in means.items()}
    return xr.Dataset(
        values | {"reference": ("formula", at["signal"] * np.array(list(references.values()), float))},
        {"formula": list(references)},
        {"kind": subject.kind, "warnings": [], "linear": int(isinstance(subject.network, LinearAttention))} | at,
    )


def judge(dataset: xr.Dataset) -> Finding:
    """The formula that the loss agrees with within a tenth; below or above all of them; or undecided."""
    world = "pool" if "loss_pool" in dataset else "fresh"
    loss, error = float(dataset[f"loss_{world}"]), float(dataset[f"loss_{world}_error"])
    names = [str(name) for name in dataset["formula"].values]
    values = dict(zip(names, map(float, dataset["reference"].values), strict=True))
    finite = {name: value for name, value in values.items() if math.isfinite(value)}
    agrees = {name: tail(WITHIN * value - abs(loss - value), error) for name, value in finite.items()}
    apart = {name: tail(abs(loss - value) - WITHIN * value, error) for name, value in finite.items()}
    best = min(finite, key=lambda name: abs(loss - finite[name]))
    verdict, p_value = UNDECIDED, max(min(agrees[best], 1.0), apart[best])
    if agrees[best] <= 0.05:
        verdict, p_value = f"agrees with {best}", agrees[best]
    elif max(apart.values()) <= 0.05:
        verdict = "below every reference" if loss < min(finite.values()) else "above the nearest reference"
        verdict, p_value = (
            (verdict if loss < min(finite.values()) or loss > finite[best] else "between references"),
            max(apart.values()),
        )
    said = ", ".join(f"{name} {value:.3g}" for name, value in values.items())
    alpha, rho, kappa, tau = (dataset.attrs[name] for name in ("alpha", "rho", "kappa", "tau"))
    kind = "a prediction" if dataset.attrs["linear"] else "a reference, not a prediction"
    sentence = (
        f"At alpha = {alpha:.3g}, rho = {rho:.3g}, kappa = {kappa:.3g}, tau = {tau:.3g} the formulas say {said} "
        f"({kind}); the loss is {loss:.3g} ± {error:.1g} on {'its pool' if world == 'pool' else 'fresh tasks'}."
    )
    what = f"loss over {best}"
    ratio, ratio_error = loss / finite[best], error / finite[best]
    null = (
        f"kappa {'below' if kappa < 1 else 'above'} 1: {'a pool that spans no space' if kappa < 1 else 'tasks span it'}"
    )
    change = f"a loss {'outside' if verdict.startswith('agrees') else 'within'} {WITHIN:.0%} of a formula"
    return Finding(verdict, sentence, ratio, ratio_error, what, null, f"{2.8 * ratio_error:.2%}", change, p_value)


def lacks(subject: Subject) -> str:
    """Linear regression with Gaussian tasks."""
    if not isinstance(subject.task, LinearRegression) or not hasattr(subject.task.fresh().weights, "covariance"):
        return "the formulas are of linear regression with Gaussian tasks"
    return ""


SECTION = Section(
    name="theory",
    question="What does theory say at the same point?",
    measure=measure,
    judge=judge,
    lacks=lacks,
    code="theory.linear_attention.ridge_error(alpha=length / dim, rho=noise_variance / dim)",
    batches=2.0 * PROMPTS,
    programs=5,
)
