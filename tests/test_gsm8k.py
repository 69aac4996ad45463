"""Scores equal to lm-evaluation-harness's on the same stored answers, and the cases of public bug reports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from harness.gsm8k import (
    Answer,
    Problem,
    QuestionSet,
    clean,
    cut,
    flexible_extract,
    number,
    prompt,
    read_answers,
    requests,
    score,
    strict_match,
    write_answers,
)
from harness.question_set import load_questions
from harness.request import RequestRecord
from rtb.errors import ExpectedError, StoredRunBroken
from rtb.task import AccuracyStage
from tests.cases import cases_root

CASES = cases_root() or Path("shared/cases")
SHOTS = tuple(Problem(question=f"What is {n} + 1?", answer=f"{n} + 1 = {n + 1}\n#### {n + 1}") for n in range(6))


def record(text: str | None, *, status: int = 200, error: str | None = None, index: int = 0) -> RequestRecord:
    return RequestRecord(
        index=index, prompt_sha256="0", requested=64, sent_ns=0, first_byte_ns=1, end_ns=2, status=status,
        prompt_tokens=9, completion_tokens=5, finish="stop", text=text, error=error,
    )  # fmt: skip


def answer(text: str, gold: str) -> Answer:
    return score(record(text), Problem(question="q", answer=f"worked\n#### {gold}"))


def test_case_94_gsm8k_extraction() -> None:
    folder = CASES / "94-gsm8k-extraction"
    if not folder.is_dir():
        pytest.skip("the shared cases are not beside the repository")
    expected = json.loads((folder / "case.json").read_text())["expected"]
    rows = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines() if line.strip()]
    scored = {str(row["id"]): answer(row["response"], row["gold"]) for row in rows}
    assert {name: item.number for name, item in scored.items()} == expected["extracted"]
    assert {name: item.number_right for name, item in scored.items()} == expected["correct"]
    assert Fraction(sum(item.number_right for item in scored.values()), len(scored)) == Fraction(expected["accuracy"])
    assert [int(name) for name, item in scored.items() if item.number is None] == expected["invalid"]
    assert all(item.strict != "" and item.flexible != "" for item in scored.values())


def test_filters_read_what_they_are_defined_to_read() -> None:
    assert strict_match("a #### 1,200. b #### 5") == "1,200."
    assert strict_match("####5") is None
    assert flexible_extract("3 then 14") == "14"
    assert flexible_extract("costs $29.00.") == "$29.00."
    assert flexible_extract("well...") == "..."  # as defined there; our own reading is not fooled
    assert number("it is 7, well...") == "7"
    assert clean("#### $1,200.") == "1200"
    assert cut("5\n\nQuestion: next") == "5\n\n"
    assert number("-0.50") == "-0.5"


def test_a_failed_request_is_no_answer() -> None:
    problem = Problem(question="q", answer="#### 7")
    for broken in (record("#### 7", error="timeout"), record("#### 7", status=500), record(None)):
        found = score(broken, problem)
        assert found.error
        assert not found.strict_right and found.strict is None
    assert score(record(""), problem).error is None  # an empty answer is an answer, and wrong


def test_the_prompt_is_five_worked_examples_and_the_question() -> None:
    questions = QuestionSet("s", SHOTS, (Problem(question="How many?", answer="#### 3"),))
    text = prompt(questions, 5, questions.test[0])
    assert text.count("Question: ") == 6
    assert text.startswith("Question: What is 0 + 1?\nAnswer: 0 + 1 = 1\n#### 1\n\nQuestion: What is 1")
    assert text.endswith("#### 5\n\nQuestion: How many?\nAnswer:")
    with pytest.raises(ExpectedError, match="7 worked examples"):
        prompt(questions, 7, questions.test[0])


def test_requests_are_greedy_with_stops_and_the_servers_own_keys() -> None:
    serve = {"command": "serve", "model": "m", "request": {"top_k": 1, "stream_options": None}}
    stage = AccuracyStage.model_validate({"serve": serve, "model": "m", "shots": 1})
    questions = QuestionSet("s", SHOTS, SHOTS, max_tokens=32)
    first, second = requests(questions, stage, [4, 2])
    assert (first.index, second.index) == (4, 2)
    assert (first.body["temperature"], first.body["max_tokens"], first.body["top_k"]) == (0, 32, 1)
    assert first.body["stop"] == ["Question:", "</s>", "<|im_end|>"]
    assert "stream_options" not in first.body
    assert first.body["prompt"].endswith("Question: What is 4 + 1?\nAnswer:")


def test_answers_are_read_back_as_written_and_a_broken_line_is_named(tmp_path: Path) -> None:
    answers = [answer("#### 5", "5").model_copy(update={"index": n}) for n in (2, 0, 1)]
    write_answers(tmp_path / "a.jsonl", answers)
    assert [item.index for item in read_answers(tmp_path / "a.jsonl")] == [0, 1, 2]
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('{"index": 3}\n')
    with pytest.raises(StoredRunBroken, match=r"a\.jsonl:4"):
        read_answers(tmp_path / "a.jsonl")


def test_question_sets_come_from_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    lines = "".join(json.dumps(item.model_dump()) + "\n" for item in SHOTS)
    (folder / "train.jsonl").write_text(lines)
    with pytest.raises(ExpectedError, match=r"no test\.jsonl"):
        load_questions("own", tmp_path)
    (folder / "test.jsonl").write_text(lines)
    (folder / "set.json").write_text('{"max_tokens": 40}')
    found = load_questions("own", tmp_path)
    assert (len(found.train), len(found.test), found.max_tokens) == (6, 6, 40)
    monkeypatch.setenv("RTB_GSM8K", str(folder))
    assert load_questions("gsm8k", tmp_path).test == SHOTS
    (folder / "test.jsonl").write_text('{"question": 1}\n')
    with pytest.raises(ExpectedError, match=r"test\.jsonl:1"):
        load_questions("own", tmp_path)


LM_EVAL = """
import json, sys
from lm_eval.api.metrics import exact_match_hf_evaluate
from lm_eval.filters.extraction import RegexFilter
import yaml, lm_eval, pathlib
config = yaml.safe_load((pathlib.Path(lm_eval.__file__).parent / "tasks/gsm8k/gsm8k.yaml").read_text())
rows = json.load(sys.stdin)
options = {key: config["metric_list"][0][key] for key in ("ignore_case", "ignore_punctuation", "regexes_to_ignore")}
scores = {}
for entry in config["filter_list"]:
    step = dict(entry["filter"][0])
    assert step.pop("function") == "regex"
    taken = [found[0] for found in RegexFilter(**step).apply([[row["text"]] for row in rows], rows)]
    right = [float(exact_match_hf_evaluate([one], [row["answer"]], **options)["exact_match"])
             for one, row in zip(taken, rows)]
    scores[entry["name"]] = right
print(json.dumps(scores))
"""


def lm_eval_python() -> str | None:
    """A Python that has lm_eval: ours, or the one that RTB_LM_EVAL_PYTHON names (its pins clash with ours)."""
    for candidate in (os.environ.get("RTB_LM_EVAL_PYTHON"), sys.executable):
        if candidate:
            asked = subprocess.run([candidate, "-c", "import lm_eval"], capture_output=True, timeout=120, check=False)
            if asked.returncode == 0:
                return candidate
    return None


@pytest.mark.slow
def test_the_same_stored_answers_get_the_same_two_scores_as_in_lm_evaluation_harness() -> None:
    python = lm_eval_python()
    if python is None:
        pytest.skip("lm_eval is not installed: set RTB_LM_EVAL_PYTHON to a Python that has it")
    texts = [
        ("72 clips.\n#### 72", "72"), ("So $29.00.", "29"), ("#### 1,200", "1,200"), ("#### 1200.", "1200"),
        ("", "7"),
        ("#### ", "7"), ("well...", "7"), ("#### -3", "-3"), ("it is -3", "-3"), ("#### 5 or #### 6", "5"),
        ("#### $5", "5"), ("5%", "5"), ("I think (12).", "12"), ("3.50", "3.5"), ("[invalid]", "7"), ("1,2,3", "123"),
        ("The answer is 18\n", "18"), ("####  9", "9"), ("x" * 50 + " 4", "4"), ("#### 4\n\n", "4"), ("٣", "3"),
    ]  # fmt: skip
    rows = [{"text": cut(text), "answer": f"Because.\n#### {gold}"} for text, gold in texts]
    done = subprocess.run(
        [python, "-c", LM_EVAL], input=json.dumps(rows), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = json.loads(done.stdout)
    ours = [answer(text, gold) for text, gold in texts]
    assert [float(item.strict_right) for item in ours] == theirs["strict-match"]
    assert [float(item.flexible_right) for item in ours] == theirs["flexible-extract"]
    assert 0 < sum(theirs["strict-match"]) < len(texts)
