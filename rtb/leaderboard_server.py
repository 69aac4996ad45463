"""A site shown on this machine only. EDGE http.server."""

from __future__ import annotations

import errno
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from rtb.console import say
from rtb.errors import ExpectedError


class _Quiet(SimpleHTTPRequestHandler):
    extensions_map = {**SimpleHTTPRequestHandler.extensions_map, ".xml": "application/rss+xml"}

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is said of a request."""

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()


def serve(site: Path, port: int) -> None:
    """Serve a folder on 127.0.0.1 until interrupted. Raises ExpectedError when it is no site or the port is taken."""
    with server(site, port) as listening:
        say(f"http://127.0.0.1:{listening.server_port}/  (Ctrl-C ends it)")
        listening.serve_forever()


def server(site: Path, port: int) -> ThreadingHTTPServer:
    """A server that listens and does not answer yet."""
    if not (site / "index.html").is_file():
        raise ExpectedError(
            f"{site} is no site (no index.html): make one with 'rtb leaderboard build DIR --out {site}'"
        )
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), partial(_Quiet, directory=str(site)))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ExpectedError(f"port {port} is taken: choose another with --port, or 0 for any") from error
        raise
