"""TTFT and TPOT of request records, by our definition and by those of two other clients. Pure. Times in seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.request import RequestRecord
from harness.statistics import arithmetic_mean, median, quantile


@dataclass(frozen=True)
class Timing:
    """One valid request. `tpot` is None when all tokens came in one chunk."""

    ttft: float
    tpot: float | None
    tokens: int
    latency: float


def fault_of(record: RequestRecord) -> str | None:
    """Why a request says nothing about latency, or None. Order: transport, status, stream, length."""
    if record.error is not None:
        return record.error
    if record.status != 200:
        return f"status {record.status}"
    if record.completion_tokens is None:
        return "no usage in the answer"
    if not record.tokens or record.completion_tokens == 0:
        return "success without output"
    if record.tokens[0][0] < 0:
        return "time to first token is negative"
    if record.finish != "length":
        return f"finish reason {record.finish!r}, not 'length'"
    if record.requested is not None and record.completion_tokens != record.requested:
        return f"{record.completion_tokens} tokens, {record.requested} were asked for"
    return None


def timing(record: RequestRecord) -> Timing | None:
    """TTFT = first token - sent. TPOT = (last token - first token) / (n - tokens in the first chunk).

    None when the request is invalid. Without counts in the chunks, the first chunk is taken to hold one token.
    """
    if fault_of(record) is not None:
        return None
    assert record.completion_tokens is not None
    first, last = record.tokens[0], record.tokens[-1]
    # Tokens of one read came together: with the first, or a server that sends all at once would look endlessly fast.
    together = max(count for at, count in record.tokens if at == first[0])
    rest = record.completion_tokens - (together if record.continuous or together > 1 else 1)
    spread = (last[0] - first[0]) / 1e9
    return Timing(first[0] / 1e9, spread / rest if rest > 0 else None, record.completion_tokens, last[0] / 1e9)


@dataclass(frozen=True)
class LaunchTimes:
    """All requests of one launch of one side. Medians decide; means are the paper's; the tails are shown."""

    requests: int
    invalid: dict[str, int]
    continuous: bool
    ttft_median: float | None
    tpot_median: float | None
    ttft_mean: float | None
    tpot_mean: float | None
    ttft_p90: float | None
    tpot_p90: float | None
    ttft_p99: float | None
    tpot_p99: float | None
    tokens_per_second: float | None
    characters_median: float | None

    @property
    def invalid_share(self) -> float:
        return sum(self.invalid.values()) / self.requests if self.requests else 1.0


def summarise(records: Sequence[RequestRecord]) -> LaunchTimes:
    """One launch in numbers. Invalid requests are counted by reason and enter no number."""
    invalid: dict[str, int] = {}
    valid: list[Timing] = []
    for record in records:
        found = timing(record)
        if found is None:
            reason = fault_of(record) or ""
            invalid[reason] = invalid.get(reason, 0) + 1
        else:
            valid.append(found)
    ttft = [item.ttft for item in valid]
    tpot = [item.tpot for item in valid if item.tpot is not None]
    ends = [(record.sent_ns + (record.end_ns or 0)) / 1e9 for record in records]
    span = max(ends) - min(record.sent_ns for record in records) / 1e9 if records else 0.0
    return LaunchTimes(
        requests=len(records),
        invalid=invalid,
        continuous=all(record.continuous for record in records if record.error is None),
        ttft_median=median(ttft),
        tpot_median=median(tpot),
        ttft_mean=arithmetic_mean(ttft),
        tpot_mean=arithmetic_mean(tpot),
        ttft_p90=quantile(ttft, 0.9),
        tpot_p90=quantile(tpot, 0.9),
        ttft_p99=quantile(ttft, 0.99),
        tpot_p99=quantile(tpot, 0.99),
        tokens_per_second=sum(item.tokens for item in valid) / span if span > 0 and valid else None,
        characters_median=median(
            [record.characters for record in records if record.characters is not None and timing(record) is not None]
        ),
    )


def by_vllm_bench(record: RequestRecord) -> tuple[float, float | None]:
    """TTFT and TPOT as `vllm bench serve` defines them: first chunk with a choice; (latency - TTFT) / (n - 1)."""
    assert record.tokens and record.completion_tokens is not None
    first, last = record.tokens[0][0] / 1e9, record.tokens[-1][0] / 1e9
    n = record.completion_tokens
    return first, (last - first) / (n - 1) if n > 1 else None


def by_guidellm(record: RequestRecord) -> tuple[float, float | None, float]:
    """TTFT, inter-token latency and time per output token as GuideLLM defines them.

    Its inter-token latency is what others call TPOT; its time per output token, (last - sent) / n, includes TTFT.
    """
    first, spread = by_vllm_bench(record)
    assert record.completion_tokens is not None
    return first, spread, record.tokens[-1][0] / 1e9 / record.completion_tokens


@dataclass(frozen=True)
class Foreign:
    """A summary of records in the form that vLLM's and SGLang's clients write. Means in milliseconds."""

    submitted: int
    completed: int
    failed: int
    invalid: dict[str, str]
    mean_ttft_ms: float | None
    mean_tpot_ms: float | None
    tpot_samples: int
    output_tokens: int
    output_throughput: float | None
    request_throughput: float | None

    @property
    def degraded(self) -> bool:
        """Failed or invalid requests: may not enter a leaderboard."""
        return self.failed > 0 or bool(self.invalid) or self.completed < self.submitted


def summarise_foreign(records: Sequence[Mapping[str, Any]], duration_seconds: float, submitted: int) -> Foreign:
    """Records {id, success, latency, ttft, output_tokens} in seconds. Tokens come from usage, never from chunks."""
    invalid: dict[str, str] = {}
    good: list[Mapping[str, Any]] = []
    failed = 0
    for record in records:
        if not record["success"]:
            failed += 1
        elif record["output_tokens"] < 1:
            invalid[str(record["id"])] = "success without output"
        elif record["ttft"] < 0:
            invalid[str(record["id"])] = "time to first token is negative"
        else:
            good.append(record)
    # A single token has no time per further token.
    spreads = [
        (item["latency"] - item["ttft"]) / (item["output_tokens"] - 1) for item in good if item["output_tokens"] > 1
    ]
    ttft, tpot = arithmetic_mean([item["ttft"] for item in good]), arithmetic_mean(spreads)
    tokens = sum(item["output_tokens"] for item in good)
    timed = duration_seconds > 0
    return Foreign(
        submitted, len(good), failed, invalid,
        None if ttft is None else 1000 * ttft, None if tpot is None else 1000 * tpot, len(spreads), tokens,
        tokens / duration_seconds if timed else None, len(good) / duration_seconds if timed else None,
    )  # fmt: skip
