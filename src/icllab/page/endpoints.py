"""Endpoints of the server: each address with the function that answers it, and errors as one line of JSON."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from icllab.core.errors import IclError, InputError, expected, unknown
from icllab.core.files import parse_json
from icllab.core.spelling import strict

LARGEST_BODY = 65_536


class NotFound(InputError):
    """An id or an address without an object."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """An address and the function that answers it.

    Attributes:
        path: The address, with its ids in braces.
        answer: Function of the ids, of ``query`` if there is one, and for POST of ``body``, a JSON object.
        method: GET reads, POST changes something.
        query: Whether a query is allowed; ``answer`` checks it.
    """

    path: str
    answer: Callable[..., Response]
    method: Literal["GET", "POST"] = "GET"
    query: bool = False

    def route(self) -> Route:
        """The route for Starlette."""

        async def endpoint(request: Request) -> Response:
            try:
                values: dict[str, Any] = dict(request.path_params)
                query = self._query(request)
                if self.query:
                    values["query"] = query
                if self.method == "POST":
                    values["body"] = await _json_body(request)
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
            if not self.query:
                raise unknown("name in the query:", name[:60], ())
            if name in values:
                raise expected(name[:60], "one value", "several")
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
        value = parse_json(content or b"{}")
    except InputError as error:
        raise InputError(f"body: expected a JSON object ({error})") from None
    if not isinstance(value, dict):
        raise InputError("body: expected a JSON object")
    return value
