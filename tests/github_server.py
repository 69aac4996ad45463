"""A real HTTP server that plays GitHub: repositories, git data, forks and pull requests, with faults on demand."""

from __future__ import annotations

import base64
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SHA = "a" * 40


@dataclass
class Fault:
    """What happens instead of, or after, an answer. `lose`: the work is done, and the connection is cut."""

    method: str
    path: str  # a regular expression
    status: int = 0
    message: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    lose: bool = False
    times: int = 1
    errors: list[dict[str, str]] = field(default_factory=list)


@dataclass
class GitHub:
    """The state of the service."""

    may_push: bool = True
    token: str = "good"
    fork_delay: int = 0
    faults: list[Fault] = field(default_factory=list)
    refs: dict[str, dict[str, str]] = field(default_factory=lambda: {"org/board": {"heads/main": SHA}})
    trees: dict[str, dict[str, bytes]] = field(default_factory=lambda: {SHA: {"README.md": b"x"}})
    commits: dict[str, tuple[str, str]] = field(default_factory=lambda: {SHA: (SHA, "")})
    blobs: dict[str, bytes] = field(default_factory=dict)
    pulls: list[dict[str, Any]] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""

    def files(self, repo: str, branch: str) -> dict[str, bytes]:
        """The tree that a branch points to."""
        return self.trees[self.commits[self.refs[repo][f"heads/{branch}"]][0]]

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Status and document."""
        match = re.fullmatch(r"/repos/([^/]+/[^/]+)(/.*)?", path)
        if match is None or match[1] not in self.refs:
            return 404, {"message": "Not Found"}
        repo, rest = match[1], match[2] or ""
        refs = self.refs[repo]
        if rest == "":
            return 200, self._repo(repo)
        if rest == "/forks":
            self.refs.setdefault("me/board", {})
            return 202, self._repo("me/board")
        if rest == "/pulls":
            return self._pulls(method, body)
        if rest.startswith("/branches/"):
            return self._branch(repo, rest.removeprefix("/branches/"))
        if rest.startswith("/git/commits/"):
            return 200, self._commit(rest.removeprefix("/git/commits/"))
        if rest == "/git/commits":
            name = sha1(json.dumps(body).encode()).hexdigest()
            self.commits[name] = (body["tree"], body["message"])
            return 201, self._commit(name)
        if rest == "/git/trees":
            return self._tree(body)
        if rest == "/git/blobs":
            data = base64.b64decode(body["content"])
            self.blobs[sha1(data).hexdigest()] = data
            return 201, {"sha": sha1(data).hexdigest(), "url": self.url}
        if rest == "/git/refs":
            name = body["ref"].removeprefix("refs/")
            if name in refs:
                return 422, {"message": "Reference already exists"}
            refs[name] = body["sha"]
            return 201, self._ref(repo, name)
        if rest.startswith("/git/refs/") or rest.startswith("/git/ref/"):
            name = rest.split("/", 3)[3]
            return (200, self._ref(repo, name)) if name in refs else (404, {"message": "Not Found"})
        return 404, {"message": "Not Found"}

    def _repo(self, name: str) -> dict[str, Any]:
        owner, short = name.split("/")
        pushes = self.may_push or owner == "me"
        return {
            "name": short, "full_name": name, "default_branch": "main", "owner": {"login": owner},
            "permissions": {"push": pushes, "pull": True, "admin": False}, "url": f"{self.url}/repos/{name}",
        }  # fmt: skip

    def _branch(self, repo: str, name: str) -> tuple[int, Any]:
        if repo == "me/board" and f"heads/{name}" not in self.refs[repo]:
            if self.fork_delay > 0:
                self.fork_delay -= 1
                return 404, {"message": "Branch not found"}
            self.refs[repo]["heads/main"] = SHA
        commit = self.refs[repo][f"heads/{name}"]
        return 200, {"name": name, "commit": {"sha": commit, "url": self.url}}

    def _commit(self, sha: str) -> dict[str, Any]:
        tree, message = self.commits[sha]
        return {
            "sha": sha,
            "message": message,
            "tree": {"sha": tree, "url": self.url},
            "parents": [],
            "url": self.url,
        }

    def _tree(self, body: dict[str, Any]) -> tuple[int, Any]:
        files = dict(self.trees[body["base_tree"]])
        for item in body["tree"]:
            files[item["path"]] = item["content"].encode() if "content" in item else self.blobs[item["sha"]]
        name = sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.trees[name] = files
        return 201, {"sha": name, "url": self.url, "tree": []}

    def _ref(self, repo: str, name: str) -> dict[str, Any]:
        return {"ref": f"refs/{name}", "url": self.url, "object": {"sha": self.refs[repo][name], "type": "commit"}}

    def _pulls(self, method: str, body: dict[str, Any]) -> tuple[int, Any]:
        if method == "GET":
            return 200, self.pulls
        owner, branch = body["head"].split(":")
        if any(pull["head"]["label"] == body["head"] for pull in self.pulls):
            text = f"A pull request already exists for {body['head']}."
            return 422, {"message": "Validation Failed", "errors": [{"message": text}]}
        number = len(self.pulls) + 1
        pull = {
            "number": number, "html_url": f"https://github.example/org/board/pull/{number}", "title": body["title"],
            "body": body["body"], "head": {"ref": branch, "label": body["head"], "user": {"login": owner}},
            "url": self.url, "state": "open",
        }  # fmt: skip
        self.pulls.append(pull)
        return 201, pull


@contextmanager
def serving(state: GitHub) -> Iterator[str]:
    """The service over HTTP; gives its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            path = self.path.split("?")[0]
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length) or b"{}")
            state.asked.append((self.command, path))
            fault = next(
                (f for f in state.faults if f.times and f.method == self.command and re.search(f.path, path)), None
            )
            if fault is not None:
                fault.times -= 1
                if fault.lose:
                    state.answer(self.command, path, body)
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                    return
                self._send(fault.status, {"message": fault.message, "errors": fault.errors}, fault.headers)
            elif self.headers.get("Authorization") not in (f"token {state.token}", f"Bearer {state.token}"):
                self._send(401, {"message": "Bad credentials"}, {})
            else:
                self._send(*state.answer(self.command, path, body), {})

        do_GET = _handle  # noqa: N815
        do_POST = _handle  # noqa: N815

        def _send(self, status: int, document: Any, headers: dict[str, str]) -> None:
            data = json.dumps(document).encode()
            self.send_response(status)
            for name, value in {
                **headers,
                "Content-Type": "application/json",
                "Content-Length": str(len(data)),
            }.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

        def finish(self) -> None:
            with suppress(ValueError, OSError):  # the connection may have been cut on purpose
                super().finish()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield state.url
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
