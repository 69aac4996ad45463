"""The model line over real HTTP: answers, retries, refusals, deadlines, interruption; nothing secret in a message."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rtb.errors import ExpectedError
from scaffold.dialect import BASH_TOOL
from scaffold.endpoint import ModelOptions, resolve
from scaffold.model import ContextOverflow, DeadlinePassed, Interrupted, Model, ModelRefused, ModelUnavailable
from tests.scripted_model import ScriptedModel

PATCH = "diff --git a/m.py b/m.py\n--- a/m.py\n+++ b/m.py\n@@ -1 +1 @@\n-x = 1\n+x = 'ü'\n"
TASK = [{"role": "system", "content": "s"}, {"role": "user", "content": "# Task: T\n"}]


@pytest.fixture
def server() -> Iterator[ScriptedModel]:
    with ScriptedModel({"T": (PATCH, "m.py")}).serve() as running:
        yield running


def line(server: ScriptedModel, character: str, **options: Any) -> Model:
    given = {"backoff_seconds": 0.01, "longest_wait_seconds": 0.05, "tries": 4, **options}
    more = {name: given.pop(name) for name in ("stop", "on_wait") if name in given}
    return Model(ModelOptions(name=f"local/{character}", base_url=server.url, **given), **more)


def later(turns: int) -> list[dict[str, Any]]:
    """The conversation after some turns."""
    return [*TASK, *({"role": "assistant", "content": "x"} for _ in range(turns))]


@pytest.mark.parametrize("tools", [(BASH_TOOL,), ()])
def test_a_stream_and_a_whole_answer_say_the_same(server: ScriptedModel, tools: tuple[dict[str, Any], ...]) -> None:
    with line(server, "good") as streamed, line(server, "good", stream=False) as whole:
        one = streamed.ask(later(1), tools=tools).reply
        other = whole.ask(later(1), tools=tools).reply
    assert (one.text, one.tool_calls, one.finish_reason, one.usage) == (
        other.text, other.tool_calls, other.finish_reason, other.usage,
    )  # fmt: skip
    assert one.usage is not None and one.usage.completion > 0
    assert "ü" in (one.tool_calls[0].arguments.encode().decode("unicode_escape") if tools else one.text)


def test_a_throttled_call_is_tried_again_and_says_so(server: ScriptedModel) -> None:
    with line(server, "throttled") as model:
        call = model.ask(TASK, tools=(BASH_TOOL,))
    assert call.reply.tool_calls[0].name == "bash"
    assert [item.reason for item in call.failed] == ["HTTP 429: slow down"] * 2
    assert [item.waited_seconds for item in call.failed] == [0.0, 0.0]  # the server's own Retry-After


def test_a_wait_is_told_with_its_reason(server: ScriptedModel) -> None:
    told: list[str] = []
    with line(server, "throttled", on_wait=told.append) as model:
        model.ask(TASK, tools=(BASH_TOOL,))
    assert told == [f"try {number} of 4 in 0.0 s: HTTP 429: slow down" for number in (2, 3)]


@pytest.mark.parametrize("stream", [True, False])
def test_a_cut_connection_is_tried_again(server: ScriptedModel, stream: bool) -> None:
    with line(server, "cut", stream=stream) as model:
        call = model.ask(TASK, tools=(BASH_TOOL,))
    assert len(call.failed) == 1
    assert call.reply.tool_calls[0].arguments == '{"command": "ls"}'


def test_an_api_that_is_always_down_is_given_up(server: ScriptedModel) -> None:
    with line(server, "broken") as model, pytest.raises(ModelUnavailable, match=r"after 4 tries.*HTTP 500"):
        model.ask(TASK)
    assert len(server.requests) == 4


def test_nobody_listening_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    options = ModelOptions(name="x", base_url=f"http://127.0.0.1:{port}/v1", tries=2, backoff_seconds=0.01)
    with Model(options) as model, pytest.raises(ModelUnavailable, match=r"after 2 tries.*ConnectError"):
        model.ask(TASK)


@pytest.mark.parametrize(
    ("character", "said"),
    [("unauthorized", "HTTP 401"), ("unknown", "check --model"), ("quota", "exceeded your quota")],
)
def test_what_cannot_be_mended_by_trying_again_stops_at_once(
    server: ScriptedModel, character: str, said: str
) -> None:
    with line(server, character) as model, pytest.raises(ModelRefused, match=said):
        model.ask(TASK)
    assert len(server.requests) == 1


def test_a_key_goes_into_the_header_and_nowhere_else(server: ScriptedModel) -> None:
    os.environ["SCRIPTED_API_KEY"] = "sk-very-secret-value"
    try:
        with line(server, "unauthorized", key_variable="SCRIPTED_API_KEY") as model:
            with pytest.raises(ModelRefused) as refused:
                model.ask(TASK)
            assert "sk-very-secret-value" not in str(refused.value) + repr(model.__dict__)
    finally:
        del os.environ["SCRIPTED_API_KEY"]
    assert server.headers[0]["authorization"] == "Bearer sk-very-secret-value"
    assert "SCRIPTED_API_KEY" in str(refused.value)  # where to look; the server had echoed the key itself
    assert "[secret removed]" in str(refused.value)


def test_a_missing_key_is_said_before_anything_is_sent(server: ScriptedModel) -> None:
    with pytest.raises(ExpectedError, match="NO_SUCH_VARIABLE is not set"):
        line(server, "good", key_variable="NO_SUCH_VARIABLE")
    with pytest.raises(ExpectedError, match="OPENAI_API_KEY is not set"):
        resolve(ModelOptions(name="openai/x"), environ={})
    assert server.requests == []


def test_names_and_addresses() -> None:
    environ = {"OPENAI_API_KEY": "k" * 20, "OPENAI_BASE_URL": "http://127.0.0.1:1/v1/"}
    found = resolve(ModelOptions(name="openai/org/model"), environ=environ)
    assert (found.url, found.served_name) == ("http://127.0.0.1:1/v1/chat/completions", "org/model")
    assert "k" * 20 not in repr(found)
    own = resolve(ModelOptions(name="Qwen/Qwen3-8B", base_url="http://127.0.0.1:1"), environ={})
    assert own.served_name == "Qwen/Qwen3-8B"
    with pytest.raises(ExpectedError, match="PROVIDER/NAME"):
        resolve(ModelOptions(name="gpt-9"), environ={})
    with pytest.raises(ExpectedError, match="no http"):
        resolve(ModelOptions(name="x", base_url="ftp://host"), environ={})
    with pytest.raises(ExpectedError, match="user or password"):
        resolve(ModelOptions(name="x", base_url="http://u:p@host/v1"), environ={})


def test_too_long_a_conversation_is_no_fault(server: ScriptedModel) -> None:
    long = [*TASK, {"role": "user", "content": "x" * 30_000}]
    with line(server, "overflow") as model, pytest.raises(ContextOverflow, match="maximum context length"):
        model.ask(long)
    assert len(server.requests) == 1


def test_a_call_ends_at_its_deadline(server: ScriptedModel) -> None:
    import time

    with line(server, "slow") as model, pytest.raises(DeadlinePassed):
        model.ask(TASK, deadline=time.monotonic() + 0.3)
    patient = line(server, "broken", backoff_seconds=60.0, longest_wait_seconds=60.0)
    with patient as model, pytest.raises(DeadlinePassed):
        model.ask(TASK, deadline=time.monotonic() + 0.3)


def test_a_call_is_ended_from_another_thread(server: ScriptedModel) -> None:
    stop = threading.Event()
    with line(server, "slow", stop=stop) as model:

        def end() -> None:
            while not server.requests:
                stop.wait(0.01)
            stop.set()
            model.abort()

        helper = threading.Thread(target=end)
        helper.start()
        with pytest.raises(Interrupted):
            model.ask(TASK)
        helper.join()
    assert len(server.requests) == 1


def test_request_fields_can_be_added_and_removed(server: ScriptedModel) -> None:
    extra = {"temperature": None, "top_p": 0.5, "stream_options": None}
    with line(server, "good", extra=extra, max_output_tokens=100) as model:
        reply = model.ask(TASK).reply
    sent = server.requests[0]
    assert (sent["top_p"], sent["max_tokens"], sent["model"]) == (0.5, 100, "good")
    assert "temperature" not in sent and "stream_options" not in sent
    assert reply.usage is None  # nobody asked for it: unknown, not zero


def test_one_connection_serves_a_conversation(server: ScriptedModel) -> None:
    for stream in (True, False):
        with line(server, "good", stream=stream) as model:
            for turns in range(3):
                model.ask(later(turns), tools=(BASH_TOOL,))
    assert len(server.requests) == 6
    assert len(server.callers) == 2
