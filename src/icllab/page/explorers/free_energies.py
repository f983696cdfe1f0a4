"""Two phases that compete for the posterior: free energies against the number of samples."""

from typing import Any

from icllab.core.errors import InputError
from icllab.page.explorers.declaration import Explorer, Slider, axis, even, log, swept, whole
from icllab.theory import free_energy
from icllab.theory.free_energy import Phase
from icllab.theory.learning_coefficients import LearningCoefficient

_SLIDERS = (
    Slider("n", "n  samples", log(3, 1e6, 121), 300),
    Slider("gap", "ΔL  loss of the simple phase above the rich phase", log(1e-6, 1, zero=True), 0.01125),
    Slider("simple", "λ  learning coefficient of the simple phase", even(0, 20, 81), 0.5),
    Slider("simple_m", "m  multiplicity of the simple phase", whole(1, 10), 1),
    Slider("rich", "λ  learning coefficient of the rich phase", even(0, 20, 81), 2.5),
    Slider("rich_m", "m  multiplicity of the rich phase", whole(1, 10), 5),
    Slider("constant", "c  constant of the rich phase minus that of the simple phase", even(-10, 10), 0),
)


def _phases(gap: float, simple: float, simple_m: int, rich: float, rich_m: int, constant: float) -> tuple[Phase, Phase]:
    """The simple phase and the rich phase."""
    return Phase(gap, LearningCoefficient(simple, simple_m)), Phase(0.0, LearningCoefficient(rich, rich_m), constant)


def curves(*, n: float, **setting: Any) -> dict[str, float]:
    """The shares of the posterior."""
    shares = free_energy.posterior_weights(list(_phases(**setting)), n)
    return {"simple phase": float(shares[0]), "rich phase": float(shares[1])}


def crossings(*, n: float, **setting: Any) -> dict[str, float | str]:
    """The difference of the free energies, and the numbers of samples at which the phases are equal."""
    simple, rich = phases = _phases(**setting)
    difference = free_energy.asymptotic(rich, n) - free_energy.asymptotic(simple, n)
    try:
        at = free_energy.crossings(*phases).tolist()
    except InputError:  # both phases are equal
        at = []
    numbers = {f"crossing {i} at n": crossing for i, crossing in enumerate(at, 1)} or {"crossing": "at no n"}
    return {"free energy of the rich phase minus that of the simple phase": float(difference), **numbers}


EXPLORER = Explorer(
    id="free_energies",
    title="Two phases against n",
    about=(
        r"The posterior prefers the phase of less free energy, $F = nL + \lambda\ln n - (m-1)\ln\ln n + c$: with few "
        "samples the simple phase, with many the phase that fits better."
    ),
    **swept(_SLIDERS, curves, x="n", y=axis("share of the posterior"), extra=crossings),
    theory=(free_energy.asymptotic, free_energy.posterior_weights),
    more="free-energies",
)
