"""pass@k over several evaluated attempts of one suite: the chance that one of k attempts solves a task.

The estimator is the standard unbiased one (Chen et al., 2021, "Evaluating Large Language Models Trained on Code",
section 2.1): with n attempts of which c solved the task, 1 - C(n - c, k) / C(n, k), averaged over the tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import comb
from pathlib import Path

from pydantic import Field

from rtb.errors import ExpectedError
from rtb.result import Outcome
from rtb.run import Run
from rtb.task import Frozen

# What says nothing about the model: the attempt does not count, neither as solved nor as failed.
UNKNOWN: frozenset[Outcome] = frozenset(("error", "inconclusive"))


class TaskAttempts(Frozen):
    """One task: attempts that count, and how many of them solved it."""

    instance_id: str
    n: int = Field(ge=0)
    solved: int = Field(ge=0)


class PassAtK(Frozen):
    """pass@k for k = 1 … the number of runs. A value is null when a task has fewer than k attempts that count."""

    runs: tuple[str, ...]
    tasks: tuple[TaskAttempts, ...]
    values: dict[int, float | None] = Field(description="k: mean over all tasks, between 0 and 1")
    incomplete: bool = Field(description="an attempt of some task has no outcome that counts")


def estimate(n: int, solved: int, k: int) -> float:
    """The unbiased estimate for one task. Raises ValueError unless 1 <= k <= n and 0 <= solved <= n."""
    if not (1 <= k <= n and 0 <= solved <= n):
        raise ValueError(f"k={k} of n={n} attempts with {solved} solved")
    return 1.0 - comb(n - solved, k) / comb(n, k)


def pass_at_k(outcomes: Mapping[str, Sequence[Outcome]], runs: Sequence[str] = ()) -> PassAtK:
    """pass@k from each task's outcomes, one per attempt. Raises ExpectedError when there is no task."""
    if not outcomes:
        raise ExpectedError("pass@k needs at least one task")
    tasks = []
    for name, found in outcomes.items():
        counted = [outcome for outcome in found if outcome not in UNKNOWN]
        tasks.append(TaskAttempts(instance_id=name, n=len(counted), solved=counted.count("resolved")))
    most = max(len(found) for found in outcomes.values())
    values: dict[int, float | None] = {}
    for k in range(1, most + 1):
        enough = all(task.n >= k for task in tasks)
        mean = sum(estimate(task.n, task.solved, k) for task in tasks) / len(tasks) if enough else None
        values[k] = mean
    incomplete = any(task.n < most for task in tasks)
    return PassAtK(runs=tuple(runs), tasks=tuple(tasks), values=values, incomplete=incomplete)


def pass_at_k_of_runs(folders: Sequence[Path]) -> PassAtK:
    """pass@k from evaluated runs, one per attempt. Raises ExpectedError when they are not of the same tasks."""
    if not folders:
        raise ExpectedError("pass@k needs at least one run")
    outcomes: dict[str, list[Outcome]] = {}
    names: list[str] = []
    for folder in folders:
        run = Run(folder)
        record = run.read_record()
        if names and set(record.instance_ids) != set(outcomes):
            raise ExpectedError(
                f"{folder} is of other tasks than {folders[0]}: pass@k compares runs of the same ones"
            )
        names.append(record.run_id)
        for name in record.instance_ids:
            verdict = run.read_verdict(name)
            outcomes.setdefault(name, []).append(verdict.outcome if verdict is not None else "not_submitted")
    return pass_at_k(outcomes, names)
