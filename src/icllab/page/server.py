"""The server of the page: Starlette's routes on one side, the library on the other, and the socket it listens at."""

import asyncio
import contextlib
import secrets
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from icllab.core.errors import EnvironmentFault
from icllab.page.api import Api
from icllab.page.asked import NotThere, refused
from icllab.page.events import stream
from icllab.page.security import LOOPBACK, Guard, is_loopback

STATIC = Path(__file__).parent / "static"
PORT = 8765
_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def build(out: Path, *, claims: Path | None = None, host: str = LOOPBACK, token: str | None = None) -> Guard:
    """The application that shows the results in ``out``.

    Args:
        out: A directory of results; it need not be there yet.
        claims: A folder with claims of the user's own.
        host: Where the server will listen.
        token: What a browser has to show; None: nothing, which needs a loopback address.
    """
    api = Api(out, claims)

    @contextlib.asynccontextmanager
    async def living(app: Starlette) -> AsyncIterator[None]:
        threading.Thread(target=api.open, name="claims", daemon=True).start()
        app.state.ending = asyncio.Event()
        yield
        app.state.ending.set()
        api.close()

    async def events(request: Request) -> Response:
        return stream(request, api.state, request.app.state.ending)

    routes = [Route("/", _file(STATIC / "index.html")), *_static_routes()]
    routes += [Route("/api/events", events), *(endpoint.route() for endpoint in api.endpoints)]
    app = Starlette(routes=routes, lifespan=living, exception_handlers={404: _nothing, 405: _nothing})
    app.router.redirect_slashes = False
    app.state.api = api
    return Guard(app, host, token)


def _static_routes() -> list[Route]:
    """One for each file: an address is compared with names, and never becomes a path."""
    files = sorted(path for path in STATIC.rglob("*") if path.suffix in _KINDS and path.name != "index.html")
    return [Route(f"/static/{path.relative_to(STATIC).as_posix()}", _file(path)) for path in files]


def _file(path: Path) -> Callable[[Request], Response]:
    def answer(request: Request) -> Response:
        return Response(path.read_bytes(), media_type=_KINDS[path.suffix], headers={"Cache-Control": "no-cache"})

    return answer


async def _nothing(request: Request, error: Exception) -> Response:
    return refused(getattr(error, "status_code", 404), NotThere("address: expected one of this page, got another"))


def serve(
    out: Path,
    *,
    claims: Path | None = None,
    host: str = LOOPBACK,
    port: int | None = None,
    guarded: bool = False,
    opened: Callable[[str], None] = lambda address: None,
) -> str:
    """Listen until Ctrl-C.

    Args:
        out: A directory of results.
        claims: A folder with claims of the user's own.
        host: Where to listen; where others can reach it, the address has a token.
        port: 0: any that is free; None: ``PORT``, or any that is free where that is taken.
        guarded: Whether a token is asked for on this machine too.
        opened: Called with the address of the page once the server listens.

    Returns:
        The address.

    Raises:
        EnvironmentFault: The address cannot be listened at.
    """
    listening = _listening(host, port)
    token = secrets.token_urlsafe(24) if guarded or not is_loopback(host) else None
    named = socket.getfqdn() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    address = f"http://{named}:{listening.getsockname()[1]}/" + (f"?token={token}" if token else "")
    guard = build(out, claims=claims, host=host, token=token)
    settings = uvicorn.Config(
        guard,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=1,
    )
    server = _Server(settings, guard, lambda: opened(address))
    with listening, contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listening])
    return address


class _Server(uvicorn.Server):
    """A server that says when it listens, and tells streams of events that it ends."""

    def __init__(self, settings: uvicorn.Config, guard: Guard, ready: Callable[[], None]) -> None:
        super().__init__(settings)
        self._ready, self._guard = ready, guard

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._guard.app.state.ending.set()  # streams of events would go on
        await super().shutdown(sockets)


def _listening(host: str, port: int | None) -> socket.socket:
    family, reason = socket.AF_INET6 if ":" in host else socket.AF_INET, ""
    for one in [PORT, 0] if port is None else [port]:
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1 if sys.platform != "win32" else 0)
        try:
            made.bind((host, one))
            return made
        except OSError as error:
            made.close()
            reason = error.strerror or str(error)
    raise EnvironmentFault(f"icl page: cannot listen at {host}, port {port}: {reason}; --port 0 takes a free one")
