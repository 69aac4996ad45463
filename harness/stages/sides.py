"""The sides of a paired stage: the same task's tree with the model's patch, with gold, and untouched."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import Field

from harness.server import NotReady
from rtb.baseline import Baseline
from rtb.errors import MachineError
from rtb.sandbox import Sandbox
from rtb.task import Frozen

Side = Literal["gold", "model"]
Open = Callable[[], AbstractContextManager[Sandbox]]


class GoldCannotServe(MachineError):
    """Gold's own server does not work here: the environment's fault, never the patch's."""


@dataclass(frozen=True)
class Sides:
    """`model` is open; `gold` is opened by whoever needs it, since its answers may be known already.

    `gold_cache`: a folder of this machine for what gold has answered before in this very environment, or None.
    """

    model: Sandbox
    gold: Open
    gold_cache: Path | None = None
    concurrency: int = 32
    known: Baseline = field(default_factory=Baseline)


class ServerFacts(Frozen):
    """How a side's server came up, and how it ended."""

    ready_seconds: float | None = None
    not_ready: str | None = Field(default=None, description="why it did not come up")
    died: str | None = Field(default=None, description="what it said when it no longer answered")


def not_ready(found: NotReady) -> ServerFacts:
    """A server that did not come up, as a fact."""
    return ServerFacts(not_ready=str(found))
