"""Who is answered: this machine's own page, and with a token a browser elsewhere; nobody else's page.

A page from elsewhere that is open in the same browser can send requests to this one, and by rebinding a name to
127.0.0.1 read the answers. So a request has to name a host of ours (against rebinding); its origin, where it names
one, has to be that host; and where a browser says that a request comes from another site, that is believed. A server
that listens to other machines asks for a token as well, once in its address and then in a cookie.

Every answer says that it may not be framed, sniffed or embedded, and may load and run what comes from here alone.
"""

import hmac
import ipaddress
import re
import socket
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

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
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
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
    """Whether an address to listen at is reached from this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """An application that answers those who may ask, and says so in one line to others.

    Attributes:
        app: What answers.
        host: Where the server listens.
        token: What has to be shown; None: nothing, which needs a loopback address.
    """

    def __init__(self, app: Starlette, host: str = LOOPBACK, token: str | None = None) -> None:
        if token is None and not is_loopback(host):
            raise ValueError(f"host: expected a token with an address that others reach, got none with {host!r}")
        self.app, self.host, self.token = app, host, token
        named = {f"[{host}]" if ":" in host else host}
        self.names = _LOCAL | named | (set() if is_loopback(host) else {socket.gethostname(), socket.getfqdn()})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self._refusal(scope) or self._admission(scope)
        await (answer or self.app)(scope, receive, safely)

    def _refusal(self, scope: Scope) -> Response | None:
        """What is said to a request that is not the page's own; None to one that is."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        match = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if match is None or not self._is_ours(match["name"]):
            return _refused(421, f"host: expected the one this page was opened with, got {', '.join(hosts)[:80]!r}")
        origins = headers.getlist("origin")
        if origins and origins != [f"http://{hosts[0]}"]:
            return _refused(403, f"origin: expected this page's own, got {', '.join(origins)[:80]!r}")
        site = headers.get("sec-fetch-site", "none")
        opened = scope["path"] == "/" and headers.get("sec-fetch-mode") == "navigate" and scope["method"] == "GET"
        if site not in ("same-origin", "none") and not opened:
            return _refused(403, f"site: expected a request of this page, got one that is {site[:20]!r}")
        if scope["method"] == "POST" and headers.get("content-type", "").split(";")[0].strip() != "application/json":
            return _refused(415, "content type: expected application/json")
        return None

    def _is_ours(self, name: str) -> bool:
        if name.lower() in {own.lower() for own in self.names}:
            return True
        if self.token is None or is_loopback(self.host):
            return False
        try:  # a name may be rebound to our address, an address may not
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True

    def _admission(self, scope: Scope) -> Response | None:
        """What is said to one without the token, or who shows it for the first time; None to one who has shown it."""
        if self.token is None:
            return None
        try:
            cookies = SimpleCookie(Headers(scope=scope).get("cookie", ""))
        except CookieError:
            cookies = SimpleCookie()
        if COOKIE in cookies and self._fits(cookies[COOKIE].value):
            return None
        shown = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])
        if scope["path"] == "/" and scope["method"] == "GET" and self._fits(shown[0]):
            answer = RedirectResponse("/", 303)
            answer.set_cookie(COOKIE, self.token, httponly=True, samesite="strict")
            return answer
        return _refused(401, "token: expected the address that `icl page` printed, with its token")

    def _fits(self, shown: str) -> bool:
        return self.token is not None and hmac.compare_digest(shown.encode(), self.token.encode())


def _refused(status: int, message: str) -> Response:
    return PlainTextResponse(message + "\n", status)
