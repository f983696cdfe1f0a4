"""What a trained network says of a claim only if it has learned the task that it was trained on."""

import dataclasses
from collections.abc import Iterable

import xarray as xr

from icllab.experiments.checks import Finding, Outcome

LEARNED = 0.9
"""Accuracy on the training task of a network that has learned it."""


def if_learned(findings: Iterable[Finding], accuracy: xr.DataArray) -> list[Finding]:
    """The findings; all of them undecided where a network's ``accuracy`` on its training task is below 0.9."""
    least = float(accuracy.min())
    if least >= LEARNED:
        return list(findings)
    advice = f"a network has an accuracy of {least:.2f} on its training task; longer training would tell"
    return [dataclasses.replace(finding, outcome=Outcome.UNDECIDED, advice=advice) for finding in findings]
