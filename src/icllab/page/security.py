"""Which requests are answered: those of this page, on this machine or with a token.

A site that is open in the same browser can send requests to this server, and by rebinding a name to 127.0.0.1 read
the answers. So the host of a request must be one of ours (against rebinding), its origin must be that host, and a
request that the browser marks as another site's is refused. A server that other machines can reach requires a token
as well, first in its address and then in a cookie.

A reverse proxy, such as that of Jupyter, may show the page below a prefix. It may put another host into a request than
the browser's origin names; then the browser's own mark, which no site can forge, says that they are one site.

Headers of every answer forbid to frame, sniff or embed it, and to load or run anything from another host.
"""

import hmac
import ipaddress
import re
import socket
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import Message, Receive, Scope, Send

LOOPBACK = "127.0.0.1"
COOKIE = "icl-page"
_HOST = re.compile(r"(?P<name>[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?")
_LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]"})
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def is_loopback(host: str) -> bool:
    """True if only this machine can reach an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """An application that refuses foreign requests, with one line, before ``app`` sees them.

    Attributes:
        app: The application.
        host: Address at which the server listens.
        token: Token that a browser must send; None: no token, which needs a loopback address and no proxy.
        proxy: Address at which a reverse proxy shows the page; empty without one on another host.
    """

    def __init__(self, app: Starlette, host: str = LOOPBACK, token: str | None = None, proxy: str = "") -> None:
        if token is None and (proxy or not is_loopback(host)):
            raise ValueError(
                f"host: expected a token with an address that other machines reach, got none with {proxy or host!r}"
            )
        self.app, self.host, self.token = app, host, token
        machine = set() if is_loopback(host) else {socket.gethostname(), socket.getfqdn()}
        addresses = {host, urlsplit(proxy).hostname or host}
        names = _LOCAL | machine | {f"[{name}]" if ":" in name else name for name in addresses}
        self.names = {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope) or self._login(scope)
        await (refusal or self.app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        """Refuse a request that another site sent; None for a request of the page."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        match = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if match is None or not self._is_ours(match["name"]):
            return _error(421, f"host: expected the one this page was opened with, got {', '.join(hosts)[:80]!r}")
        origins, site = headers.getlist("origin"), headers.get("sec-fetch-site", "none")
        if origins and origins != [f"http://{hosts[0]}"] and site != "same-origin":
            return _error(403, f"origin: expected this page's own, got {', '.join(origins)[:80]!r}")
        is_link = _is_root(scope) and headers.get("sec-fetch-mode") == "navigate" and scope["method"] == "GET"
        if site not in ("same-origin", "none") and not is_link:
            return _error(403, f"site: expected a request of this page, got one that is {site[:20]!r}")
        if scope["method"] == "POST" and headers.get("content-type", "").split(";")[0].strip() != "application/json":
            return _error(415, "content type: expected application/json")
        return None

    def _is_ours(self, name: str) -> bool:
        if name.lower() in self.names:
            return True
        if self.token is None or is_loopback(self.host):
            return False
        try:  # a name may be rebound to our address, a numeric address may not
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True

    def _login(self, scope: Scope) -> Response | None:
        """The answer to a request without the cookie: a cookie for the token, or a refusal; None with the cookie."""
        if self.token is None:
            return None
        try:
            cookies = SimpleCookie(Headers(scope=scope).get("cookie", ""))
        except CookieError:
            cookies = SimpleCookie()
        if COOKIE in cookies and self._is_token(cookies[COOKIE].value):
            return None
        tokens = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])
        if _is_root(scope) and scope["method"] == "GET" and self._is_token(tokens[0]):
            answer = RedirectResponse("./", 303)  # below whatever prefix, and so is the cookie, which other paths lack
            answer.set_cookie(COOKIE, self.token, path=None, httponly=True, samesite="strict")
            return answer
        return _error(401, "token: expected the address that `icl page` printed, with its token")

    def _is_token(self, text: str) -> bool:
        return self.token is not None and hmac.compare_digest(text.encode(), self.token.encode())


def _is_root(scope: Scope) -> bool:
    """True if the request is for the page itself, also below a prefix at which an application mounts it."""
    return scope["path"].removeprefix(scope.get("root_path", "")) == "/"


def _error(status: int, message: str) -> Response:
    return PlainTextResponse(message + "\n", status)
