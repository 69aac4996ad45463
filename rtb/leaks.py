"""What a tree at a base commit must not hold: anything from which a later commit can be had.

Standard library only, for Python 3.8 and up: it is also copied into images and run there,
`python -I leaks.py TREE COMMIT`, where it looks at that Python's installed packages too. Prints a line per leak and
exits with 1 when there is one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

# Files of git that name or keep commits that a tree no longer shows.
_KEEPERS = ("ORIG_HEAD", "FETCH_HEAD", "MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "objects/info/alternates")


def find_leaks(tree: Path, commit: str) -> list[str]:
    """Every way from the git work tree `tree` to something that is not of `commit`. RuntimeError without git."""
    found = _ref_leaks(tree, commit) + _file_leaks(tree / ".git")
    if remotes := _git(tree, "config", "--local", "--get-regexp", r"^(remote|url)\.", ok=(0, 1)):
        found.append(f"remote configured: {remotes.splitlines()[0]}")
    return found + _object_leaks(tree, commit)


def find_installed(tree: Path) -> list[str]:
    """Copies of the tree's own package installed from elsewhere: a released wheel may hold the fix."""
    found = []
    for name in sorted(own_names(tree)):
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        origin = json.loads(package.read_text("direct_url.json") or "{}").get("url", "")
        if not _is_inside(origin, tree):
            where = origin or "a package index"
            found.append(f"the repository's own package {name} {package.version} is installed from {where}")
    return found


def own_names(tree: Path) -> set[str]:
    """Names of the packages that the tree itself builds, as its build files say, at the top and one folder below."""
    names = set()
    for folder in (tree, *sorted(path for path in tree.iterdir() if path.is_dir() and path.name != ".git")):
        project = _text(folder / "pyproject.toml")
        section = re.search(r"^\[project\]\s*$(.*?)(?=^\[|\Z)", project, re.MULTILINE | re.DOTALL)
        setup = _text(folder / "setup.cfg") + _text(folder / "setup.py")
        for text in ([section.group(1)] if section else []) + [setup]:
            if named := re.search(r"^\s*name\s*=\s*[\"']?([A-Za-z0-9][A-Za-z0-9._-]*)", text, re.MULTILINE):
                names.add(named.group(1))
    return names


def _is_inside(url: str, tree: Path) -> bool:
    path = url[len("file://") :] if url.startswith("file://") else ""
    return bool(path) and os.path.realpath(path).startswith(os.path.realpath(tree))


def _ref_leaks(tree: Path, commit: str) -> list[str]:
    found = []
    if (head := _git(tree, "rev-parse", "HEAD").strip()) != commit:
        found.append(f"HEAD is {head}, not the base commit {commit}")
    for line in _git(tree, "for-each-ref", "--format=%(objectname) %(refname)").splitlines():
        target, _, name = line.partition(" ")
        if target != commit or not name.startswith("refs/heads/"):
            found.append(f"{name} points to {target}")
    commits = set(_git(tree, "rev-list", "--all", "HEAD").split()) - {commit}
    if commits:
        found.append(f"{len(commits)} other commits can be reached, such as {min(commits)}")
    return found


def _file_leaks(git: Path) -> list[str]:
    found = [f".git/{name} is there" for name in _KEEPERS if (git / name).exists()]
    logs = git / "logs"
    found += [
        f"reflog {path.relative_to(git)}"
        for path in sorted(logs.rglob("*"))
        if path.is_file() and path.stat().st_size
    ]
    found += [f".git/{name} is there" for name in ("worktrees", "modules") if (git / name).is_dir()]
    return found


def _object_leaks(tree: Path, commit: str) -> list[str]:
    """Objects that are present, packed, loose or borrowed, and not of the commit: unreachable is no defence."""
    own = {line.split(" ")[0] for line in _git(tree, "rev-list", "--objects", "--no-walk", commit).splitlines()}
    listing = _git(tree, "cat-file", "--batch-all-objects", "--batch-check=%(objectname) %(objecttype)")
    other = [line for line in listing.splitlines() if line.split(" ")[0] not in own]
    other.sort(key=lambda line: not line.endswith("commit"))
    return [f"{len(other)} objects are not of the base commit, such as {other[0]}"] if other else []


def _git(tree: Path, *arguments: str, ok: tuple[int, ...] = (0,)) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-C", str(tree), *arguments]
    done = subprocess.run(command, capture_output=True, check=False, env={**environment, "GIT_NO_LAZY_FETCH": "1"})
    if done.returncode not in ok:
        raise RuntimeError(f"git {arguments[0]} in {tree}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout.decode(errors="replace")


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def main() -> int:
    tree = Path(sys.argv[1])
    found = find_leaks(tree, sys.argv[2]) + find_installed(tree)
    for leak in found:
        sys.stdout.write(f"LEAK: {leak}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
