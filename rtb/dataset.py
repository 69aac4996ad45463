"""Data sets from Hugging Face. EDGE: the `datasets` library, imported where it is needed."""

from __future__ import annotations

from rtb.errors import ExpectedError


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
