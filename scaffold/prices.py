"""What a call costs, from a table the user can replace. An unknown price gives no number, never a zero."""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path

from pydantic import Field

from rtb.suite import read_model
from rtb.task import Frozen
from scaffold.reply import Usage

_MILLION = 1_000_000


class Price(Frozen):
    """US dollars per million tokens. `cached`: of prompt tokens read from a cache; as `input` when null."""

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cached: float | None = Field(default=None, ge=0)

    def cost(self, usage: Usage) -> float:
        """US dollars of one call."""
        cached = min(usage.cached, usage.prompt)
        rate = self.input if self.cached is None else self.cached
        return ((usage.prompt - cached) * self.input + cached * rate + usage.completion * self.output) / _MILLION


class PriceTable(Frozen):
    """prices.json. Keys are PROVIDER/NAME as in --model."""

    unit: str = ""
    as_of: str = ""
    note: str = ""
    models: dict[str, Price]

    def of(self, model: str) -> Price | None:
        """The price of a model; dated versions (NAME-2025-04-14, NAME-20250929) share the price of NAME."""
        if model in self.models:
            return self.models[model]
        for name in sorted(self.models, key=len, reverse=True):
            rest = model.removeprefix(f"{name}-")
            if rest != model and rest.replace("-", "").isdigit():
                return self.models[name]
        return None


@cache
def shipped() -> PriceTable:
    """The table that comes with rtb."""
    return PriceTable.model_validate_json(resources.files("scaffold").joinpath("prices.json").read_bytes())


def table(path: Path | None) -> PriceTable:
    """The shipped table with the user's entries over it. Raises InvalidFile."""
    if path is None:
        return shipped()
    own = read_model(path, PriceTable)
    return own.model_copy(update={"models": {**shipped().models, **own.models}})
