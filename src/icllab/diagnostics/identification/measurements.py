r"""Measurements of one network: distances to candidates, and the verdict."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, PRNGKeyArray

from icllab.core.errors import InputError, expected
from icllab.core.protocols import AbstractTask, Predictor
from icllab.diagnostics.behaviour.answers import heaviest_share, heavy_tail_warning, sample_prompts
from icllab.diagnostics.behaviour.loss_warnings import LossUnits
from icllab.diagnostics.identification import verdicts
from icllab.diagnostics.identification.candidates import FittedParameters, fit_candidate
from icllab.diagnostics.identification.responses import (
    Baselines,
    Responses,
    baseline_features,
    require_compared,
    responses,
)
from icllab.diagnostics.identification.token_distances import token_distances
from icllab.diagnostics.identification.verdicts import Evidence, Judgement, Unexplained, VerdictRule
from icllab.diagnostics.identification.weights import as_linear_attention, relative_distance
from icllab.training.ensembles import Ensemble

BLOCK = 256  # prompts in memory at once


@dataclass(frozen=True)
class Sample:
    """Prompts of a task, and the positions at which answers are compared."""

    task: AbstractTask
    prompts: Any
    positions: tuple[int, ...]

    @classmethod
    def of_task(cls, task: AbstractTask, positions: tuple[int, ...], *, count: int, key: PRNGKeyArray) -> "Sample":
        """Sample prompts, and raise unless they can be compared at the positions."""
        prompts = sample_prompts(task, key=key, prompts=count, block=BLOCK)
        require_compared(prompts, positions)
        return cls(task, prompts, positions)

    def responses(self, predictor: Predictor | Ensemble) -> Responses:
        """Answers of a predictor at the positions, with derivatives if there are any."""
        return responses(predictor, self.task, self.prompts, positions=self.positions, block=BLOCK)

    def features(self) -> Any:
        """Features of the baselines."""
        return baseline_features(self.prompts, self.positions)


@dataclass(frozen=True)
class Measurements:
    """Measurements that are the same for every network.

    Attributes:
        candidates: Name -> candidate.
        parameters: Name -> layout of the parameters that are fitted to each network.
        fits: Prompts of the fits.
        test: Prompts of the verdict.
        rule: Rule of the verdict.
        weights: Bootstrap weights of the prompts of the verdict.
    """

    candidates: Mapping[str, Predictor]
    parameters: Mapping[str, FittedParameters]
    fits: Sample
    test: Sample
    rule: VerdictRule
    weights: Float[np.ndarray, "resample prompt"]

    def of_tokens(self, members: Ensemble) -> dict[str, np.ndarray]:
        """Rows of networks that answer with distributions of the next token."""
        return _stacked([self._token_row(members.member(i)) for i in range(members.size)])

    def of_answers(
        self, members: Ensemble, fixed: Mapping[str, Responses], features: tuple[Any, Any], units: LossUnits
    ) -> dict[str, np.ndarray]:
        """Rows of networks that answer with numbers; ``fixed`` has the responses of candidates without a fit."""
        fit_data, test_data = self.fits.responses(members), self.test.responses(members)
        if failures := int(np.sum(~np.isfinite(test_data.values).all(axis=-1))):
            bad = ~np.isfinite(test_data.values).reshape(-1, test_data.values.shape[-1]).all(axis=0)
            places = [self.test.positions[i] for i in np.flatnonzero(bad)]
            came = f"{failures} of {test_data.values[..., 0].size} prompts without, at positions {places}"
            raise expected("predictor_or_run", "finite answers", came)
        arrays = _stacked(
            [
                self._row(members.member(i), fit_data.member(i), test_data.member(i), fixed, features)
                for i in range(members.size)
            ]
        )
        missing = f"input gradients are not compared: {test_data.reason}" if test_data.reason else ""
        pairs = zip(arrays["warning"].tolist(), units.mismatches(members, block=BLOCK), strict=True)
        return arrays | {"warning": np.array(["; ".join(filter(None, (*pair, missing))) for pair in pairs])}

    def _row(
        self,
        network: Predictor,
        fit_data: Responses,
        test_data: Responses,
        fixed: Mapping[str, Responses],
        features: tuple[Any, Any],
    ) -> dict[str, np.ndarray]:
        replies, fitted_values, nearest = dict(fixed), {}, dict(self.candidates)
        for name, layout in self.parameters.items():
            data = self.fits.prompts, fit_data.values, self.fits.positions
            nearest[name] = _nearest(name, self.candidates[name], layout, *data)
            fitted_values[name] = layout.values(nearest[name])
            replies[name] = self.test.responses(nearest[name])
        baseline_residuals = Baselines.from_responses(fit_data, features[0]).residuals(test_data, features[1])
        responses_in_order = [replies[name] for name in self.candidates]
        evidence = _evidence(test_data, responses_in_order, baseline_residuals)
        with np.errstate(over="ignore", invalid="ignore"):
            size = float((test_data.values**2).mean())
            row = self._judged(evidence, size) | _as_published(test_data, responses_in_order)
        sizes = [self.parameters[name].start.size if name in self.parameters else 0 for name in self.candidates]
        return row | {
            "weight_distance": np.array([_weights(network, nearest[name]) for name in self.candidates]),
            "fitted_parameters": np.array(sizes),
            "fitted_values": np.array([json.dumps(fitted_values.get(name, {})) for name in self.candidates]),
        }

    def _token_row(self, network: Predictor) -> dict[str, np.ndarray]:
        order, to_fit = tuple(self.candidates.values()), (self.fits.prompts, self.fits.positions)
        measured = token_distances(
            network, order, self.test.task, self.test.prompts, self.test.positions, to_fit=to_fit, block=BLOCK
        )
        count = len(order)
        nothing_fitted = {"fitted_parameters": np.zeros(count, int), "fitted_values": np.full(count, "{}")}
        return self._judged(measured.evidence, measured.from_uniform) | nothing_fitted

    def _judged(self, evidence: Evidence, size: float) -> dict[str, np.ndarray]:
        """Fractions, verdict and warnings; ``size``: the network's mean square, or divergence from uniform."""
        names = tuple(self.candidates)
        fractions, mutual = verdicts.unexplained(evidence, self.weights), verdicts.mutual_unexplained(evidence)
        judgement = verdicts.judge_candidates(fractions, mutual, names, self.rule)
        row = _numbers(fractions, mutual, judgement, self.rule.confidence)
        return row | _warnings(size, evidence, judgement, names, rule=self.rule)


def _stacked(rows: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def _nearest(name: str, candidate: Predictor, layout: FittedParameters, *data: Any) -> Predictor:
    """The nearest member of a candidate's family; raise if derivatives are infinite at every start."""
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            return fit_candidate(candidate, layout, *data)
    except ValueError as error:
        requirement = "parameters whose answers have finite derivatives at a start"
        hint = "start from others, take float64, or fit fewer"
        raise expected(f"rivals[{name!r}]", requirement, "infinite ones", hint) from error


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
    """Warnings, and the numbers behind them; ``size``: the network's mean square, or divergence from uniform."""
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
