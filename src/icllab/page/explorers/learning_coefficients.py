"""Exact learning coefficients of two linear layers and of normal crossings."""

# ruff: noqa: RUF001 (Greek letters and minus signs are meant)

from icllab.core.errors import expected
from icllab.page.explorers.declaration import Explorer, Slider, axis, even, log, swept, whole
from icllab.theory import learning_coefficients as theory
from icllab.theory.learning_coefficients import LearningCoefficient

_AXIS = axis("learning coefficient")
_INVERSE_TEMPERATURE = Slider("n", "nβ  inverse temperature", log(10, 1e8), 1000)


def layers(*, inputs: int, hidden: int, outputs: int, rank: int, n: float) -> dict[str, float]:
    """The coefficient of two linear layers."""
    if rank > min(inputs, hidden, outputs):
        raise expected("rank", f"at most {min(inputs, hidden, outputs)}, the smallest size", rank)
    exact = theory.reduced_rank_regression(inputs, hidden, outputs, rank)
    return _coefficient(exact, (inputs + outputs) * hidden, n)


def crossing(*, n: float, **values: float) -> dict[str, float]:
    """The coefficient of a normal crossing of three variables."""
    powers, weights = ([values[f"{letter}{i}"] for i in (1, 2, 3)] for letter in "kh")
    if not any(powers):
        raise expected("k1", "one power above 0; otherwise K is constant", powers[0])
    return _coefficient(theory.normal_crossing([int(k) for k in powers], weights), 3, n)


def _coefficient(exact: LearningCoefficient, parameters: int, n: float) -> dict[str, float]:
    return {
        "λ  learning coefficient": exact.value,
        "m  multiplicity": exact.multiplicity,
        "half the number of parameters": parameters / 2,
        "λ − (m − 1) / ln nβ, the target of an estimate": float(exact.at(n)),
    }


LAYERS = Explorer(
    id="learning_coefficients",
    title="Learning coefficients of linear layers",
    about=(
        r"The learning coefficient $\lambda$ takes the place that half the number of parameters has in a regular "
        r"model. Of two linear layers $y = BAx$ it and its multiplicity $m$ are known exactly."
    ),
    **swept(
        (
            Slider("inputs", "M  inputs", whole(1, 16), 6),
            Slider("hidden", "H  hidden units", whole(1, 16), 4),
            Slider("outputs", "N  outputs", whole(1, 16), 5),
            Slider("rank", "r  rank of the truth", whole(0, 16), 1),
            _INVERSE_TEMPERATURE,
        ),
        layers,
        x="hidden",
        y=_AXIS,
    ),
    theory=(theory.reduced_rank_regression,),
    more="singular-learning",
)
CROSSING = Explorer(
    id="normal_crossing",
    title="Learning coefficients of normal crossings",
    about=(
        r"By resolution of singularities every loss is locally a normal crossing $K = \prod w_i^{2k_i}$ under a prior "
        r"$\prod |w_i|^{h_i}$. The variable with the smallest $(h_i + 1)/2k_i$ sets the learning coefficient."
    ),
    **swept(
        (
            *(
                Slider(f"k{i}", f"k{'₁₂₃'[i - 1]}  half its power in K", whole(0, 12), k)
                for i, k in ((1, 2), (2, 1), (3, 1))
            ),
            *(Slider(f"h{i}", f"h{'₁₂₃'[i - 1]}  its power in the prior", even(0, 6), 0) for i in (1, 2, 3)),
            _INVERSE_TEMPERATURE,
        ),
        crossing,
        x="k1",
        y=_AXIS,
    ),
    theory=(theory.normal_crossing,),
    more="singular-learning",
)
