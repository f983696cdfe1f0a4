"""One question of an examination: a measurement, a judgement that is a pure function of it, and a figure."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import xarray as xr
from jaxtyping import PRNGKeyArray
from scipy.special import ndtr

from icllab.examination.subject import Kind, Subject

if TYPE_CHECKING:
    from matplotlib.figure import Figure

UNDECIDED = "undecided"
GRADIENT = 1.0
"""Cost of a gradient on 64 prompts, in answers to 256."""
TEXTS = 16
"""Prompts of other networks in the place of one of a language model, in sizes and costs."""
MOST = 160  # characters of what a network raises, outside of the contract
LEVEL = 0.05
"""Probability of any false verdict among those that a report states first, by Holm's correction."""


class Size(NamedTuple):
    """One rung of the fixed ladder of sample sizes.

    Attributes:
        name: Name of the rung.
        prompts: Number of prompts of a measurement.
        fitting: Number of prompts on which candidates are fitted.
        heads: Number of prompts on which each head is ablated.
        moves: Number of moves of a chain before its draws, and of draws.
    """

    name: str
    prompts: int
    fitting: int
    heads: int
    moves: int

    @property
    def texts(self) -> int:
        """Number of prompts of a language model."""
        return self.prompts // TEXTS


_RUNGS = Size("small", 512, 256, 256, 50), Size("medium", 2048, 512, 512, 200), Size("large", 8192, 2048, 2048, 800)
SIZES = {size.name: size for size in _RUNGS}


class Pace(NamedTuple):
    """Seconds in which a network answers 256 prompts for the first time, with compilation, and again."""

    first: float
    again: float


@dataclass(frozen=True)
class Finding:
    """The judgement of a section.

    Attributes:
        verdict: Verdict in a few words.
        sentence: One sentence with the numbers.
        number: The number on which the verdict rests.
        error: Its standard error, over prompts.
        what: Meaning of the number.
        null: The null, in words with its number.
        smallest: The smallest effect that this sample could have seen, in words; empty where nothing is tested.
        change: Sentence on what would change the verdict.
        p_value: Probability of a result as extreme if the opposite were true; None where nothing is tested.
        fault: Whether the verdict is a fault of the network, such as an answer that sees its target.
    """

    verdict: str
    sentence: str
    number: float
    error: float
    what: str
    null: str = ""
    smallest: str = ""
    change: str = ""
    p_value: float | None = None
    fault: bool = False


@dataclass(frozen=True)
class Section:
    """One question of an examination.

    Attributes:
        name: Name of the section, which ``only=`` and ``skip=`` take.
        question: The question.
        measure: Subject, size and key -> Dataset.
        judge: Dataset -> :class:`Finding`; a pure function.
        figure: Dataset -> Figure; None if the numbers are enough.
        lacks: Subject -> why the question does not apply; empty if it does.
        code: Subject -> lines of Python that give the number.
        batches: Number of batches of 256 prompts that the measurement answers for each 256 prompts of its size.
        programs: Number of programs that are compiled, about.
        gradients: Size -> number of gradients on 64 prompts.
        kinds: Kinds of prompts to which the question applies.
        on_request: True if the question is asked only by its name.
    """

    name: str
    question: str
    measure: Callable[[Subject, Size, PRNGKeyArray], xr.Dataset]
    judge: Callable[[xr.Dataset], Finding]
    lacks: Callable[[Subject], str]
    code: str
    figure: "Callable[[xr.Dataset], Figure] | None" = None
    batches: float = 4.0
    programs: int = 8
    gradients: Callable[[Size], float] = lambda size: 0.0
    kinds: tuple[Kind, ...] = ("regression", "item labels", "tokens")
    on_request: bool = False

    def unasked(self, subject: Subject) -> str:
        """Why the question does not apply to a subject; empty if it does."""
        if subject.kind not in self.kinds:
            return f"it applies to the kinds {', '.join(self.kinds)}, and this network is of the kind {subject.kind}"
        if subject.broken and self.name != "contract":
            return f"the network raises on a prompt of the task ({subject.broken[:MOST]})"
        return "" if subject.broken else self.lacks(subject)

    def cost(self, size: Size, pace: "Pace") -> float:
        """Seconds of the measurement."""
        batches = self.batches * math.ceil(size.prompts / 256) + GRADIENT * self.gradients(size)
        return self.programs * pace.first + batches * pace.again


def tail(distance: float, error: float) -> float:
    """One-sided p-value of a normal estimate that lies ``distance`` beyond the value of the null."""
    if not math.isfinite(distance) or not error >= 0:
        return 1.0
    if error == 0:
        return 0.0 if distance > 0 else 1.0
    return float(ndtr(-distance / error))


def decided(beyond: float, error: float, yes: str, no: str) -> tuple[str, float]:
    """The verdict that a number is above zero, that it is below, or undecided; and its one-sided p-value."""
    above, below = tail(beyond, error), tail(-beyond, error)
    p_value = min(above, below)
    return (UNDECIDED if p_value > LEVEL else yes if above < below else no), p_value


def holm(p_values: dict[str, float], level: float = LEVEL) -> dict[str, bool]:
    """Which of several hypotheses are rejected by Holm's step-down method at a joint level.

    Source: [Holm79].
    """
    rejected, alive = {}, True
    for rank, (name, value) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        alive = alive and value <= level / (len(p_values) - rank)
        rejected[name] = alive
    return rejected
