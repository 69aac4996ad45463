"""Test ids of a task: from repeated runs, and from the lists other benchmarks publish. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rtb import syntax
from rtb.errors import ExpectedError, InvalidFile
from rtb.foreign_json import read_foreign_json
from rtb.result import TestStatus
from rtb.task import TestIds, unsound_node_id

Run = Mapping[str, TestStatus]
# A parameter that prints an object's address or a temporary folder of pytest names another id in every run.
_VOLATILE = re.compile(r" at 0x[0-9a-fA-F]{3,}>|/pytest-of-[^/]*/pytest-\d+")


@dataclass(frozen=True)
class StableIds:
    """What repeated runs agree on. `quarantined` names an id (or the stem of ids that change) and why."""

    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    new_to_pass: tuple[str, ...]
    quarantined: dict[str, str]
    gold_failures: dict[str, TestStatus]  # stable, but gold does not pass them: never expected
    pass_to_fail: tuple[str, ...]  # passed at base in every run, never with gold


def stem(node: str) -> str:
    """A node id without its parameters."""
    return node.partition("[")[0]


def stable_ids(gold: Sequence[Run], base: Sequence[Run]) -> StableIds:
    """Sort ids by what all equal runs agree on. An id absent from every base run did not exist there (or its file
    could not be collected), which counts as failing.

    Raises ExpectedError when there is no gold or no base run.
    """
    if not gold or not base:
        raise ExpectedError("test ids need at least one gold and one base run: run `rtb validate` again")
    quarantined: dict[str, str] = {}
    f2p: list[str] = []
    p2p: list[str] = []
    new: list[str] = []
    failures: dict[str, TestStatus] = {}
    lost: list[str] = []
    for node in dict.fromkeys(node for run in gold for node in run):
        reason = _unstable(node, gold, base)
        if reason is not None:
            quarantined.setdefault(*reason)
        elif gold[0][node] != "PASSED":
            failures[node] = gold[0][node]
            lost += [node] if base[0].get(node) == "PASSED" else []
        elif base[0].get(node) == "PASSED":
            p2p.append(node)
        else:
            f2p.append(node)
            new += [node] if all(node not in run for run in base) else []
    return StableIds(tuple(f2p), tuple(p2p), tuple(new), quarantined, failures, tuple(lost))


def _unstable(node: str, gold: Sequence[Run], base: Sequence[Run]) -> tuple[str, str] | None:
    """(what to quarantine, why), or None for an id that equal runs agree on."""
    if unsound := unsound_node_id(node):
        return node, unsound
    if _VOLATILE.search(node):
        return stem(node), f"its id changes with every run: {node}"
    if any(node not in run for run in gold):
        return stem(node), f"its ids are not the same in every gold run: {node}"
    for name, runs in (("gold", gold), ("base", base)):
        seen = [run.get(node, "MISSING") for run in runs]
        if len({status == "PASSED" for status in seen}) > 1:
            return node, f"flips between equal {name} runs: {', '.join(seen)}"
    return None


def test_ids(
    instance_id: str, gold: Sequence[Run], base: Sequence[Run], *, told_by_latency: bool = False, provenance: str = ""
) -> TestIds:
    """tests.json from repeated runs. `told_by_latency`: the task has a stage that may tell base from gold, too.

    Raises ExpectedError when no stable id fails at base and passes with gold, since such tests measure nothing; with
    `told_by_latency` only when none passes with gold.
    """
    stable = stable_ids(gold, base)
    if not stable.fail_to_pass and not (told_by_latency and stable.pass_to_pass):
        unstable = f"; unstable: {', '.join(sorted(stable.quarantined))}" if stable.quarantined else ""
        raise ExpectedError(
            f"{instance_id}: no stable FAIL_TO_PASS id in {len(gold)} gold and {len(base)} base runs{unstable}; "
            "the task is rejected"
        )
    return TestIds(
        instance_id=instance_id,
        fail_to_pass=stable.fail_to_pass,
        pass_to_pass=stable.pass_to_pass,
        new_to_pass=stable.new_to_pass,
        quarantined=stable.quarantined,
        gold_runs=len(gold),
        base_runs=len(base),
        provenance=provenance,
    )


test_ids.__test__ = False  # type: ignore[attr-defined]  # not a test


@dataclass(frozen=True)
class PublishedIds:
    """FAIL_TO_PASS and PASS_TO_PASS of another benchmark's task, with what had to be mended to read them."""

    instance_id: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    warnings: tuple[str, ...]


def read_published(record: Mapping[str, object]) -> PublishedIds:
    """Read the two lists of a SWE-bench task in any of the shapes they are published in.

    Raises InvalidFile, naming task and field, for lists that would make any patch count as resolved or none.
    """
    name = str(record.get("instance_id", "task without an instance_id"))
    warnings: list[str] = []
    f2p = _id_list(name, "FAIL_TO_PASS", record.get("FAIL_TO_PASS"), warnings)
    p2p = _id_list(name, "PASS_TO_PASS", record.get("PASS_TO_PASS"), warnings)
    if not f2p:
        raise InvalidFile(f"{name}: no FAIL_TO_PASS: any patch would count as resolved")
    if both := set(f2p) & set(p2p):
        raise InvalidFile(f"{name}: same id in both lists: {sorted(both)[0]}")
    return PublishedIds(name, f2p, p2p, tuple(warnings))


def _id_list(task: str, key: str, value: object, warnings: list[str]) -> tuple[str, ...]:
    if value is None:
        raise InvalidFile(f"{task}: {key} null")
    if isinstance(value, str):
        value = _parse(task, key, value, warnings)
    if not isinstance(value, list) or not all(isinstance(node, str) for node in value):
        raise InvalidFile(f"{task}: {key} is no list of test ids")
    unsound = [(node, reason) for node in value if (reason := unsound_node_id(node))]
    if unsound:
        node, reason = unsound[0]
        if len(unsound) == len(value) and all("not a pytest" in reason for _, reason in unsound):
            reason = "no test ids"
        raise InvalidFile(f"{task}: {key}: {reason}: {node!r}")
    if len(set(value)) != len(value):
        warnings.append(f"{key} names an id twice")
    return tuple(dict.fromkeys(value))


def _parse(task: str, key: str, text: str, warnings: list[str]) -> object:
    try:
        return read_foreign_json(text)
    except ValueError:
        pass
    try:
        value = syntax.literal(text)
    except (ValueError, SyntaxError) as error:
        raise InvalidFile(f"{task}: {key} is text that is neither JSON nor a Python list: {text[:80]!r}") from error
    warnings.append(f"{key} is written as python repr")
    return value
