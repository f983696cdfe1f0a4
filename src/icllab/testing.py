"""Contracts that every claim keeps: one line in a pytest file, one test for each claim and contract.

    from icllab import testing
    test_contracts = testing.contracts(Path(__file__).parent)

The tests judge recorded data and data that are made of these, without JAX. A claim without recorded data is skipped.
"""

import functools
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from icllab.core.errors import CellsMissing, InputError, require_known
from icllab.lab import records, registry
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
        from icllab.lab.results import judge, predicted

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return judge(self.claim, predicted(self.claim, data))

    @functools.cached_property
    def findings(self) -> "dict[str, Finding]":
        """The findings on the recorded data, by their identifiers."""
        return {finding.id: finding for finding in self.verdict(self.data).findings}


Contract: TypeAlias = Callable[[Subject], None]


def recorded_verdict(subject: Subject) -> None:
    """The check gives every recorded verdict, number by number, on the data of that verdict."""
    name = subject.claim.name
    for size, entry in records.read(name, subject.folder).items():
        if size == SIZES[0] or size not in records.groups(name, subject.folder):
            continue
        verdict = records.judged(name, size, folder=subject.folder)[1]
        assert verdict.outcome.value == entry["verdict"] != Outcome.FAILS, f"{size}: {verdict.outcome.value}"
        assert any(finding.about == "claim" for finding in verdict.findings), f"{size}: no finding is about the claim"
        findings = [records.plain_finding(finding) for finding in verdict.findings]
        names = [finding["id"] for finding in findings]
        assert names == [stated["id"] for stated in entry["findings"]], f"{size}: other findings than recorded"
        assert len({*names}) == len(names), f"{size}: two findings have one identifier"
        assert [name for name in names if not IDENTIFIER.fullmatch(name)] == [], f"{size}: identifiers"
        for finding, stated in zip(findings, entry["findings"], strict=True):
            assert _differences(finding, stated) == [], f"{size}, {finding['id']}"
            for number in ("predicted", "tolerance"):
                assert isinstance(finding[number], float), f"{size}, {finding['id']}: {number} is not finite"


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
    """The findings are those of the same seeds in another order."""
    if SEED in subject.data.dims:
        count = subject.data.sizes[SEED]
        orders = (np.arange(count)[::-1], np.random.default_rng(count).permutation(count))
        for order in orders:
            assert _changes(subject, subject.data.isel({SEED: order})) == {}, "the order of seeds changes findings"


def one_seed_is_judged(subject: Subject) -> None:
    """The check does not raise on a single seed."""
    for data in _single_seeds(subject):
        subject.verdict(data)


def one_seed_is_undecided(subject: Subject) -> None:
    """A single seed decides nothing, but for a finding whose error is known without seeds (``checks.seedless``)."""
    for data in _single_seeds(subject):
        verdict = subject.verdict(data)
        decided = [f.id for f in verdict.findings if not f.seedless and f.outcome is Outcome.FAILS]
        assert decided == [], "fails on one seed"
        if not all(finding.seedless for finding in verdict.findings):
            assert verdict.outcome is not Outcome.HOLDS, "holds on one seed"


def _single_seeds(subject: Subject) -> "list[xr.Dataset]":
    """The data of the first seed alone, and of the last."""
    return [subject.data.isel({SEED: [i]}) for i in (0, -1)] if SEED in subject.data.dims else []


def no_number_is_undecided(subject: Subject) -> None:
    """Data without a finite number decide nothing."""
    data = subject.data.map(lambda values: values * np.nan if values.dtype.kind in "iuf" else values)
    verdict = subject.verdict(data)
    decided = {finding.id: finding.outcome.value for finding in verdict.findings if finding.outcome != "undecided"}
    assert verdict.outcome is Outcome.UNDECIDED, f"data without a number give {decided}"


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
    assert refuted == {}, "fails without the other values of an axis, where it does not with them"


def descending_axis(subject: Subject) -> None:
    """The findings are those of the same values of an axis in descending order."""
    data = subject.data
    changes = {axis: _changes(subject, data.isel({axis: slice(None, None, -1)})) for axis in data.dims if axis != SEED}
    assert {axis: change for axis, change in changes.items() if change} == {}, "the order of an axis changes findings"


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
    )
}
"""The contracts by name."""


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
