"""Where the inputs from public bug reports lie: `RTB_CASES`, or `shared/cases` beside the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def cases_root() -> Path | None:
    """The folder of cases, or None when it is not on this machine."""
    named = os.environ.get("RTB_CASES")
    path = Path(named) if named else ROOT.parent / "shared" / "cases"
    return path if path.is_dir() else None


def case_folder(name: str) -> Path:
    """One case. Skips, with the reason, where the cases are not."""
    root = cases_root()
    if root is None:
        pytest.skip("the cases are not here: set RTB_CASES to their folder")
    return root / name
