"""Findings of a check: numbers with their errors, and a three-valued outcome.

``undecided`` is an honest answer: the data at this size cannot tell. It never means "nearly holds":
a finding whose standard error is within its bound either holds or fails.

Every function here compares an estimate with a number and returns one finding for each element of the estimate's
array. Errors that come from few samples allow as much more as Student's distribution does; see :func:`reach`. A median
or a fraction, :class:`~icllab.lab.intervals.Interval`, is compared by its limits. A finding has a stable name,
``id[axis=value,...]``, which stays when its words change; and it is phrased as the quantity that is compared:
``relative width / softmax's < 3``.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import xarray as xr
from scipy import special

from icllab.core.views import html_fields, html_table, one_line
from icllab.lab.estimates import Estimate, Number
from icllab.lab.intervals import SIGMAS, Interval, comparing_sigmas
from icllab.lab.outcomes import Outcome, counts, worded, worst


@dataclass(frozen=True, repr=False)
class Finding:
    """A comparison of a check: the prediction, the estimate, the tolerance and the outcome.

    Attributes:
        id: A name that stays when the words change, with its coordinates: ``width_ratio[rate=0.1]``.
        what: The comparison in words.
        predicted: The number that is compared with.
        measured: The estimate.
        standard_error: Its standard error; 0 of an exact statement.
        tolerance: What ``|measured - predicted|`` may be, in the same unit.
        outcome: Whether it holds.
        advice: What would decide it, where it is undecided.
        about: ``"claim"``, a finding; ``"data"``, a condition: whether the data suffice for a judgement.
        seedless: Whether its error, such as one of rounding, is known of a single seed; see :func:`seedless`.
    """

    id: str
    what: str
    predicted: float
    measured: float
    standard_error: float
    tolerance: float
    outcome: Outcome
    advice: str = ""
    about: str = "claim"
    seedless: bool = False

    @property
    def name(self) -> str:
        """The identifier without coordinates."""
        return self.id.partition("[")[0]

    def __repr__(self) -> str:
        return one_line("Finding", {"id": self.id} | self._summary())

    def _repr_html_(self) -> str:
        details = {"tolerance": f"{self.tolerance:.4g}", "advice": self.advice or "none"}
        return html_fields(f"{self.id}: {self.what}", self._summary() | details)

    def _summary(self) -> dict[str, str]:
        return {
            "predicted": f"{self.predicted:.4g}",
            "measured": f"{self.measured:.4g}",
            "standard error": f"{self.standard_error:.2g}",
            "verdict": self.outcome.value,
        }


@dataclass(frozen=True, repr=False)
class Verdict:
    """A claim's findings and the worst of their outcomes.

    Attributes:
        claim: The claim's name.
        findings: The findings and conditions of its check.
        notes: What a reader of the verdict should know about the results.
    """

    claim: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def outcome(self) -> Outcome:
        """The worst outcome: ``fails`` before ``undecided`` before ``holds``; ``undecided`` without findings."""
        return worst(finding.outcome for finding in self.findings)

    def __repr__(self) -> str:
        return one_line("Verdict", {self.claim: f"{self.outcome.value}, {self.counts}"})

    def _repr_html_(self) -> str:
        columns = ("finding", "predicted", "measured", "standard error", "verdict")
        rows = [(finding.what, *finding._summary().values()) for finding in self.findings]
        return html_table(f"{self.claim}: {self.outcome.value}, {self.counts}", columns, rows)

    @property
    def counts(self) -> str:
        """The number of findings that hold, and of conditions for a judgement that are met."""
        return worded(counts(self._rows()))

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "claim": self.claim,
            "verdict": self.outcome.value,
            "counts": counts(self._rows()),
            "findings": self._rows(),
            "notes": list(self.notes),
        }

    def _rows(self) -> list[dict[str, Any]]:
        return [{k: getattr(v, "value", v) for k, v in asdict(f).items()} for f in self.findings]


MOST_VALUES = 4
"""Values of an axis that an advice names."""
Estimated: TypeAlias = Estimate | Interval
At: TypeAlias = Mapping[str, Any]
Sides: TypeAlias = tuple[float, float]
"""How far below and above the estimate the truth may be."""
Judge: TypeAlias = Callable[[float, Sides, Sides, float, float], tuple[Outcome, float, str]]
"""Measured, allowed, allowed to one of many, compared number and limit -> outcome, tolerance and advice."""


def agrees(
    id: str,
    phrase: str,
    estimate: Estimated,
    target: Number,
    *,
    largest_error: Number,
    sigmas: float = SIGMAS,
    at: At | None = None,
) -> list[Finding]:
    r"""Does an estimate agree with a prediction, :math:`|m - p| \le` :func:`reach`?

    Args:
        id: Stable name of the finding.
        phrase: The quantity in words.
        estimate: The estimate, one finding for each of its elements.
        target: The prediction.
        largest_error: Bound of the standard error: a larger (or unknown) one leaves the finding undecided, unless
            the disagreement is plain even so. One of few samples counts as what it allows, over ``sigmas``.
        sigmas: Standard errors allowed, of an error that is known.
        at: Further coordinates of the finding.
    """

    def judge(m: float, sides: Sides, far: Sides, p: float, limit: float) -> tuple[Outcome, float, str]:
        tolerance = sides[m < p]
        if not all(map(math.isfinite, (m, *sides))):
            return Outcome.UNDECIDED, tolerance, "no finite measurement with an error"
        if math.isnan(p):
            return Outcome.UNDECIDED, tolerance, "no prediction"
        if abs(m - p) > far[m < p]:
            return Outcome.FAILS, far[m < p], ""
        if max(sides) > sigmas * limit:
            return Outcome.UNDECIDED, tolerance, f"the standard error exceeds {limit:.3g}; more seeds would tell"
        if abs(m - p) <= tolerance:
            return Outcome.HOLDS, tolerance, ""
        if abs(m - p) <= sigmas * limit:  # as far as one of many numbers is by chance, and within what is asked for
            return Outcome.HOLDS, min(far[m < p], sigmas * limit), ""
        return Outcome.UNDECIDED, tolerance, "one of many numbers may be so far, by chance; more seeds would tell"

    return _findings(id, f"{phrase} =", estimate, target, judge, limit=largest_error, sigmas=sigmas, at=at)


def near(
    id: str,
    phrase: str,
    estimate: Estimated,
    target: Number,
    *,
    margin: Number,
    sigmas: float = SIGMAS,
    at: At | None = None,
) -> list[Finding]:
    r"""Is an estimate nearer to a number than a margin, :math:`|m - p|` + :func:`reach` :math:`\le` margin?

    It fails when it is as clearly farther; in between, the data cannot tell. The margin of a geometric mean is one of
    the logarithm. Arguments as in :func:`agrees`.
    """

    def judge(m: float, sides: Sides, far: Sides, p: float, limit: float) -> tuple[Outcome, float, str]:
        if abs(m - p) - far[m < p] > limit:
            return Outcome.FAILS, limit, ""
        if max(p - m + sides[0], m - p + sides[1]) <= limit:
            return Outcome.HOLDS, limit, ""
        return Outcome.UNDECIDED, limit, f"within {sigmas:g} standard errors of the margin; more data would tell"

    return _findings(id, f"{phrase} within", estimate, target, judge, limit=margin, sigmas=sigmas, at=at)


def above(
    id: str, phrase: str, estimate: Estimated, bound: Number = 0.0, *, sigmas: float = SIGMAS, at: At | None = None
) -> list[Finding]:
    """Is an estimate larger than a bound, by more than :func:`reach`?

    It fails when it is as clearly smaller; in between, the data cannot tell. Arguments as in :func:`agrees`.
    """
    return _findings(id, f"{phrase} >", estimate, bound, _one_sided(+1, sigmas), sigmas=sigmas, at=at)


def below(
    id: str, phrase: str, estimate: Estimated, bound: Number = 0.0, *, sigmas: float = SIGMAS, at: At | None = None
) -> list[Finding]:
    """Is an estimate smaller than a bound, by more than :func:`reach`? See :func:`above`."""
    return _findings(id, f"{phrase} <", estimate, bound, _one_sided(-1, sigmas), sigmas=sigmas, at=at)


def _one_sided(sign: int, sigmas: float) -> Judge:
    def judge(m: float, sides: Sides, far: Sides, bound: float, _: float) -> tuple[Outcome, float, str]:
        excess, tolerance = sign * (m - bound), sides[m < bound]
        if excess > tolerance:
            return Outcome.HOLDS, tolerance, ""
        if -excess > far[m < bound]:
            return Outcome.FAILS, tolerance, ""
        return Outcome.UNDECIDED, tolerance, f"within {sigmas:g} standard errors of the bound; more seeds would tell"

    return judge


def equal(
    id: str, phrase: str, value: Number, target: Number, *, otherwise: Outcome = Outcome.FAILS, at: At | None = None
) -> list[Finding]:
    """Is a number without statistical error equal to another, such as a count? If not, the outcome is ``otherwise``."""

    def judge(m: float, sides: Sides, far: Sides, p: float, limit: float) -> tuple[Outcome, float, str]:
        return (Outcome.HOLDS if m == p else otherwise), 0.0, ""

    return _findings(id, f"{phrase} =", Estimate(value, 0.0), target, judge, at=at)


def complete(id: str, phrase: str, met: bool, *, at: At | None = None) -> list[Finding]:
    """Do the data suffice for a judgement? Undecided where they do not; it says nothing about the claim."""
    name, words = _with_coordinates(id, phrase, at or {})
    outcome = Outcome.HOLDS if met else Outcome.UNDECIDED
    return [Finding(name, words, 1.0, float(met), 0.0, 0.0, outcome, "", "data")]


def unmeasured(advice: str) -> Finding:
    """An undecided condition: values that the check needs are not measured, and the advice names them."""
    return replace(complete("measured", "what the check needs is measured", False)[0], advice=advice)


def needed(values: Mapping[str, Sequence[Any]]) -> str:
    """The advice ``needs world = other``, with the first values of each axis."""
    texts = {
        axis: [*map(str, some[:MOST_VALUES]), *(["..."] if some[MOST_VALUES:] else [])] for axis, some in values.items()
    }
    return "needs " + " and ".join(f"{axis} = {', '.join(listed)}" for axis, listed in texts.items())


def withheld(findings: Iterable[Finding], advice: str) -> list[Finding]:
    """Make all findings undecided, with a reason as the advice."""
    return [replace(finding, outcome=Outcome.UNDECIDED, advice=advice) for finding in findings]


def seedless(findings: Iterable[Finding]) -> list[Finding]:
    """Mark findings whose errors are known from one seed; others are undecided on a single seed."""
    return [replace(finding, seedless=True) for finding in findings]


def reach(error: float, freedom: float, sigmas: float = SIGMAS) -> float:
    r"""Largest error of an estimate that a comparison allows, :math:`t_\nu(\sigma)\,\mathrm{SE}`.

    .. math:: P(|T_\nu| > t_\nu(\sigma)) = P(|Z| > \sigma)

    with Student's distribution of :math:`\nu` degrees of freedom and the normal one, for which it is
    :math:`\sigma\,\mathrm{SE}`. For 3 standard errors it is 9.2 of four samples, 4.1 of ten and 3.3 of thirty.

    Args:
        error: The standard error.
        freedom: Degrees of freedom :math:`\nu` of the error: those of n samples are n - 1.
        sigmas: Standard errors allowed, of an error that is known.
    """
    if error == 0 or math.isinf(freedom):
        return sigmas * error
    return float(-special.stdtrit(freedom, float(special.ndtr(-sigmas)))) * error if freedom > 0 else math.nan


def _sides(error: float, freedom: float, skewness: float, sigmas: float) -> tuple[Sides, Sides]:
    r"""Allowed distance of an estimate, and of one of many estimates of skewed samples.

    To first order in the skewness :math:`\lambda` of the estimate the quantile t of its deviation over its error moves
    by :math:`\lambda(2t^2 + 1)/6`, outwards on the side where the truth is above an estimate that leans upwards; of few
    seeds, where the series does not converge, by 2t at most.
    """
    allowed, one = (reach(error, freedom, s) for s in (sigmas, comparing_sigmas()))
    skewed = error * skewness * (2 * (one / error) ** 2 + 1) / 6 if error > 0 else 0.0
    below, above = (min(max(s, 0.0), 2 * one) for s in (-skewed, skewed))
    return (allowed, allowed), (max(allowed, one + below), max(allowed, one + above))


def _findings(
    id: str,
    phrase: str,
    estimate: Estimated,
    target: Number,
    judge: Judge,
    *,
    limit: Number = 0.0,
    sigmas: float = SIGMAS,
    at: At | None = None,
) -> list[Finding]:
    """One finding for each element; for a geometric mean, logarithms are compared and numbers reported."""
    findings = []
    for coordinates, (m, s, *errors, p, bound) in _elements(estimate, target, limit):
        if isinstance(estimate, Interval):
            low, high, lowest, highest = errors
            sides, far = (m - low, high - m), (m - lowest, highest - m)
        else:
            freedom, skewness = errors
            sides, far = _sides(s, freedom, skewness, sigmas)
        number = p
        if estimate.logarithmic:
            with np.errstate(divide="ignore", invalid="ignore"):
                p = float(np.log(p))
        outcome, tolerance, advice = judge(m, sides, far, p, bound)
        if estimate.logarithmic:
            m, s, tolerance = math.exp(m), math.exp(m) * s, math.exp(m) * tolerance
        margin = f" {bound:.4g} of" if phrase.endswith(" within") else ""
        name, words = _with_coordinates(id, f"{phrase}{margin} {number:.4g}", {**coordinates, **(at or {})})
        findings.append(Finding(name, words, number, m, s, tolerance, outcome, advice))
    return findings


def _elements(estimate: Estimated, *numbers: Number) -> Iterator[tuple[dict[str, Any], tuple[float, ...]]]:
    """Yield coordinates and numbers of each element of the estimate, with its targets."""
    value = estimate.value
    arrays = [value, estimate.error]
    more = ("low", "high", "lowest", "highest") if isinstance(estimate, Interval) else ("freedom", "skewness")
    arrays += [getattr(estimate, name) for name in more]
    for number in numbers:
        if isinstance(number, xr.DataArray):
            like, array = xr.align(value, number, join="exact")  # other coordinates are refused, not matched by place
            arrays.append(array.broadcast_like(like).transpose(*value.dims))
        else:
            arrays.append(value.copy(data=np.broadcast_to(np.asarray(number, dtype=float), value.shape)))
    numbers_of = [array.values for array in arrays]
    names = [name for name in value.coords if value[name].ndim == 0 or name in value.dims]
    coordinates: dict[str, Any] = {str(name): value[name].values.tolist() for name in names}
    for index in np.ndindex(value.shape):
        place = dict(zip(value.dims, index, strict=True))
        yield (
            {name: v[place[name]] if name in place else v for name, v in coordinates.items()},
            tuple(float(array[index]) for array in numbers_of),
        )


def _with_coordinates(id: str, phrase: str, at: At) -> tuple[str, str]:
    texts = [f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in at.items()]
    return (f"{id}[{','.join(texts)}]", f"{phrase}, {', '.join(texts)}") if texts else (id, phrase)
