"""Errors of linear attention over tau, alpha, kappa, rho and the ridge."""

# ruff: noqa: RUF001 (Greek letters are meant)

from typing import Any

import numpy as np

from icllab.page.explorers.declaration import Explorer, Slider, axis, log, swept
from icllab.theory import linear_attention as theory

_NEAR = np.geomspace(1e-3, 0.1, 8)  # distances from tau = 1, where errors without a ridge diverge
_TAU = sorted({*log(0.05, 50), *(float(f"{1 + sign * d:.4g}") for d in _NEAR for sign in (-1, 1))} - {1.0})
_SLIDERS = (
    Slider("tau", "τ  pretraining contexts over d²", _TAU, 2),
    Slider("alpha", "α  context length over d", log(0.1, 1000), 10),
    Slider("kappa", "κ  pretraining tasks over d", log(0.05, 20), 0.5),
    Slider("rho", "ρ  variance of the label noise", log(1e-3, 10, zero=True), 0.01),
    Slider("ridge", "λ  ridge", log(1e-6, 10, zero=True), 0),
)


def curves(*, alpha: Any, rho: Any, **others: Any) -> dict[str, Any]:
    """The errors of linear attention and of ridge regression."""
    return {
        "ICL error, fresh tasks": theory.icl_error(alpha=alpha, rho=rho, **others),
        "IDG error, pretraining tasks": theory.idg_error(alpha=alpha, rho=rho, **others),
        "ridge regression on one context": theory.ridge_error(alpha=alpha, rho=rho),
    }


EXPLORER = Explorer(
    id="linear_attention",
    title="Errors of linear attention",
    about=(
        "The exact error of linear attention pretrained on finitely many contexts, in the limit of large dimension. "
        r"Without a ridge it diverges at $\tau = 1$, as many contexts as parameters. Fresh tasks need $\kappa > 1$, "
        "more pretraining tasks than dimensions; below, longer contexts make the error on them larger."
    ),
    **swept(
        _SLIDERS,
        curves,
        x="tau",
        y=axis("squared error", "log"),
        extra=lambda **setting: {"effective ridge ξ": theory.effective_ridge(**setting)},
        second="alpha",
    ),
    theory=(theory.icl_error, theory.idg_error, theory.ridge_error, theory.effective_ridge),
    more="asymptotics",
)
