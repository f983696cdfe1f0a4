"""Context laws as checks use them: a finding for each verdict on the tests of several networks.

The ratio of a test is the fraction that the context's own map leaves, over that which another context's map leaves, or
over 1 where that leaves more; see :mod:`icllab.diagnostics.contexts.verdicts`.
"""

from typing import Any

import numpy as np
import xarray as xr
from scipy.special import ndtri

from icllab.core.axes import Axis, Quantity
from icllab.diagnostics.contexts.verdicts import FALSE, LEVEL, SHARE, LawOutcome, law, log_ratios
from icllab.lab.checks import Finding
from icllab.lab.outcomes import Outcome

WORLDS = ("own", "other", "planted")
TESTS = ("effect", "change", "composition")
TRAINED = 0.5  # score at the end
WORST = f"least share of networks in which most contexts leave under {LEVEL:g} of effect, change or composition"
HAS_LAW = {LawOutcome.LAW: True, LawOutcome.CAPACITY: False, LawOutcome.NONE: False}
FIXED = {"dim": 2, "length": 8, "batch": 64, "transformer_updates": 1000, "queries": 96, "directions": 4}
ASKED = {"context": (0, 1, 2, 3), "world": WORLDS, "test": TESTS}

AXES = (
    Axis("family", "F", "networks and the weights that move"),
    Axis("context", "c", "context"),
    Axis("world", "v", "whose map stands for the context"),
    Axis("test", "q", "what a law carries"),
)
QUANTITIES = (
    Quantity("training_score", "A", "score of the network with contexts"),
    Quantity("left", "r", "fraction left by weights"),
    "converged",
    *(
        Quantity(f"{name}_ratio", r"\Lambda", f"residual of the {name} relative to another context's map")
        for name in TESTS
    ),
    Quantity("ratio", r"\Lambda", "threshold for a law"),
)


def with_ratios(dataset: xr.Dataset) -> xr.Dataset:
    """The dataset with the ratio of every test, a geometric mean over contexts whose fits have converged."""
    logs = log_ratios(_tests(dataset), "own").mean("context")
    ratios = {f"{name}_ratio": np.exp(logs.sel(test=name, drop=True)) for name in TESTS}
    return dataset.assign(ratios)


def judged(id: str, phrase: str, dataset: xr.Dataset, *, has_law: bool, **at: Any) -> Finding:
    """A finding that the selected networks have a law or have none; undecided if the verdict is."""
    verdict = law(_tests(dataset.sel(at, drop=True)).rename(seed="network"))
    numbers = verdict.numbers
    worst = numbers.isel(test=int(np.argmin(numbers["share"].fillna(1.0).values)))
    says = HAS_LAW.get(LawOutcome(verdict.outcome))
    outcome = Outcome.UNDECIDED if says is None else Outcome.HOLDS if says is has_law else Outcome.FAILS
    share, low, high = (float(worst[key]) for key in ("share", "low", "high"))
    reach = share - low if share > SHARE else high - share
    name = f"{id}[{','.join(f'{axis}={value}' for axis, value in at.items())}]"
    advice = f"{verdict.outcome.value}: {verdict.sentence}"
    return Finding(name, phrase, SHARE, share, reach / -float(ndtri(FALSE)), reach, outcome, advice)


def _tests(dataset: xr.Dataset) -> xr.Dataset:
    """Measurements of :func:`~icllab.diagnostics.contexts.laws.context_law` for every network."""
    return dataset[["left", "converged"]].assign(converged=dataset["converged"] > 0.5)
