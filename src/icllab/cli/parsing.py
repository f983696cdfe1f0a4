"""Errors of the parser as one line with the nearest valid name."""

from typing import Any, Literal, get_args, get_origin

from cyclopts import CoercionError, CycloptsError, MissingArgumentError, UnknownCommandError, UnknownOptionError
from cyclopts.exceptions import UnusedCliTokensError

from icllab.core.errors import InputError, expected, unknown

_KINDS: dict[Any, str] = {int: "an integer", float: "a number", bool: "true or false"}
_GONE = {"--slurm": "jobs go to Slurm without it"}
_GONE |= dict.fromkeys(("--print", "--image", "--volume"), "docs/batch-systems.md has texts for other systems")


def explained(error: CycloptsError) -> InputError:
    """The parser's complaint as an error of ours."""
    command = " ".join(["icl", *(error.command_chain or ())])
    match error:
        case UnknownOptionError():
            name = (error.token.keyword or error.token.value).split("=", 1)[0]
            if command.endswith(" submit") and name in _GONE:
                return InputError(f"{name}: expected no such option since version 0.4, got it; {_GONE[name]}")
            options = [n for argument in error.argument_collection for n in argument.names if n.startswith("--")]
            return unknown(f"option of {command}:", name, {*options, "--help"})
        case UnknownCommandError() if error.app is not None and error.unused_tokens:
            commands = [n for n in error.app if not n.startswith("-")]
            kind = f"command of {command}:" if error.command_chain else "command"
            return unknown(kind, error.unused_tokens[0], commands)
        case CoercionError() if error.argument is not None and error.token is not None:
            name = error.token.keyword or error.argument.name
            return _wrong_type(name, error.token.value, error.target_type)
        case MissingArgumentError() if error.argument is not None:
            name = error.keyword or error.argument.name
            return InputError(f"{command}: expected a value for {name}, got none; see `{command} --help`")
        case UnusedCliTokensError() if error.unused_tokens:
            return expected(command, "no further words", " ".join(error.unused_tokens), f"see `{command} --help`")
        case _:
            error.verbose = False
            return InputError(f"{command}: {error}")


def _wrong_type(name: str, came: str, kind: Any) -> InputError:
    choices = next((get_args(k) for k in (kind, *get_args(kind)) if get_origin(k) is Literal), None)
    if choices:
        return unknown(f"value of {name}:", came, map(str, choices))
    description = next(
        (_KINDS[k] for k in (kind, *get_args(kind)) if k in _KINDS), getattr(kind, "__name__", str(kind))
    )
    return expected(name, description, came)
