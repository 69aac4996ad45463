"""A small part of the Hugging Face hub's HTTP API on loopback: one data set, pushed and read back. For tests only."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


class HubServer:
    """Keeps what is committed. `refuse` makes every write end with status 403."""

    def __init__(self, refuse: bool = False) -> None:
        self.files: dict[str, bytes] = {}
        self.large: dict[str, bytes] = {}  # by sha256, as they are uploaded before the commit that names them
        self.refuse = refuse

    @property
    def revision(self) -> str:
        """Changes with each commit."""
        return hashlib.sha1(repr(sorted(self.files.items())).encode()).hexdigest()

    @contextmanager
    def serve(self) -> Iterator[str]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def write(self, path: str, body: bytes, home: str) -> dict[str, Any] | None:
        """The answer to a POST, or None for an address that is not known."""
        if path == "/api/repos/create":
            return {"url": f"{home}/datasets/acme/tasks", "name": "acme/tasks"}
        if path == "/api/validate-yaml":
            return {"errors": [], "warnings": []}
        if "/preupload/" in path:
            names = [item["path"] for item in json.loads(body)["files"]]
            return {"files": [{"path": name, "uploadMode": _mode(name), "shouldIgnore": False} for name in names]}
        if path.endswith("/info/lfs/objects/batch"):
            return {"transfer": "basic", "objects": [_upload(item, home) for item in json.loads(body)["objects"]]}
        if "/commit/" in path:
            for line in body.splitlines():
                item = json.loads(line)
                value = item["value"]
                if item["key"] == "file":
                    self.files[value["path"]] = base64.b64decode(value["content"])
                elif item["key"] == "lfsFile":
                    self.files[value["path"]] = self.large[value["oid"]]
            return {
                "commitUrl": f"{home}/datasets/acme/tasks/commit/{self.revision}",
                "commitOid": self.revision,
                "success": True,
            }
        if "/paths-info/" in path:
            return {"list": [self.entry(name) for name in self.files if name in unquote(body.decode())]}
        return None

    def entry(self, name: str) -> dict[str, Any]:
        """A file as the hub lists it."""
        data = self.files[name]
        return {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}

    def tree(self, path: str) -> list[dict[str, Any]] | None:
        """All files under the folder that an address names; None where nothing is."""
        inner = re.sub(r"^/api/datasets/acme/tasks/tree/[^/]+/?", "", path)
        found = [self.entry(name) for name in sorted(self.files) if not inner or name.startswith(f"{inner}/")]
        folders = sorted({name.split("/")[0] for name in self.files if "/" in name}) if not inner else []
        listing = [{"type": "directory", "path": name, "size": 0, "oid": "0" * 40} for name in folders] + found
        return listing or None

    def info(self) -> dict[str, Any]:
        """The data set itself."""
        files = [{"rfilename": name} for name in sorted(self.files)]
        return {"id": "acme/tasks", "sha": self.revision, "siblings": files, "private": True, "tags": []}


def _mode(name: str) -> str:
    return "lfs" if name.endswith(".parquet") else "regular"


def _upload(item: dict[str, Any], home: str) -> dict[str, Any]:
    return {**item, "actions": {"upload": {"href": f"{home}/large/{item['oid']}"}}}


def _handler(hub: HubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if hub.refuse:
                self._json({"error": "You do not have write access to acme/tasks"}, 403)
                return
            answer = hub.write(urlsplit(self.path).path, body, f"http://{self.headers['Host']}")
            self._json(answer["list"] if answer and "list" in answer else answer)

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            if match := re.match(r"^/datasets/acme/tasks/resolve/[^/]+/(.+)$", path):
                data = hub.files.get(match[1])
                # Its own for each file: the library keeps what it has downloaded by this.
                headers = {"ETag": f'"{hashlib.sha1(data or b"").hexdigest()}"', "Accept-Ranges": "bytes"}
                asked = re.match(r"bytes=(\d+)-(\d*)$", self.headers.get("Range") or "")
                if data is None or asked is None:
                    self._send(data or b"", 200 if data is not None else 404, headers)
                    return
                part = data[int(asked[1]) : int(asked[2]) + 1 if asked[2] else None]
                place = f"bytes {asked[1]}-{int(asked[1]) + len(part) - 1}/{len(data)}"
                self._send(part, 206, {**headers, "Content-Range": place})
            elif "/tree/" in path:
                self._json(hub.tree(path))
            elif path.startswith("/api/datasets/acme/tasks"):
                self._json(hub.info())
            else:
                self._json(None)

        def do_PUT(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            hub.large[self.path.rsplit("/", 1)[-1]] = data
            self._send(b"", 200, {"ETag": '"1"'})

        def do_HEAD(self) -> None:
            self.do_GET()

        def _json(self, document: Any, status: int = 200) -> None:
            known = document is not None
            self._send(json.dumps(document if known else {}).encode(), status if known else 404, {})

        def _send(self, data: bytes, status: int, headers: dict[str, str]) -> None:
            self.send_response(status)
            if status == 404:
                self.send_header("X-Error-Code", "EntryNotFound")
            for name, value in {**headers, "X-Repo-Commit": hub.revision, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Tests read results, not logs."""

    return Handler
