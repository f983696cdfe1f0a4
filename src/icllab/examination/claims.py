"""Claims of the book that speak of a network of the kind under examination, measured on it if that is asked."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from icllab.core.errors import IclError
from icllab.figures.markup import Html, joined, tag
from icllab.lab import records, registry

PATIENCE = 3.0
"""A claim is ended after this multiple of the time of its own network, and not within the first ten minutes."""
LEAST = 600.0
_SIZES = {"dim": "dim", "length": "length", "states": "vocabulary", "tokens": "tokens"}
"""Numbers of claims, and the fields of a task that give them."""


def applicable(kind: str, run: bool) -> list[dict[str, Any]]:
    """The claims about a network of this kind, and with ``run`` those about a training run, as plain values."""
    rows = []
    for name in registry.claims():
        subject = records.statement(name).get("subject", {})
        if subject.get("kind") == kind and (run or not subject["run"]):
            card = records.card(name)
            entry = card.record.get(card.ordinary, {})
            own = {"network": subject["network"], "recorded": card.verdict, "seconds": entry.get("seconds", 0.0)}
            rows.append({"claim": name, "sentence": card.sentence, "size": card.ordinary, "run": subject["run"]} | own)
    return rows


def asked(row: Mapping[str, Any], network: Any, task: Any, checkpoints: Mapping[int, Any] | None) -> dict[str, Any]:
    """A claim measured with its controls on a network of this process: the row with a verdict, or with a reason."""
    from icllab.lab.controls import control_verdicts
    from icllab.lab.job import new_request
    from icllab.lab.judging import judge
    from icllab.lab.run import collect, compute

    with tempfile.TemporaryDirectory() as folder:
        try:
            takes_task = "task" in registry.parameters(registry.load(row["claim"]))
            request = new_request(
                row["claim"],
                row["size"],
                axes=axes_of(row["claim"], row["size"], task),
                out=folder,
                network=dict(checkpoints or {}) if row["run"] else network,
                task=task if takes_task else None,
            )
            compute(request)
            verdict = judge(request.claim(), collect(request)[0]).outcome.value
            return {**row, "verdict": verdict, "controls": control_verdicts(request)}
        except IclError as error:
            return {**row, "verdict": None, "reason": str(error)}


def asked_by_name(
    rows: Sequence[Mapping[str, Any]], request: Mapping[str, Any], report: Callable[[str], None]
) -> list[dict[str, Any]]:
    """The same for a network by its name, each claim in a process of its own, ``icl run CLAIM --network``."""
    from icllab.tasks.parsing import parse

    task, found = parse(request["task"]), []
    for row in rows:
        report(f"{row['claim']}: about {row['seconds']:.0f} s for {row['network']}")
        command = [sys.executable, "-m", "icllab", "run", row["claim"], "--size", row["size"], "--json"]
        command += ["--out", str(Path(request["folder"]) / "claims")]
        for name, values in axes_of(row["claim"], row["size"], task).items():
            command += ["--set", f"{name}={','.join(map(str, values))}"]
        names = ("checkpoints", "load") if row["run"] else ("network", "store", "family", "heads")
        takes_task = "task" in registry.parameters(registry.load(row["claim"]))
        for name in (*names, *(("task",) if takes_task else ())):
            if request[name] is not None:
                command += [{"family": "--as"}.get(name, f"--{name}"), str(request[name])]
        found.append({**row, **_answer(command, max(LEAST, PATIENCE * row["seconds"]))})
    return found


def _answer(command: Sequence[str], seconds: float) -> dict[str, Any]:
    """The verdict of a run and of its controls, or why there is none."""
    try:
        answer = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=seconds).stdout)  # noqa: TID251
    except subprocess.TimeoutExpired:
        return {"verdict": None, "reason": f"it took more than {seconds:.0f} s"}
    except ValueError:
        return {"verdict": None, "reason": "its process died"}
    if "error" in answer:
        return {"verdict": None, "reason": str(answer["error"]["message"])}
    return {"verdict": answer["verdict"], "controls": answer.get("controls", {})}


def axes_of(claim: str, size: str, task: Any) -> dict[str, list[Any]]:
    """Sizes of a task in the place of those of a claim's own prompts."""
    content = registry.load(claim)
    known = {name for name in (*content.static, *content.fixed) if name not in content.outputs}
    fields = {name: getattr(task, field, None) for name, field in _SIZES.items() if name in known}
    subject = content.subject
    kept = set() if subject is None else set(subject.axes)
    return {name: [value] for name, value in fields.items() if isinstance(value, int) and name not in kept}


def part(rows: Sequence[Mapping[str, Any]]) -> Html:
    """The part of a report that lists claims: their verdicts on their own networks and on this one."""
    if not rows:
        lines = registry.absent() or ["no claim of the book speaks of a network of this kind"]
        return joined(tag("h2", "Claims"), *(tag("p", f"{line.capitalize()}.") for line in lines))
    items = []
    for row in rows:
        asked = row.get("verdict") or row.get("reason") or f"not asked: icl run {row['claim']} --network"
        own = f"It {row['recorded']} of {row['network']}" if row["recorded"] else "It is not recorded"
        text = f"{own.replace('It undecided', 'It is undecided')}. Of this network: {asked}."
        name = tag("b", row["claim"])
        items.append(tag("li", name, f": {row['sentence']} ", tag("span", text, class_="muted")))
    return joined(tag("h2", "Claims about such a network"), tag("ul", *items))
