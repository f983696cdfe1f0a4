"""Contracts that every claim keeps: one line in a pytest file, one test for each claim and contract.

    from icllab import testing
    test_contracts = testing.contracts(Path(__file__).parent)

The tests judge recorded data and data that are made of these, without JAX, but for those of ``MEASURED``, which run
``smoke``. A claim without recorded data is skipped.
"""

import contextlib
import functools
import re
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from icllab.core.errors import CellsMissing, InputError, require_known
from icllab.core.grid import spelled
from icllab.lab import records, registry, regression
from icllab.lab.claim import SIZES, Claim
from icllab.lab.outcomes import Outcome
from icllab.lab.placement import SEED

if TYPE_CHECKING:
    import xarray as xr

    from icllab.lab.checks import Finding, Verdict

__all__ = ["CONTRACTS", "contracts"]

DIGITS = 2e-5
"""Largest relative difference of a finding's number from the record, which states six digits."""
ROUNDING = 1e-9
"""Largest difference of a finding's number from a recorded zero."""


IDENTIFIER = re.compile(r"[a-z][a-z0-9_]*(\[.*\])?")
"""Form of a finding's identifier: a name, and coordinates in brackets."""


@dataclass(frozen=True)
class Subject:
    """A claim with its recorded data.

    Attributes:
        claim: The claim.
        folder: The folder of the user's claims; None: a claim that is installed.
        size: The largest size with recorded data.
        data: The recorded measurements, without theory.
    """

    claim: Claim
    folder: Path | None
    size: str
    data: "xr.Dataset"

    def verdict(self, data: "xr.Dataset") -> "Verdict":
        """The verdict on data that are made of the recorded ones; warnings about them are ignored."""
        from icllab.lab.judging import judge, predicted

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return judge(self.claim, predicted(self.claim, data))

    @functools.cached_property
    def recorded(self) -> "Verdict":
        """The verdict on the recorded data."""
        return records.judged(self.claim.name, self.size, folder=self.folder)[1]

    @property
    def findings(self) -> "dict[str, Finding]":
        """The findings on the recorded data, by their identifiers."""
        return {finding.id: finding for finding in self.recorded.findings}

    @functools.cached_property
    def single_seed(self) -> "Verdict | None":
        """The verdict on the first seed alone; None of data without seeds."""
        return self.verdict(self.data.isel({SEED: [0]})) if SEED in self.data.dims else None


Contract: TypeAlias = Callable[[Subject], None]


def recorded_verdict(subject: Subject) -> None:
    """The check gives every recorded verdict, number by number, on the data of that verdict."""
    name = subject.claim.name
    for size, entry in records.read(name, subject.folder).items():
        if size == SIZES[0] or size not in records.groups(name, subject.folder):
            continue
        again = size == subject.size
        verdict = subject.recorded if again else records.judged(name, size, folder=subject.folder)[1]
        if verdict.outcome.value != entry["verdict"] or verdict.outcome is Outcome.FAILS:
            raise AssertionError(f"{size}: expected {entry['verdict']} and not fails, got {verdict.outcome.value}")
        if all(finding.about != "claim" for finding in verdict.findings):
            raise AssertionError(f"{size}: expected a finding about the claim, got none")
        findings = [records.plain_finding(finding) for finding in verdict.findings]
        names = [finding["id"] for finding in findings]
        if names != (recorded := [stated["id"] for stated in entry["findings"]]):
            raise AssertionError(f"{size}: expected the findings {recorded}, got {names}")
        _require_none([name for name in names if names.count(name) > 1], f"{size}: several findings of one identifier")
        _require_none([name for name in names if not IDENTIFIER.fullmatch(name)], f"{size}: identifiers")
        for finding, stated in zip(findings, entry["findings"], strict=True):
            text = f"{size}, {finding['id']}"
            _require_none(_differences(finding, stated), f"{text}: differs from the record, now and recorded")
            infinite = [name for name in ("predicted", "tolerance") if not isinstance(finding[name], float)]
            _require_none(infinite, f"{text}: not finite")


def _require_none(faults: Iterable[object] | Mapping[str, object], text: str) -> None:
    """Raise AssertionError with the faults unless there are none; pytest explains asserts of test files alone."""
    if faults:
        raise AssertionError(f"{text}: {faults}")


def _differences(finding: Mapping[str, Any], stated: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """Pairs of values that differ; numbers to the digits that a record states."""

    def equal(value: Any, expected: Any) -> bool:
        if isinstance(value, float) and isinstance(expected, float):
            return abs(value - expected) <= max(DIGITS * abs(expected), ROUNDING)
        return value == expected

    names = {**finding, **stated}
    pairs = [(finding.get(name), stated.get(name)) for name in names]
    return [pair for pair in pairs if not equal(*pair)]


def order_of_seeds(subject: Subject) -> None:
    """The same seeds in another order give the same findings."""
    if SEED in subject.data.dims:
        count = subject.data.sizes[SEED]
        order = np.roll(np.random.default_rng(count).permutation(count), 1) if count > 2 else np.arange(count)[::-1]
        _require_none(_changes(subject, subject.data.isel({SEED: order})), "the order of seeds changes findings")


def one_seed_is_judged(subject: Subject) -> None:
    """The check does not raise on a single seed."""
    _ = subject.single_seed


def one_seed_is_undecided(subject: Subject) -> None:
    """A single seed decides nothing, but for a finding whose error is known without seeds (``checks.seedless``)."""
    if verdict := subject.single_seed:
        decided = [f.id for f in verdict.findings if not f.seedless and f.outcome is Outcome.FAILS]
        _require_none(decided, "fails on one seed")
        if verdict.outcome is Outcome.HOLDS:
            _require_none([f.id for f in verdict.findings if not f.seedless], "holds on one seed")


def no_number_is_undecided(subject: Subject) -> None:
    """Data without a finite number decide nothing."""
    data = subject.data.map(lambda values: values * np.nan if values.dtype.kind in "iuf" else values)
    verdict = subject.verdict(data)
    decided = {finding.id: finding.outcome.value for finding in verdict.findings if finding.outcome != "undecided"}
    if verdict.outcome is not Outcome.UNDECIDED:
        raise AssertionError(f"data without a number: expected undecided, got {decided}")


def _changes(subject: Subject, data: "xr.Dataset") -> dict[str, str]:
    """Findings that have another outcome on other data, or that are there in one verdict alone."""
    outcomes = {finding.id: finding.outcome.value for finding in subject.verdict(data).findings}
    before = {name: finding.outcome.value for name, finding in subject.findings.items()}
    names = {**before, **outcomes}
    return {
        name: f"{before.get(name)} -> {outcomes.get(name)}" for name in names if before.get(name) != outcomes.get(name)
    }


def cut_axis(subject: Subject) -> None:
    """With one value of an axis the check does not raise, and refutes nothing that the whole data do not."""
    data = subject.data
    cuts = {axis: data.isel({axis: [0]}) for axis in data.dims if axis != SEED and data.sizes[axis] > 1}
    refuted: dict[str, set[str]] = {}
    for axis, part in cuts.items():
        verdict = subject.verdict(part)
        before = {name for name, finding in subject.findings.items() if finding.outcome is Outcome.FAILS}
        spurious = {f.id for f in verdict.findings if f.outcome is Outcome.FAILS} - before
        if spurious:
            refuted[f"{axis}={part[axis].values[0]}"] = spurious
    _require_none(refuted, "fails without the other values of an axis, and not with them")


def descending_axis(subject: Subject) -> None:
    """Values of all axes in descending order give the same findings."""
    axes = {axis: slice(None, None, -1) for axis in subject.data.dims if axis != SEED}
    _require_none(_changes(subject, subject.data.isel(axes)), "the order of the values of axes changes findings")


def requested_values(subject: Subject) -> None:
    """At ``smoke``, a run with one name along an axis measures what the golden numbers have there, or is refused.

    It runs the claim's ``measure``, with JAX. Axes of names are cut to their last one, all at once.
    """
    from icllab.lab.job import new_request
    from icllab.lab.run import compute, read

    claim, folder = subject.claim, subject.folder
    axes = {axis: values for axis, values in claim.grid(SIZES[0]).traced.items() if isinstance(values[-1], str)}
    last = {axis: [values[-1]] for axis, values in axes.items() if len(values) > 1}
    if not last or claim.reduce is not None or SIZES[0] not in records.groups(claim.name, folder):
        return
    golden = records.data(claim.name, SIZES[0], folder=folder)
    with tempfile.TemporaryDirectory() as out:
        request = new_request(claim.name, SIZES[0], axes=last, out=out, claims=folder)
        with contextlib.suppress(InputError):
            compute(request, progress=lambda *_: None)
            faults = regression.differences(golden.sel(last), read(request, theory=False)[0])
            _require_none(faults, f"other numbers at {spelled(last)} than the golden ones")


CONTRACTS: dict[str, Contract] = {
    contract.__name__: contract
    for contract in (
        recorded_verdict,
        order_of_seeds,
        one_seed_is_judged,
        one_seed_is_undecided,
        no_number_is_undecided,
        cut_axis,
        descending_axis,
        requested_values,
    )
}
"""The contracts by name."""
MEASURED = (requested_values.__name__,)
"""Names of those that measure, at ``smoke``; the others have recorded data alone, and no JAX."""


def contracts(folder: str | Path | None = None, *names: str) -> "Callable[[Contract, str], None]":
    """A pytest function with one test for each claim and contract, ``test_contracts[subject/finding-one_seed_runs]``.

    Args:
        folder: A claim's folder, or one with claims or subjects; None: the claims that are installed.
        names: Names of ``CONTRACTS``; without one, all of them.

    Raises:
        InputError: No claim is in the folder; or a contract is unknown.
    """
    import pytest

    for name in names:
        require_known("contract", name, CONTRACTS)
    folder = None if folder is None else Path(folder).resolve()
    claims = registry.claims() if folder is None else registry.foreign_files(folder)
    if not claims:
        raise InputError(f"contracts: expected a folder with a claim.py in it or below, got {str(folder)!r}")
    cases = [
        pytest.param(CONTRACTS[name], claim, id=f"{claim}-{name}") for claim in claims for name in names or CONTRACTS
    ]

    @pytest.mark.parametrize(("contract", "claim"), cases)
    def test(contract: Contract, claim: str) -> None:
        """The claim keeps the contract on its recorded data."""
        try:
            subject = recorded(claim, folder)
        except CellsMissing:
            pytest.skip(f"{claim}: {records.NOT_RECORDED}")
        contract(subject)

    return test


@functools.lru_cache(maxsize=8)
def recorded(claim: str, folder: Path | None = None) -> Subject:
    """A claim with the data of its largest recorded size; a process reads them once.

    Raises:
        CellsMissing: The record has no such data.
    """
    data = records.data(claim, folder=folder)
    size = str(records.configuration(data)["size"])
    return Subject(registry.load(claim, folder).at(size), folder, size, data)
