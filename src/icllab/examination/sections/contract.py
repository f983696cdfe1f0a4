r"""Contract: is the network causal and deterministic, are its answers finite, and do its scales fit the task?

The scale is the slope of the best multiple :math:`b f` of the answers f: for regression :math:`b = E\,yf / E f^2` at
the last position, for logits the inverse temperature of least cross-entropy there; of sequences their last eighth
counts. A posterior mean has b = 1, and a network in other units does not. Logits that always name the right class have
no best multiple.
"""

import jax
import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from icllab.diagnostics.behaviour.answers import sample_prompts
from icllab.diagnostics.causality import examine as examine_causality
from icllab.examination.measuring import eighth, losses, outputs, targets
from icllab.examination.section import Finding, Section, Size, tail
from icllab.examination.subject import Subject

FACTOR = 3.0
"""Slopes from one over this factor to this factor fit the task: an algorithm may shrink its answers."""
_CLASSES = 2**22  # most logits of the fit of a temperature


def measure(subject: Subject, size: Size, key: PRNGKeyArray) -> xr.Dataset:
    """Positions that see their target or later entries, repetition, finite answers, and the slope of the answers."""
    task, whole = subject.contract_task, subject.kind != "language model"
    test = examine_causality(subject.network, task, key=key)
    first = max(64 if whole else 4, _CLASSES // _classes(subject))
    prompts = sample_prompts(task, key=key, prompts=size.prompts, first=first)
    answers, right = outputs(subject.network, task, prompts), targets(subject.task, prompts)
    right = right[:, -answers.shape[1] :]
    finite = np.asarray(np.isfinite(answers.reshape(*answers.shape[:2], -1)).all((0, 2)))
    late = {"tokens": eighth(len(finite)), "language model": len(finite)}.get(subject.kind, 1)
    scored = finite & (np.arange(len(finite)) >= len(finite) - late)
    if not whole:
        windows = sample_prompts(subject.task, key=key, prompts=2)
        finite = np.isfinite(losses(subject.network, subject.task, windows)).all(0)
    slope, error = _slope(answers[:, scored], right[:, scored]) if scored.any() else (np.nan, np.nan)
    return xr.Dataset(
        {
            "sees_later": ("seeing", np.asarray(test.positions, int)),
            "repeats": int(test.repeats),
            "finite": ("position", finite.astype(int)),
            "slope": slope,
            "slope_error": error,
            "answers_rms": _root_mean_square(answers[:, scored]),
            "targets_rms": _root_mean_square(np.asarray(right[:, scored], float)),
        },
        attrs={"longer": _longer(subject, key), "warnings": list(subject.complaints), "kind": subject.kind},
    )


def _root_mean_square(values: np.ndarray) -> float:
    """Root of the mean square; NaN of no values."""
    return float(np.sqrt(np.mean(values**2))) if values.size else np.nan


def _classes(subject: Subject) -> int:
    classes = 1 if subject.kind == "regression" else subject.task.class_count
    return classes * jax.eval_shape(lambda k: subject.contract_task.sample(key=k), jax.random.key(0)).positions


def _slope(answers: np.ndarray, right: np.ndarray) -> tuple[float, float]:
    """The best multiple of the answers, and its standard error over prompts."""
    if answers.ndim == 2:
        products, squares = (answers * right).mean(1), (answers**2).mean(1)
        if not squares.mean() > 0:
            return np.nan, np.nan
        slope = products.mean() / squares.mean()
        influence = (products - slope * squares) / squares.mean()
        return float(slope), float(influence.std(ddof=1) / np.sqrt(len(influence)))
    if (answers.argmax(-1) == right).all():  # the larger the multiple, the smaller the loss
        return np.nan, np.nan
    slope, scores, curvature = 1.0, np.zeros(len(answers)), 1.0
    for _ in range(50):
        logits = slope * answers
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mean = (weights * answers).sum(-1)
        chosen = np.take_along_axis(answers, np.maximum(right, 0)[..., None], -1)[..., 0]
        scores = np.nanmean(np.where(right >= 0, chosen - mean, np.nan), axis=1)
        curvature = float(np.mean((weights * answers**2).sum(-1) - mean**2))
        if not curvature > 0:  # probabilities of 0 and 1, or equal logits
            slope /= 2
            continue
        step = float(np.clip(np.nanmean(scores) / curvature, -slope / 2, slope))
        slope += step
        if abs(step) < 1e-6 * slope:
            break
    if not curvature > 0:
        return np.nan, np.nan
    return slope, float(np.nanstd(scores, ddof=1) / np.sqrt(len(scores)) / curvature)


def _longer(subject: Subject, key: PRNGKeyArray) -> str:
    """Answers of the network to a prompt that is longer by half, in words."""
    length = getattr(subject.task, "length", None)
    if subject.kind != "regression" or not hasattr(subject.task, "noise_variance") or length is None:
        return ""
    import dataclasses

    longer = dataclasses.replace(subject.task, length=length + length // 2)
    prompts = sample_prompts(longer, key=key, prompts=2)
    words = f"at {length + length // 2 + 1} positions"
    try:
        answers = outputs(subject.network, longer, prompts)
    except Exception as error:  # whatever a user's network raises
        return f"{words} it raises {type(error).__name__}, which is its size and not a fault"
    bad = np.flatnonzero(~np.isfinite(answers).all(0))
    return f"{words} its answers are finite" if not bad.size else f"{words} it answers NaN from position {bad[0]}"


def judge(dataset: xr.Dataset) -> Finding:
    """The first fault in the order: not deterministic, not causal, not finite, other units; else sound."""
    seeing, finite = dataset["sees_later"].values, dataset["finite"].values
    slope, error = float(dataset["slope"]), float(dataset["slope_error"])
    what = "best multiple of the answers; 1 if their scale fits the task"
    change = "a network that gives one answer to a prompt, each from the entries before it"
    log_error = error / abs(slope) if slope else np.inf
    distance = abs(np.log(abs(slope))) - np.log(FACTOR) if slope else np.inf
    informative = bool(np.isfinite(slope) and slope > 3 * error)
    fault, verdict, sentence = True, "", ""
    if not int(dataset["repeats"]):
        verdict, sentence = "not deterministic", "Two calls on one prompt give two answers."
    elif seeing.size:
        places = ", ".join(map(str, seeing.tolist()))
        verdict = "not causal"
        sentence = f"The answers at positions {places} change with their own target or with later entries."
    elif not finite.all():
        places = ", ".join(map(str, np.flatnonzero(finite == 0).tolist()))
        verdict, sentence = "not finite", f"The answers at positions {places} are not finite."
    elif informative and distance > 2 * log_error:
        verdict = "other units"
        sentence = f"The best multiple of the answers is {slope:.3g} ± {error:.1g}; 1 would fit the task."
    else:
        fault, verdict = False, "sound"
        sentence = "Answers are causal, deterministic and finite, and their scale fits the task."
    longer = dataset.attrs["longer"]
    if longer:
        sentence = f"{sentence[:-1]}; {longer}."
    p_value = tail(abs(distance), log_error) if informative else None
    null = (
        f"root mean squares: answers {float(dataset['answers_rms']):.3g}, targets {float(dataset['targets_rms']):.3g}"
    )
    smallest = f"a scale wrong by a factor of {FACTOR * np.exp(2 * log_error):.3g}" if informative else ""
    return Finding(verdict, sentence, slope, error, what, null, smallest, change, p_value, fault)


SECTION = Section(
    name="contract",
    question="Is the network causal and deterministic, and do its scales fit the task?",
    measure=measure,
    judge=judge,
    lacks=lambda subject: "",
    code="diagnostics.require_causal(network, task, key=key)",
    batches=2.0,
    programs=8,
    kinds=("regression", "item labels", "tokens", "language model"),
)
