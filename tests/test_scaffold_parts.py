"""The pure parts of the scaffold: replies, commands, conversation, output, prices, budget, secrets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtb.errors import InvalidFile
from scaffold import prices
from scaffold.budget import Budget, Spent
from scaffold.conversation import CUT, Conversation
from scaffold.dialect import Action, Malformed, speech
from scaffold.keys import HIDDEN, Secrets
from scaffold.observation import MARKER, Observation, Output, read_output
from scaffold.prices import Price
from scaffold.reply import BrokenReply, ErrorInReply, Reply, ToolCall, Usage, read_completion, read_stream


def reply(text: str = "", *calls: tuple[str, str], finish: str = "stop") -> Reply:
    made = tuple(ToolCall(f"c{index}", name, arguments) for index, (name, arguments) in enumerate(calls))
    return Reply(text, "", made, finish, None, {})


def event(delta: dict[str, Any], finish: str | None = None) -> str:
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


@given(text=st.text(max_size=40), command=st.text(max_size=40), cut=st.integers(1, 7))
def test_a_stream_gives_what_was_cut_up_wherever_it_was_cut(text: str, command: str, cut: int) -> None:
    arguments = json.dumps({"command": command})
    lines = [event({"content": text[place : place + cut]}) for place in range(0, len(text), cut)]
    lines.append(event({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "bash", "arguments": ""}}]}))
    for place in range(0, len(arguments), cut):
        part = {"index": 0, "function": {"arguments": arguments[place : place + cut]}}
        lines += [event({"tool_calls": [part]}), "", ": a comment"]
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}
    lines += [event({}, "tool_calls"), "data: " + json.dumps(usage), "data: [DONE]"]
    found = read_stream(lines)
    assert (found.text, found.tool_calls) == (text, (ToolCall("a", "bash", arguments),))
    assert found.usage == Usage(3, 4)


def test_a_stream_that_stops_early_is_no_answer() -> None:
    with pytest.raises(BrokenReply, match="ended before"):
        read_stream([event({"content": "half"})])
    with pytest.raises(BrokenReply, match="cut"):
        read_stream(['data: {"choices": [{"del'])
    with pytest.raises(ErrorInReply):
        read_stream([event({"content": "half"}), 'data: {"error": {"message": "overloaded"}}'])


@pytest.mark.parametrize(
    "document", [[], {"choices": []}, {"choices": [{}]}, "text", {"choices": [{"message": None}]}]
)
def test_what_is_no_completion_is_said_to_be_none(document: object) -> None:
    with pytest.raises(BrokenReply):
        read_completion(document)


@pytest.mark.parametrize(
    ("given_reply", "said"),
    [
        (reply("I think."), "no call of the bash tool"),
        (reply("I th", finish="length"), "cut at the output limit"),
        (reply("", ("bash", '{"command": "ls')), "not JSON"),
        (reply("", ("python", '{"command": "ls"}')), "no tool named 'python'"),
        (reply("", ("bash", '["ls"]')), "must be"),
        (reply("", ("bash", '{"cmd": "ls"}')), "must be"),
        (reply("", ("bash", '{"command": "  "}')), "must be"),
    ],
)
def test_turns_without_a_usable_tool_call(given_reply: Reply, said: str) -> None:
    language = speech("tools")
    found = language.read(given_reply)
    assert isinstance(found, Malformed) and said in found.reason
    message = language.turn(given_reply, found)
    assert "tool_calls" not in message and message["content"]  # what servers accept when it is sent back


def test_of_several_calls_the_first_is_run_and_all_are_answered() -> None:
    language = speech("tools")
    said = reply("", ("bash", '{"command": "ls"}'), ("bash", '{"command": "rm x"}'), ("bash", "{broken"))
    action = language.read(said)
    assert action == Action("ls", "c0", ("c1", "c2"))
    answers = language.observations(action, "seen")
    assert [item["tool_call_id"] for item in answers] == ["c0", "c1", "c2"]
    assert answers[0]["content"] == "seen" and all("Not run" in item["content"] for item in answers[1:])
    sent = language.turn(said, action)["tool_calls"]
    assert [json.loads(call["function"]["arguments"]) for call in sent] == [
        {"command": "ls"},
        {"command": "rm x"},
        {},
    ]


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("Look.\n\n```bash\nls -la\n```\n", "ls -la"),
        ("```sh\ncat <<'E' > f\n```not a fence\nE\n```", "cat <<'E' > f\n```not a fence\nE"),
        ("```mswea_bash_command\nls\r\npwd\r\n```\r\nDone.", "ls\npwd"),
        ("```python\nprint(1)\n```\n```bash\npython f.py\n```", "python f.py"),
    ],
)
def test_commands_in_plain_text(text: str, command: str) -> None:
    assert speech("text").read(reply(text)) == Action(command)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ls", "no fenced bash block"),
        ("```bash\nls\n```\n```bash\npwd\n```", "2 fenced"),
        ("```bash\nls", "no fenced"),
        ("```bash\n\n```", "no fenced bash block"),
    ],
)
def test_plain_text_without_one_command(text: str, said: str) -> None:
    found = speech("text").read(reply(text))
    assert isinstance(found, Malformed) and said in found.reason


def conversation(outputs: int, size: int) -> Conversation:
    talk = Conversation({"role": "system", "content": "s"}, {"role": "user", "content": "task"})
    for number in range(outputs):
        talk.add({"role": "assistant", "content": "t", "extra": {"cost": 1}})
        talk.add({"role": "tool", "tool_call_id": f"c{number}", "content": "x" * size, "extra": {"returncode": 0}})
    return talk


def test_a_conversation_gives_up_old_outputs_first_and_nothing_is_lost_from_the_record() -> None:
    talk = conversation(8, 5000)
    sizes = []
    while talk.shorten():
        sent = talk.to_send()
        sizes.append(sum(len(item["content"]) for item in sent))
        assert [item["role"] for item in sent] == [item["role"] for item in talk.messages]
        assert sent[1]["content"] == "task" and "extra" not in str(sent)
    assert sizes == sorted(sizes, reverse=True) and len(sizes) == len(set(sizes))
    last = [item["content"] for item in talk.to_send() if item["role"] == "tool"]
    assert last[:-2] == [CUT] * 6
    assert all(CUT in text and text.startswith("x") for text in last[-2:])
    assert all(len(item["content"]) == 5000 for item in talk.messages if item["role"] == "tool")


def test_a_short_conversation_has_nothing_to_give() -> None:
    assert conversation(1, 100).shorten() is False


@pytest.mark.parametrize("size", [0, 10, 9_999, 10_000, 10_001, 200_000, 3_000_000])
def test_long_output_keeps_head_and_tail(tmp_path: Path, size: int) -> None:
    data = b"".join(b"%07d\n" % number for number in range(size // 8 + 1))[:size]
    (tmp_path / "out").write_bytes(data)
    found = read_output(tmp_path / "out", size)
    text = data.decode()
    if size <= 10_000:
        assert found.text == text
    else:
        assert found.text.startswith(text[:5000]) and found.text.endswith(text[-5000:])
        assert f"[{size - 10_000} bytes left out" in found.text
        assert len(found.text) < 10_300


def test_output_that_is_no_text_is_shown_as_far_as_it_goes(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"\xff\xfe\x00ok")
    assert read_output(tmp_path / "out", 5).text == "\ufffd\ufffd\x00ok"


def observation(text: str, code: int = 0) -> Observation:
    return Observation("c", code, Output(text, "", len(text), ""), 0.1)


def test_only_the_marker_on_the_first_line_of_a_command_that_went_well_submits() -> None:
    assert observation(f"{MARKER}\n").submission == ""
    assert observation(f"\n{MARKER} \nnote\n").submission == "note\n"
    assert observation(f"x\n{MARKER}\n").submission is None
    assert observation(f"{MARKER}\n", code=1).submission is None
    assert observation(f"{MARKER}_X\n").submission is None


def test_prices() -> None:
    assert Price(input=2.0, output=8.0, cached=0.5).cost(Usage(1_000_000, 500_000, 400_000)) == pytest.approx(
        0.6 * 2 + 0.4 * 0.5 + 0.5 * 8
    )
    table = prices.shipped()
    assert table.of("openai/gpt-4.1-2025-04-14") == table.models["openai/gpt-4.1"]
    assert table.of("openai/gpt-4.1-mini-2025-04-14") == table.models["openai/gpt-4.1-mini"]
    assert table.of("openai/gpt-4.1-ultra") is None
    assert table.of("local/good") is None


def test_own_prices_go_over_the_shipped_ones(tmp_path: Path) -> None:
    path = tmp_path / "prices.json"
    path.write_text('{"models": {"local/good": {"input": 1, "output": 2}}}')
    table = prices.table(path)
    assert table.of("local/good") == Price(input=1, output=2)
    assert table.of("openai/gpt-4o") == prices.shipped().of("openai/gpt-4o")
    path.write_text('{"models": {"local/good": {"input": 1, "outputs": 2}}}')
    with pytest.raises(InvalidFile, match="outputs"):
        prices.table(path)


def test_an_unknown_cost_is_null_and_tokens_are_the_limit_then() -> None:
    budget = Budget(steps=None, cost_usd=1.0, tokens_when_cost_unknown=100)
    priced, unpriced = Spent(Price(input=10_000, output=0)), Spent(None)
    for spent in (priced, unpriced):
        assert spent.cost_usd is None and spent.tokens is None and spent.over(budget) is None
        spent.add(Usage(60, 10))
    assert priced.cost_usd == pytest.approx(0.6) and unpriced.cost_usd is None
    assert unpriced.tokens == 70
    for spent in (priced, unpriced):
        assert spent.over(budget) is None
        spent.add(Usage(50, 0))
    assert "cost limit" in str(priced.over(budget)) and "token limit: 120 of 100" in str(unpriced.over(budget))


def test_a_call_that_was_not_metered_makes_the_sums_unknown() -> None:
    spent = Spent(Price(input=1, output=1))
    spent.add(Usage(10, 10))
    assert spent.add(None) is None
    assert spent.tokens is None and spent.cost_usd is None
    assert "token limit" in str(spent.over(Budget(tokens_when_cost_unknown=20)))


def test_secrets_are_found_by_name_and_taken_out_by_value() -> None:
    environ = {"X_API_KEY": "abcdefghij", "HF_TOKEN": "abcdefghij-longer", "PATH": "/usr/bin:/bin", "A_KEY": "short"}
    secrets = Secrets.of_environment("given-by-hand", environ=environ)
    text = "abcdefghij-longer abcdefghij /usr/bin:/bin short given-by-hand"
    assert secrets.hide(text) == f"{HIDDEN} {HIDDEN} /usr/bin:/bin short {HIDDEN}"
    nested = {"k abcdefghij": [{"v": ("abcdefghij", 1, None)}]}
    assert secrets.hide_in(nested) == {f"k {HIDDEN}": [{"v": [HIDDEN, 1, None]}]}
    assert "abcdefghij" not in repr(secrets)
