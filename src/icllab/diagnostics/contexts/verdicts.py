r"""Verdict on a fitted map: a law, the capacity of the weights, no map, or undecided.

A small gap alone is no evidence: a network may fit any target of that size. The verdict rests on the derivative test,
on composition and on the norm, each against the same measurement of the nulls. The derivative test must also leave less
than w itself does: for a context that hardly changes the answers, w itself is a good fit.
"""

from enum import StrEnum
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

EXACT = 1e-6  # largest fraction unexplained of an exact law, regardless of the nulls
LARGE = 0.5  # smallest fraction unexplained without a map or a law
SIGMAS = 2.0


class MapOutcome(StrEnum):
    """Outcomes of the tests of a map of a context to weights."""

    LAW = "law"
    CAPACITY = "capacity"
    NONE = "no map"
    UNDECIDED = "undecided"


class MapVerdict(NamedTuple):
    """An outcome, and a sentence with the reason."""

    outcome: MapOutcome
    sentence: str


class Comparison(NamedTuple):
    """A fraction with its standard error, and the fractions of the nulls."""

    value: float
    error: float
    nulls: Float[np.ndarray, "null draw"]

    @property
    def least(self) -> float:
        """Smallest fraction of the nulls; infinite if there is none."""
        finite_nulls = self.nulls[np.isfinite(self.nulls)]
        return float(finite_nulls.min()) if finite_nulls.size else np.inf

    @property
    def beyond(self) -> bool:
        """Whether the fraction is significantly smaller than every null."""
        return self.value + SIGMAS * self.error < self.least

    @property
    def within(self) -> bool:
        """Whether the fraction is significantly above the smallest null."""
        return self.value - SIGMAS * self.error >= self.least

    def above(self, bound: float) -> bool:
        """Whether the fraction is significantly larger than a number."""
        return self.value - SIGMAS * self.error > bound

    def below(self, bound: float) -> bool:
        """Whether the fraction is significantly smaller than a number."""
        return self.value + SIGMAS * self.error < bound


def judge_map(
    gap: Comparison,
    derivative: Comparison,
    composition: Comparison | None,
    norm: Comparison,
    *,
    unmoved: float,
    converged: bool,
) -> MapVerdict:
    """Judge a map.

    * *no map*: the fit leaves more than half of the context's effect.
    * *law*: derivative and composition tests leave less than half, and less than every null; the norm does not exceed
      those of all nulls. Or both tests are exact.
    * *capacity*: the weights fit, but a null does as well in a test, or a test leaves more than half.
    * *undecided*: the errors are too large, the fit has not converged, only the norm contradicts a law, or the
      derivative test leaves no less than ``unmoved``, its value for w itself.

    A context of one example has no composition test (None); the other tests decide.

    Derived: docs/context-map.md, The verdict.
    """
    if not converged:
        return MapVerdict(MapOutcome.UNDECIDED, "the fit has not converged; more steps would tell")
    if gap.above(LARGE):
        sentence = f"these weights leave a fraction {gap.value:.2g} of the context's effect"
        return MapVerdict(MapOutcome.NONE, sentence)
    tests = {"derivative": derivative} | ({} if composition is None else {"composition": composition})
    if not all(np.isfinite(test.value) for test in tests.values()):
        return MapVerdict(MapOutcome.UNDECIDED, "a test has no finite value")
    if unmoved <= EXACT:
        sentence = f"w itself leaves {unmoved:.2g} in the derivative test: the context has too little effect to tell"
        return MapVerdict(MapOutcome.UNDECIDED, sentence)
    if all(test.value <= EXACT for test in tests.values()):
        null_is_exact = all(test.least <= EXACT for test in tests.values())
        addition = "; a null has it too: it is the architecture's, not the training's" if null_is_exact else ""
        return MapVerdict(MapOutcome.LAW, f"{' and '.join(tests)} are exact{addition}")
    for name, test in tests.items():
        if test.above(LARGE):
            return MapVerdict(MapOutcome.CAPACITY, f"the weights fit, but the {name} test leaves {test.value:.2g}")
        if test.within and test.value > EXACT:
            sentence = f"the weights fit, but the {name} test leaves {test.value:.2g}, a null {test.least:.2g}"
            return MapVerdict(MapOutcome.CAPACITY, sentence)
    if not all((test.beyond or test.value <= EXACT) and test.below(LARGE) for test in tests.values()):
        return MapVerdict(MapOutcome.UNDECIDED, "a test is within its errors of a null; more queries would tell")
    if not derivative.below(unmoved):
        sentence = f"the derivative test leaves {derivative.value:.2g}, w itself {unmoved:.2g}"
        return MapVerdict(MapOutcome.UNDECIDED, f"{sentence}: a context with more effect would tell")
    norms = norm.nulls[np.isfinite(norm.nulls)]
    if norms.size and norm.value > norms.max():
        sentence = f"the tests pass, but the weights move by {norm.value:.2g}, farther than for any null"
        return MapVerdict(MapOutcome.UNDECIDED, sentence)
    return MapVerdict(MapOutcome.LAW, f"{' and '.join(tests)} leave less than every null")
