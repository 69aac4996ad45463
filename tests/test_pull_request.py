"""GitHub, spoken to over real HTTP: paging, both rate limits, refusal, resume, conditional requests."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest

from rtb.errors import ExpectedError
from rtb.pull_request import PermissionDenied, PullFacts, PullRequests, closed_issues, facts_for, pause_for
from tests.cases import cases_root

CASES = cases_root() or Path("shared/cases")


class Script:
    """Answers by page: each request for a page takes that page's next answer; the last one is repeated."""

    def __init__(self, answers: dict[int, list[dict[str, Any]]]) -> None:
        self.answers = answers
        self.asked: list[int] = []
        self.conditional = 0


@contextmanager
def served(script: Script) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = int(parse_qs(urlparse(self.path).query).get("page", ["1"])[0])
            script.asked.append(page)
            waiting = script.answers[page]
            answer = waiting.pop(0) if len(waiting) > 1 else waiting[0]
            if self.headers.get("If-None-Match") == answer.get("etag", "none"):
                script.conditional += 1
                self.send_response(304)
                self.end_headers()
                return
            body = answer.get("body")
            if body is None:
                body = [{"number": page * 1000 + n, "title": f"t{n}"} for n in range(answer["items"])]
            else:
                body = {"message": body}
            data = json.dumps(body).encode()
            self.send_response(answer["status"])
            for name, value in answer.get("headers", {}).items():
                text = str(int(time.time()) + int(value[1:-1])) if value.startswith("+") else value
                self.send_header(name, text)
            if "etag" in answer:
                self.send_header("ETag", answer["etag"])
            if answer.get("next"):
                self.send_header("Link", f'<http://{self.headers["Host"]}/x?page={answer["next"]}>; rel="next"')
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


def reader(api: str, home: Path, waits: list[float]) -> PullRequests:
    return PullRequests("org/a", secret="x", api=api, home=home, wait=waits.append)


@pytest.mark.skipif(not CASES.is_dir(), reason="the public cases are not beside this repository")
def test_both_rate_limits_then_a_refusal_and_a_new_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers: dict[int, list[dict[str, Any]]] = {}
    for answer in json.loads((CASES / "81-rate-limit-sequence" / "answers.json").read_text()):
        answers.setdefault(answer["page"], []).append(answer)
    # The case's third page holds 37 items and still names a next page.
    waits: list[float] = []
    script = Script(answers)
    with served(script) as api:
        with pytest.raises(PermissionDenied, match="Resource not accessible"):
            reader(api, tmp_path, waits).listing()
        assert script.asked == [1, 2, 2, 3, 3, 4], (
            "one request each, one more after each limit, none after the refusal"
        )
        assert waits[0] == 60 and waits[1] == 90
        kept = [len(json.loads(path.read_text())["answer"]) for path in sorted(tmp_path.glob("closed-*.json"))]
        assert sum(kept) == 237
        said = capsys.readouterr().err
        assert "60 s" in said and "90 s" in said
        script.answers[4] = [{"status": 200, "items": 5, "next": None}]
        script.asked.clear()
        found = reader(api, tmp_path, waits).listing()
    assert len(found) == 242
    assert 1 not in script.asked and 2 not in script.asked, "full pages are not asked for again"


def test_an_answer_that_has_not_changed_costs_nothing(tmp_path: Path) -> None:
    script = Script({1: [{"status": 200, "items": 3, "etag": '"abc"'}]})
    with served(script) as api:
        first = reader(api, tmp_path, []).listing()
        again = reader(api, tmp_path, []).listing()
    assert first == again and script.conditional == 1


def test_a_server_fault_is_tried_again_a_bounded_number_of_times(tmp_path: Path) -> None:
    waits: list[float] = []
    script = Script({1: [{"status": 502, "body": "bad gateway"}, {"status": 200, "items": 1}]})
    with served(script) as api:
        assert len(reader(api, tmp_path, waits).listing()) == 1
    assert waits == [1.0]
    script = Script({1: [{"status": 502, "body": "bad gateway"}]})
    with served(script) as api, pytest.raises(Exception, match="run the same command"):
        reader(api, tmp_path / "other", waits).listing()
    assert len(script.asked) == 6


def test_a_wrong_token_is_said(tmp_path: Path) -> None:
    script = Script({1: [{"status": 401, "body": "Bad credentials"}]})
    with served(script) as api, pytest.raises(ExpectedError, match="GITHUB_TOKEN"):
        reader(api, tmp_path, []).listing()


def test_pauses() -> None:
    assert pause_for(403, "Resource not accessible", {"x-ratelimit-remaining": "4000"}, 0) is None
    assert pause_for(404, "Not Found", {}, 0) is None
    assert pause_for(403, "You have exceeded a secondary rate limit", {}, 1) == 120
    soon = pause_for(403, "API rate limit exceeded", {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1"}, 0)
    assert soon == 2.0


def test_without_a_token_it_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("GITHUB_TOKEN", raising=False)
    monkeypatch.delenv("GH_TOKEN", raising=False)
    assert facts_for("org/a", [1]) == {}
    assert "labels" in capsys.readouterr().err


@pytest.mark.skipif(not CASES.is_dir(), reason="the public cases are not beside this repository")
def test_closing_keywords() -> None:
    folder = CASES / "79-closing-keywords"
    given = json.loads((folder / "pulls.json").read_text())
    wanted = json.loads((folder / "case.json").read_text())["expected"]["resolved_issues"]
    found = {
        str(item["number"]): list(closed_issues(item["body"], given["repo"], given["is_pull_request"]))
        for item in given["pulls"]
    }
    assert found == wanted


def test_where_reviews_ended() -> None:
    states = ("ada: COMMENTED", "bob: CHANGES_REQUESTED", "ada: APPROVED", "ada: COMMENTED", "me: COMMENTED")
    facts = PullFacts(title="t", body="", author="me", reviews=states)
    assert facts.last_reviews == {"ada": "approved", "bob": "changes requested"}
    assert any("still asks for changes" in line for line in facts.evidence)
    taken_back = PullFacts(title="t", body="", author="me", reviews=("ada: APPROVED", "ada: DISMISSED"))
    assert "no review on GitHub approves it" in taken_back.evidence


def test_facts_hold_all_reviews_over_http(tmp_path: Path) -> None:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            review = {"user": {"login": "ada"}, "state": "APPROVED"}
            pull = {"title": "Faster", "body": "why", "labels": [{"name": "perf"}], "user": {"login": "me"}}
            data = json.dumps([review] if "/reviews" in self.path else pull).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        api = f"http://127.0.0.1:{server.server_address[1]}"
        facts = PullRequests("acme/serve", api=api, home=tmp_path / "cache").facts(7)
    finally:
        server.shutdown()
        server.server_close()
    assert facts.evidence == ("author: me", "review by ada: approved")
    assert any("per_page=100" in path for path in asked if "/reviews" in path)
