"""The theory of a claim beside its measurements, and the verdict of its check."""

import contextlib
import json
import traceback
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import xarray as xr

from icllab.core import calls
from icllab.core.errors import EnvironmentFault, IclError
from icllab.core.files import parse_json
from icllab.core.grid import Value, canonical
from icllab.lab import checks
from icllab.lab.checks import Finding, Verdict, withheld
from icllab.lab.claim import SIZES, Claim, Theory
from icllab.lab.intervals import comparisons
from icllab.lab.outcomes import NO_VERDICT, Outcome
from icllab.lab.placement import SEED

PREDICTED = ("_theory", "_line")
"""Ends of the names of what is predicted."""
Block: TypeAlias = dict[str, tuple[Value, ...]]
"""Axis -> values."""


def predicted(claim: Claim, dataset: xr.Dataset) -> xr.Dataset:
    """A measured Dataset with the claim's theory, and with symbol, meaning and unit of every axis and quantity."""
    dataset = ascending(claim, dataset)
    if claim.theory is not None:
        dataset = _with_theory(claim, claim.theory, dataset)
    dataset = dataset.copy()
    for name in dataset.variables:
        row = claim.vocabulary.row(str(name))
        dataset[name].attrs = {"symbol": row.symbol, "meaning": row.meaning, "unit": row.unit}
    return dataset.assign_attrs(names=json.dumps(claim.vocabulary.described()))


def _with_theory(claim: Claim, theory: Theory, dataset: xr.Dataset) -> xr.Dataset:
    """Assign the predictions, with NaN at missing values of an axis if the theory raises without them.

    A theory that raises then too, or because a quantity has no number, predicts nothing: the attribute ``unpredicted``
    says what it needs.
    """
    try:
        return theory(unnamed(dataset)).assign_attrs(dataset.attrs)
    except Exception as error:  # whatever a claim's theory raises
        lacking = missing_values(claim, dataset)
        with contextlib.suppress(Exception):
            whole = theory(unnamed(completed_axes(dataset, lacking)))
            return whole.sel({axis: dataset[axis].values for axis in lacking}).assign_attrs(dataset.attrs)
        advice = _needed(claim, dataset, lacking, error, lambda: theory(unnamed(completed_axes(dataset, lacking))))
        if not advice:
            raise
        return dataset.assign_attrs(unpredicted=advice)


def ascending(claim: Claim, dataset: xr.Dataset) -> xr.Dataset:
    """The Dataset with the values of every axis of the claim's sizes in ascending order, but for the seeds."""
    axes = {axis for axes in claim.sizes.values() for axis in axes} & {str(axis) for axis in dataset.indexes} - {SEED}
    return dataset.sortby([axis for axis in sorted(axes) if not dataset.indexes[axis].is_monotonic_increasing])


def missing_values(claim: Claim, dataset: xr.Dataset) -> Block:
    """Map each axis but seeds to the values of the size that the data lack.

    A claim's ``reduce`` may leave out values: then an axis with several values lacks none.
    """
    size = parse_json(dataset.attrs.get("configuration", "{}"), "configuration").get("size")
    if size not in claim.sizes:
        return {}
    grid, lacking = claim.grid(size), {}
    for axis, values in {**grid.static, **grid.traced}.items():
        if axis != SEED and axis in dataset.indexes and (claim.reduce is None or dataset.sizes[axis] == 1):
            present = set(map(canonical, dataset[axis].values))
            lacking[axis] = tuple(value for value in values if value not in present)
    return {axis: values for axis, values in lacking.items() if values}


def blank_quantities(claim: Claim, dataset: xr.Dataset) -> list[str]:
    """The measured quantities of a claim without a finite number."""
    numbers = {name: dataset[name].values for name in _measured(claim, dataset)}
    return [name for name, values in numbers.items() if values.dtype.kind == "f" and not np.isfinite(values).any()]


def _measured(claim: Claim, dataset: xr.Dataset) -> list[str]:
    """The names of a claim's quantities in a Dataset, without predictions."""
    return [name for name in claim.vocabulary.quantities if name in dataset and not name.endswith(PREDICTED)]


def completed_axes(dataset: xr.Dataset, lacking: Block) -> xr.Dataset:
    """The Dataset with further values of axes, at which every number is NaN."""
    return dataset.reindex({axis: sorted([*dataset[axis].values.tolist(), *v]) for axis, v in lacking.items()})


def unnamed(dataset: xr.Dataset) -> xr.Dataset:
    """A copy without attributes that a theory or a check could use to tell a control from the claim."""
    attributes = {name: dataset.attrs[name] for name in ("claim", "names") if name in dataset.attrs}
    if "configuration" in dataset.attrs:
        configuration = parse_json(dataset.attrs["configuration"], "configuration") | {"control": None}
        attributes["configuration"] = json.dumps(configuration)
    return dataset.copy().drop_encoding().drop_attrs(deep=False).assign_attrs(attributes)


def verdict_at(claim: Claim, size: str, dataset: xr.Dataset, notes: Sequence[str] = ()) -> Verdict:
    """The verdict of :func:`judge` on results of a size; none at ``smoke``."""
    return Verdict(claim.name, (), (*notes, NO_VERDICT)) if size == SIZES[0] else judge(claim, dataset, notes)


def judge(claim: Claim, dataset: xr.Dataset, notes: Sequence[str] = ()) -> Verdict:
    """The verdict of a claim's check on a Dataset; a check that raises is a fault of the claim's file.

    Data may lack values of an axis that the size has, which stand as NaN where other runs measured some of them. If a
    check raises without them and does not with NaN, it needs them: the verdict is undecided. So is a finding that
    fails without them and not with NaN.
    """
    unpredicted, dataset = dataset.attrs.get("unpredicted", ""), ascending(claim, unnamed(dataset))
    lacking, blank = missing_values(claim, dataset), blank_quantities(claim, dataset)
    try:
        findings = _findings(claim, dataset)
        if blank and blank == _measured(claim, dataset):
            findings = withheld(findings, f"needs a number of {', '.join(blank)}")
        if lacking and any(finding.outcome is Outcome.FAILS for finding in findings):
            findings = _withheld(claim, dataset, lacking, findings)
        return Verdict(claim.name, tuple(findings), tuple(notes))
    except Exception as error:
        advice = unpredicted or _needed(
            claim, dataset, lacking, error, lambda: _findings(claim, _completed(claim, dataset, lacking))
        )
        if advice:
            return Verdict(claim.name, (checks.unmeasured(advice),), tuple(notes))
        if isinstance(error, IclError):
            raise
        raise EnvironmentFault(
            f"{claim.name}: expected findings from its check, got {type(error).__name__}: {error}"
        ) from error


def _findings(claim: Claim, dataset: xr.Dataset) -> Sequence[Finding]:
    """The findings of the check; with a single seed, which shows no error, they are undecided."""
    assert claim.check is not None  # the registry has set it
    findings = claim.check(dataset)
    if any(finding.outcome is Outcome.FAILS for finding in findings):  # by more than one of so many by chance?
        with comparisons(sum(finding.standard_error != 0 for finding in findings)):
            findings = claim.check(dataset)
    if dataset.sizes.get(SEED) == 1:
        single = [finding.about == "claim" and not finding.seedless for finding in findings]
        several = withheld(findings, "one seed shows no error; more seeds would tell")
        findings = [w if alone else f for f, w, alone in zip(findings, several, single, strict=True)]
    return findings


def _withheld(claim: Claim, dataset: xr.Dataset, lacking: Block, findings: Sequence[Finding]) -> Sequence[Finding]:
    """Withhold a finding that fails, but does not with NaN at the missing values."""
    try:
        whole = _findings(claim, _completed(claim, dataset, lacking))
        failing = {finding.id for finding in whole if finding.outcome is Outcome.FAILS}
    except Exception:  # the check takes no NaN, and tells nothing of what it needs
        failing = {finding.id for finding in findings}
    points = [axis for axis in lacking if axis in claim.outputs and dataset.sizes[axis] == 1]
    undecided = withheld(findings, checks.needed(lacking))
    return [
        w
        if f.outcome is Outcome.FAILS and (f.id not in failing or any(f"{axis}=" not in f.id for axis in points))
        else f
        for f, w in zip(findings, undecided, strict=True)
    ]


def _needed(claim: Claim, dataset: xr.Dataset, lacking: Block, error: Exception, repeat: Callable[[], object]) -> str:
    """Say what a theory or a check that raised needs; empty if its error has another reason.

    Missing values are the reason if with NaN in their place nothing is raised, or another error, or one elsewhere. A
    quantity without a finite number is taken for the reason if there is one, and the error is named.
    """
    if lacking:
        try:
            repeat()
        except Exception as another:
            if _origin(another) != _origin(error):
                return checks.needed(lacking)
        else:
            return checks.needed(lacking)
    if blank := blank_quantities(claim, dataset):
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return f"needs a number of {', '.join(blank)}; without one: {text}"
    return ""


def _origin(error: Exception) -> tuple[object, ...]:
    """Type, place and, for a lookup, key of an error."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [(frame.filename, frame.lineno) for frame in frames if frame.filename not in (__file__, calls.__file__)]
    key = str(error).partition(". ")[0] if isinstance(error, KeyError) else ""  # what follows lists variables
    return type(error), lines, key


def _completed(claim: Claim, dataset: xr.Dataset, lacking: Block) -> xr.Dataset:
    """The Dataset with NaN and the theory at missing values of axes."""
    return unnamed(predicted(claim, completed_axes(dataset, lacking)))
