r"""Which algorithm does this network implement? Distances to candidates, and a verdict that may be "none of these"."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Float, PRNGKeyArray

from icllab.core.axes import require_axes
from icllab.core.errors import InputError, expected, require_integer
from icllab.core.protocols import AbstractTask, Predictor
from icllab.diagnostics.behaviour.answers import sample_prompts
from icllab.diagnostics.behaviour.heavy_tails import heaviest_share, heavy_tail_warning
from icllab.diagnostics.identification import verdicts
from icllab.diagnostics.identification.candidates import (
    FittedParameters,
    fitted_candidate,
    fitted_parameters,
)
from icllab.diagnostics.identification.responses import (
    Baselines,
    Responses,
    asked_positions,
    baseline_features,
    responses,
)
from icllab.diagnostics.identification.verdicts import Evidence, Judgement, Unexplained, VerdictRule
from icllab.diagnostics.identification.weights import as_linear_attention, relative_distance
from icllab.diagnostics.predictor_axes import PredictorAxes
from icllab.diagnostics.validate_predictor import validate_predictor
from icllab.training.ensembles import Ensemble
from icllab.training.streams import Positions


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
) -> xr.Dataset:
    r"""How far a network is from each candidate algorithm, and which of them it is, if any.

    .. math:: u_k = \max\left(\frac{E\,(f - r_k)^2}{E\,(f - t)^2},\;
              \frac{E\,|\nabla_xf - \nabla_xr_k|^2}{E\,|\nabla_xf - c|^2}\right)

    is the fraction of variance of the network f that candidate :math:`r_k` leaves unexplained, x the query; the input
    gradients count where both have them. It is measured against what the baselines leave:
    :math:`t = c_0 + c_1^\top x + c_2\bar y`, which does not use examples and query together, and a constant gradient c.
    The verdict is a candidate's name only if the upper end of the interval of :math:`u_k` is at most the rule's
    tolerance. By default that is a hundredth: the candidate misses the answers by a tenth of their size, and a network
    that adds to it 7 % of an unrelated answer of equal size is none of these any more. See
    :func:`~icllab.diagnostics.identification.verdicts.judged` for the rest of the rule.

    The candidates' parameters and the baselines are fitted on prompts of their own; everything else is measured on
    other prompts, the same for all.

    Args:
        predictor_or_run: A predictor; an ensemble or a run, each of whose members is judged; or a run that has kept
            parameters (``fit(..., record=Record(keep=...))``), judged at each of those steps.
        rivals: Candidate algorithms: name -> predictor.
        task: Task that samples the prompts.
        key: Key of the prompts, and of the bootstrap.
        fitted: Name of a candidate -> its attributes that are fitted to the network. None: candidates are as they are.
        fit_on: Task that samples the prompts of the fits; None: ``task``. Give the training task where ``task`` is
            another, so that candidates have to be right where they were not fitted.
        fitting: Number of prompts on which candidates are fitted, at least 10.
        positions: ``"last"``, ``"every"``, or integers; discrepancies are means over them.
        prompts: Number of prompts on which the network is judged, at least 10.
        rule: What a verdict requires; None: a tolerance of a hundredth, and candidates told apart at the resolution of
            their intervals of 95 %. A :class:`~icllab.diagnostics.identification.verdicts.VerdictRule` has a
            resolution of its own, by default that of rounding.
        block: Number of prompts held in memory at once.

    Returns:
        Over the axes of the networks and ``candidate``: ``prediction_discrepancy``, ``input_gradient_discrepancy``,
        their maximum ``fraction_unexplained``, and ``gap_to_best``, how far that is above the best candidate's, each
        with an ``_interval``; ``mean_difference``, ``cosine`` and ``gradient_difference`` as von Oswald et al. have
        them; ``weight_distance`` to the candidate's construction, NaN where there is none of the network's kind;
        ``mutual``, the fraction between two candidates; ``rank`` from 1, ``accepted``, and ``among``, those that the
        verdict means; ``fitted_parameters``, their number, and ``fitted_values``, as JSON; ``heaviest``, the share of
        the difference that ten prompts carry. For the network, ``verdict``, ``baseline_explained``, the fraction of its
        mean square that the baselines explain, and ``warning``.

    Raises:
        InputError: No candidates, a task without real-valued labels, or an argument that does not fit.

    Source: distances by answers and by input gradients [vonOswald23].
    Derived: docs/identification.md, The fraction of variance unexplained; docs/identification.md, The verdict.
    """
    rule = VerdictRule(resolution=None) if rule is None else rule
    _require(rivals, prompts, fitting, rule)
    axes = PredictorAxes.from_predictors(predictor_or_run, "predictor_or_run", task=task, key=key)
    candidates, names = validate_predictor(rivals, task, key=key, level=4), tuple(rivals)
    fit_task = task if fit_on is None else fit_on
    at, fit_at = asked_positions(task, positions, key), asked_positions(fit_task, positions, key)
    parameters = fitted_parameters(candidates, fitted or {}, answers=fitting * len(fit_at))
    of_fit, of_judgement, of_bootstrap = (jax.random.fold_in(key, i) for i in range(3))
    to_fit = sample_prompts(fit_task, key=of_fit, prompts=fitting, block=block)
    to_judge = sample_prompts(task, key=of_judgement, prompts=prompts, block=block)
    features = baseline_features(to_fit, fit_at), baseline_features(to_judge, at)

    def judged_on(predictor: Predictor) -> Responses:
        return responses(predictor, task, to_judge, positions=at, block=block)

    seed = np.asarray(jax.random.key_data(of_bootstrap)).ravel().tolist()
    weights = verdicts.resamplings(prompts, resamples=rule.resamples, seed=seed)
    as_they_are = {name: judged_on(r) for name, r in candidates.items() if name not in parameters}

    def judge(members: Ensemble) -> dict[str, np.ndarray]:
        before = responses(members, fit_task, to_fit, positions=fit_at, block=block)
        own = responses(members, task, to_judge, positions=at, block=block)
        if bad := int(np.sum(~np.isfinite(own.values).all(axis=-1))):
            raise expected("predictor_or_run", "finite answers", f"{bad} of {own.values[..., 0].size} prompts without")
        rows = [one(members.member(i), before.member(i), own.member(i)) for i in range(members.size)]
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}

    def one(network: Predictor, before: Responses, own: Responses) -> dict[str, np.ndarray]:
        theirs, fits, nearest = dict(as_they_are), {}, dict(candidates)
        for name, of_candidate in parameters.items():
            nearest[name] = _nearest(name, candidates[name], of_candidate, to_fit, before.values, fit_at)
            fits[name] = of_candidate.values(nearest[name])
            theirs[name] = judged_on(nearest[name])
        left = Baselines.fitted(before, features[0]).left(own, features[1])
        ordered = [theirs[name] for name in names]
        evidence = _evidence(own, ordered, left)
        found, mutual = verdicts.unexplained(evidence, weights), verdicts.mutual_unexplained(evidence)
        judgement = verdicts.judged(found, mutual, names, rule)
        row = _numbers(found, mutual, judgement, rule.confidence) | _as_published(own, ordered)
        row |= _warnings(own, evidence, judgement, names, rule=rule)
        sizes = [parameters[name].start.size if name in parameters else 0 for name in names]
        return row | {
            "weight_distance": np.array([_weights(network, nearest[name]) for name in names]),
            "fitted_parameters": np.array(sizes),
            "fitted_values": np.array([json.dumps(fits.get(name, {})) for name in names]),
        }

    measured = axes.measure(judge)
    variables = {name: ((*axes.dims, *_axes_of(name)), values) for name, values in measured.items()}
    named = {"candidate": list(names), "other_candidate": list(names), "bound": ["low", "high"]}
    attributes = {"prompts": prompts, "fitting": fitting, "positions": list(at)} | rule._asdict()
    if rule.resolution is None:
        attributes["resolution"] = "that of the intervals"
    return xr.Dataset(variables, coords=dict(axes.coords) | named, attrs=attributes)


def identify_over(
    axis: str,
    values: Sequence[Any] | np.ndarray,
    case: Callable[[Any], tuple[Any, Mapping[str, Predictor], AbstractTask]],
    *,
    key: PRNGKeyArray,
    **options: Any,
) -> xr.Dataset:
    """The discrepancies and verdicts along an axis: depth, context length, noise, a task's scale out of distribution.

    Args:
        axis: Name of the axis, one of :data:`icllab.core.axes.AXES`: ``layers``, ``length``, ``rho``, ...
        values: Values along it, at least one.
        case: Value -> network, candidates, and task: whatever changes along the axis. Candidates have the same
            names everywhere.
        key: Key for every value, so that prompts of one shape are paired.
        **options: Further arguments of :func:`identify`.

    Returns:
        The Dataset of :func:`identify` with ``axis`` as first dimension.

    Raises:
        InputError: The axis is not known, there is no value, or the candidates' names change.
    """
    require_axes([axis])
    if not len(values):
        raise expected("values", "at least one", list(values))
    found = [identify(*case(value), key=key, **options) for value in values]
    names = [one.candidate.values.tolist() for one in found]
    if any(other != names[0] for other in names):
        raise expected("case", f"the candidates {names[0]} everywhere", next(n for n in names if n != names[0]))
    attributes = dict(found[0].attrs)
    for one in found:
        one.attrs.clear()
    joined = xr.concat(found, dim=xr.DataArray(np.asarray(values), dims=axis, name=axis), join="exact")
    return joined.assign_attrs(attributes)


def _require(candidates: Any, prompts: int, fitting: int, rule: Any) -> None:
    if not isinstance(candidates, Mapping):
        raise expected("rivals", "a mapping of names to candidates", type(candidates).__name__, "{'ridge': Ridge(1.0)}")
    if not candidates:
        raise expected("rivals", "at least one candidate, by name", candidates)
    for name, one in candidates.items():
        if not isinstance(name, str) or not callable(one) or isinstance(one, type):
            came = one.__name__ if isinstance(one, type) else type(one).__name__
            raise expected("rivals", "predictors by name", f"{name!r}: {came}")
    for name in (verdicts.NONE, verdicts.MANY, verdicts.UNDECIDED):
        if name in candidates:
            raise expected("rivals", "names that are no other verdict", name)
    require_integer("prompts", prompts, least=10)
    require_integer("fitting", fitting, least=10)
    if not isinstance(rule, VerdictRule):
        raise expected("rule", "a VerdictRule", rule, "VerdictRule(tolerance=0.01)")
    rule.require()


def _nearest(name: str, candidate: Predictor, of_candidate: FittedParameters, *data: Any) -> Predictor:
    """The nearest member of a candidate's family; a search that meets no number is refused in one line."""
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            return fitted_candidate(candidate, of_candidate, *data)
    except ValueError as error:
        wanted = "parameters whose answers have finite derivatives along the search"
        hint = "start from others, take float64, or fit fewer"
        raise expected(f"fitted[{name!r}]", wanted, "infinite ones", hint) from error


def _squares(left: np.ndarray, right: np.ndarray) -> Float[np.ndarray, " prompt"]:
    with np.errstate(over="ignore", invalid="ignore"):
        squares = (left - right) ** 2
        return squares.reshape(len(squares), left.shape[1], -1).sum(2).mean(1)


def _evidence(own: Responses, theirs: list[Responses], left: tuple[np.ndarray, np.ndarray | None]) -> Evidence:
    prompts = len(own.values)
    none = np.full(prompts, np.nan)

    def gradients(a: Responses, b: Responses) -> np.ndarray:
        return none if a.gradients is None or b.gradients is None else _squares(a.gradients, b.gradients)

    return Evidence(
        answers=np.stack([_squares(own.values, one.values) for one in theirs], axis=1),
        answers_scale=left[0],
        gradients=np.stack([gradients(own, one) for one in theirs], axis=1),
        gradients_scale=none if left[1] is None else left[1],
        mutual_answers=np.array([[_squares(a.values, b.values).mean() for b in theirs] for a in theirs]),
        mutual_gradients=np.array([[gradients(a, b).mean() for b in theirs] for a in theirs]),
    )


def _numbers(found: Unexplained, mutual: np.ndarray, judgement: Judgement, confidence: float) -> dict[str, np.ndarray]:
    row: dict[str, np.ndarray] = {}
    for name in found._fields:
        samples = getattr(found, name)
        row[name], row[f"{name}_interval"] = samples[0], verdicts.interval(samples, confidence)
    order = np.argsort(found.fraction_unexplained[0], kind="stable")
    row |= {"mutual": mutual, "rank": np.argsort(order, kind="stable") + 1, "verdict": np.array(judgement.verdict)}
    of_judgement = ("gap_to_best", "gap_to_best_interval", "accepted", "among")
    return row | {name: getattr(judgement, name) for name in of_judgement}


def _as_published(own: Responses, theirs: list[Responses]) -> dict[str, np.ndarray]:
    """Mean difference of answers, cosine and distance of input gradients: means over prompts and positions."""
    with np.errstate(over="ignore", invalid="ignore"):
        rows = [(np.abs(own.values - one.values).mean(), *_directions(own.gradients, one.gradients)) for one in theirs]
    return dict(zip(("mean_difference", "cosine", "gradient_difference"), np.array(rows, float).T, strict=True))


def _directions(left: np.ndarray | None, right: np.ndarray | None) -> tuple[float, float]:
    """Mean cosine and mean distance of input gradients; NaN where a predictor has none."""
    if left is None or right is None:
        return np.nan, np.nan
    sizes = np.linalg.norm(left, axis=2) * np.linalg.norm(right, axis=2)
    inner = (left * right).sum(2)
    # A gradient of zero has no direction: it counts as orthogonal to all.
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
    own: Responses, evidence: Evidence, judgement: Judgement, names: tuple[str, ...], *, rule: VerdictRule
) -> dict[str, np.ndarray]:
    heaviest, prompts, said = heaviest_share(evidence.answers), len(own.values), [judgement.warning]
    for name, bad in zip(names, np.sum(~np.isfinite(evidence.answers), axis=0), strict=True):
        said.append(f"the difference from {name!r} is no finite number on {bad} of {prompts} prompts" if bad else "")
    with np.errstate(over="ignore", invalid="ignore"):
        size = (own.values**2).mean()
        explained = 1 - evidence.answers_scale.mean() / size if size > 0 else 1.0
    if explained == 1:
        said.append("the baselines leave nothing of the answers for a candidate to explain")
    of_scale = float(heaviest_share(evidence.answers_scale))
    said.append(heavy_tail_warning("what the baselines leave", of_scale, prompts))
    if judgement.unexplained_by_best > (verdicts.ROUNDING if rule.resolution is None else rule.resolution):
        what = f"the difference from {names[judgement.best]}"
        said.append(heavy_tail_warning(what, float(heaviest[judgement.best]), prompts))
    return {
        "heaviest": heaviest,
        "baseline_explained": np.array(float(explained)),
        "warning": np.array("; ".join(one for one in said if one)),
    }


def _axes_of(name: str) -> tuple[str, ...]:
    """The axes of one network's result."""
    if name in ("verdict", "baseline_explained", "warning"):
        return ()
    if name == "mutual":
        return ("candidate", "other_candidate")
    return ("candidate", "bound") if name.endswith("_interval") else ("candidate",)
