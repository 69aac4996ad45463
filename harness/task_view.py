"""One task of a run as a page shows it: its row in the table of tasks, and its drill-down. Reads the task's files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from harness.agent_view import AgentView
from harness.excerpts import Excerpt, log_excerpt, patch_excerpt, text_excerpt
from harness.model_views import AccuracyView, LatencyView, accuracy_view, latency_view
from harness.stages.unit import UnitFolder, stored_records
from rtb.page import Cell, Column, Row, Table, badge, render, table_html
from rtb.result import StageResult, Verdict
from rtb.run import Run, TaskRecord
from rtb.task import STAGES

TONES = {
    "resolved": "good", "passed": "good", "unresolved": "bad", "failed": "bad", "empty_patch": "bad",
    "apply_failed": "bad", "tampered": "odd", "inconclusive": "warn", "error": "warn", "not_submitted": "dim",
    "skipped": "dim",
}  # fmt: skip
MOST_TESTS = 200
MOST_MESSAGES = 12
COLUMNS = (
    Column("task"), Column("outcome"), Column("why", wide=True),
    Column("unit", minor=True, explain="expected tests that passed"), Column("accuracy", minor=True),
    Column("latency", minor=True), Column("launches", "number", minor=True, explain="of target kernels, traced"),
    Column("audit", "number", minor=True, explain="findings of the patch's audit; they decide nothing"),
    Column("seconds", "number", minor=True), Column("cost $", "number", minor=True),
)  # fmt: skip


@dataclass(frozen=True)
class TaskView:
    """All that the drill-down of a task shows."""

    outcome: Markup
    reason: str
    notes: Sequence[str]
    summary: Sequence[tuple[str, str]]
    stages: Markup
    patch_facts: Sequence[tuple[str, str]]
    patch: Excerpt | None
    tests: Markup
    messages: Sequence[Excerpt]
    agent: AgentView | None
    accuracy: AccuracyView | None
    latency: LatencyView | None
    kernels: Markup
    audit: Markup
    attempts: Markup
    logs: Sequence[Excerpt]
    provenance: Sequence[tuple[str, str]]


def task_row(verdict: Verdict) -> Row:
    """The task in the table of tasks."""
    unit, accuracy, latency = (_stage_cell(verdict.stage(name)) for name in STAGES)
    launches = _launches(verdict)
    findings = len(verdict.audit)
    kinds = ", ".join(sorted({item.kind for item in verdict.audit}))
    return Row(
        [
            Cell(verdict.instance_id, href=f"#task={verdict.instance_id}", note=verdict.category),
            Cell(badge(verdict.outcome, TONES.get(verdict.outcome, "")), sort=verdict.outcome),
            Cell(_short(verdict.reason, 240)),
            unit, accuracy, latency,
            Cell("–" if launches is None else f"{launches:,}", sort="" if launches is None else launches),
            Cell(str(findings), sort=findings, note=kinds),
            Cell("–" if verdict.seconds is None else f"{verdict.seconds:.1f}"),
            Cell(
                "–" if verdict.cost_usd is None else f"{verdict.cost_usd:.4f}",
                note="" if verdict.tokens is None else f"{verdict.tokens:,} tokens",
            ),
        ],
        id=f"t-{verdict.instance_id}",
        data={"category": verdict.category, "outcome": verdict.outcome},
    )  # fmt: skip


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _stage_cell(stage: StageResult | None) -> Cell:
    if stage is None:
        return Cell("–", sort="")
    note = ""
    if stage.unit is not None:
        note = f"{stage.unit.passed}/{stage.unit.expected}"
    elif stage.accuracy is not None:
        worst = min(item.difference_points for item in stage.accuracy.filters.values())
        note = f"{worst:+.1f} points"
    elif stage.latency is not None:
        note = " ".join(f"{item.estimate:.3f}" for item in stage.latency.ratios.values())
    word = "tampered" if stage.tampered else stage.status
    return Cell(badge(word, TONES.get(word, "")), sort=word, note=note)


def _launches(verdict: Verdict) -> int | None:
    """Launches of target kernels over the stages that were traced; None when none was."""
    traced = [item.coverage for item in verdict.stages if item.coverage and item.coverage.state != "untraced"]
    return sum(sum(item.targets.values()) for item in traced) if traced else None


def drill_down(run: Run, verdict: Verdict, limit: int, agent: AgentView | None = None) -> Markup:
    """The drill-down of a task. `limit`: characters of patch, messages, answers and logs together, roughly."""
    folder = run.task(verdict.instance_id)
    record = run.read_task_record(verdict.instance_id)
    unit, accuracy, latency = (verdict.stage(name) for name in STAGES)
    patch = folder.patch_diff.read_bytes() if folder.patch_diff.is_file() else None
    view = TaskView(
        outcome=badge(verdict.outcome, TONES.get(verdict.outcome, "")),
        reason=verdict.reason,
        notes=[f"{stage.stage}: {flag}" for stage in verdict.stages for flag in stage.flags],
        summary=_summary(verdict, record),
        stages=_stages(verdict),
        patch_facts=_patch_facts(verdict),
        patch=patch_excerpt(patch, f"{verdict.instance_id}/{folder.patch_diff.name}", limit // 3) if patch else None,
        tests=_tests(unit),
        messages=_messages(unit, folder.stage("unit"), limit // 4),
        agent=agent,
        accuracy=accuracy_view(accuracy.accuracy, folder.stage("accuracy"), limit // 4)
        if accuracy is not None and accuracy.accuracy is not None
        else None,
        latency=latency_view(latency.latency, folder.stage("latency"))
        if latency is not None and latency.latency is not None
        else None,
        kernels=_kernels(verdict),
        audit=_audit(verdict),
        attempts=_attempts(verdict),
        logs=_logs(run, verdict, limit // 3),
        provenance=_provenance(verdict, record),
    )
    return render("task.html.jinja", view=view)


def _summary(verdict: Verdict, record: TaskRecord | None) -> list[tuple[str, str]]:
    found = [("Model", verdict.model_name_or_path), ("Category", verdict.category)]
    if record is not None:
        task = record.task
        targets = ", ".join(
            f"{target.path}::{target.name} ({target.kind}, {target.change})" for target in task.targets
        )
        found += [("Task", f"{task.title} ({task.repo} #{task.pull_number})"), ("Targets", targets)]
    if verdict.seconds is not None:
        found.append(("Wall time", f"{verdict.seconds:.1f} s"))
    if verdict.cost_usd is not None:
        found.append(("Cost", f"$ {verdict.cost_usd:.4f}"))
    if verdict.tokens is not None:
        found.append(("Tokens", f"{verdict.tokens:,}"))
    return found


def _stages(verdict: Verdict) -> Markup:
    if not verdict.stages:
        return Markup("")
    columns = (Column("stage"), Column("result"), Column("why"), Column("seconds", "number"))
    rows = [
        Row([
            item.stage, Cell(badge(item.status, TONES.get(item.status, ""))),
            f"tampered: {item.tampered}" if item.tampered else item.reason,
            "–" if item.seconds is None else f"{item.seconds:.1f}",
        ])
        for item in verdict.stages
    ]  # fmt: skip
    return table_html(Table("d-stages", "Stages", columns, rows, sortable=False))


def _patch_facts(verdict: Verdict) -> list[tuple[str, str]]:
    patch = verdict.patch
    if patch is None:
        return [("Patch", "none")]
    found = [("How it was applied", ": ".join(part for part in (patch.status, patch.method, patch.reason) if part))]
    if patch.paths:
        found.append(("Paths", ", ".join(patch.paths)))
    found += [("Set aside", f"{path}: {why}") for path, why in patch.dropped]
    found += [("Flag", flag) for flag in patch.flags]
    return [*found, ("sha256", patch.sha256)]


def _tests(stage: StageResult | None) -> Markup:
    if stage is None or stage.unit is None or not stage.unit.not_passed:
        return Markup("")
    columns = (Column("test"), Column("status"), Column("message"))
    failing = list(stage.unit.not_passed.items())
    rows = [Row([name, status, message]) for name, (status, message) in failing[:MOST_TESTS]]
    caption = f"{len(failing)} of {stage.unit.expected} expected tests did not pass"
    if len(failing) > MOST_TESTS:
        caption += f"; the first {MOST_TESTS} are shown, verdict.json names all"
    return table_html(Table("d-tests", caption, columns, rows, sortable=False))


def _messages(stage: StageResult | None, raw: Path, limit: int) -> list[Excerpt]:
    """Tracebacks of the first expected tests that did not pass, from our own records of the run."""
    if stage is None or stage.unit is None or not stage.unit.not_passed or limit <= 0:
        return []
    records = stored_records(raw)
    texts = {
        test.id: text
        for test in records.tests
        if (text := "\n".join(phase.text for phase in test.phases if phase.text)) and test.id in stage.unit.not_passed
    }
    shown = list(texts.items())[:MOST_MESSAGES]
    return [text_excerpt(name, text, limit // len(shown)) for name, text in shown]


def _kernels(verdict: Verdict) -> Markup:
    columns = (Column("stage"), Column("kernel"), Column("launches", "number"), Column("target"))
    rows: list[Row] = []
    for stage in verdict.stages:
        if stage.coverage is None:
            continue
        targets = {name.rpartition("::")[2] for name in stage.coverage.targets}
        rows.append(Row([stage.stage, stage.coverage.reason, "", stage.coverage.state]))
        rows += [
            Row([stage.stage, name, f"{count:,}", "yes" if name in targets else ""])
            for name, count in stage.coverage.launches.items()
        ]
    return table_html(Table("d-kernels", "Traced launches", columns, rows, sortable=False)) if rows else Markup("")


def _audit(verdict: Verdict) -> Markup:
    columns = (Column("kind"), Column("path"), Column("line", "number"), Column("text"))
    rows = [
        Row([item.kind, item.path, "" if item.line is None else str(item.line), item.text]) for item in verdict.audit
    ]
    return table_html(Table("d-audit", "Findings", columns, rows, sortable=False)) if rows else Markup("")


def _attempts(verdict: Verdict) -> Markup:
    columns = (Column("try", "number"), Column("kind"), Column("fault"), Column("seconds", "number"))
    rows = [Row([str(item.number), item.kind, item.error, f"{item.seconds:.1f}"]) for item in verdict.attempts]
    return (
        table_html(Table("d-attempts", "Tries that ended in a machine fault", columns, rows)) if rows else Markup("")
    )


def _logs(run: Run, verdict: Verdict, limit: int) -> list[Excerpt]:
    folder = run.task(verdict.instance_id)
    paths = [folder.fault, UnitFolder(folder.stage("unit")).console]
    for name in ("accuracy", "latency"):
        paths += sorted(folder.stage(name).glob("server-*.log")) + sorted(
            (folder.stage(name) / "logs").glob("*-model.log")
        )
    there = [path for path in paths if path.is_file()]
    found = (log_excerpt(path, str(path.relative_to(run.path)), limit // max(len(there), 1)) for path in there)
    return [item for item in found if item is not None and item.text]


def _provenance(verdict: Verdict, record: TaskRecord | None) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    if record is not None:
        found += [("Base commit", record.task.base_commit), ("Landed as", record.task.merge_commit)]
    if verdict.key is not None:
        key = verdict.key
        found += [
            ("Task digest", key.task_digest), ("Patch digest", key.patch_sha256),
            ("Environment digest", key.environment_digest), ("Harness version", key.harness_version),
            ("Device class", key.device_class), ("Stages asked for", ", ".join(key.stages)),
            ("Decided by profile", key.profile),
        ]  # fmt: skip
    return [*found, ("Files", f"{verdict.instance_id}/ in the run's folder")]
