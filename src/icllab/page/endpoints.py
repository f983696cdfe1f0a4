"""Endpoints of the server: each address with its parameters, which are checked before a function answers."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from icllab.core.errors import IclError, InputError, expected, unknown
from icllab.core.spelling import strict

LARGEST_BODY = 65_536


class NotFound(InputError):
    """An id or an address without an object."""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A value in the JSON body of a request.

    Attributes:
        kind: ``"text"`` of at most ``high`` characters, or an ``"integer"`` from ``low`` to ``high``.
        options: The admissible values; empty: any of the kind.
        required: Whether a request must have it.
    """

    kind: Literal["text", "integer"] = "text"
    low: int = 0
    high: int = 200
    options: tuple[str, ...] = ()
    required: bool = True

    def read(self, name: str, value: object) -> str | int:
        """Return the value; raise unless it has this kind and range."""
        if self.kind == "integer":
            if isinstance(value, bool) or not isinstance(value, int) or not self.low <= value <= self.high:
                raise expected(name, f"an integer from {self.low} to {self.high}", _shortened(value))
        elif not isinstance(value, str) or len(value) > self.high:
            raise expected(name, f"text of at most {self.high} characters", _shortened(value))
        elif self.options and value not in self.options:
            raise unknown(name, value, self.options)
        return value


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """An address and the function that answers it.

    Attributes:
        path: The address, with its ids in braces.
        answer: Function of the ids, of ``values`` if there are controls, and of the parameters of the body.
        method: GET reads, POST changes something.
        body: Name -> parameter in a JSON object.
        controls: Whether the query holds values of controls, which ``answer`` checks; otherwise it must be empty.
    """

    path: str
    answer: Callable[..., Response]
    method: Literal["GET", "POST"] = "GET"
    body: Mapping[str, Parameter] = field(default_factory=dict)
    controls: bool = False

    def route(self) -> Route:
        """The route for Starlette."""

        async def endpoint(request: Request) -> Response:
            try:
                values: dict[str, Any] = dict(request.path_params)
                query = self._query(request)
                if self.controls:
                    values["values"] = query
                if self.method == "POST":
                    values |= _read(self.body, await _json_body(request))
                return await run_in_threadpool(self.answer, **values)
            except ClientDisconnect:
                return Response(status_code=400)
            except (NotFound, FileNotFoundError) as error:
                return error_response(404, error)
            except InputError as error:
                return error_response(400, error)
            except (IclError, OSError) as error:
                return error_response(422, error)

        return Route(self.path, endpoint, methods=[self.method])

    def _query(self, request: Request) -> dict[str, str]:
        values: dict[str, str] = {}
        for name, value in request.query_params.multi_items():
            if not self.controls:
                raise unknown("name in the query:", _shortened(name), ())
            if name in values:
                raise expected(_shortened(name), "one value", "several")
            values[name] = value
        return values


def error_response(status: int, error: Exception) -> Response:
    """An error as one line of JSON."""
    message = f"{error.strerror or type(error).__name__}" if isinstance(error, OSError) else str(error)
    return json_response({"error": " ".join(message.split())[:1000]}, status)


def json_response(value: Any, status: int = 200) -> Response:
    """A value as JSON; infinite numbers and NaN become words."""
    content = json.dumps(strict(value), allow_nan=False, ensure_ascii=True)
    return Response(content, status, media_type="application/json")


async def _json_body(request: Request) -> dict[str, Any]:
    content = b""
    async for chunk in request.stream():
        content += chunk
        if len(content) > LARGEST_BODY:
            raise InputError(f"body: expected at most {LARGEST_BODY} bytes")
    try:
        value = json.loads(content or b"{}")
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InputError("body: expected a JSON object")
    return value


def _read(parameters: Mapping[str, Parameter], body: Mapping[str, Any]) -> dict[str, str | int]:
    for name in body:
        if name not in parameters:
            raise unknown("name in the body:", _shortened(name), parameters)
    for name, parameter in parameters.items():
        if parameter.required and name not in body:
            raise expected("body", f"a value of {name}", sorted(map(_shortened, body)))
    return {name: parameters[name].read(name, value) for name, value in body.items()}


def _shortened(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:59] + "…"
