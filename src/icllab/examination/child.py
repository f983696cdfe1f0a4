"""Sections of an examination in a process of their own, which a parent may end and start again.

The request comes as one JSON object on stdin, and answers go as JSON lines to stdout: what is examined, the cost of a
section before it begins, and how it ended. Measurements lie in the folder of cells.
"""

import contextlib
import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icllab.core.errors import EnvironmentFault, IclError, InputError
from icllab.core.spelling import strict

PATIENCE = 2.0
"""A section is ended after this multiple of its stated cost."""
LEAST, STARTING = 60.0, 600.0  # seconds below which no section is ended, and in which a network has to be opened


def main() -> None:
    """Answer the request on stdin; what a user's file prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    request = json.load(sys.stdin)  # noqa: TID251
    try:
        _serve(request, lambda **line: answers.write(json.dumps(strict(line)) + "\n"))
    except IclError as error:
        answers.write(json.dumps({"error": str(error), "exit_status": error.exit_status}) + "\n")


def _serve(request: Mapping[str, Any], send: Callable[..., Any]) -> None:
    import jax

    from icllab.examination import examining, results
    from icllab.examination.sections import SECTIONS
    from icllab.examination.subject import Subject

    network, task, facts = opened(request)
    subject = Subject.of(network, task, name=request["name"], trained_on=request["trained_on"], **facts)
    key, folder, names = jax.random.key(request["key"]), Path(request["folder"]), request["sections"]
    pace = examining.pace_of(subject)
    # A timing chooses the size of a new folder alone: cells that are there go on at their own.
    chosen = request["size"] or results.stored_size(folder)
    size = examining.size_of(chosen, request["minutes"], subject, request["all"], pace)
    header = examining.header_of(subject, size, key) | {
        "network": request["network"], "task": request["task"], "files": files(request)
    }  # fmt: skip
    results.require_same(folder, header)
    folder.mkdir(parents=True, exist_ok=True)
    results.write_header(folder, header)
    send(header=header)

    budget = None if request["size"] is not None or len(request["all"]) == 1 else 60 * request["minutes"]
    skipped = examining.too_long(subject, request["all"], size, pace, budget)

    def run(name: str) -> Any:
        if name in skipped:
            return skipped[name]
        section = SECTIONS[name]
        if not section.unasked(subject):
            send(begin=name, cost=section.cost(size, pace))
        return examining.answer(subject, section, size, key, pace)

    for answered in examining.resumed(folder, names, run):
        send(end=answered.name, status=answered.status, reason=answered.reason)


def opened(request: Mapping[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """The network, the task, and the checkpoints and the tokenizer of a request, by their names."""
    from icllab.examination.subject import task_and_tokenizer
    from icllab.lab.networks import checkpoints, network

    options = {name: request[name] for name in ("store", "family", "heads")}
    opened = network(request["network"], **options)
    task, tokenizer = task_and_tokenizer(request["task"], opened, request["network"])
    steps = {} if not request["checkpoints"] else checkpoints(request["checkpoints"], request["load"])
    return opened, task, {"checkpoints": steps, "tokenizer": tokenizer}


def files(request: Mapping[str, Any]) -> dict[str, str]:
    """Name -> SHA-256 of the user's files that run or that the task reads."""
    from icllab.lab.subjects import file_digest

    values = [word.partition("=")[2] or word for word in shlex.split(request["task"])]
    places = [text.rpartition(":")[0] for text in (request["network"], request["load"] or "", *values)]
    return {path.name: file_digest(path) for path in map(Path, [*places, *values]) if path.is_file()}


def sections_in_child(
    request: Mapping[str, Any], report: Callable[[str], None], command: tuple[str, ...] = ()
) -> tuple[dict[str, Any], list[Any]]:
    """Run the sections of a request in child processes; the header and the sections in order.

    A section that takes more than twice its stated cost is ended, and the others go on in a new process.
    """
    from icllab.examination.results import Answered, read_cell

    header: dict[str, Any] = {}
    done: dict[str, Answered] = {}
    waiting = list(request["all"])
    while waiting:
        current, cost, deadline = "", 0.0, _Deadline()
        arguments = command or (sys.executable, "-m", "icllab.examination.child")
        with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            with contextlib.suppress(BrokenPipeError):  # a child that has died says so below
                child.stdin.write(json.dumps(dict(request) | {"sections": waiting}))
                child.stdin.close()
            for line in _lines(child, child.stdout, deadline):
                if "error" in line:
                    raise (InputError if line["exit_status"] == 2 else EnvironmentFault)(line["error"])
                if "header" in line:
                    header = line["header"]
                elif "begin" in line:
                    current, cost = line["begin"], float(line["cost"])
                    deadline.seconds = max(LEAST, PATIENCE * cost)
                    report(f"{current}: about {cost:.0f} s")
                else:
                    name, current, deadline.seconds = line["end"], "", STARTING
                    path = Path(request["folder"]) / f"{name}.nc"
                    stated = Answered(name, line["status"], line["reason"], cost)
                    done[name] = read_cell(path) if line["status"] == "answered" else stated
                    waiting.remove(name)
            child.kill()
        if current:
            reason = f"it took more than {PATIENCE:g} times its stated cost of {cost:.0f} s, or its process died"
            done[current] = Answered(current, "ended", reason, cost)
            waiting.remove(current)
        elif waiting and not header:
            raise EnvironmentFault("icl examine: expected sections, got a process that ended before the first")
    return header, [done[name] for name in request["all"]]


@dataclass
class _Deadline:
    """Seconds within which the next line of a child has to come."""

    seconds: float = STARTING


def _lines(child: "subprocess.Popen[str]", stream: Any, deadline: _Deadline) -> Iterator[dict[str, Any]]:
    """Lines of a child; it is killed if none comes in time."""
    while True:
        timer = threading.Timer(deadline.seconds, child.kill)
        timer.start()
        try:
            line = stream.readline()
        finally:
            timer.cancel()
        if not line:
            return
        yield json.loads(line)  # noqa: TID251


if __name__ == "__main__":
    main()
