r"""Distances of a network to candidate algorithms, and a verdict that may be "none of these"."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Float, PRNGKeyArray

from icllab.core.errors import InputError, expected, require_integer, require_key
from icllab.core.progress import shown, stage
from icllab.core.prompt import TokenPrompt
from icllab.core.protocols import AbstractTask, Predictor, require_task
from icllab.core.result_warnings import warns
from icllab.diagnostics.behaviour.answers import heaviest_share, heavy_tail_warning, sample_prompts
from icllab.diagnostics.behaviour.loss_warnings import LossUnits
from icllab.diagnostics.identification import verdicts
from icllab.diagnostics.identification.candidates import FittedParameters, fit_candidate, fitted_parameters
from icllab.diagnostics.identification.responses import (
    Baselines,
    Responses,
    baseline_features,
    compared_positions,
    require_compared,
    responses,
)
from icllab.diagnostics.identification.summaries import Identification, summary
from icllab.diagnostics.identification.token_distances import require_traceable, token_distances
from icllab.diagnostics.identification.verdicts import Evidence, Judgement, Unexplained, VerdictRule
from icllab.diagnostics.identification.weights import as_linear_attention, relative_distance
from icllab.diagnostics.predictor_axes import PredictorAxes
from icllab.diagnostics.validate_predictor import validate_predictor
from icllab.models.pretrained.ignored_fields import ignored_fields
from icllab.training.ensembles import Ensemble
from icllab.training.streams import Positions


@warns("identification")
def identify(
    predictor_or_run: Any,
    rivals: Mapping[str, Predictor],
    task: AbstractTask,
    *,
    key: PRNGKeyArray,
    fitted: Mapping[str, Sequence[str]] | None = None,
    fit_on: AbstractTask | None = None,
    fitting: int = 512,
    positions: Positions = "last",
    prompts: int = 2048,
    rule: VerdictRule | None = None,
    block: int = 256,
    progress: bool | None = None,
) -> xr.Dataset:
    r"""Measure the distance of a network to each candidate algorithm, and judge which one it implements, if any.

    .. math:: u_k = \max\left(\frac{E\,(f - r_k)^2}{E\,(f - t)^2},\;
              \frac{E\,|\nabla_xf - \nabla_xr_k|^2}{E\,|\nabla_xf - c|^2}\right)

    is the fraction of variance of the network f that candidate :math:`r_k` leaves unexplained; x is the query. Input
    gradients count if both predictors have them. The denominators are the residuals of the baselines:
    :math:`t = c_0 + c_1^\top x + c_2\bar y`, which does not combine examples and query, and a constant gradient c. The
    verdict names a candidate only if the upper end of the interval of :math:`u_k` is at most the rule's tolerance. The
    default tolerance of a hundredth allows a candidate to miss the answers by a tenth of their size, and rejects a
    network that adds 7 % of an unrelated answer of equal size. See
    :func:`~icllab.diagnostics.identification.verdicts.judge_candidates` for the rest of the rule.

    Of prompts of token ids, such as those of a language model and of n-grams, squares are divergences of the
    distributions of the next token, without input gradients:

    .. math:: u_k = \frac{E\,\mathrm{KL}(p_f \Vert p_k)}{E\,\mathrm{KL}(p_f \Vert \bar p)}, \qquad \bar p = E\,p_f

    The candidates' parameters and the baselines are fitted on separate prompts. All other measurements use the same
    prompts for all.

    Args:
        predictor_or_run: Predictor; ensemble or run, each of whose members is judged; or the kept steps of a run
            (``fit(..., record=Record(keep=...))``), each of which is judged.
        rivals: Candidate algorithms: name -> predictor.
        task: Task that samples the prompts, of regression or of token ids.
        key: Key of the prompts, and of the bootstrap.
        fitted: Name of a candidate -> its attributes to fit to the network; None: fit nothing.
        fit_on: Task that samples the prompts of the fits; None: ``task``. Give the training task if ``task`` differs
            from it, so that candidates must extrapolate.
        fitting: Number of prompts of the fits, at least 10.
        positions: ``"last"``, ``"every"``, or integers; discrepancies are means over them.
        prompts: Number of prompts of the verdict, at least 10.
        rule: Rule of the verdict; None: a tolerance of a hundredth, and candidates are distinguished at the resolution
            of their 95 % intervals. The default resolution of a
            :class:`~icllab.diagnostics.identification.verdicts.VerdictRule` is that of rounding.
        block: Number of prompts held in memory at once.
        progress: Whether answered prompts are shown; None: on a terminal and in a notebook.

    Returns:
        Over the axes of the networks and ``candidate``: ``prediction_discrepancy``, ``input_gradient_discrepancy``,
        their maximum ``fraction_unexplained``, and ``gap_to_best``, its excess over the best candidate's, each with an
        ``_interval``; ``mean_difference``, ``cosine`` and ``gradient_difference`` of von Oswald et al.;
        ``weight_distance`` to the candidate's construction, NaN without a comparable one; ``mutual``, the fraction
        between two candidates; ``candidate_rank`` from 1, ``accepted``, and ``among``, the candidates that the
        verdict refers to; ``fitted_parameters``, their number, and ``fitted_values``, as JSON; ``heaviest``, the share
        of the difference that ten prompts carry. For the network, ``verdict``, ``baseline_explained``, the fraction of
        its mean square that the baselines explain, and ``warning``. Of token ids, the fraction is that of its mean
        divergence from the uniform distribution. A measure that no candidate has, such as those of input gradients
        and weights of token ids, of a predictor that is not differentiable, or without a construction, is absent.

        ``verdict`` is the first variable. The attribute ``summary`` is a sentence with the verdict and what the nearest
        candidates leave; it stands first where the Dataset is shown. ``warnings`` has the sentences of ``warning``.

    Raises:
        InputError: There are no candidates, prompts are of another kind, or an argument is out of range.

    Source: distances by answers and by input gradients [vonOswald23].
    Derived: docs/identification.md, The fraction of variance unexplained; docs/identification.md, The verdict.
    """
    require_task(task)
    require_key(key)
    rule = VerdictRule(resolution=None) if rule is None else rule
    _require(rivals, prompts, fitting, rule)
    require_integer("block", block)
    if fitted is not None and not isinstance(fitted, Mapping):
        raise expected("fitted", "a mapping of names to sequences of attributes", fitted, "{'ridge': ['ridge']} is one")
    if fit_on is not None:
        require_task(fit_on, "fit_on")
    axes = PredictorAxes.from_predictors(predictor_or_run, "predictor_or_run", task=task, key=key)
    candidates, names = validate_predictor(rivals, task, key=key, complaints=axes.warnings), tuple(rivals)
    fit_task = task if fit_on is None else fit_on
    at, fit_at = compared_positions(task, positions, key), compared_positions(fit_task, positions, key)
    of_tokens = isinstance(jax.eval_shape(lambda k: task.sample(key=k), key), TokenPrompt)
    if of_tokens:
        require_traceable(candidates)
        if fitted:
            raise expected("fitted", "None for prompts of token ids", list(fitted), "give candidates as they are")
    parameters = fitted_parameters(candidates, fitted or {}, answers=fitting * len(fit_at))
    of_fit, of_judgement, of_bootstrap = (jax.random.fold_in(key, i) for i in range(3))
    to_fit = sample_prompts(fit_task, key=of_fit, prompts=fitting, block=block)
    to_judge = sample_prompts(task, key=of_judgement, prompts=prompts, block=block)
    require_compared(to_fit, fit_at)
    require_compared(to_judge, at)
    features: Any = None if of_tokens else (baseline_features(to_fit, fit_at), baseline_features(to_judge, at))

    def respond(predictor: Predictor) -> Responses:
        return responses(predictor, task, to_judge, positions=at, block=block)

    units = LossUnits.of_prompts(task, to_judge)
    seed = np.asarray(jax.random.key_data(of_bootstrap)).ravel().tolist()
    weights = verdicts.resamplings(prompts, resamples=rule.resamples, seed=seed)
    fixed_responses: dict[str, Responses] = {}

    def judge(members: Ensemble) -> dict[str, np.ndarray]:
        if of_tokens:
            rows = [judge_tokens(members.member(i)) for i in range(members.size)]
            return {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        fit_data = responses(members, fit_task, to_fit, positions=fit_at, block=block)
        test_data = responses(members, task, to_judge, positions=at, block=block)
        if failures := int(np.sum(~np.isfinite(test_data.values).all(axis=-1))):
            came = f"{failures} of {test_data.values[..., 0].size} prompts without"
            raise expected("predictor_or_run", "finite answers", came)
        rows = [judge_network(members.member(i), fit_data.member(i), test_data.member(i)) for i in range(members.size)]
        arrays = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        pairs = zip(arrays["warning"].tolist(), units.mismatches(members, block=block), strict=True)
        return arrays | {"warning": np.array(["; ".join(filter(None, pair)) for pair in pairs])}

    def judge_network(network: Predictor, fit_data: Responses, test_data: Responses) -> dict[str, np.ndarray]:
        replies, fitted_values, nearest = dict(fixed_responses), {}, dict(candidates)
        for name, layout in parameters.items():
            nearest[name] = _nearest(name, candidates[name], layout, to_fit, fit_data.values, fit_at)
            fitted_values[name] = layout.values(nearest[name])
            replies[name] = respond(nearest[name])
        baseline_residuals = Baselines.from_responses(fit_data, features[0]).residuals(test_data, features[1])
        responses_in_order = [replies[name] for name in names]
        evidence = _evidence(test_data, responses_in_order, baseline_residuals)
        with np.errstate(over="ignore", invalid="ignore"):
            row = judged(evidence, float((test_data.values**2).mean())) | _as_published(test_data, responses_in_order)
        sizes = [parameters[name].start.size if name in parameters else 0 for name in names]
        return row | {
            "weight_distance": np.array([_weights(network, nearest[name]) for name in names]),
            "fitted_parameters": np.array(sizes),
            "fitted_values": np.array([json.dumps(fitted_values.get(name, {})) for name in names]),
        }

    def judged(evidence: Evidence, size: float) -> dict[str, np.ndarray]:
        fractions, mutual = verdicts.unexplained(evidence, weights), verdicts.mutual_unexplained(evidence)
        judgement = verdicts.judge_candidates(fractions, mutual, names, rule)
        row = _numbers(fractions, mutual, judgement, rule.confidence)
        return row | _warnings(size, evidence, judgement, names, rule=rule)

    def judge_tokens(network: Predictor) -> dict[str, np.ndarray]:
        order = tuple(candidates.values())
        measured = token_distances(network, order, task, to_judge, at, to_fit=(to_fit, fit_at), block=block)
        row = judged(measured.evidence, measured.from_uniform)
        nothing_fitted = {"fitted_parameters": np.zeros(len(names), int), "fitted_values": np.full(len(names), "{}")}
        return row | nothing_fitted

    with shown("identification", progress):
        stage("", None, "prompts")
        if not of_tokens:
            fixed_responses |= {name: respond(r) for name, r in candidates.items() if name not in parameters}
        arrays = axes.measure(judge)
    arrays = {name: arrays[name] for name in ("verdict", *arrays) if not _is_absent(name, arrays[name])}
    variables = {name: ((*axes.dims, *_axes_of(name)), values) for name, values in arrays.items()}
    coords = {"candidate": list(names), "other_candidate": list(names), "bound": ["low", "high"]}
    fractions, among = (arrays[name].reshape(-1, len(names)) for name in ("fraction_unexplained", "among"))
    attributes = {
        "summary": summary(arrays["verdict"].ravel().tolist(), fractions, among, names, rule.tolerance),
        "warnings": axes.warnings + axes.by_predictor(arrays["warning"].ravel().tolist()),
    }
    attributes |= {"prompts": prompts, "fitting": fitting, "positions": list(at)} | rule._asdict()
    if rule.resolution is None:
        attributes["resolution"] = "that of the intervals"
    attributes |= ignored_fields(predictor_or_run, rivals)
    return Identification(variables, coords=dict(axes.coords) | coords, attrs=attributes)


def _require(candidates: Any, prompts: int, fitting: int, rule: Any) -> None:
    if not isinstance(candidates, Mapping):
        raise expected("rivals", "a mapping of names to candidates", type(candidates).__name__, "{'ridge': Ridge(1.0)}")
    if not candidates:
        raise expected("rivals", "at least one candidate, by name", candidates)
    for name, candidate in candidates.items():
        if not isinstance(name, str) or not callable(candidate) or isinstance(candidate, type):
            came = candidate.__name__ if isinstance(candidate, type) else type(candidate).__name__
            raise expected("rivals", "predictors by name", f"{name!r}: {came}")
    for name in (verdicts.NONE, verdicts.MANY, verdicts.UNDECIDED):
        if name in candidates:
            raise expected("rivals", "names that are no other verdict", name)
    require_integer("prompts", prompts, least=10)
    require_integer("fitting", fitting, least=10)
    if not isinstance(rule, VerdictRule):
        raise expected("rule", "a VerdictRule", rule, "VerdictRule(tolerance=0.01)")
    rule.require()


def _nearest(name: str, candidate: Predictor, layout: FittedParameters, *data: Any) -> Predictor:
    """The nearest member of a candidate's family; raise if derivatives are infinite at every start."""
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            return fit_candidate(candidate, layout, *data)
    except ValueError as error:
        requirement = "parameters whose answers have finite derivatives at a start"
        hint = "start from others, take float64, or fit fewer"
        raise expected(f"fitted[{name!r}]", requirement, "infinite ones", hint) from error


def _squares(left: np.ndarray, right: np.ndarray) -> Float[np.ndarray, " prompt"]:
    with np.errstate(over="ignore", invalid="ignore"):
        squares = (left - right) ** 2
        return squares.reshape(len(squares), left.shape[1], -1).sum(2).mean(1)


def _evidence(
    network: Responses, candidates: list[Responses], baseline_residuals: tuple[np.ndarray, np.ndarray | None]
) -> Evidence:
    missing = np.full(len(network.values), np.nan)

    def gradients(a: Responses, b: Responses) -> np.ndarray:
        return missing if a.gradients is None or b.gradients is None else _squares(a.gradients, b.gradients)

    return Evidence(
        answers=np.stack([_squares(network.values, candidate.values) for candidate in candidates], axis=1),
        answers_scale=baseline_residuals[0],
        gradients=np.stack([gradients(network, candidate) for candidate in candidates], axis=1),
        gradients_scale=missing if baseline_residuals[1] is None else baseline_residuals[1],
        mutual_answers=np.array([[_squares(a.values, b.values).mean() for b in candidates] for a in candidates]),
        mutual_gradients=np.array([[gradients(a, b).mean() for b in candidates] for a in candidates]),
    )


def _numbers(
    fractions: Unexplained, mutual: np.ndarray, judgement: Judgement, confidence: float
) -> dict[str, np.ndarray]:
    row: dict[str, np.ndarray] = {}
    for name in fractions._fields:
        samples = getattr(fractions, name)
        row[name], row[f"{name}_interval"] = samples[0], verdicts.interval(samples, confidence)
    order = np.argsort(fractions.fraction_unexplained[0], kind="stable")
    row |= {
        "mutual": mutual,
        "candidate_rank": np.argsort(order, kind="stable") + 1,
        "verdict": np.array(judgement.verdict),
    }
    names = ("gap_to_best", "gap_to_best_interval", "accepted", "among")
    return row | {name: getattr(judgement, name) for name in names}


def _as_published(network: Responses, candidates: list[Responses]) -> dict[str, np.ndarray]:
    """Mean difference of answers, mean cosine and mean distance of input gradients."""
    with np.errstate(over="ignore", invalid="ignore"):
        rows = [
            (np.abs(network.values - candidate.values).mean(), *_directions(network.gradients, candidate.gradients))
            for candidate in candidates
        ]
    return dict(zip(("mean_difference", "cosine", "gradient_difference"), np.array(rows, float).T, strict=True))


def _directions(left: np.ndarray | None, right: np.ndarray | None) -> tuple[float, float]:
    """Mean cosine and mean distance of input gradients; NaN if a predictor has none."""
    if left is None or right is None:
        return np.nan, np.nan
    sizes = np.linalg.norm(left, axis=2) * np.linalg.norm(right, axis=2)
    inner = (left * right).sum(2)
    # A zero gradient counts as orthogonal to all others.
    cosines = np.divide(inner, sizes, out=np.zeros_like(inner), where=sizes > 0)
    return float(cosines.mean()), float(np.linalg.norm(left - right, axis=2).mean())


def _weights(network: Predictor, candidate: Predictor) -> float:
    left = as_linear_attention(network)
    if left is None or (right := as_linear_attention(candidate)) is None:
        return np.nan
    try:
        return relative_distance(left, right)
    except InputError:  # other conventions: nothing to compare
        return np.nan


def _warnings(
    size: float, evidence: Evidence, judgement: Judgement, names: tuple[str, ...], *, rule: VerdictRule
) -> dict[str, np.ndarray]:
    """Warnings, and what they are made of; ``size``: the network's mean square, or divergence from uniform."""
    heaviest, prompts, warnings = heaviest_share(evidence.answers), len(evidence.answers), [judgement.warning]
    for name, failures in zip(names, np.sum(~np.isfinite(evidence.answers), axis=0), strict=True):
        if failures:
            warnings.append(f"the difference from {name!r} is no finite number on {failures} of {prompts} prompts")
    with np.errstate(over="ignore", invalid="ignore"):
        explained_share = 1 - evidence.answers_scale.mean() / size if size > 0 else 1.0
    if explained_share == 1:
        warnings.append("the baselines leave nothing of the answers for a candidate to explain")
    of_scale = float(heaviest_share(evidence.answers_scale))
    warnings.append(heavy_tail_warning("what the baselines leave", of_scale, prompts))
    if judgement.unexplained_by_best > (verdicts.ROUNDING if rule.resolution is None else rule.resolution):
        subject = f"the difference from {names[judgement.best]}"
        warnings.append(heavy_tail_warning(subject, float(heaviest[judgement.best]), prompts))
    return {
        "heaviest": heaviest,
        "baseline_explained": np.array(float(explained_share)),
        "warning": np.array("; ".join(warning for warning in warnings if warning)),
    }


def _axes_of(name: str) -> tuple[str, ...]:
    """Axes of a variable of one network's result."""
    if name in ("verdict", "baseline_explained", "warning"):
        return ()
    if name == "mutual":
        return ("candidate", "other_candidate")
    return ("candidate", "bound") if name.endswith("_interval") else ("candidate",)


def _is_absent(name: str, values: np.ndarray) -> bool:
    """Check that a measure, which some predictors lack, is available for none."""
    optional = ("input_gradient_discrepancy", "cosine", "gradient_difference", "weight_distance")
    return name.startswith(optional) and bool(np.isnan(values).all())
