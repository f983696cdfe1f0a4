r"""Distances of a network to candidate algorithms, and a verdict that may be "none of these"."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from icllab.core.calls import moved
from icllab.core.errors import expected, require_integer, require_key
from icllab.core.progress import shown, stage
from icllab.core.prompt import TokenPrompt
from icllab.core.protocols import AbstractTask, Predictor, require_task
from icllab.core.result_warnings import warns
from icllab.diagnostics.behaviour.loss_warnings import LossUnits
from icllab.diagnostics.identification import verdicts
from icllab.diagnostics.identification.candidates import Fitted, fitted_parameters
from icllab.diagnostics.identification.measurements import Measurements, Sample
from icllab.diagnostics.identification.responses import compared_positions
from icllab.diagnostics.identification.summaries import Identification, summary
from icllab.diagnostics.identification.token_distances import require_traceable
from icllab.diagnostics.identification.verdicts import VerdictRule
from icllab.diagnostics.predictor_axes import PredictorAxes
from icllab.diagnostics.validate_predictor import validate_predictor
from icllab.models.pretrained.ignored_fields import ignored_fields
from icllab.training.streams import Positions


@dataclass(frozen=True)
class PromptSplit:
    """Prompts of the verdict, and of the fits of candidates and baselines.

    Attributes:
        judged: Number of prompts of the verdict, at least 10.
        fitting: Number of prompts of the fits, at least 10.
        fit_on: Task that samples the prompts of the fits; None: the task of the verdict. Give the training task if the
            two differ, so that candidates must extrapolate.

    Raises:
        InputError: A number is out of range, or ``fit_on`` is not a task.
    """

    judged: int = 2048
    fitting: int = 512
    fit_on: AbstractTask | None = None

    def __post_init__(self) -> None:
        require_integer("prompts", self.judged, least=10)
        require_integer("fitting", self.fitting, least=10)
        if self.fit_on is not None:
            require_task(self.fit_on, "fit_on")

    @classmethod
    def of(cls, prompts: Any) -> "PromptSplit":
        """Return a split unchanged; turn a number of prompts of the verdict into a split."""
        return prompts if isinstance(prompts, cls) else cls(prompts)


@moved(
    fitted="rivals={name: Fitted(candidate, attributes)}",
    fitting="prompts=PromptSplit(prompts, fitting=...)",
    fit_on="prompts=PromptSplit(prompts, fit_on=...)",
    block="gone: 256 prompts are in memory at once",
)
@warns("identification")
def identify(
    predictor_or_run: Any,
    rivals: Mapping[str, Predictor | Fitted],
    task: AbstractTask,
    *,
    key: PRNGKeyArray,
    positions: Positions = "last",
    prompts: int | PromptSplit = 2048,
    rule: VerdictRule | None = None,
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
        rivals: Candidate algorithms: name -> predictor, or
            :class:`~icllab.diagnostics.identification.candidates.Fitted` predictor.
        task: Task that samples the prompts, of regression or of token ids.
        key: Key of the prompts, and of the bootstrap.
        positions: ``"last"``, ``"every"``, or integers; discrepancies are means over them.
        prompts: Number of prompts of the verdict, at least 10; or a :class:`PromptSplit`, with those of the fits too.
        rule: Rule of the verdict; None: a tolerance of a hundredth, and candidates are distinguished at the resolution
            of their 95 % intervals. The default resolution of a
            :class:`~icllab.diagnostics.identification.verdicts.VerdictRule` is that of rounding.
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
    rule, split = VerdictRule(resolution=None) if rule is None else rule, PromptSplit.of(prompts)
    candidates, fitted = _unwrapped(rivals)
    _require(candidates, rule)
    axes = PredictorAxes.from_predictors(predictor_or_run, "predictor_or_run", task=task, key=key)
    candidates = validate_predictor(candidates, task, key=key, complaints=axes.warnings)
    fit_task = task if split.fit_on is None else split.fit_on
    at, fit_at = compared_positions(task, positions, key), compared_positions(fit_task, positions, key)
    of_tokens = isinstance(jax.eval_shape(lambda k: task.sample(key=k), key), TokenPrompt)
    if of_tokens:
        require_traceable(candidates)
        if fitted:
            raise expected("rivals", "no Fitted candidate for prompts of token ids", list(fitted))
    parameters = fitted_parameters(candidates, fitted, answers=split.fitting * len(fit_at))
    of_fit, of_judgement, of_bootstrap = (jax.random.fold_in(key, i) for i in range(3))
    fits = Sample.of_task(fit_task, fit_at, count=split.fitting, key=of_fit)
    test = Sample.of_task(task, at, count=split.judged, key=of_judgement)
    seed = np.asarray(jax.random.key_data(of_bootstrap)).ravel().tolist()
    weights = verdicts.resamplings(split.judged, resamples=rule.resamples, seed=seed)
    measurements = Measurements(candidates, parameters, fits, test, rule, weights)
    features: Any = None if of_tokens else (fits.features(), test.features())
    units = LossUnits.of_prompts(task, test.prompts)
    with shown("identification", progress):
        stage("", None, "prompts")
        if of_tokens:
            arrays = axes.measure(measurements.of_tokens)
        else:
            fixed = {name: test.responses(r) for name, r in candidates.items() if name not in parameters}
            arrays = axes.measure(lambda members: measurements.of_answers(members, fixed, features, units))
    names = tuple(candidates)
    arrays = {name: arrays[name] for name in ("verdict", *arrays) if not _is_absent(name, arrays[name])}
    variables = {name: ((*axes.dims, *_axes_of(name)), values) for name, values in arrays.items()}
    coords = {"candidate": list(names), "other_candidate": list(names), "bound": ["low", "high"]}
    fractions, among = (arrays[name].reshape(-1, len(names)) for name in ("fraction_unexplained", "among"))
    attributes = {
        "summary": summary(arrays["verdict"].ravel().tolist(), fractions, among, names, rule.tolerance),
        "warnings": axes.warnings + axes.by_predictor(arrays["warning"].ravel().tolist()),
    }
    attributes |= {"prompts": split.judged, "fitting": split.fitting, "positions": list(at)} | rule._asdict()
    if rule.resolution is None:
        attributes["resolution"] = "that of the intervals"
    attributes |= ignored_fields(predictor_or_run, candidates)
    return Identification(variables, coords=dict(axes.coords) | coords, attrs=attributes)


def _unwrapped(rivals: Any) -> tuple[dict[str, Any], dict[str, Sequence[str]]]:
    """Candidates without :class:`Fitted`, and the attributes that are fitted, both by name."""
    if not isinstance(rivals, Mapping):
        raise expected("rivals", "a mapping of names to candidates", type(rivals).__name__, "{'ridge': Ridge(1.0)}")
    fitted = {name: rival for name, rival in rivals.items() if isinstance(rival, Fitted)}
    candidates = dict(rivals) | {name: rival.predictor for name, rival in fitted.items()}
    return candidates, {name: rival.attributes for name, rival in fitted.items()}


def _require(candidates: Mapping[Any, Any], rule: Any) -> None:
    if not candidates:
        raise expected("rivals", "at least one candidate, by name", candidates)
    for name, candidate in candidates.items():
        if not isinstance(name, str) or not callable(candidate) or isinstance(candidate, type):
            came = candidate.__name__ if isinstance(candidate, type) else type(candidate).__name__
            raise expected("rivals", "predictors by name", f"{name!r}: {came}")
    for name in (verdicts.NONE, verdicts.MANY, verdicts.UNDECIDED):
        if name in candidates:
            raise expected("rivals", "names that differ from the other verdicts", name)
    if not isinstance(rule, VerdictRule):
        raise expected("rule", "a VerdictRule", rule, "VerdictRule(tolerance=0.01)")
    rule.require()


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
