"""Where the questions of an accuracy stage come from: the hub, a local copy, or a suite's own folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

from harness.gsm8k import MAX_TOKENS, Problem, QuestionSet, read_problems
from rtb.errors import ExpectedError

VARIABLE = "RTB_GSM8K"


def load_questions(dataset: str, suite_path: Path) -> QuestionSet:
    """`gsm8k`, or the path of a folder in the suite, with train.jsonl, test.jsonl and optionally set.json.

    `gsm8k` is read from the folder that RTB_GSM8K names, else through `datasets`. Raises ExpectedError.
    """
    if dataset != "gsm8k":
        return _from_folder(dataset, suite_path / dataset)
    folder = os.environ.get(VARIABLE)
    if folder:
        return _from_folder("gsm8k", Path(folder))
    from rtb.dataset import gsm8k_rows

    splits = {
        split: tuple(Problem(question=q, answer=a) for q, a in gsm8k_rows(split)) for split in ("train", "test")
    }
    return QuestionSet("gsm8k", splits["train"], splits["test"])


def _from_folder(name: str, folder: Path) -> QuestionSet:
    if not (folder / "test.jsonl").is_file():
        raise ExpectedError(
            f"{folder}: no test.jsonl; a question set is a folder with train.jsonl and test.jsonl of question and "
            f"answer (for GSM8K set {VARIABLE} to such a folder)"
        )
    train = read_problems(folder / "train.jsonl") if (folder / "train.jsonl").is_file() else ()
    settings = json.loads((folder / "set.json").read_text()) if (folder / "set.json").is_file() else {}
    return QuestionSet(name, train, read_problems(folder / "test.jsonl"), int(settings.get("max_tokens", MAX_TOKENS)))
