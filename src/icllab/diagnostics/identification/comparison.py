r"""Which algorithm does this network implement? Distances to rivals, and a verdict that may be "none of these"."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Float, PRNGKeyArray

from icllab.core.axes import require_axes
from icllab.core.errors import InputError, expected, require_number
from icllab.core.protocols import AbstractTask, Predictor
from icllab.diagnostics.behaviour.answers import drawn
from icllab.diagnostics.behaviour.heavy_tails import heaviest_share, heavy_tail_warning
from icllab.diagnostics.identification.candidates import fitted_rival, free_numbers
from icllab.diagnostics.identification.responses import Responses, Trivial, asked_positions, circumstances, responses
from icllab.diagnostics.identification.verdicts import (
    MANY,
    NONE,
    UNDECIDED,
    Evidence,
    Judgement,
    Shares,
    interval,
    judged,
    mutual_shares,
    resamplings,
    shares,
)
from icllab.diagnostics.identification.weights import as_linear_attention, weight_distance
from icllab.training.ensembles import Ensemble
from icllab.training.objective import Positions
from icllab.training.runs import Run


def identify(
    predictor_or_run: Any,
    rivals: Mapping[str, Predictor],
    task: AbstractTask,
    *,
    key: PRNGKeyArray,
    free: Mapping[str, Sequence[str]] | None = None,
    fit_on: AbstractTask | None = None,
    positions: Positions = "last",
    prompts: int = 2048,
    fitting: int = 512,
    share: float = 0.01,
    resolution: float = 1e-6,
    confidence: float = 0.95,
    resamples: int = 1000,
    block: int = 256,
) -> xr.Dataset:
    r"""How far a network is from each rival, in answers, slopes and weights; and which of them it is, if any.

    .. math:: u_k = \max\left(\frac{E\,(f - r_k)^2}{E\,(f - t)^2},\;
              \frac{E\,|\nabla_xf - \nabla_xr_k|^2}{E\,|\nabla_xf - c|^2}\right)

    is the share of the network f that rival :math:`r_k` leaves unexplained, x the query; the slopes count where both
    have them. It is measured against what the trivial alternatives leave: :math:`t = c_0 + c_1^\top x + c_2\bar y`,
    which does not use examples and query together, and a constant slope c. The verdict is a rival's name only if the
    upper end of the interval of :math:`u_k` is at most ``share``. By default that is a hundredth: the rival misses
    the answers by a tenth of their size, and a network that adds to it 7 % of an unrelated answer of equal size is
    none of these any more. See :func:`~icllab.diagnostics.identification.verdicts.judged` for the rest of the rule.

    Fitted are the free numbers of the rivals and the trivial alternatives, on prompts of their own; everything else is
    measured on other prompts, the same for all.

    Args:
        predictor_or_run: A predictor; an ensemble or a run, each of whose members is judged; or a run that has kept
            parameters (``fit(..., keep=...)``), judged at each of those steps.
        rivals: name -> predictor.
        task: Samples the prompts.
        key: Of the prompts, and of the resampling.
        free: name of a rival -> its attributes that are fitted to the network. None: all rivals are as they are.
        fit_on: Samples the prompts of the fits; None: ``task``. Give the training task where ``task`` is another, so
            that rivals have to be right where they were not fitted.
        positions: ``"last"``, ``"every"``, or integers; distances are means over them.
        prompts: On how many it is judged.
        fitting: On how many rivals are fitted.
        share: The largest share left unexplained of a rival that is named.
        resolution: Rivals whose mutual share is smaller are one to all purposes: a thousandth of the answers.
        confidence: Of the bootstrap intervals over prompts; differences are paired.
        resamples: Of the bootstrap.
        block: How many prompts are held in memory at once.

    Returns:
        With the dimensions ``member`` and ``step`` as the input has them, over ``rival``: ``prediction``,
        ``sensitivity``, their maximum ``unexplained``, and ``behind``, by how much it is above the leader's, each
        with an ``_interval``; ``mean_difference``, ``cosine`` and ``slope_difference`` as von Oswald et al. have
        them; ``weight_distance`` to the rival's construction, NaN where there is none of the network's kind;
        ``mutual`` shares of two rivals; ``rank`` from 1, ``accepted``, and ``among``, those that the verdict means;
        ``free_numbers``, how many were fitted, and ``fitted``, which, as JSON; ``heaviest``, the share of the
        difference that ten prompts carry. For the network, ``verdict``, ``trivial``, the share of its mean square
        that the trivial alternatives explain, and ``warning``.

    Raises:
        InputError: No rivals, a task without real-valued labels, or an argument that does not fit.

    Source: distances by answers and by slopes [vonOswald23].
    Derived: docs/identification.md, The share left unexplained; docs/identification.md, The verdict.
    """
    _require(rivals, prompts, fitting, share, resolution, confidence, resamples)
    fit_task = task if fit_on is None else fit_on
    at, fit_at = asked_positions(task, positions, key), asked_positions(fit_task, positions, key)
    numbers = free_numbers(rivals, free or {}, answers=fitting * len(fit_at))
    of_fit, of_judgement, of_bootstrap = (jax.random.fold_in(key, i) for i in range(3))
    to_fit = drawn(fit_task, key=of_fit, prompts=fitting, block=block)
    to_judge = drawn(task, key=of_judgement, prompts=prompts, block=block)
    seen_by_trivial = circumstances(to_fit, fit_at), circumstances(to_judge, at)

    def judged_on(predictor: Predictor) -> Responses:
        return responses(predictor, task, to_judge, positions=at, block=block)

    seed = np.asarray(jax.random.key_data(of_bootstrap)).ravel().tolist()
    weights = resamplings(prompts, resamples=resamples, seed=seed)
    as_they_are = {name: judged_on(r) for name, r in rivals.items() if name not in numbers}

    dims, coords, networks = _cases(predictor_or_run)
    rows = []
    for network in networks:
        before = responses(network, fit_task, to_fit, positions=fit_at, block=block)
        own = judged_on(network)
        theirs, fits, members = dict(as_they_are), {}, dict(rivals)
        for name, of_rival in numbers.items():
            members[name] = fitted_rival(rivals[name], of_rival, to_fit, before.values, fit_at)
            fits[name] = of_rival.values(members[name])
            theirs[name] = judged_on(members[name])
        left = Trivial.fitted(before, seen_by_trivial[0]).left(own, seen_by_trivial[1])
        ordered = [theirs[name] for name in rivals]
        evidence = _evidence(own, ordered, left)
        found, mutual = shares(evidence, weights), mutual_shares(evidence)
        judgement = judged(found, mutual, tuple(rivals), share=share, resolution=resolution, confidence=confidence)
        row = _numbers(found, mutual, judgement, confidence) | _as_published(own, ordered)
        row["weight_distance"] = (("rival",), np.array([_weights(network, members[name]) for name in rivals]))
        row["free_numbers"] = (
            ("rival",),
            np.array([numbers[name].start.size if name in numbers else 0 for name in rivals]),
        )
        row["fitted"] = (("rival",), np.array([json.dumps(fits.get(name, {})) for name in rivals]))
        matters = bool(found.unexplained[0, judgement.leader] > resolution)
        rows.append(row | _warnings(own, evidence, judgement, tuple(rivals), leader_matters=matters))
    return _dataset(rows, dims, coords, tuple(rivals), {
        "prompts": prompts, "fitting": fitting, "positions": list(at), "share": share, "resolution": resolution,
        "confidence": confidence, "resamples": resamples,
    })  # fmt: skip


def identify_over(
    axis: str,
    values: Sequence[Any] | np.ndarray,
    case: Callable[[Any], tuple[Any, Mapping[str, Predictor], AbstractTask]],
    *,
    key: PRNGKeyArray,
    **options: Any,
) -> xr.Dataset:
    """The distances and verdicts along an axis: of depth, context length, noise, or of a task's scale out of
    distribution.

    Args:
        axis: Name of the axis, of :data:`icllab.core.axes.AXES`: ``layers``, ``length``, ``rho``, ``input_scale``, ...
        values: Where.
        case: value -> network, rivals, and task: whatever changes along the axis. Rivals have the same names
            everywhere.
        key: The same for all, so that prompts of one shape are paired.
        **options: Of :func:`identify`.

    Returns:
        The Dataset of :func:`identify` with ``axis`` as first dimension.

    Raises:
        InputError: The axis is not known, there is no value, or the rivals' names change.
    """
    require_axes([axis])
    if not len(values):
        raise expected("values", "at least one", list(values))
    found = [identify(*case(value), key=key, **options) for value in values]
    names = [one.rival.values.tolist() for one in found]
    if any(other != names[0] for other in names):
        raise expected("case", f"the rivals {names[0]} everywhere", next(n for n in names if n != names[0]))
    attributes = dict(found[0].attrs)
    for one in found:
        one.attrs.clear()
    joined = xr.concat(found, dim=xr.DataArray(np.asarray(values), dims=axis, name=axis), join="exact")
    return joined.assign_attrs(attributes)


def _require(
    rivals: Mapping[str, Predictor],
    prompts: int,
    fitting: int,
    share: float,
    resolution: float,
    confidence: float,
    resamples: int,
) -> None:
    if not rivals:
        raise expected("rivals", "at least one, by name", dict(rivals))
    for name in (NONE, MANY, UNDECIDED):
        if name in rivals:
            raise expected("rivals", "names that are no other verdict", name)
    for name, value, least in (("prompts", prompts, 10), ("fitting", fitting, 10), ("resamples", resamples, 20)):
        if value < least:
            raise expected(name, f"an integer of at least {least}", value)
    require_number("share", share, "a number between 0 and 1", lambda v: 0 < v < 1)
    require_number("resolution", resolution, "a number from 0 to the share", lambda v: 0 <= v <= share)
    require_number("confidence", confidence, "a number between 0 and 1", lambda v: 0 < v < 1)


def _cases(asked: Any) -> tuple[tuple[str, ...], dict[str, Any], list[Predictor]]:
    """Dimensions and coordinates of what is judged, and each of it, the last dimension fastest."""
    if isinstance(asked, Run) and len(asked.trajectory):
        steps = asked.trajectory.steps
        ensembles = [asked.trajectory.at(step) for step in steps]
        coords = _members(asked.members) | {"step": list(steps)}
        return ("member", "step"), coords, [e.member(i) for i in range(asked.size) for e in ensembles]
    if isinstance(asked, Run | Ensemble):
        members = asked.members if isinstance(asked, Run) else asked
        return ("member",), _members(members), [members.member(i) for i in range(members.size)]
    if not callable(asked):
        raise expected("predictor_or_run", "a predictor, an ensemble or a run", type(asked).__name__)
    single: Any = asked
    return (), {}, [single]


def _members(members: Ensemble) -> dict[str, Any]:
    coords: dict[str, Any] = {"member": np.arange(members.size)}
    return coords | {name: ("member", values) for name, values in members.coordinates.items()}


def _squares(left: np.ndarray, right: np.ndarray) -> Float[np.ndarray, " prompt"]:
    with np.errstate(over="ignore", invalid="ignore"):
        squares = (left - right) ** 2
        return squares.reshape(len(squares), left.shape[1], -1).sum(2).mean(1)


def _evidence(own: Responses, theirs: list[Responses], left: tuple[np.ndarray, np.ndarray | None]) -> Evidence:
    prompts = len(own.values)
    none = np.full(prompts, np.nan)

    def slopes(a: Responses, b: Responses) -> np.ndarray:
        return none if a.slopes is None or b.slopes is None else _squares(a.slopes, b.slopes)

    return Evidence(
        answers=np.stack([_squares(own.values, one.values) for one in theirs], axis=1),
        answers_scale=left[0],
        slopes=np.stack([slopes(own, one) for one in theirs], axis=1),
        slopes_scale=none if left[1] is None else left[1],
        mutual_answers=np.array([[_squares(a.values, b.values).mean() for b in theirs] for a in theirs]),
        mutual_slopes=np.array([[slopes(a, b).mean() for b in theirs] for a in theirs]),
    )


def _numbers(found: Shares, mutual: np.ndarray, judgement: Judgement, confidence: float) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name in ("prediction", "sensitivity", "unexplained"):
        samples = getattr(found, name)
        row[name] = (("rival",), samples[0])
        row[f"{name}_interval"] = (("rival", "bound"), interval(samples, confidence))
    row["behind"] = (("rival",), judgement.behind)
    row["behind_interval"] = (("rival", "bound"), judgement.behind_interval)
    row["mutual"] = (("rival", "other_rival"), mutual)
    row["rank"] = (("rival",), np.argsort(np.argsort(found.unexplained[0], kind="stable"), kind="stable") + 1)
    row["accepted"] = (("rival",), judgement.accepted)
    row["among"] = (("rival",), judgement.among)
    row["verdict"] = ((), np.array(judgement.verdict))
    return row


def _as_published(own: Responses, theirs: list[Responses]) -> dict[str, Any]:
    """Mean difference of answers, cosine and distance of slopes: means over prompts and positions."""
    columns: dict[str, list[float]] = {"mean_difference": [], "cosine": [], "slope_difference": []}
    for one in theirs:
        with np.errstate(over="ignore", invalid="ignore"):
            columns["mean_difference"].append(float(np.abs(own.values - one.values).mean()))
            if own.slopes is None or one.slopes is None:
                columns["cosine"].append(np.nan)
                columns["slope_difference"].append(np.nan)
                continue
            sizes = np.linalg.norm(own.slopes, axis=2) * np.linalg.norm(one.slopes, axis=2)
            inner = (own.slopes * one.slopes).sum(2)
            # A slope of zero has no direction: it counts as orthogonal to all.
            cosines = np.divide(inner, sizes, out=np.zeros_like(inner), where=sizes > 0)
            columns["cosine"].append(float(cosines.mean()))
            columns["slope_difference"].append(float(np.linalg.norm(own.slopes - one.slopes, axis=2).mean()))
    return {name: (("rival",), np.array(values)) for name, values in columns.items()}


def _weights(network: Predictor, rival: Predictor) -> float:
    left = as_linear_attention(network)
    right = None if left is None else as_linear_attention(rival)
    if left is None or right is None:
        return np.nan
    try:
        return weight_distance(left, right)
    except InputError:  # other conventions: nothing to compare
        return np.nan


def _warnings(
    own: Responses, evidence: Evidence, judgement: Judgement, names: tuple[str, ...], *, leader_matters: bool
) -> dict[str, Any]:
    heaviest = heaviest_share(evidence.answers)
    prompts = len(own.values)
    said = [judgement.warning]
    if not np.isfinite(own.values).all():
        said.append("the network answers some prompts with what is no number")
    with np.errstate(over="ignore", invalid="ignore"):
        size = (own.values**2).mean()
        explained = 1 - evidence.answers_scale.mean() / size if size > 0 else 1.0
    if explained == 1:
        said.append("the trivial alternatives leave nothing of the answers for a rival to explain")
    of_scale = float(heaviest_share(evidence.answers_scale))
    said.append(heavy_tail_warning("what the trivial alternatives leave", of_scale, prompts))
    leader = judgement.leader
    if leader_matters:  # not rounding
        said.append(heavy_tail_warning(f"the difference from {names[leader]}", float(heaviest[leader]), prompts))
    return {
        "heaviest": (("rival",), heaviest),
        "trivial": ((), np.array(float(explained))),
        "warning": ((), np.array("; ".join(one for one in said if one))),
    }


def _dataset(
    rows: list[dict[str, Any]],
    dims: tuple[str, ...],
    coords: dict[str, Any],
    names: tuple[str, ...],
    attributes: dict[str, Any],
) -> xr.Dataset:
    shape = tuple(len(coords[name]) for name in dims)
    variables = {}
    for name, (own, _) in rows[0].items():
        stacked = np.stack([row[name][1] for row in rows])
        variables[name] = ((*dims, *own), stacked.reshape((*shape, *stacked.shape[1:])))
    named = {"rival": list(names), "other_rival": list(names), "bound": ["low", "high"]}
    return xr.Dataset(variables, coords=coords | named, attrs=attributes)
