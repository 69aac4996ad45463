"""What a page shows of the accuracy and latency stages: their facts, and the raw answers and times behind them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from harness.excerpts import Excerpt, text_excerpt
from harness.gsm8k import Answer, read_answers
from harness.plots import distribution_plot, ratio_plot
from harness.request import read_records
from harness.stages.accuracy import AccuracyFolder
from harness.stages.latency_grade import BATCH, LatencyFolder, Launch, logs_of, pair_values, read_launches
from harness.stages.sides import Side
from harness.timing import LaunchTimes, Timing, summarise, timing
from rtb.page import Cell, Column, Row, Table, badge, table_html
from rtb.result import AccuracyFacts, LatencyFacts, RatioFacts

MOST_FLIPS = 40
SIDES: tuple[Side, Side] = ("gold", "model")
DECISION_TONES = {"passed": "good", "failed": "bad", "inconclusive": "warn"}


@dataclass(frozen=True)
class Flip:
    """A question whose correctness differs between the sides, with both answers."""

    title: str
    answers: tuple[Excerpt, ...]


@dataclass(frozen=True)
class AccuracyView:
    """The accuracy stage on a page."""

    facts: Sequence[tuple[str, str]]
    filters: Markup
    told: str
    flips: Sequence[Flip]


def accuracy_view(facts: AccuracyFacts, raw: Path, limit: int) -> AccuracyView:
    """The stage's numbers and its flips; `limit` characters of answers are shown in all. Raises StoredRunBroken."""
    folder = AccuracyFolder(raw)
    gold = {answer.index: answer for answer in read_answers(folder.answers("gold"))}
    flips = [
        (gold[answer.index], answer)
        for answer in read_answers(folder.answers("model"))
        if answer.index in gold and _flipped(gold[answer.index], answer)
    ]
    shown = flips[:MOST_FLIPS]
    each = max(80, limit // (2 * max(len(shown), 1)))
    told = f"{len(flips)} of {facts.questions} questions flipped between right and wrong" if flips else (
        f"no question of {facts.questions} flipped between right and wrong")  # fmt: skip
    if len(shown) < len(flips):
        told += f"; the first {len(shown)} are shown, all are in {folder.answers('model').name}"
    percent = "–" if facts.flip_rate is None else f"{100 * facts.flip_rate:.2f} %"
    return AccuracyView(
        facts=(
            ("Questions asked", f"{facts.questions} of {facts.available}"),
            ("Margin", f"{facts.margin_points:g} points; {facts.provable_margin_points:.1f} can be shown"),
            ("Gold against gold flips", percent),
            ("Answers without a number", f"gold {facts.no_answer[0]}, model {facts.no_answer[1]}"),
            ("Profile robust", facts.robust),
            ("Profile paper", "passed" if facts.paper else "failed"),
        ),
        filters=_filters(facts),
        told=told,
        flips=[_flip(old, new, each) for old, new in shown],
    )


def _flipped(old: Answer, new: Answer) -> bool:
    return (old.strict_right, old.flexible_right) != (new.strict_right, new.flexible_right)


def _flip(old: Answer, new: Answer, limit: int) -> Flip:
    readings = []
    for name in ("strict", "flexible"):
        before, after = (getattr(answer, f"{name}_right") for answer in (old, new))
        if before != after:
            readings.append(f"{name} {'lost' if before else 'won'}")
    title = f"Question {new.index}: {', '.join(readings)}; right is {new.reference}"
    answers = tuple(
        text_excerpt(
            f"{side}: strict {answer.strict or 'nothing'}, flexible {answer.flexible or 'nothing'}",
            answer.text or "", limit, "answer",
        )
        for side, answer in zip(SIDES, (old, new), strict=True)
    )  # fmt: skip
    return Flip(title, answers)


def _filters(facts: AccuracyFacts) -> Markup:
    columns = (
        Column("filter"), Column("gold right", "number"), Column("model right", "number"), Column("lost", "number"),
        Column("won", "number"), Column("difference, points", "number"), Column("at least", "number"),
        Column("at most", "number", minor=True), Column("McNemar p", "number", minor=True), Column("decision"),
    )  # fmt: skip
    rows = [
        Row([
            name, str(item.gold_right), str(item.model_right), str(item.lost), str(item.won),
            f"{item.difference_points:+.2f}", f"{item.low_points:+.2f}", f"{item.high_points:+.2f}",
            f"{item.mcnemar_p:.3f}", item.decision,
        ])
        for name, item in facts.filters.items()
    ]  # fmt: skip
    return table_html(Table("d-filters", "Both sides on the same questions", columns, rows, sortable=False))


@dataclass(frozen=True)
class LatencyView:
    """The latency stage on a page."""

    facts: Sequence[tuple[str, str]]
    ratios: Markup
    plots: Sequence[Markup]
    launches: Markup


def latency_view(facts: LatencyFacts, raw: Path) -> LatencyView:
    """The stage's numbers and plots from its raw requests. Raises StoredRunBroken."""
    folder = LatencyFolder(raw)
    launches = read_launches(folder.launches)
    times: dict[tuple[int, Side, str], LaunchTimes] = {}
    valid: dict[Side, list[Timing]] = {"gold": [], "model": []}
    for launch in launches:
        records = list(read_records(folder.requests(launch.pair, launch.side, BATCH)))
        times[launch.pair, launch.side, BATCH] = summarise(records)
        valid[launch.side] += [item for record in records if (item := timing(record)) is not None]
    plots = []
    for name, ratio in facts.ratios.items():
        ratios = [math.exp(value) for value in logs_of(pair_values(times, BATCH, name))]
        plots.append(ratio_plot(name.upper(), ratios[: ratio.pairs], ratio))
    for what in ("ttft", "tpot"):
        gold, model = ([v for item in valid[side] if (v := getattr(item, what)) is not None] for side in SIDES)
        if gold and model:
            plots.append(distribution_plot(what.upper(), gold, model))
    return LatencyView(_latency_facts(facts), _ratios(facts), plots, _launches(launches, times))


def _latency_facts(facts: LatencyFacts) -> list[tuple[str, str]]:
    invalid = "; ".join(f"{count} × {reason}" for reason, count in facts.invalid.items())
    found = [
        ("Valid requests", f"{facts.requests:,}"),
        ("Invalid requests of the patch's server", invalid or "none"),
        ("Looks after block pairs", ", ".join(map(str, facts.looks))),
        ("Profile robust", facts.robust),
        ("Profile paper", "needs three pairs" if facts.paper is None else "passed" if facts.paper else "failed"),
    ]
    return [*found, ("Unmeasurable here", facts.unmeasurable)] if facts.unmeasurable else found


def _ratios(facts: LatencyFacts) -> Markup:
    columns = (
        Column("metric"), Column("decision"),
        Column("gold / model", "number"), Column("interval", "number"), Column("pairs", "number"),
        Column("threshold", "number"), Column("gold", "number"), Column("model", "number"),
        Column("paper's ratio", "number", minor=True), Column("gain over base", "number", minor=True),
    )  # fmt: skip

    def row(name: str, item: RatioFacts, shown_only: bool) -> Row:
        decision: Cell | str = f"{item.decision} (shown, decides nothing)"
        if not shown_only:
            decision = Cell(badge(item.decision, DECISION_TONES.get(item.decision, "")))
        return Row([
            name, decision, f"{item.estimate:.4f}", f"{item.low:.4f} to {item.high:.4f}", str(item.pairs),
            f"{item.threshold:g}", milliseconds(item.gold_seconds), milliseconds(item.model_seconds),
            number(item.paper_ratio), number(item.gain_over_base),
        ])  # fmt: skip

    rows = [row(name.upper(), item, False) for name, item in facts.ratios.items()]
    rows += [row(f"{name.upper()}, one request at a time", item, True) for name, item in facts.single.items()]
    return table_html(Table("d-ratios", "Speed against gold; above 1 is faster", columns, rows, sortable=False))


def _launches(launches: Sequence[Launch], times: dict[tuple[int, Side, str], LaunchTimes]) -> Markup:
    columns = (
        Column("pair", "number"), Column("side"), Column("place", "number"), Column("ready, s", "number"),
        Column("warm-up rounds", "number"), Column("steady"), Column("TTFT median", "number"),
        Column("TTFT p99", "number", minor=True), Column("TPOT median", "number"),
        Column("TPOT p99", "number", minor=True), Column("tokens/s", "number", minor=True),
    )  # fmt: skip
    rows = []
    for launch in launches:
        item = times[launch.pair, launch.side, BATCH]
        rate = item.tokens_per_second
        rows.append(Row([
            str(launch.pair), launch.side, str(launch.position), f"{launch.ready_seconds:.1f}",
            str(launch.warmup_rounds), "yes" if launch.steady else "no", milliseconds(item.ttft_median),
            milliseconds(item.ttft_p99), milliseconds(item.tpot_median), milliseconds(item.tpot_p99),
            "–" if rate is None else f"{rate:.0f}",
        ]))  # fmt: skip
    table = Table("d-launches", "One launch a line", columns, rows, sortable=False, row_headers=False)
    return table_html(table) if rows else Markup("")


def milliseconds(seconds: float | None) -> str:
    """A time for a table."""
    return "–" if seconds is None else f"{1000 * seconds:.2f} ms"


def number(value: float | None) -> str:
    """A ratio for a table."""
    return "–" if value is None else f"{value:.4f}"
