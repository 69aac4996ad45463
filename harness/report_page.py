"""report.html: a run as one self-contained page. Drill-downs are compressed in the page and unpacked when opened."""

from __future__ import annotations

import base64
import gzip
import json
import multiprocessing
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup

from harness import paper_tables
from harness.agent_view import agent_facts, agent_view
from harness.paper_tables import TABLE3_CAPTION, TABLE4_CAPTION, Numbers
from harness.profiles import PROFILES, TaskRows, task_rows
from harness.task_view import COLUMNS, drill_down, task_row
from harness.verdict import grade_task
from rtb.page import Column, Filter, Row, Table, asset, choice, json_block, page, render, table_html
from rtb.result import Report
from rtb.run import Run, RunRecord

AgentFacts = Mapping[str, Mapping[str, Any]]
PAGE_LIMIT_BYTES = 5 * 1000**2
BLOCK_TASKS = 20  # drill-downs packed together: their common parts are stored once
TEXT_PER_RUN = 18 * 1000**2  # characters of patches, answers and logs before compression, over all tasks
MOST_TEXT, LEAST_TEXT = 120_000, 600  # of one task
PARALLEL_FROM = 200
EXPLAIN = (
    "Intervals are 95 %: Wilson's for percentages, Student's for means. n is the number of tasks a metric stands on: "
    "all tasks for Success, Applied and FTP; those with a unit result for UTP; those that passed all unit tests "
    "and have a result for NR and the ratios. S_TTFT and S_TPOT are gold / model: above 1 is faster than gold."
)


@dataclass(frozen=True)
class Block:
    """Some tasks of the page: their rows, their numbers, and their packed drill-downs."""

    ids: tuple[str, ...]
    rows: tuple[Row, ...]
    numbers: tuple[TaskRows, ...]
    packed: str


def report_page(run: Run, report: Report, limit_bytes: int = PAGE_LIMIT_BYTES) -> str:
    """The page of a graded run (see `harness.evaluate.regrade`). Raises StoredRunBroken.

    Texts are cut further, and say so, while the page is above `limit_bytes`.
    """
    record = run.read_record()
    names = record.instance_ids
    limit = max(LEAST_TEXT, min(MOST_TEXT, TEXT_PER_RUN // max(len(names), 1)))
    agents = agent_facts(run, record)
    while True:
        text = _assemble(record, report, _blocks(run, record, agents, limit))
        size = len(text.encode())
        if size <= limit_bytes or limit <= LEAST_TEXT:
            return text
        # Texts that hardly compress: all tasks show less of them, and say so.
        limit = max(LEAST_TEXT, min(limit // 2, int(limit * limit_bytes / size / 1.5)))


def _blocks(run: Run, record: RunRecord, agents: AgentFacts, limit: int) -> list[Block]:
    names = record.instance_ids
    starts = range(0, len(names), BLOCK_TASKS)
    groups = [{name: agents.get(name, {}) for name in names[start : start + BLOCK_TASKS]} for start in starts]
    work = partial(_block, run, record.model_copy(update={"problems": ()}), limit)
    processes = os.cpu_count() or 1
    if len(names) < PARALLEL_FROM or processes == 1:
        return [work(group) for group in groups]
    # Forked, so that nothing is imported again; no thread of ours is running here.
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("fork")) as pool:
        return list(pool.map(work, groups))


def _block(run: Run, record: RunRecord, limit: int, agents: AgentFacts) -> Block:
    """The block of the tasks that `agents` names."""
    verdicts = [run.read_verdict(name) or grade_task(run, record, name) for name in agents]
    details = {}
    for item in verdicts:
        agent = agent_view(agents[item.instance_id], Path(record.predictions), limit // 4)
        details[item.instance_id] = str(drill_down(run, item, limit, agent))
    data = gzip.compress(json.dumps(details, ensure_ascii=True).encode(), compresslevel=7, mtime=0)
    return Block(
        tuple(agents),
        tuple(task_row(item) for item in verdicts),
        tuple(task_rows(item, unit=record.has_unit) for item in verdicts),
        base64.b64encode(data).decode(),
    )


def _assemble(record: RunRecord, report: Report, blocks: Sequence[Block]) -> str:
    found = paper_tables.numbers([item for block in blocks for item in block.numbers])
    index = {name: place for place, block in enumerate(blocks) for name in block.ids}
    model = ", ".join(record.model_names) or "no model"
    body = render(
        "report.html.jinja",
        notes=report.notes,
        cards=_cards(report, found),
        headline=_headline(found),
        explain=EXPLAIN + _untold(found),
        table3=_plain("table3", TABLE3_CAPTION, paper_tables.TABLE3_COLUMNS, paper_tables.table3(model, found)),
        table4=_plain("table4", TABLE4_CAPTION, paper_tables.TABLE4_COLUMNS, paper_tables.table4(found)),
        tasks=_tasks([row for block in blocks for row in block.rows]),
        provenance=_provenance(record),
        index=json_block("task-index", index),
        blocks=[Markup(block.packed) for block in blocks],
    )  # fmt: skip
    return page(
        f"{record.suite}: {model}",
        body,
        subtitle=f"Run {record.run_id}, {record.created_at}, sandbox {record.sandbox}, stages "
        f"{', '.join(record.stages)}, decided by profile {record.profile}, rtb {record.rtb_version}",
        scripts=[asset("report.js")],
        head=Markup("<style>{}</style>").format(asset("report.css")),
    )


def _cards(report: Report, found: Numbers) -> list[dict[str, str]]:
    cards = []
    for profile in PROFILES:
        whole = found.whole[profile]
        success = whole.metrics.success
        note = f"{paper_tables.interval(success, 'success')} %"
        if whole.untold:
            note += f"; {whole.untold} cannot be told"
        value = f"{paper_tables.shown(success, 'success')} %"
        cards.append({"name": f"Success, profile {profile}", "value": value, "note": note, "n": str(success.n)})
    counts = {name: count for name, count in report.outcomes.items() if count}
    cards += [
        {"name": name, "value": str(count), "note": f"of {report.tasks} tasks", "n": ""}
        for name, count in counts.items()
    ]
    return cards


def _untold(found: Numbers) -> str:
    count = max(item.untold for item in found.whole.values())
    if not count:
        return ""
    return (
        f" {count} task(s) cannot be told under the other profile: the one that decided this run ended their "
        "evaluation before a stage that the other needs. They count as not resolved there."
    )


def _headline(found: Numbers) -> Markup:
    columns = [Column("metric")]
    for profile in PROFILES:
        columns += [Column(profile, "number"), Column(f"{profile}: 95 % interval", "number"), Column("n", "number")]
    rows = [Row(cells) for cells in paper_tables.headline_rows(found)]
    return table_html(Table("headline", "Metrics in both profiles", columns, rows, sortable=False))


def _plain(name: str, caption: str, titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    words = ("Model", "Profile", "Category")
    columns = [Column(title, "text" if title in words else "number") for title in titles]
    return table_html(Table(name, caption, columns, [Row(cells) for cells in rows], sortable=False))


def _tasks(rows: Sequence[Row]) -> Markup:
    filters: list[Filter] = [choice("category", "Category", rows), choice("outcome", "Outcome", rows)]
    return table_html(Table("tasks", "One row a task", COLUMNS, rows, filters, search=True))


def _provenance(record: RunRecord) -> list[tuple[str, str]]:
    machine = record.machine
    return [
        ("System", machine.system),
        ("Processor", f"{machine.processor}, {machine.cores} cores, {machine.memory_bytes / 1024**3:.1f} GiB"),
        ("GPUs", ", ".join(machine.gpus) or "none"),
        ("Driver", machine.driver or "none"),
        ("Devices leased", ", ".join(record.devices) or "none"),
        ("Workers", str(record.workers)),
        ("Versions", ", ".join(f"{name} {version}" for name, version in record.versions.items())),
        ("Predictions", record.predictions),
        ("Suite digest", record.suite_digest),
        ("Predictions digest", record.predictions_sha256),
        *(("Sandbox", item) for item in record.isolation),
    ]
