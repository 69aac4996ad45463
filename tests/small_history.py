"""A small history of a repository with a kernel, for tests of mining."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rtb.checkout import run_git
from rtb.mining import Mined, Wish, mine
from tests import gitrepo

REPO = "acme/serve"
HEAD = "import triton\nimport triton.language as tl\n\n\n"
KERNEL = HEAD + "@triton.jit\ndef scale(x, n):\n    tl.store(x, tl.load(x) * n)\n"
LAUNCH = "\n\ndef run(x):\n    scale[(1,)](x, 2)\n"
TEST = "from pkg.ops import run\n\n\ndef test_run():\n    assert run(1) is None\n"


def begun(path: Path) -> Path:
    """A repository of one commit."""
    gitrepo.init(path)
    gitrepo.commit(path, "Start", {"README.md": b"hello\n", "pyproject.toml": b'requires-python = ">=3.10,<3.12"\n'})
    return path


def put(path: Path, message: str, day: int = 1, **files: str | None) -> str:
    """Commit files (`pkg__ops__py` is pkg/ops.py) on a day of January 2025."""
    data = {}
    for name, text in files.items():
        *folders, stem, ending = name.split("__")
        data["/".join([*folders, f"{stem}.{ending}"])] = text.encode() if text is not None else None
    gitrepo.commit(path, message, data)
    when = f"2025-01-{day:02}T12:00:00Z"
    run_git(
        ["commit", "-q", "--amend", "--allow-empty", "--no-edit"],
        repository=path,
        env={**gitrepo.WHO, "GIT_COMMITTER_DATE": when},
    )
    return gitrepo.head(path)


def mined(path: Path, **wish: Any) -> Mined:
    return mine(Wish(repo=REPO, clone=path, cached=wish.pop("cached", False), **wish))


def reasons(found: Mined) -> dict[int | None, str]:
    return {item.pull.number: item.reason for item in found.judgements}
