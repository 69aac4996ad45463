"""Tasks in SWE-bench's fields, and back without loss. Pure: rows are plain dicts of text.

SWE-bench's fields come first; `rtb_task` and `rtb_tests` hold what it has no field for. Foreign rows are read with
care: what cannot be graded (no fail-to-pass id, cut ids, an id in both lists) is rejected with its reason.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from rtb import syntax
from rtb.errors import InvalidFile
from rtb.task import Task, TestIds, unsound_node_id

FIELDS = (
    "repo", "instance_id", "base_commit", "patch", "test_patch", "problem_statement", "hints_text", "created_at",
    "version", "FAIL_TO_PASS", "PASS_TO_PASS", "environment_setup_commit",
)  # fmt: skip


@dataclass(frozen=True)
class Bundle:
    """A task with everything beside it."""

    task: Task
    tests: TestIds | None
    statement: str
    gold: bytes
    test: bytes


def to_row(bundle: Bundle) -> dict[str, str]:
    """One task as a row. Patches that are not UTF-8 are kept whole in `rtb_bytes`, and shown with replacements."""
    task, tests = bundle.task, bundle.tests
    row = {
        "repo": task.repo,
        "instance_id": task.instance_id,
        "base_commit": task.base_commit,
        "patch": bundle.gold.decode("utf-8", "replace"),
        "test_patch": bundle.test.decode("utf-8", "replace"),
        "problem_statement": bundle.statement,
        "hints_text": "",
        "created_at": task.created_at or task.merged_at or "",
        "version": task.environment.torch or "",
        "FAIL_TO_PASS": json.dumps(list(tests.fail_to_pass) if tests else []),
        "PASS_TO_PASS": json.dumps(list(tests.pass_to_pass) if tests else []),
        "environment_setup_commit": task.base_commit,
        "rtb_task": task.model_dump_json(),
        "rtb_tests": tests.model_dump_json() if tests else "",
        "rtb_bytes": "",
    }
    odd = {name: data for name, data in (("patch", bundle.gold), ("test_patch", bundle.test)) if not _is_text(data)}
    if odd:
        row["rtb_bytes"] = json.dumps({name: base64.b64encode(data).decode() for name, data in odd.items()})
    return row


def _is_text(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def from_row(row: Mapping[str, Any], where: str = "row") -> Bundle:
    """A task from a row that `to_row` made. Raises InvalidFile naming the row and what is wrong."""
    for name in ("rtb_task", "patch", "test_patch", "problem_statement"):
        if not isinstance(row.get(name), str):
            raise InvalidFile(f"{where}: no field {name!r}; only rows that 'rtb tasks export' wrote can be read back")
    try:
        task = Task.model_validate_json(row["rtb_task"])
        tests = TestIds.model_validate_json(row["rtb_tests"]) if row.get("rtb_tests") else None
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidFile(f"{where}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    whole = {name: base64.b64decode(data) for name, data in json.loads(row.get("rtb_bytes") or "{}").items()}
    return Bundle(
        task=task,
        tests=tests,
        statement=row["problem_statement"],
        gold=whole.get("patch", row["patch"].encode()),
        test=whole.get("test_patch", row["test_patch"].encode()),
    )


@dataclass(frozen=True)
class Ids:
    """Test ids of a foreign row. `rejected` says why it cannot be graded; `warning` what was mended."""

    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    rejected: str | None = None
    warning: str | None = None


def read_ids(row: Mapping[str, Any]) -> Ids:
    """FAIL_TO_PASS and PASS_TO_PASS of any SWE-bench-like row: a list, JSON text, or a Python repr of a list."""
    lists: dict[str, tuple[str, ...]] = {}
    warning = None
    for name in ("FAIL_TO_PASS", "PASS_TO_PASS"):
        value = row.get(name)
        if value is None:
            if name == "FAIL_TO_PASS":
                return Ids(rejected="FAIL_TO_PASS is null")
            value = []
        items, how = _as_list(value)
        if items is None:
            return Ids(rejected=f"{name} is no list of test ids")
        warning = how or warning
        lists[name] = items
    fails, passes = lists["FAIL_TO_PASS"], lists["PASS_TO_PASS"]
    if not fails:
        return Ids(rejected="no FAIL_TO_PASS: any patch would count as resolved")
    wrong = [(item, why) for item in (*fails, *passes) if (why := unsound_node_id(item))]
    if len(wrong) == len(fails) + len(passes) and any("not a pytest" in why for _, why in wrong):
        return Ids(rejected=f"no test ids: {wrong[0][0]!r} is {wrong[0][1]}")
    if wrong:
        return Ids(rejected=f"{wrong[0][0]!r}: {wrong[0][1]}")
    if both := set(fails) & set(passes):
        return Ids(rejected=f"same id in both lists: {sorted(both)[0]}")
    return Ids(tuple(dict.fromkeys(fails)), tuple(dict.fromkeys(passes)), warning=warning)


def _as_list(value: Any) -> tuple[tuple[str, ...] | None, str | None]:
    how = None
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            try:
                value = syntax.literal(value)
                how = "a Python repr, not JSON"
            except (ValueError, SyntaxError):
                return None, None
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        return None, None
    return tuple(value), how
