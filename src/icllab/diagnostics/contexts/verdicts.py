r"""What a fitted map shows: a law, the capacity of the weights, no map, or nothing yet.

A small gap by itself shows nothing: a network may answer as any target of that size. The verdict rests on the
derivative test, on composition and on the norm, each against the same measurement of the nulls. The derivative test
has to leave less than w itself would, too: a context that hardly changes the answers has weights without any map.
"""

from enum import StrEnum
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

EXACT = 1e-6  # fraction unexplained at which a law is exact, whatever the nulls do
LARGE = 0.5  # fraction unexplained at which there is no map, or no law
SIGMAS = 2.0


class MapOutcome(StrEnum):
    """What is concluded of a map of a context to weights."""

    LAW = "law"
    CAPACITY = "capacity"
    NONE = "no map"
    UNDECIDED = "undecided"


class MapVerdict(NamedTuple):
    """An outcome, and the sentence that says why."""

    outcome: MapOutcome
    sentence: str


class Compared(NamedTuple):
    """A fraction with its standard error, and those of the nulls, by null and draw."""

    value: float
    error: float
    nulls: Float[np.ndarray, "null draw"]

    @property
    def least(self) -> float:
        """The smallest of the nulls; infinite where there is none."""
        there = self.nulls[np.isfinite(self.nulls)]
        return float(there.min()) if there.size else np.inf

    @property
    def beyond(self) -> bool:
        """Clearly smaller than every null."""
        return self.value + SIGMAS * self.error < self.least

    @property
    def within(self) -> bool:
        """Clearly not smaller than every null."""
        return self.value - SIGMAS * self.error >= self.least

    def above(self, bound: float) -> bool:
        """Clearly larger than a number."""
        return self.value - SIGMAS * self.error > bound

    def below(self, bound: float) -> bool:
        """Clearly smaller than a number."""
        return self.value + SIGMAS * self.error < bound


def judged(
    gap: Compared,
    derivative: Compared,
    composition: Compared | None,
    norm: Compared,
    *,
    unmoved: float,
    converged: bool,
) -> MapVerdict:
    """The verdict on a map.

    * *no map*: more than half of what the context does is left, whatever the weights of the subspace.
    * *law*: derivative and composition tests leave less than half, and less than every null; the norm is not larger
      than all of the nulls'. Or both tests are exact.
    * *capacity*: weights are there, but a null does as well in a test, or a test leaves more than half.
    * *undecided*: the errors are too large to tell, the fit has not converged, only the norm speaks against a law, or
      the derivative test leaves no less than ``unmoved``, what w itself leaves of it: there is too little to carry.

    A context of one example cannot be cut: its composition is None, and the other tests decide.

    Derived: docs/context-map.md, The verdict.
    """
    if not converged:
        return MapVerdict(MapOutcome.UNDECIDED, "the fit has not converged; more steps would tell")
    if gap.above(LARGE):
        said = f"a fraction {gap.value:.2g} of what the context does is left in these weights"
        return MapVerdict(MapOutcome.NONE, said)
    tests = {"derivative": derivative} | ({} if composition is None else {"composition": composition})
    if not all(np.isfinite(test.value) for test in tests.values()):
        return MapVerdict(MapOutcome.UNDECIDED, "a test gave no number")
    if unmoved <= EXACT:
        said = f"w itself leaves {unmoved:.2g} in the derivative test: the context has too little effect to tell"
        return MapVerdict(MapOutcome.UNDECIDED, said)
    if all(test.value <= EXACT for test in tests.values()):
        both = all(test.least <= EXACT for test in tests.values())
        also = "; a null has it too: it is the architecture's, not the training's" if both else ""
        return MapVerdict(MapOutcome.LAW, f"{' and '.join(tests)} are exact{also}")
    for name, test in tests.items():
        if test.above(LARGE):
            return MapVerdict(MapOutcome.CAPACITY, f"weights are there, but the {name} test leaves {test.value:.2g}")
        if test.within and test.value > EXACT:
            said = f"weights are there, but the {name} test leaves {test.value:.2g}, a null {test.least:.2g}"
            return MapVerdict(MapOutcome.CAPACITY, said)
    if not all((test.beyond or test.value <= EXACT) and test.below(LARGE) for test in tests.values()):
        return MapVerdict(MapOutcome.UNDECIDED, "a test is within its errors of a null; more queries would tell")
    if not derivative.below(unmoved):
        said = f"the derivative test leaves {derivative.value:.2g}, w itself {unmoved:.2g}"
        return MapVerdict(MapOutcome.UNDECIDED, f"{said}: a context with more effect would tell")
    norms = norm.nulls[np.isfinite(norm.nulls)]
    if norms.size and norm.value > norms.max():
        said = f"the tests pass, but the weights move by {norm.value:.2g}, farther than for any null"
        return MapVerdict(MapOutcome.UNDECIDED, said)
    return MapVerdict(MapOutcome.LAW, f"{' and '.join(tests)} leave less than every null")
