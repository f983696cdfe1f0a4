"""What may be asked of the server: every address with its parameters, declared as data, and how they are read."""

import functools
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from icllab.core.errors import CellsMissing, IclError, InputError, expected, unknown
from icllab.core.spelling import strict

LONGEST_BODY = 65_536


class NotThere(InputError):
    """An id that nothing has."""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A value in an address or in a body.

    Attributes:
        kind: ``"text"`` of at most ``most`` characters, or an ``"integer"`` from ``least`` to ``most``.
        options: The only values there are; empty: any of the kind.
        required: Whether it has to be given.
    """

    kind: Literal["text", "integer"] = "text"
    least: int = 0
    most: int = 200
    options: tuple[str, ...] = ()
    required: bool = True

    def read(self, name: str, value: object) -> str | int:
        """The value; one that does not fit is refused."""
        if self.kind == "integer":
            if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
                value = int(value)
            if isinstance(value, bool) or not isinstance(value, int) or not self.least <= value <= self.most:
                raise expected(name, f"an integer from {self.least} to {self.most}", _short(value))
            return value
        if not isinstance(value, str) or len(value) > self.most:
            raise expected(name, f"text of at most {self.most} characters", _short(value))
        if self.options and value not in self.options:
            raise unknown(name, value, self.options)
        return value


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """An address, what it takes and what answers it.

    Attributes:
        path: With its parts in braces, which are ids.
        answer: Gets every value by name.
        method: GET reads, POST changes something.
        query: Name -> parameter after the question mark.
        body: Name -> parameter in a JSON object.
        others: Whether other names may be in the query; they are handed over as ``values``.
    """

    path: str
    answer: Callable[..., Response]
    method: Literal["GET", "POST"] = "GET"
    query: Mapping[str, Parameter] = field(default_factory=dict)
    body: Mapping[str, Parameter] = field(default_factory=dict)
    others: bool = False

    def route(self) -> Route:
        """As Starlette takes it."""

        async def endpoint(request: Request) -> Response:
            try:
                values: dict[str, Any] = dict(request.path_params)
                values |= self._of_query(request)
                if self.method == "POST":
                    values |= _read(self.body, await _body(request), "body")
                return await run_in_threadpool(self.answer, **values)
            except ClientDisconnect:
                return Response(status_code=400)
            except NotThere as error:
                return refused(404, error)
            except InputError as error:
                return refused(400, error)
            except (CellsMissing, FileNotFoundError) as error:
                return refused(404, error)
            except (IclError, OSError) as error:
                return refused(422, error)

        return Route(self.path, endpoint, methods=[self.method])

    def _of_query(self, request: Request) -> dict[str, Any]:
        given: dict[str, Any] = {}
        for name, value in request.query_params.multi_items():
            if name in given:
                raise expected(_short(name), "one value", "several")
            given[name] = value
        if not self.others:
            return _read(self.query, given, "query")
        own = {name: value for name, value in given.items() if name in self.query}
        rest = {name: value for name, value in given.items() if name not in self.query}
        return {**_read(self.query, own, "query"), "values": rest}


def refused(status: int, error: Exception) -> Response:
    """One line, as JSON."""
    message = f"{error.strerror or type(error).__name__}" if isinstance(error, OSError) else str(error)
    return answered({"error": " ".join(message.split())[:1000]}, status)


def answered(value: Any, status: int = 200) -> Response:
    """A value as JSON; numbers that JSON cannot spell are words."""
    content = json.dumps(strict(value), allow_nan=False, ensure_ascii=True)
    return Response(content, status, media_type="application/json")


def computed(value: Any) -> Response:
    """An answer of an explorer, which is ready for JSON."""
    return Response(json.dumps(value, allow_nan=False), media_type="application/json")


class _FileAnswer(StreamingResponse):
    """An open file, which is closed however the answer ends: also where nobody waits for it any more."""

    def __init__(self, file: BinaryIO, kind: str, headers: Mapping[str, str]) -> None:
        length = {"Content-Length": str(os.fstat(file.fileno()).st_size)}
        chunks = iter(functools.partial(file.read, 1 << 18), b"")
        super().__init__(chunks, media_type=kind, headers={**headers, **length})
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._file.close()


def sent(path: Path, kind: str, headers: Mapping[str, str]) -> Response:
    """A file as it is now, also where another takes its place while it is sent."""
    return _FileAnswer(path.open("rb"), kind, headers)


async def _body(request: Request) -> dict[str, Any]:
    content = b""
    async for chunk in request.stream():
        content += chunk
        if len(content) > LONGEST_BODY:
            raise InputError(f"body: expected at most {LONGEST_BODY} bytes")
    try:
        value = json.loads(content or b"{}")
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InputError("body: expected a JSON object")
    return value


def _read(declared: Mapping[str, Parameter], given: Mapping[str, Any], where: str) -> dict[str, str | int]:
    for name in given:
        if name not in declared:
            raise unknown(f"name in the {where}:", _short(name), declared)
    for name, parameter in declared.items():
        if parameter.required and name not in given:
            raise expected(where, f"a value of {name}", sorted(map(_short, given)))
    return {name: declared[name].read(name, value) for name, value in given.items()}


def _short(value: object) -> str:
    said = value if isinstance(value, str) else repr(value)
    return said if len(said) <= 60 else said[:59] + "…"
