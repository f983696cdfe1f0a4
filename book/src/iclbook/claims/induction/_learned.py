"""Accuracies in checks: errors for few seeds, and findings that count only for networks that have learned."""

from collections.abc import Iterable

import numpy as np
import xarray as xr

from icllab.lab import Estimate, Finding, checks, estimates

LEARNED = 0.9
"""Accuracy on the training task of a network that has learned it."""


def if_learned(findings: Iterable[Finding], accuracy: xr.DataArray) -> list[Finding]:
    """The findings, all undecided if a network's ``accuracy`` on its training task is below 0.9."""
    least = float(accuracy.min())
    if least >= LEARNED:
        return list(findings)
    advice = f"a network has an accuracy of {least:.2f} on its training task; longer training would tell"
    return checks.withheld(findings, advice)


def mean_accuracy(samples: xr.DataArray, prompts: int, over: str = "seed") -> Estimate:
    """Mean over repetitions of ``prompts`` prompts each; its error is at least the sampling error of the prompts.

    Of few seeds the scatter may be small by chance; that of the prompts is known.
    """
    estimate = estimates.mean(samples, over)
    least = (estimate.value * (1 - estimate.value) / (prompts * samples.sizes[over])) ** 0.5
    freedom = estimate.freedom.where(estimate.error >= least, np.inf)
    return Estimate(estimate.value, np.maximum(estimate.error, least), freedom=freedom)
