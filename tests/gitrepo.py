"""Small real git repositories for tests."""

from __future__ import annotations

import shutil
from pathlib import Path

from rtb.checkout import run_git

WHO = {
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.invalid",
    "GIT_AUTHOR_DATE": "2025-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.invalid",
    "GIT_COMMITTER_DATE": "2025-01-01T00:00:00Z",
}


def init(path: Path) -> Path:
    """An empty repository on branch main."""
    path.mkdir(parents=True, exist_ok=True)
    run_git(["init", "-q", "-b", "main"], repository=path)
    return path


def commit(path: Path, message: str, files: dict[str, bytes | None] | None = None) -> str:
    """Write (or delete, for None) files and commit everything; the new commit's id."""
    for name, data in (files or {}).items():
        target = path / name
        if data is None:
            target.unlink()
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
    run_git(["add", "-A", "-f"], repository=path)
    run_git(["commit", "-q", "--allow-empty", "-m", message], repository=path, env=WHO)
    return head(path)


def commit_tree_of(path: Path, message: str, tree: Path) -> str:
    """Commit a folder's whole content in place of the repository's."""
    # Fresh modification times: git takes a file of the same size and time for unchanged.
    for item in path.iterdir():
        if item.name != ".git":
            shutil.rmtree(item) if item.is_dir() else item.unlink()
    shutil.copytree(tree, path, dirs_exist_ok=True, symlinks=True, copy_function=shutil.copy)
    return commit(path, message)


def head(path: Path) -> str:
    """The commit id of HEAD."""
    return run_git(["rev-parse", "HEAD"], repository=path).stdout.decode().strip()


def tree_id(path: Path, commit_id: str = "HEAD") -> str:
    """The tree id of a commit."""
    return run_git(["rev-parse", f"{commit_id}^{{tree}}"], repository=path).stdout.decode().strip()
