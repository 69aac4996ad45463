"""Plots of a latency stage as inline SVG, by pygal. Colours and fonts come from the page's style, so they follow dark
and light. The numbers are those of the grade; nothing is computed here but ranks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

from markupsafe import Markup

from rtb.leaderboard import Milestone
from rtb.result import RatioFacts

SVG = "{http://www.w3.org/2000/svg}"
CURVE_POINTS = 60
Points = Sequence[tuple[float, float]]


def ratio_plot(name: str, ratios: Sequence[float], facts: RatioFacts) -> Markup:
    """Gold / model of each block pair, with the estimate, its interval and the threshold."""
    last = max(len(ratios), 2)

    def level(value: float) -> Points:
        return [(1, value), (last, value)]

    chart = _chart(
        f"{name} of each block pair", "block pair", "gold / model", show_x_guides=False,
        x_labels=list(range(1, last + 1, max(1, last // 12))), legend_at_bottom_columns=4,
    )  # fmt: skip
    chart.add("pairs", list(enumerate(ratios, start=1)), stroke=False)
    chart.add("estimate", level(facts.estimate), show_dots=False)
    chart.add("interval", [*level(facts.low), None, *level(facts.high)],
              show_dots=False, allow_interruptions=True)  # fmt: skip
    chart.add(f"{facts.threshold:g}", level(facts.threshold), show_dots=False)
    words = (
        f"{name}: {len(ratios)} block pairs, estimate {facts.estimate:.3f}, interval {facts.low:.3f} to "
        f"{facts.high:.3f}, threshold {facts.threshold:g}"
    )
    return _svg(chart, "ratios", words)


def distribution_plot(name: str, gold: Sequence[float], model: Sequence[float]) -> Markup:
    """The cumulative distribution of a time over requests, in milliseconds, of both sides."""
    chart = _chart(f"{name} of all requests", "milliseconds", "share", range=(0, 1))
    for side, values in (("gold", gold), ("model", model)):
        chart.add(f"{side} ({len(values)})", cumulative(values), show_dots=False)
    words = f"{name}: cumulative distribution, {len(gold)} requests of gold, {len(model)} of the model's side"
    return _svg(chart, "distribution", words)


def history_plot(group: str, lines: Sequence[Milestone]) -> Markup:
    """Success of each submission of a group by its date, and the best so far as steps. Percent."""
    days = sorted({line.entry.metadata.date for line in lines})
    first, last = days[0].toordinal(), days[-1].toordinal()
    room = 5 + (last - first) // 16  # for the labels of the first and the last day
    chart = _chart(
        group, "date", "success %", range=(0, 100), x_labels=_months(first, last), xrange=(first - room, last + room),
        x_value_formatter=lambda value: date.fromordinal(int(value)).isoformat(),
    )  # fmt: skip
    dots = [(line.entry.metadata.date.toordinal(), round(line.percent, 1)) for line in lines]
    steps: list[tuple[float, float]] = []
    for line in lines:
        if line.is_record:
            day = line.entry.metadata.date.toordinal()
            if steps:
                steps.append((day, steps[-1][1]))
            steps.append((day, round(line.percent, 1)))
    if steps:
        steps.append((last, steps[-1][1]))
    chart.add(f"submissions ({len(dots)})", dots, stroke=False)
    chart.add("best so far", steps, show_dots=False)
    words = f"Success over time, {group}: {len(dots)} submissions from {days[0]} to {days[-1]}"
    return _svg(chart, "history", words)


def _months(first: int, last: int) -> list[dict[str, Any]]:
    """Labels at up to four evenly spread days: a label at each submission would lie over its neighbour."""
    steps = min(3, max(1, (last - first) // 31))
    days = sorted({first + (last - first) * step // steps for step in range(steps + 1)})
    return [{"value": day, "label": f"{date.fromordinal(day):%Y-%m}"} for day in days]


def cumulative(seconds: Sequence[float], points: int = CURVE_POINTS) -> list[tuple[float, float]]:
    """(milliseconds, share of values not above it), at evenly spread ranks with the first and the last."""
    ordered = sorted(seconds)
    n = len(ordered)
    ranks = range(n) if n <= points else sorted({round(step * (n - 1) / (points - 1)) for step in range(points)})
    return [(1000 * ordered[rank], (rank + 1) / n) for rank in ranks]


def _chart(title: str, x_title: str, y_title: str, **more: Any) -> Any:
    import pygal

    return pygal.XY(
        js=[], css=[], no_prefix=True, width=460, height=290, title=title, x_title=x_title, y_title=y_title,
        disable_xml_declaration=True, dots_size=3, legend_at_bottom=True, legend_box_size=10, truncate_legend=-1,
        margin=8, spacing=6, max_scale=8, **more,
    )  # fmt: skip


def _svg(chart: Any, kind: str, words: str) -> Markup:
    """The picture alone: without pygal's script, style and tooltips, which the page replaces, and with a label."""
    from pygal.etree import etree  # the standard library's, or lxml's where that is installed

    root = chart.render_tree()
    for parent in list(root.iter()):
        for child in list(parent):
            tag, name = child.tag, str(child.get("class") or "")
            extra = not isinstance(tag, str) or tag.removeprefix(SVG) in ("defs", "desc", "title", "style", "script")
            if extra or "tooltip-overlay" in name or "text-overlay" in name:
                parent.remove(child)
        parent.attrib.pop("id", None)
    root.attrib.update({"role": "img", "aria-label": words, "class": f"plot-{kind}"})
    return Markup(etree.tostring(root, encoding="unicode").replace("ns0:", "").replace(":ns0", ""))
