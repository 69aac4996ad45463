"""pass@k over several evaluated attempts of one suite: the chance that one of k attempts solves a task.

The estimator is the standard unbiased one (Chen et al., 2021, "Evaluating Large Language Models Trained on Code",
section 2.1): with n attempts of which c solved the task, 1 - C(n - c, k) / C(n, k), averaged over the tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import comb, fsum

from pydantic import Field

from rtb.errors import ExpectedError
from rtb.result import Outcome
from rtb.run import Run
from rtb.task import CATEGORIES, Category, Frozen

# What says nothing about the model: the attempt does not count, neither as solved nor as failed.
UNKNOWN: frozenset[Outcome] = frozenset(("error", "not_submitted"))


class TaskAttempts(Frozen):
    """One task: attempts that count, and how many of them solved it. `outcomes` has one for each run, in order."""

    instance_id: str
    category: Category
    n: int = Field(ge=0)
    solved: int = Field(ge=0)
    outcomes: tuple[Outcome, ...]


class PassAtK(Frozen):
    """pass@k for k = 1 … the number of runs. A value is null when a task has fewer than k attempts that count."""

    runs: tuple[str, ...]
    tasks: tuple[TaskAttempts, ...]
    values: dict[int, float | None] = Field(description="k: mean over all tasks, between 0 and 1")
    by_category: dict[Category, dict[int, float | None]]
    incomplete: bool = Field(description="an attempt of some task has no outcome that counts")


def estimate(n: int, solved: int, k: int) -> float:
    """The unbiased estimate for one task. Raises ValueError unless 1 <= k <= n and 0 <= solved <= n."""
    if not (1 <= k <= n and 0 <= solved <= n):
        raise ValueError(f"k={k} of n={n} attempts with {solved} solved")
    return 1.0 - comb(n - solved, k) / comb(n, k)


def pass_at_k(
    outcomes: Mapping[str, Sequence[Outcome]], categories: Mapping[str, Category], runs: Sequence[str] = ()
) -> PassAtK:
    """pass@k from each task's outcomes, one per attempt. Raises ExpectedError when there is no task."""
    if not outcomes:
        raise ExpectedError("pass@k needs at least one task")
    tasks = []
    for name, found in outcomes.items():
        counted = [outcome for outcome in found if outcome not in UNKNOWN]
        tasks.append(
            TaskAttempts(
                instance_id=name, category=categories[name], n=len(counted), solved=counted.count("resolved"),
                outcomes=tuple(found),
            )
        )  # fmt: skip
    most = max(len(found) for found in outcomes.values())
    groups = {category: [task for task in tasks if task.category == category] for category in CATEGORIES}
    return PassAtK(
        runs=tuple(runs),
        tasks=tuple(tasks),
        values=_means(tasks, most),
        by_category={category: _means(group, most) for category, group in groups.items() if group},
        incomplete=any(task.n < most for task in tasks),
    )


def _means(tasks: Sequence[TaskAttempts], most: int) -> dict[int, float | None]:
    values: dict[int, float | None] = {}
    for k in range(1, most + 1):
        enough = all(task.n >= k for task in tasks)
        values[k] = fsum(estimate(task.n, task.solved, k) for task in tasks) / len(tasks) if enough else None
    return values


def pass_at_k_of_runs(runs: Sequence[Run]) -> PassAtK:
    """pass@k from evaluated runs, one per attempt. Raises ExpectedError when they are not of the same tasks."""
    if not runs:
        raise ExpectedError("pass@k needs at least one run")
    outcomes: dict[str, list[Outcome]] = {}
    categories: dict[str, Category] = {}
    names: list[str] = []
    for run in runs:
        record = run.read_record()
        if names and set(record.instance_ids) != set(outcomes):
            raise ExpectedError(
                f"{run.path} is of other tasks than {runs[0].path}: pass@k compares runs of the same ones"
            )
        names.append(record.run_id)
        categories.update(record.categories)
        for name in record.instance_ids:
            verdict = run.read_verdict(name)
            outcomes.setdefault(name, []).append(verdict.outcome if verdict is not None else "not_submitted")
    return pass_at_k(outcomes, categories, names)
