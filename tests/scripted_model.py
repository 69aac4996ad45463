"""An OpenAI-compatible chat server on loopback that plays a script: real HTTP, streams, tool calls, and every fault.

The model's name chooses the character. What it does next follows from the conversation it is sent, so that any agent
may talk to it. For tests and benchmarks only; `python tests/scripted_model.py` serves it alone.
"""

from __future__ import annotations

import json
import re
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
CONTEXT_CHARACTERS = 24_000


@dataclass(frozen=True)
class Say:
    """A turn: text, and a command or raw tool-call arguments."""

    command: str | None = None
    text: str = "Next step."
    arguments: str | None = None
    tool: str = "bash"
    finish_reason: str = ""
    more: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fault:
    """An HTTP error instead of a turn."""

    status: int
    body: dict[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Cut:
    """A connection that ends in the middle of the answer."""

    turn: Say


Turn = Say | Fault | Cut


@dataclass(frozen=True)
class Asked:
    """A request as a character sees it. `turns`: assistant messages so far; `tries`: of this very request before."""

    instance: str
    turns: int
    tries: int
    size: int
    solution: str
    target: str
    said: str = ""


def _apply(patch: str) -> str:
    return f"git apply --whitespace=nowarn - <<'RTB_PATCH'\n{patch}RTB_PATCH"


def _script(asked: Asked, *commands: str) -> Say:
    return Say(commands[min(asked.turns, len(commands) - 1)])


def _solve(asked: Asked, *before: str) -> Say:
    return _script(asked, *before, "ls", _apply(asked.solution), SUBMIT)


def _wrong(asked: Asked) -> str:
    return f"printf '\\n# tried\\n' >> {asked.target}"


def _malformed(asked: Asked) -> Turn:
    faults: list[Turn] = [
        Say(None, text="I will look around first."),
        Say(None, arguments='{"command": "ls'),
    ]
    return faults[asked.turns] if asked.turns < 2 else _script(asked, "", "", _apply(asked.solution), SUBMIT)


def _overflow(asked: Asked, *, hopeless: bool) -> Turn:
    if asked.size > (2000 if hopeless and asked.turns > 1 else CONTEXT_CHARACTERS):
        message = "This model's maximum context length is 6000 tokens. Please reduce the length of the messages."
        return Fault(400, {"error": {"message": message, "code": "context_length_exceeded"}})
    print_much = "seq 1 4000"
    if hopeless:
        return _script(asked, _wrong(asked), print_much, SUBMIT)
    return _script(asked, print_much, print_much, print_much, print_much, _apply(asked.solution), SUBMIT)


def _network(asked: Asked) -> Turn:
    reach = (
        "python3 -c 'import socket; socket.create_connection((\"192.0.2.1\", 80), 3)'; "
        "curl -sS -m 3 http://example.invalid/ || echo no network"
    )
    return _solve(asked, reach)


def play(character: str, asked: Asked) -> Turn:
    """The next turn of a character. A name may carry a number at its end: it changes nothing."""
    match re.sub(r"-\d+$", "", character):
        case "good":
            return _solve(asked)
        case "wrong":
            return _script(asked, _wrong(asked), SUBMIT)
        case "partly":  # about two tasks in three, always the same ones
            return _solve(asked) if zlib.crc32(asked.instance.encode()) % 3 else _script(asked, _wrong(asked), SUBMIT)
        case "sometimes":  # another answer in each attempt, as long as the work tree has the same path in all
            solves = (asked.tries + zlib.crc32(asked.instance.encode())) % 3 == 0
            return Say(SUBMIT if asked.turns else _apply(asked.solution) if solves else _wrong(asked))
        case "malformed":
            return _malformed(asked)
        case "malformed-always":
            return Say(None, text="I think about it.") if asked.turns else Say(_wrong(asked))
        case "unknown-tool":
            return Say(None, arguments="{}", tool="browser") if asked.turns < 1 else _script(asked, "", "ls", SUBMIT)
        case "two-calls":
            return Say("ls", more=("touch second_call_ran",)) if asked.turns < 1 else Say(SUBMIT)
        case "overflow":
            return _overflow(asked, hopeless=False)
        case "overflow-always":
            return _overflow(asked, hopeless=True)
        case "throttled":
            if asked.tries < 2:
                return Fault(429, {"error": {"message": "slow down"}}, {"Retry-After": "0"})
            return _solve(asked)
        case "quota":
            return Fault(429, {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}})
        case "broken":
            return Fault(500, {"error": {"message": "internal error"}})
        case "broken-later":
            return Say(_wrong(asked)) if not asked.turns else Fault(503, {"error": {"message": "overloaded"}})
        case "broken-once":
            return Fault(502, {}) if not asked.tries else _solve(asked)
        case "cut":
            return Cut(_solve(asked)) if not asked.tries else _solve(asked)
        case "unauthorized":
            return Fault(401, {"error": {"message": "Incorrect API key provided: KEY"}})
        case "unknown":
            return Fault(404, {"error": {"message": "The model does not exist"}})
        case "loop":
            return Say("echo again")
        case "flood":
            flood = 'head -c 52428800 /dev/zero | tr \'\\0\' x > "$TMPDIR"/big 2>/dev/null || true; cat "$TMPDIR"/big'
            return _solve(asked, "export TMPDIR=${TMPDIR:-/tmp}; " + flood + '; rm -f "$TMPDIR"/big')
        case "history":
            return _solve(
                asked, "git log --all --oneline; git reflog; git fsck --lost-found; git stash list; git tag"
            )
        case "network":
            return _network(asked)
        case "never-submits":
            return _script(asked, _wrong(asked), "true")
        case "committer":
            commit = "git add -A && git -c user.name=a -c user.email=a@example.invalid commit -qm work && ls"
            return _script(asked, _apply(asked.solution), commit, SUBMIT)
        case "wanderer":
            first = f'cp {asked.target} "${{TMPDIR:-/tmp}}"/first; '
            back = f'cp "${{TMPDIR:-/tmp}}"/first {asked.target}; {_apply(asked.solution)}'
            spoil = f"echo 'raise SystemError' >> {asked.target}"
            return _script(asked, first + _wrong(asked), back, spoil, back, "ls", SUBMIT)
        case "sleeper":
            return _script(asked, _wrong(asked), "sleep 1000 & sleep 1000", SUBMIT)
        case "spy":
            return _script(asked, "env; cat /proc/self/environ | tr '\\0' '\\n'", SUBMIT)
        case "tester":
            return _solve(
                asked, "echo 'def pytest_runtest_makereport(): pass' > conftest.py; ls /rtb; rm conftest.py"
            )
        case "hidden-tester":
            edit = "import pathlib; p = pathlib.Path('tests') / 'test_twice.py'; p.write_text('# nothing\\n')"
            return _script(asked, f'python3 -c "{edit}"', SUBMIT)
        case "clock":
            tell = "date; date +%H:%M:%S; pwd; mktemp; python3 -c 'print(object())'; time ls > /dev/null"
            return _script(asked, tell, SUBMIT)
        case "describer":
            return Say(None, text="<think>hm</think># Scale rows\n\nMultiply each row by its factor.")
        case "leaker":
            lines = [line[1:] for line in asked.said.splitlines() if line.startswith("+")]
            return Say(None, text="# Scale\n\n" + ("\n".join(lines) if not asked.turns else "In other words."))
        case "leaker-always":
            lines = [line[1:] for line in asked.said.splitlines() if line.startswith("+")]
            return Say(None, text="# Scale\n\n" + "\n".join(lines))
        case "slow":
            time.sleep(30)
            return Say(SUBMIT)
    return Fault(404, {"error": {"message": f"no character {character!r}"}})


class ScriptedModel:
    """The server. `solutions` maps a task's title to (its patch, the path of its target)."""

    def __init__(self, solutions: Mapping[str, tuple[str, str]], key: str | None = None) -> None:
        self.solutions = dict(solutions)
        self.key = key
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.callers: set[tuple[str, int]] = set()  # one entry a connection
        self.before_turn: Callable[[dict[str, Any]], None] = lambda _body: None  # what happens to the world meanwhile
        self._names: dict[str, str] = {}
        self._tries: dict[str, int] = {}
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True

    def rename(self, character: str, to: str) -> None:
        """From now on `character` behaves like `to`: a machine that works again."""
        self._names[character] = to

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @contextmanager
    def serve(self) -> Iterator[ScriptedModel]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def turn(self, body: dict[str, Any], headers: dict[str, str]) -> Turn:
        """The answer to a request."""
        messages = body["messages"]
        said = json.dumps(messages, sort_keys=True)
        with self._lock:
            self.requests.append(body)
            self.headers.append(headers)
            # Conversations differ by model, key of the run (text of the first messages) and what was said.
            tries = self._tries.get(body["model"] + said, 0)
            self._tries[body["model"] + said] = tries + 1
        self.before_turn(body)
        if self.key is not None and headers.get("authorization") != f"Bearer {self.key}":
            return Fault(401, {"error": {"message": "wrong key"}})
        first = next(item["content"] for item in messages if item["role"] == "user")
        title = next((name for name in self.solutions if f"# Task: {name}\n" in first), None)
        solution, target = self.solutions.get(title or "", ("", "README.md"))
        # A turn that was malformed may have been dropped by the agent; its complaint stands for it then.
        turns = sum(item["role"] == "assistant" for item in messages)
        complaints = sum(
            item["role"] == "user" and index > 1 and messages[index - 1]["role"] != "assistant"
            for index, item in enumerate(messages)
        )
        size = sum(len(str(item.get("content") or "")) for item in messages)
        return play(
            self._names.get(body["model"], body["model"]),
            Asked(title or "", turns + complaints, tries, size, solution, target, first),
        )


def _message(turn: Say, with_tools: bool, number: int) -> tuple[dict[str, Any], str]:
    commands = [turn.command] if turn.command is not None else []
    if not with_tools:
        blocks = "".join(f"\n\n```bash\n{command}\n```" for command in (*commands, *turn.more))
        broken = f"\n\n```bash\n{turn.arguments}" if turn.arguments is not None else ""
        return {"role": "assistant", "content": turn.text + blocks + broken}, turn.finish_reason or "stop"
    arguments = [json.dumps({"command": command}) for command in (*commands, *turn.more)]
    if turn.arguments is not None:
        arguments.append(turn.arguments)
    calls = [
        {"id": f"call_{number}_{index}", "type": "function", "function": {"name": turn.tool, "arguments": text}}
        for index, text in enumerate(arguments)
    ]
    message: dict[str, Any] = {"role": "assistant", "content": turn.text}
    if calls:
        message["tool_calls"] = calls
    return message, turn.finish_reason or ("tool_calls" if calls else "stop")


def _chunks(message: dict[str, Any], finish_reason: str, usage: dict[str, int] | None) -> Iterator[dict[str, Any]]:
    """The message as a server streams it: text in pieces, a call's name first and its arguments in pieces."""

    def delta(part: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        return {
            "id": "chatcmpl-scripted", "object": "chat.completion.chunk", "model": "scripted",
            "choices": [{"index": 0, "delta": part, "finish_reason": reason}],
        }  # fmt: skip

    yield delta({"role": "assistant", "content": ""})
    for piece in _pieces(message["content"], 7):
        yield delta({"content": piece})
    for index, call in enumerate(message.get("tool_calls", ())):
        head = {"index": index, "id": call["id"], "type": "function"}
        yield delta({"tool_calls": [head | {"function": {"name": call["function"]["name"], "arguments": ""}}]})
        for piece in _pieces(call["function"]["arguments"], 4096):
            yield delta({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield delta({}, finish_reason)
    if usage is not None:
        yield {"id": "chatcmpl-scripted", "object": "chat.completion.chunk", "choices": [], "usage": usage}


def _pieces(text: str, size: int) -> Iterator[str]:
    for start in range(0, len(text), size):
        yield text[start : start + size]


def _handler(scripted: ScriptedModel) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            scripted.callers.add(self.client_address)
            turn = scripted.turn(body, {name.lower(): value for name, value in self.headers.items()})
            if isinstance(turn, Fault):
                text = json.dumps(turn.body).replace(
                    "KEY",
                    self.headers.get("Authorization", "").split()[-1:][0]
                    if self.headers.get("Authorization")
                    else "none",
                )
                self._send(turn.status, text.encode(), turn.headers)
                return
            say = turn.turn if isinstance(turn, Cut) else turn
            number = len(body["messages"])
            message, reason = _message(say, bool(body.get("tools")), number)
            size = sum(len(str(item.get("content") or "")) for item in body["messages"])
            completion = len(json.dumps(message)) // 4
            usage = {
                "prompt_tokens": size // 4,
                "completion_tokens": completion,
                "total_tokens": size // 4 + completion,
            }
            if body.get("stream"):
                asked = (body.get("stream_options") or {}).get("include_usage")
                self._stream(list(_chunks(message, reason, usage if asked else None)), isinstance(turn, Cut))
                return
            choice = {"index": 0, "message": message, "finish_reason": reason}
            whole = {"id": "chatcmpl-scripted", "object": "chat.completion", "model": "scripted", "choices": [choice]}
            data = json.dumps(whole | {"usage": usage}).encode()
            if isinstance(turn, Cut):
                self._send(200, data[: len(data) // 2], {}, length=len(data))
                self._hang_up()
            else:
                self._send(200, data, {})

        def _send(self, status: int, data: bytes, headers: Mapping[str, str], length: int | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data) if length is None else length))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def _stream(self, events: Sequence[dict[str, Any]], cut: bool) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            lines = [f"data: {json.dumps(event)}\n\n".encode() for event in events]
            for line in lines[: len(lines) // 2] if cut else [*lines, b"data: [DONE]\n\n"]:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            if cut:
                self._hang_up()
            else:
                self.wfile.write(b"0\r\n\r\n")

        def _hang_up(self) -> None:
            self.wfile.flush()
            self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            """Tests read results, not logs."""

    return Handler


def demo_solutions(suite: str = "demo") -> dict[str, tuple[str, str]]:
    """Title, gold patch and target of a suite's tasks."""
    from rtb.hydration import patches_of
    from rtb.suite import load_suite

    return {
        entry.task.title: (patches_of(entry).gold.decode(), entry.task.targets[0].path)
        for entry in load_suite(suite).entries
    }


if __name__ == "__main__":
    with ScriptedModel(demo_solutions()).serve() as server:
        print(server.url, flush=True)  # noqa: T201
        threading.Event().wait()
