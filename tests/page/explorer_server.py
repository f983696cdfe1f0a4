"""The files of the page's explorers and their answers, as its server gives them, without the rest of it."""

import contextlib
import functools
import http.server
import json
import threading
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import icllab.page
from icllab.page.explorers import EXPLORERS

STATIC = Path(icllab.page.__file__).parent / "static"
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'"
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>explorers</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="/static/vendor/uPlot.min.css">
<link rel="stylesheet" href="/static/style.css"><link rel="stylesheet" href="/static/explore.css">
<script src="/static/vendor/uPlot.iife.min.js" defer></script>
<script type="module" src="/start.js"></script><main id="main"></main></html>"""
START = """import { list, show } from "/static/explore.js";
const root = document.getElementById("main"), id = location.hash.split("?")[0].split("/")[2];
window.left = await (id ? show(root, id) : list(root));"""


class Handler(http.server.SimpleHTTPRequestHandler):
    """The page's files, and answers as its server gives them."""

    def do_GET(self):
        address = urlsplit(self.path)
        parts, values = address.path.strip("/").split("/"), dict(parse_qsl(address.query))
        if address.path == "/favicon.ico":
            return self.send("", "image/x-icon")
        if address.path in ("/", "/start.js"):
            return self.send(*((PAGE, "text/html") if address.path == "/" else (START, "text/javascript")))
        if parts[0] == "static":
            self.path = "/" + "/".join(parts[1:])
            return super().do_GET()
        if parts == ["api", "explorers"]:
            return self.json({"explorers": [one.declaration() for one in EXPLORERS.values()]})
        if parts[:2] == ["api", "explorers"]:
            try:
                return self.json(EXPLORERS[parts[2]].answer(**values))
            except ValueError as error:
                return self.json({"error": str(error)}, 400)
        return self.send("", "text/plain", 404)

    def json(self, value, status=200):
        self.send(json.dumps(value, allow_nan=False), "application/json", status)

    def send(self, text, kind, status=200):
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def served():
    """Where the explorers are."""
    handler = functools.partial(Handler, directory=str(STATIC))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
