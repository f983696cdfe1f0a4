"""The entry point of ``icl``: one answer on stdout, and an error as one line on stderr.

``--json``: stdout holds exactly one object, ``{"command", "exit_status", ...}``, and with ``error``
(``kind`` and ``message``) where the command came to nothing; the line on stderr is there all the same.
Numbers that JSON cannot spell are the strings ``"inf"``, ``"-inf"`` and ``"nan"``.
"""

import contextlib
import inspect
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from icllab.cli import streams
from icllab.core.errors import IclError, InputError
from icllab.core.spelling import printable

if TYPE_CHECKING:
    from rich.console import Console

    from icllab.cli.reports import Report

_INTERRUPTED = 130
MOVED = ("new", "conform", "add", "cost", "submit")
"""Commands of version 0.3 that are subcommands of ``claim``."""
_KINDS = {2: "input", 3: "missing", 4: "environment", _INTERRUPTED: "interrupted"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, print its answer, and return the exit status."""
    if arguments is None and sys.argv[1:2] in (["check"], ["draw"]):
        # xarray imports all of dask, half a second, to learn that an array is none of dask's; these commands use none.
        sys.modules.setdefault("dask", None)  # pyright: ignore[reportArgumentType]
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    # NumPy's threads spin beside XLA's, which costs more than they do; set the variable for very large factors.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ["MPLBACKEND"] = "agg"  # no command shows a window; the caller's backend may not be installed here
    as_json = "--json" in arguments
    if "--debug" in arguments:
        os.environ["ICL_DEBUG"] = "1"  # worker processes see it too
    words = [word for word in arguments if not word.startswith("-")]
    name = " ".join(words[: 2 if words[:1] == ["claim"] else 1]) or None
    with streams.usable():
        return _run(arguments, name, as_json)


def _run(arguments: list[str], name: str | None, as_json: bool) -> int:
    """Run a command, print its result or error, and return the exit status."""
    try:
        with _terminated_like_interrupted():
            report = _answer(arguments, name)
            streams.write(report.as_json(name) if as_json and report.data else report.as_text())
            return report.exit_status
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        status, kind, message = _explained(error)
        if os.environ.get("ICL_DEBUG"):
            import traceback

            traceback.print_exception(error)
    print(message if message.startswith("icl") else f"icl: {message}", file=sys.stderr, flush=True)
    if as_json:
        from icllab.cli.reports import Report

        failure = Report({"error": {"kind": kind, "message": message}}, lambda console: None, status)
        with contextlib.suppress(OSError):
            streams.write(failure.as_json(name))
    return status


def _answer(arguments: list[str], name: str | None) -> "Report":
    """Run a command and return its report, which is text alone for help, version and completion."""
    from cyclopts import CycloptsError

    from icllab.cli import commands
    from icllab.cli.reports import Report

    if name in MOVED:
        raise InputError(f"icl {name}: expected `icl claim {name}`, its name since version 0.4, got the old name")
    if arguments[:1] == ["theory"] and not {"--help", "-h"}.isdisjoint(arguments):
        names = [word for word in arguments[1:] if not word.startswith("-")]
        if names:
            from icllab.cli import formulas

            return formulas.explain(next((word for word in names if word in formulas.listing()), names[0]))
    try:
        command, bound, _ = commands.app.parse_args(arguments, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        from icllab.cli.parsing import explained

        raise explained(error) from error
    if command.__module__ != commands.__name__:
        return Report({}, lambda console: _typeset(command, bound, console), escape=False)
    with _stdout_kept_clean():
        return command(*bound.args, **bound.kwargs)


def _typeset(command: Callable[..., Any], bound: inspect.BoundArguments, console: "Console") -> None:
    """Help, version or completion, which the parser writes itself."""
    if "console" in bound.arguments:
        bound.arguments["console"] = console
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        command(*bound.args, **bound.kwargs)
    console.out(text.getvalue(), highlight=False, end="")


def _explained(error: BaseException) -> tuple[int, str, str]:
    """Exit status, kind and one line."""
    if isinstance(error, KeyboardInterrupt):
        return _INTERRUPTED, _KINDS[_INTERRUPTED], "interrupted; every finished cell is kept"
    if isinstance(error, SystemExit):
        return 4, _KINDS[4], f"a claim or a library called sys.exit({error.code!r}); a claim returns or raises"
    if isinstance(error, IclError):
        return error.exit_status, _KINDS[error.exit_status], _one_line(str(error))
    if isinstance(error, OSError):
        path = f" {error.filename}" if error.filename else ""
        return 4, _KINDS[4], _one_line(f"the system refused{path}: {error.strerror or error}")
    return 4, "internal", _one_line(f"{type(error).__name__}: {error} (a mistake in icl; --debug shows where)")


def _one_line(message: str, longest: int = 1000) -> str:
    line = printable(" ".join(part.strip() for part in message.split("\n") if part.strip()))
    return line if len(line) <= longest else line[: longest - 1] + "…"


@contextlib.contextmanager
def _stdout_kept_clean() -> Iterator[None]:
    """Send the output of claims, libraries and workers to stderr: stdout is for the answer alone."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # a closed stdout has nothing to keep clean
            stdout = os.dup(1)
            stack.callback(os.close, stdout)
            stack.callback(os.dup2, stdout, 1)
            os.dup2(2, 1)
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield


@contextlib.contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """A batch system's SIGTERM ends a run as Ctrl-C does: with its finished cells and a line that says so."""

    def interrupt(number: int, frame: Any) -> NoReturn:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
