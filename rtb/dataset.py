"""Data sets from Hugging Face. EDGE: the `datasets` library, imported where it is needed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rtb.errors import ExpectedError, InvalidFile
from rtb.storage import write_atomic


def gsm8k_rows(split: str) -> list[tuple[str, str]]:
    """(question, answer) of a split of openai/gsm8k. Raises ExpectedError when it cannot be had."""
    try:
        import datasets
    except ImportError as error:
        raise ExpectedError(
            "GSM8K needs the `datasets` library: install rtb[hub], or set RTB_GSM8K to a folder with its train.jsonl "
            "and test.jsonl"
        ) from error
    try:
        rows = datasets.load_dataset("openai/gsm8k", "main", split=split)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise ExpectedError(
            f"GSM8K cannot be loaded ({type(error).__name__}: {str(error)[:200]}): set RTB_GSM8K to a folder with "
            "its train.jsonl and test.jsonl"
        ) from error
    return [(str(row["question"]), str(row["answer"])) for row in rows]


def save_rows(rows: Sequence[Mapping[str, str]], out: Path, form: str) -> None:
    """Write rows as `jsonl`, `parquet` (a file) or `disk` (a folder that `datasets.load_from_disk` reads).

    Raises ExpectedError when the `datasets` library is not there and the form needs it.
    """
    if form == "jsonl":
        write_atomic(out, b"".join(json.dumps(dict(row), ensure_ascii=False).encode() + b"\n" for row in rows))
        return
    made = _datasets().Dataset.from_list([dict(row) for row in rows])
    out.parent.mkdir(parents=True, exist_ok=True)
    if form == "parquet":
        made.to_parquet(str(out))
    elif form == "disk":
        made.save_to_disk(str(out))
    else:
        raise ExpectedError(f"no form {form!r}: there are jsonl, parquet and disk")


def push_rows(rows: Sequence[Mapping[str, str]], name: str, private: bool = True) -> None:
    """Push rows as split `test` of a data set on the hub; the token comes from the environment or the login."""
    library = _datasets()
    try:
        library.Dataset.from_list([dict(row) for row in rows]).push_to_hub(name, split="test", private=private)
    except (OSError, ValueError, library.exceptions.DatasetsError) as error:
        raise ExpectedError(
            f"the data set {name} cannot be pushed ({type(error).__name__}: {str(error)[:200]}): set HF_TOKEN to a "
            "token that may write it, or export to a folder with --to disk"
        ) from error


def pull_rows(name: str) -> list[dict[str, str]]:
    """Rows of split `test` of a data set on the hub, as `push_rows` wrote them.

    Raises ExpectedError when it cannot be had.
    """
    library = _datasets()
    try:
        return [dict(row) for row in library.load_dataset(name, split="test")]
    except (OSError, ValueError, library.exceptions.DatasetsError) as error:
        raise ExpectedError(
            f"the data set {name} cannot be loaded ({type(error).__name__}: {str(error)[:200]}): check the name, and "
            "for a private one set HF_TOKEN to a token that may read it"
        ) from error


def load_rows(path: Path) -> list[dict[str, str]]:
    """Rows of a JSONL file, a parquet file or a folder of `save_to_disk`."""
    if path.is_dir():
        return [dict(row) for row in _datasets().load_from_disk(str(path))]
    if path.suffix == ".parquet":
        return [dict(row) for row in _datasets().Dataset.from_parquet(str(path))]
    rows = []
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ExpectedError(f"{path}: cannot be read ({error.strerror})") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows.append(dict(json.loads(line)))
        except (ValueError, TypeError) as error:
            raise InvalidFile(f"{path}:{number}: not a JSON object ({error})") from error
    return rows


def _datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise ExpectedError(
            "this form needs the `datasets` library: install rtb[hub], or use the form jsonl"
        ) from error
    return datasets
