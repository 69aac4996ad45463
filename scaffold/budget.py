"""What an attempt may spend, and what it has spent. Pure."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rtb.task import Frozen
from scaffold.prices import Price
from scaffold.reply import Usage

ExitStatus = Literal[
    "Submitted",
    "LimitsExceeded",
    "TimeExceeded",
    "RepeatedFormatError",
    "ContextWindowExceeded",
    "ModelUnavailable",
    "ModelRefused",
    "SandboxFault",
    "Interrupted",
    "AgentCrashed",
]
# These say how the model did; all others are faults of a machine or the user's stop, and are run again.
FINISHED: frozenset[str] = frozenset(
    ("Submitted", "LimitsExceeded", "TimeExceeded", "RepeatedFormatError", "ContextWindowExceeded")
)


class Budget(Frozen):
    """Limits of one attempt; null means no limit.

    `tokens_when_cost_unknown` takes the place of `cost_usd` for a model without a price.
    """

    steps: int | None = Field(default=250, ge=1)
    cost_usd: float | None = Field(default=3.0, gt=0)
    tokens: int | None = Field(default=None, ge=1)
    tokens_when_cost_unknown: int = Field(default=2_000_000, ge=1)
    wall_seconds: float | None = Field(default=3600.0, gt=0)
    command_seconds: float = Field(default=60.0, gt=0)
    format_errors: int = Field(default=3, ge=1, description="in a row")

    def token_limit(self, priced: bool) -> int | None:
        """The limit on prompt and completion tokens together."""
        if self.tokens is not None:
            return self.tokens
        return None if priced and self.cost_usd is not None else self.tokens_when_cost_unknown


class Spent:
    """Counts of one attempt. `tokens` and `cost_usd` are None while nothing is known about them."""

    def __init__(self, price: Price | None) -> None:
        self._price = price
        self.calls = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.cached_tokens = 0
        self.unmetered_calls = 0

    def add(self, usage: Usage | None) -> float | None:
        """Count a call. Returns its cost in US dollars, or None when it is unknown."""
        self.calls += 1
        if usage is None:
            self.unmetered_calls += 1
            return None
        self.prompt_tokens += usage.prompt
        self.completion_tokens += usage.completion
        self.cached_tokens += usage.cached
        return self._price.cost(usage) if self._price else None

    @property
    def tokens(self) -> int | None:
        """All tokens that were metered; None when a call was not: a part of a sum is not the sum."""
        return None if self.unmetered_calls or not self.calls else self.prompt_tokens + self.completion_tokens

    @property
    def cost_usd(self) -> float | None:
        if self._price is None or self.unmetered_calls or not self.calls:
            return None
        return self._price.cost(Usage(self.prompt_tokens, self.completion_tokens, self.cached_tokens))

    def over(self, budget: Budget) -> str | None:
        """Which limit is used up, in words, or None. A call that would go over is not begun."""
        if budget.steps is not None and self.calls >= budget.steps:
            return f"step limit: {self.calls} of {budget.steps} steps"
        metered = self._price is not None and not self.unmetered_calls
        if metered and budget.cost_usd is not None and self._known_cost() >= budget.cost_usd:
            return f"cost limit: ${self._known_cost():.4f} of ${budget.cost_usd:g}"
        limit = budget.token_limit(priced=metered)
        used = self.prompt_tokens + self.completion_tokens
        if limit is not None and used >= limit:
            return f"token limit: {used} of {limit} tokens"
        return None

    def _known_cost(self) -> float:
        return self.cost_usd or 0.0
