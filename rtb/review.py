"""Reviews of draft tasks: two people score each, and a task is accepted by rule, not by mood."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from rtb.errors import ExpectedError
from rtb.storage import write_model
from rtb.suite import TaskEntry, read_model
from rtb.task import Frozen, Task

REVIEWERS = 2
PASSING_AVERAGE = 1.5
CRITERIA = ("intent", "completeness", "absence_of_leaks")

Score = Literal[0, 1, 2]
Standing = Literal["draft", "revise", "accepted"]


class Review(Frozen):
    """One reviewer's scores: 0 no, 1 partly, 2 yes. A later review of the same reviewer replaces the earlier."""

    reviewer: str = Field(min_length=1)
    intent: Score = Field(description="the description says what the pull request is for")
    completeness: Score = Field(description="all that the tests ask for can be known from it")
    absence_of_leaks: Score = Field(description="it does not give the solution away")
    comment: str = ""
    at: str = Field(description="time of the review, ISO 8601, UTC")
    task_digest: str = Field(default="", description="sha256 of the description that was read")


class Reviews(Frozen):
    """reviews.json beside a task."""

    schema_version: Literal[1] = 1
    instance_id: str
    reviews: tuple[Review, ...] = ()


def averages(reviews: Sequence[Review]) -> dict[str, float]:
    """Mean score of each criterion."""
    return {name: sum(getattr(item, name) for item in reviews) / len(reviews) for name in CRITERIA} if reviews else {}


def standing(reviews: Sequence[Review]) -> Standing:
    """`accepted` when two reviewers have scored and no average is under 1.5; `revise` when one is; else `draft`."""
    if len({item.reviewer for item in reviews}) < REVIEWERS:
        return "draft"
    return "revise" if any(mean < PASSING_AVERAGE for mean in averages(reviews).values()) else "accepted"


def load_reviews(entry: TaskEntry) -> Reviews:
    """What is recorded for a task; empty when nothing is. Raises InvalidFile."""
    path = entry.folder.path / "reviews.json"
    return read_model(path, Reviews) if path.exists() else Reviews(instance_id=entry.instance_id)


def record(entry: TaskEntry, review: Review) -> Standing:
    """Add a review, and set the task's state by the rule. Raises ExpectedError for a task of a shipped suite."""
    if entry.task.provenance.state == "rejected":
        raise ExpectedError(f"{entry.instance_id} was rejected: set its state to draft before it is reviewed again")
    kept = tuple(item for item in load_reviews(entry).reviews if item.reviewer != review.reviewer)
    reviews = Reviews(instance_id=entry.instance_id, reviews=(*kept, review))
    write_model(entry.folder.path / "reviews.json", reviews)
    now = standing(reviews.reviews)
    state: Literal["draft", "accepted"] = "accepted" if now == "accepted" else "draft"
    if entry.task.provenance.state != state:
        provenance = entry.task.provenance.model_copy(update={"state": state})
        changed = entry.task.model_copy(update={"provenance": provenance})
        write_model(entry.folder.task_json, Task.model_validate(changed.model_dump()))
    return now
