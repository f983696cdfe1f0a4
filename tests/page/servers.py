"""The page on a port of its own, and a reverse proxy that shows it below a prefix."""

import contextlib
import http.server
import threading
import time
import urllib.error
import urllib.request

import uvicorn

from icllab.page import server

PREFIX = "/user/me/proxy/8765/"


class Unredirected(urllib.request.HTTPRedirectHandler):
    """A proxy hands redirects on to the browser."""

    def redirect_request(self, *_):
        return None


DIRECT = urllib.request.build_opener(Unredirected, urllib.request.ProxyHandler({}))


@contextlib.contextmanager
def serving(guard):
    """The page on a port of this machine, and where it is."""
    settings = uvicorn.Config(guard, port=0, log_level="error", ws="none", timeout_graceful_shutdown=1)
    running = server._Server(settings, lambda: None)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    while not running.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}/"
    running.should_exit = True
    thread.join(30)


@contextlib.contextmanager
def proxied(address, keeps_host):
    """Where a reverse proxy shows the page: below a prefix, with the browser's Host or with the page's own."""

    class Proxy(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if not self.path.startswith(PREFIX):
                self.send_error(404)
                return
            length = int(self.headers.get("Content-Length", 0))
            headers = {name: value for name, value in self.headers.items() if keeps_host or name.lower() != "host"}
            body = self.rfile.read(length) if length else None
            url = address + self.path.removeprefix(PREFIX)
            request = urllib.request.Request(url, body, headers, method=self.command)
            try:
                answer = DIRECT.open(request, timeout=60)
            except urllib.error.HTTPError as error:
                answer = error
            content = answer.read()
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                if name.lower() not in ("connection", "transfer-encoding", "date", "server"):
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{site.server_port}{PREFIX}"
        site.shutdown()
