"""The server of the page: Starlette's routes over the API, and the socket at which uvicorn listens."""

import contextlib
import secrets
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from icllab.core.errors import EnvironmentFault, expected
from icllab.page.api import Api
from icllab.page.endpoints import NotFound, error_response
from icllab.page.security import LOOPBACK, Guard, is_loopback

STATIC = Path(__file__).parent / "static"
PORT = 8765
_MEDIA_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}


def build(
    out: Path, *, claims: Path | None = None, host: str = LOOPBACK, token: str | None = None, proxy: str = ""
) -> Guard:
    """The application that shows the results in ``out``.

    Args:
        out: Directory of results; it need not exist yet.
        claims: Folder with claims of the user's own.
        host: Address at which the server will listen.
        token: Token that a browser must send; None: no token, which is only safe at a loopback address.
        proxy: Address at which a reverse proxy on another host shows the page.
    """
    api = Api(out, claims)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        threading.Thread(target=api.open, name="claims", daemon=True).start()
        yield
        api.close()

    # One route for each static file: an address is compared with names and never becomes a path.
    files = sorted(path for path in STATIC.rglob("*") if path.suffix in _MEDIA_TYPES and path.name != "index.html")
    routes = [Route("/", _file(STATIC / "index.html"))]
    routes += [Route(f"/static/{path.relative_to(STATIC).as_posix()}", _file(path)) for path in files]
    routes += [endpoint.route() for endpoint in api.endpoints]
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={404: _not_found, 405: _not_found})
    app.router.redirect_slashes = False
    app.state.api = api
    return Guard(app, host, token, proxy)


def _file(path: Path) -> Callable[[Request], Response]:
    def answer(request: Request) -> Response:
        return Response(path.read_bytes(), media_type=_MEDIA_TYPES[path.suffix], headers={"Cache-Control": "no-cache"})

    return answer


async def _not_found(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    return error_response(status, NotFound("address: expected one of this page, got another"))


def serve(
    out: Path,
    *,
    claims: Path | None = None,
    host: str = LOOPBACK,
    port: int | None = None,
    require_token: bool = False,
    proxy: str = "",
    on_ready: Callable[[str], None] = lambda address: None,
) -> str:
    """Listen until Ctrl-C.

    Args:
        out: Directory of results.
        claims: Folder with claims of the user's own.
        host: Address at which to listen; if other machines can reach it, a token is required.
        port: 0: a free port; None: ``PORT``, or a free port if that is taken.
        require_token: Whether a token is required on this machine too.
        proxy: Address at which a reverse proxy shows the page; a token is required then.
        on_ready: Function of the page's address, called once the server listens.

    Returns:
        The address.

    Raises:
        InputError: ``proxy`` is no address of a page.
        EnvironmentFault: The server cannot listen at the address.
    """
    if proxy and (urlsplit(proxy).scheme not in ("http", "https") or not urlsplit(proxy).hostname):
        raise expected("proxy", "an address such as https://hub.example.org/user/me/proxy/8765/", proxy)
    listener = _listener(host, port)
    token = secrets.token_urlsafe(24) if require_token or proxy or not is_loopback(host) else None
    name = socket.getfqdn() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    address = proxy.rstrip("/") + "/" if proxy else f"http://{name}:{listener.getsockname()[1]}/"
    address += f"?token={token}" if token else ""
    settings = uvicorn.Config(
        build(out, claims=claims, host=host, token=token, proxy=proxy),
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=1,
    )
    with listener, contextlib.suppress(KeyboardInterrupt):
        _Server(settings, lambda: on_ready(address)).run(sockets=[listener])
    return address


class _Server(uvicorn.Server):
    """A server that calls a function once it listens."""

    def __init__(self, settings: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(settings)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()


def _listener(host: str, port: int | None) -> socket.socket:
    family, reason = socket.AF_INET6 if ":" in host else socket.AF_INET, ""
    for candidate in [PORT, 0] if port is None else [port]:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1 if sys.platform != "win32" else 0)
        try:
            listener.bind((host, candidate))
            return listener
        except OSError as error:
            listener.close()
            reason = error.strerror or str(error)
    raise EnvironmentFault(f"icl page: cannot listen at {host}, port {port}: {reason}; --port 0 takes a free one")
