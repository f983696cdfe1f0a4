"""The examination of a network: sections in order, their cells, and the sentences that come first."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from icllab.core.errors import IclError, InputError, expected, require_key, require_known
from icllab.core.files import write_atomically
from icllab.core.result_warnings import collected
from icllab.core.spelling import strict
from icllab.core.views import one_line
from icllab.diagnostics.behaviour.answers import sample_prompts
from icllab.examination.claims import applicable, asked
from icllab.examination.measuring import losses
from icllab.examination.report import card, html
from icllab.examination.results import Answered, Results, circuit, read_cell, write_cell
from icllab.examination.section import LEVEL, SIZES, TEXTS, UNDECIDED, Pace, Section, Size, holm
from icllab.examination.sections import SECTIONS
from icllab.examination.sentences import LANGUAGE, ORDER, first_sentences
from icllab.examination.subject import Subject, task_and_tokenizer
from icllab.lab.networks import network as open_network

FIRST = (*ORDER, *LANGUAGE, "contract")
"""Sections whose verdicts are stated first, and whose joint error is kept."""


class Examination(Results):
    """Results that state themselves: first sentences, report, card."""

    def report(self, path: str | Path) -> Path:
        """Write the report as one HTML file."""
        at = Path(path)
        write_atomically(at, html([self]).encode(), "no report was written")
        return at

    def as_dict(self) -> dict[str, Any]:
        """The header, the first sentences, and every section's finding, as plain values."""
        return strict(
            {
                **self.header,
                "sentences": first_sentences(self),
                "sections": [
                    {
                        "name": section.name,
                        "question": SECTIONS[section.name].question,
                        "status": section.status,
                        "reason": section.reason,
                        "seconds": section.seconds,
                        **({} if section.finding is None else vars(section.finding)),
                        **({} if section.dataset is None else circuit(section.dataset)),
                    }
                    for section in self.sections
                ],
                "claims": list(self.claims),
            }
        )

    def __repr__(self) -> str:
        verdicts = {s.name: s.finding.verdict for s in self.sections if s.finding is not None}
        return one_line("Examination", {"name": self.header.get("name"), "size": self.header.get("size")} | verdicts)

    def _repr_html_(self) -> str:
        return str(card(self))


def examine(
    network: Any,
    task: Any,
    *,
    key: PRNGKeyArray,
    only: Sequence[str] | None = None,
    skip: Sequence[str] = (),
    minutes: float = 5.0,
    size: str | None = None,
    trained_on: int | None = None,
    checkpoints: Mapping[int, Any] | None = None,
    name: str | None = None,
    claims: bool = False,
) -> "Examination | dict[str, Examination]":
    """Ask a network every question that applies to it.

    Sections run in this process, one after the other, and cannot be ended; the command line runs them in a process of
    their own. At one size, numbers depend on the key alone.

    Args:
        network: Predictor of one prompt, or its name, as :func:`icllab.network` takes it; or a mapping of names to
            several, which answer the same prompts.
        task: Task of the network's training; or its text, as :func:`icllab.tasks.parse` takes it.
        key: Key of all prompts.
        only: Names of sections to ask; None: all that apply.
        skip: Names of sections to leave out.
        minutes: Time that picks the size, from the time of one batch, if ``size`` is None.
        size: ``"small"``, ``"medium"`` or ``"large"``; None: the largest that ``minutes`` affords.
        trained_on: Number of training prompts; None if it is not known.
        checkpoints: Step -> network; None if there are none.
        name: Name of the network in sentences; None: ``"the network"``.
        claims: Whether the claims about such a network are measured on it, with their negative controls.

    Returns:
        The examination; of several networks one for each name.

    Raises:
        InputError: A section or a size is unknown, or the network cannot answer a prompt of the task.
    """
    require_key(key)
    if isinstance(network, Mapping):
        shared = {"key": key, "only": only, "skip": skip, "minutes": minutes, "size": size, "trained_on": trained_on}
        shared["claims"] = claims
        return {str(label): _one(examine(one, task, name=str(label), **shared)) for label, one in network.items()}
    opened = open_network(network) if isinstance(network, str | PathLike) else network
    task, tokenizer = task_and_tokenizer(task, opened, network)
    facts = {"trained_on": trained_on, "checkpoints": checkpoints, "tokenizer": tokenizer}
    subject = Subject.of(opened, task, name=name or "the network", **facts)
    names = section_names(only, skip)
    pace = pace_of(subject)
    chosen = size_of(size, minutes, subject, names, pace)
    header = header_of(subject, chosen, key)
    budget = None if size is not None or len(names) == 1 else 60 * minutes
    skipped = too_long(subject, names, chosen, pace, budget)
    cells = [skipped.get(name) or answer(subject, SECTIONS[name], chosen, key, pace) for name in names]
    rows = applicable(subject.kind, bool(subject.checkpoints))
    if claims:
        rows = [asked(row, network, subject.task, subject.checkpoints) for row in rows]
    return corrected(Examination(header, tuple(cells), rows))


def _one(examination: Any) -> Examination:
    assert isinstance(examination, Examination)
    return examination


def section_names(only: Sequence[str] | None, skip: Sequence[str]) -> list[str]:
    """Names of the sections to ask, in order."""
    for name in [*(only or ()), *skip]:
        require_known("section", name, SECTIONS)
    asked = [name for name in SECTIONS if not SECTIONS[name].on_request] if only is None else only
    return [name for name in SECTIONS if name in asked and name not in skip]


def pace_of(subject: Subject) -> Pace:
    """Time the answers to 256 prompts, the first and the second time; of a language model to 16, and compilation."""
    if subject.broken:
        return Pace(0.0, 0.0)
    is_language = subject.kind == "language model"
    count = 256 // TEXTS if is_language else 256
    prompts = sample_prompts(subject.task, key=jax.random.key(0), prompts=count)
    times = [time.perf_counter()]
    for _ in range(2):
        with contextlib.suppress(Exception):  # each section says what the network raises
            losses(subject.network, subject.task, prompts)
        times.append(time.perf_counter())
    first, again = times[1] - times[0], times[2] - times[1]
    return Pace(max(first - again, 0.0) if is_language else first, again)


def size_of(size: str | None, minutes: float, subject: Subject, names: Sequence[str], pace: Pace) -> Size:
    """The rung that was asked for, or the largest whose stated costs fit the minutes; the smallest if none does."""
    if size is not None:
        require_known("size", size, SIZES)
        return SIZES[size]
    if not minutes > 0:
        raise expected("minutes", "a positive number", minutes)
    applying = [SECTIONS[name] for name in names if not SECTIONS[name].unasked(subject)]
    fits = [s for s in SIZES.values() if sum(part.cost(s, pace) for part in applying) <= 60 * minutes]
    return fits[-1] if fits else next(iter(SIZES.values()))


def too_long(
    subject: Subject, names: Sequence[str], size: Size, pace: Pace, budget: float | None
) -> dict[str, Answered]:
    """Sections, the most expensive first, that do not fit the budget together with the others; by name."""
    costs = {name: SECTIONS[name].cost(size, pace) for name in names if not SECTIONS[name].unasked(subject)}
    dropped: dict[str, Answered] = {}
    for name in sorted(costs, key=costs.__getitem__, reverse=True):
        if budget is None or sum(costs.values()) - sum(costs[other] for other in dropped) <= budget:
            break
        reason = f"it takes about {costs[name] / 60:.0f} minutes; a size or --only {name} asks it"
        dropped[name] = Answered(name, "not asked", reason, costs[name])
    return dropped


def header_of(subject: Subject, size: Size, key: PRNGKeyArray) -> dict[str, Any]:
    """Name, task, size, key, digests and versions, as plain values."""
    import icllab

    return {
        "name": subject.name,
        "kind": subject.kind,
        "task": " ".join(repr(subject.task).split()),
        "size": size.name,
        "prompts": size.texts if subject.kind == "language model" else size.prompts,
        "key": np.asarray(jax.random.key_data(key)).ravel().tolist(),
        "trained_on": subject.trained_on,
        "checkpoints": list(subject.checkpoints),
        "weights": subject.digest,
        "versions": {"icl-lab": icllab.__version__, "jax": jax.__version__, "numpy": np.__version__},
    }


def answer(subject: Subject, section: Section, size: Size, key: PRNGKeyArray, pace: Pace) -> Answered:
    """Measure and judge a section, or say why it does not apply or what it raised."""
    if reason := section.unasked(subject):
        return Answered(section.name, "not asked", reason)
    if subject.broken:
        return Answered(section.name, "failed", subject.broken)
    cost, start = section.cost(size, pace), time.perf_counter()
    try:
        with collected():
            dataset = section.measure(subject, size, jax.random.fold_in(key, list(SECTIONS).index(section.name)))
        return Answered(
            section.name, "answered", "", cost, time.perf_counter() - start, dataset, section.judge(dataset)
        )
    except Exception as error:  # whatever a user's network raises: the other sections go on
        text = " ".join(str(error).split())
        reason = text if isinstance(error, IclError) else f"{type(error).__name__}: {text}"
        return Answered(section.name, "failed", reason, cost, time.perf_counter() - start)


def corrected(examination: Examination) -> Examination:
    """The examination whose first verdicts are undecided unless Holm's method rejects their opposites, jointly."""
    tested = {
        section.name: section.finding.p_value
        for section in examination.sections
        if section.name in FIRST and section.finding is not None and section.finding.p_value is not None
    }
    rejected = holm(tested, LEVEL)

    def one(section: Answered) -> Answered:
        finding = section.finding
        if finding is None or rejected.get(section.name, True) or finding.verdict == UNDECIDED:
            return section
        note = f"{finding.change}; alone it would be {finding.verdict!r} (p = {finding.p_value:.2g})"
        return replace(section, finding=replace(finding, verdict=UNDECIDED, change=note, fault=False))

    return replace(examination, sections=tuple(map(one, examination.sections)))


def resumed(at: Path, names: Sequence[str], run: Callable[[str], Answered]) -> Iterator[Answered]:
    """Each section, from its file if that is there, else measured and kept."""
    for name in names:
        path = at / f"{name}.nc"
        if path.is_file():
            yield read_cell(path)
            continue
        section = run(name)
        if section.dataset is not None:
            try:
                write_cell(at, section)
            except InputError as error:  # a value that netCDF cannot hold: the other sections go on
                section = Answered(
                    name, "failed", f"its measurement is not kept: {error}", section.cost, section.seconds
                )
        yield section
