"""The verdicts of a claim's negative controls on the network of a user."""

import dataclasses
from collections.abc import Callable
from typing import Any

from icllab.lab import registry
from icllab.lab.claim import SIZES
from icllab.lab.job import Request
from icllab.lab.judging import judge, predicted
from icllab.lab.run import Progress, collect, compute, read, show_cells


def control_verdicts(
    request: Request, *, progress: Callable[[str], Any] | None = None, **options: Any
) -> dict[str, str]:
    """Measure the negative controls of a claim on the network of a finished run; map each to its verdict.

    Args:
        request: The finished run.
        progress: Called with the name of a control; returns a context that gives its ``progress``.
        options: Those of :func:`icllab.lab.run.compute`.
    """
    claim, verdicts = registry.load(request.name, request.claims), {}
    if claim.subject is None or request.network is None or request.size == SIZES[0]:
        return {}
    for name in claim.subject.controls:
        request_of = dataclasses.replace(request, control=name)
        world = request_of.claim()
        if not claim.controls[name].measured:
            dataset = predicted(world, read(request, theory=False)[0])
        else:
            _compute(request_of, progress, options)
            dataset = collect(request_of)[0]
        verdicts[name] = judge(world, dataset).outcome.value
    return verdicts


def _compute(request: Request, progress: Callable[[str], Any] | None, options: dict[str, Any]) -> None:
    if progress is None:
        compute(request, **options)
        return
    with progress(f"{request.name}, {request.control}") as shown:
        show: Progress = shown or show_cells
        compute(request, progress=show, **options)


def unfailed(verdicts: dict[str, str]) -> list[str]:
    """A note for each negative control under which the check does not fail."""
    names = [name for name, verdict in verdicts.items() if verdict != "fails"]
    return [f"the check does not fail under the control {name!r}: the verdict proves less" for name in names]
