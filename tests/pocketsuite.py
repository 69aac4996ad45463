"""A suite of small pull requests without torch, whose environment is pytest alone: evaluations take a second."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from rtb import checkout
from rtb.suite import LoadedSuite, load_suite
from tests import gitrepo

ROOT = Path(__file__).resolve().parent.parent
LOCK = "iniconfig==2.3.1\npackaging==26.4\npluggy==1.7.0\nPygments==2.21.0\npytest==9.2.0\n"
CATEGORIES = ("optimization", "modification", "new_kernel")


def dockerfiles(root: Path) -> Path:
    """A folder of Dockerfiles in which `pocket` is the CPU image with pytest alone."""
    home = root / "dockerfiles"
    for name in ("pocket", "task"):
        (home / name).mkdir(parents=True)
        source = ROOT / "dockerfiles" / ("cpu" if name == "pocket" else name) / "Dockerfile"
        (home / name / "Dockerfile").write_bytes(source.read_bytes())
    (home / "pocket" / "pytest.lock").write_text(LOCK)
    return home


def source(number: int, right: bool) -> bytes:
    """Module `number`: doubles when right."""
    return f"def f{number}(x):\n    return {'2 * x' if right else 'x'}\n".encode()


def tests_of(number: int, extra: str = "") -> bytes:
    """Its tests: one that holds at base already, two that do not."""
    return (
        f"import pytest\nfrom pkg.m{number} import f{number}\n\n\n"
        f"def test_zero():\n    assert f{number}(0) == 0\n\n\n"
        f"@pytest.mark.parametrize('x', [1, 3])\ndef test_doubles(x):\n    assert f{number}(x) == 2 * x\n{extra}"
    ).encode()


def make(root: Path, tasks: int = 3, extra: Sequence[str] = ()) -> LoadedSuite:
    """A suite `pocket` of so many tasks under `root`/tasks. `extra[i]` is added to the tests of task i + 1."""
    repository = gitrepo.init(root / "upstream")
    files: dict[str, bytes | None] = {"pkg/__init__.py": b"", "README.md": b"pocket\n"}
    for number in range(1, tasks + 1):
        files[f"pkg/m{number}.py"] = source(number, right=False)
        files[f"tests/test_m{number}.py"] = b"def test_nothing():\n    pass\n"
    commits = [gitrepo.commit(repository, "first", files)]
    for number in range(1, tasks + 1):
        more = extra[number - 1] if number <= len(extra) else ""
        change: dict[str, bytes | None] = {
            f"pkg/m{number}.py": source(number, right=True),
            f"tests/test_m{number}.py": tests_of(number, more),
        }
        commits.append(gitrepo.commit(repository, f"double (#{number})", change))
    home = root / "tasks" / "pocket"
    home.mkdir(parents=True)
    arguments = ["format-patch", "-q", "--root", "-o", str(home / "series"), "HEAD"]
    checkout.run_git(arguments, repository=repository)
    suite = {
        "schema_version": 1, "name": "pocket", "title": "Pocket", "split": {"rtb/pocket": {"tests": ["tests/**"]}},
        "sources": {"rtb/pocket": {"series": "series", "committer": "Ada <ada@example.invalid>"}},
    }  # fmt: skip
    (home / "suite.json").write_text(json.dumps(suite))
    for number in range(1, tasks + 1):
        _task(home, repository, number, commits[number - 1], commits[number])
    return load_suite("pocket", root / "tasks")


def _task(home: Path, repository: Path, number: int, base: str, landed: str) -> None:
    folder = home / f"rtb__pocket-{number}"
    folder.mkdir()
    facts = {}
    for name, path in (("gold", f"pkg/m{number}.py"), ("test", f"tests/test_m{number}.py")):
        patch = checkout.diff(repository, base, landed, [path])
        (folder / f"{name}.patch").write_bytes(patch)
        facts[name] = {"sha256": hashlib.sha256(patch).hexdigest(), "paths": [path]}
    (folder / "problem_statement.md").write_text(f"Make f{number} double.\n")
    task = {
        "schema_version": 1, "instance_id": folder.name, "repo": "rtb/pocket", "pull_number": number,
        "base_commit": base, "merge_commit": landed, "title": f"double {number}",
        "category": CATEGORIES[number % 3],
        "targets": [{"path": f"pkg/m{number}.py", "name": f"f{number}", "kind": "host", "change": "modified"}],
        "patches": facts,
        "environment": {"dockerfile": "pocket", "lock": "pytest.lock"},
        "unit": {"command": f"python -m pytest tests/test_m{number}.py", "files": [f"tests/test_m{number}.py"],
                 "timeout_seconds": 60},
        "provenance": {"source": "test"},
    }  # fmt: skip
    (folder / "task.json").write_text(json.dumps(task))
    node = f"tests/test_m{number}.py::test_"
    tests = {
        "instance_id": folder.name, "fail_to_pass": [f"{node}doubles[1]", f"{node}doubles[3]"],
        "pass_to_pass": [f"{node}zero"], "gold_runs": 3, "base_runs": 3,
    }  # fmt: skip
    (folder / "tests.json").write_text(json.dumps(tests))


def patch(number: int, body: str, path: str | None = None) -> str:
    """A prediction's patch that makes module `number` (or a new file at `path`) hold `body`."""
    if path is not None:
        lines = body.splitlines()
        head = f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
        return head + f"@@ -0,0 +1,{len(lines)} @@\n" + "".join(f"+{line}\n" for line in lines)
    path = f"pkg/m{number}.py"
    old = source(number, right=False).decode().splitlines()
    new = body.splitlines()
    return (
        f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -1,{len(old)} +1,{len(new)} @@\n"
        + "".join(f"-{line}\n" for line in old)
        + "".join(f"+{line}\n" for line in new)
    )


def right(number: int) -> str:
    """A right answer that differs from gold."""
    return patch(number, f"def f{number}(x):\n    return x + x")


def write_predictions(path: Path, patches: dict[int, str | None]) -> Path:
    """A JSONL file with one prediction a task."""
    with path.open("w") as file:
        for number, text in patches.items():
            line = {"instance_id": f"rtb__pocket-{number}", "model_name_or_path": "tester", "model_patch": text}
            file.write(json.dumps(line) + "\n")
    return path
