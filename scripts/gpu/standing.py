"""Latency over standing servers: every side's server is up at once, idle but for its turn, and blocks take turns.

`rtb evaluate` starts a server anew for each pair; here a start is paid once a side, so that many pairs fit into
minutes. What differs between launches of the same code is not in the interval: run it again to see that. Each
comparison is left as a run folder with a latency stage in it, which `rtb report` grades.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness import workload
from harness.client import measure, perform
from harness.decisions import Schedule
from harness.device_state import device_state
from harness.evaluate import regrade
from harness.opened_sides import Place, opener
from harness.plan import patch_plan
from harness.request import PATHS, Plan
from harness.server import NotReady, Ready, serving
from harness.stages import latency_grade as grade
from harness.stages.sides import ServerFacts
from rtb import __version__, environment, machine
from rtb.base_tree import base_repository
from rtb.baseline import Baseline
from rtb.git_objects import borrow_objects
from rtb.hydration import patches_of, sha256
from rtb.result import ResumeKey
from rtb.run import Run, RunRecord, StageTimes, TaskRecord
from rtb.sandbox import Sandbox
from rtb.storage import write_model
from rtb.task import task_digest


class Side:
    """A side by name, and the patch that makes it of the base tree."""

    def __init__(self, place: Place, name: str, predictions: Path) -> None:
        self.name = name
        if name.startswith("gold"):
            self.patch = patches_of(place.entry).gold
        elif name == "base":
            self.patch = b""
        else:
            self.patch = json.loads((predictions / f"{name}.jsonl").read_text())["model_patch"].encode()
        self.control = {"base": "base", "gold": "gold"}.get(name)

    def open(self, place: Place) -> AbstractContextManager[Sandbox]:
        return opener(place, self.patch, self.control)()


class Standing:
    """`rounds` rounds of blocks for one task; a comparison's run folder is `out`/standing-SIDE."""

    def __init__(self, place: Place, names: Sequence[str], predictions: Path, out: Path, single: int) -> None:
        self.place, self.single, self.out = place, single, out
        assert place.entry.task.latency is not None
        self.stage = place.entry.task.latency
        self.sides = {name: Side(place, name, predictions) for name in names}
        self.servers: dict[str, Ready] = {}
        self.words = 0
        self.launches: dict[str, list[grade.Launch]] = {name: [] for name in names}
        self.folders = {
            name: grade.LatencyFolder(self._run(name).task(place.entry.instance_id).stage("latency"))
            for name in names
            if name != "gold"
        }

    def measure(self, rounds: int, launches: Path) -> None:
        """Servers up, warm, then rounds. `launches`: a tracer's record of a server of gold, shown as coverage."""
        with ExitStack() as stack:
            boxes = {name: stack.enter_context(side.open(self.place)) for name, side in self.sides.items()}
            self._start(stack, boxes)
            if "gold" not in self.servers:
                raise SystemExit("gold's server does not come up; see its log")
            for folder in self.folders.values():
                folder.clear()
                if launches.is_file():
                    shutil.copy(launches, folder.trace)
            self.words = self._length()
            begun = time.monotonic()
            for name in self.servers:
                for number in range(2):
                    self._ask(name, "warm-up", 900 + number, self.stage.workload.prompts, None)
            for number in range(rounds):
                for position, name in enumerate(self._order(number)):
                    self._block(number, name, position)
                self._write(time.monotonic() - begun)
                print(f"round {number + 1} of {rounds}, {time.monotonic() - begun:.0f} s", flush=True)

    def _run(self, name: str) -> Run:
        return Run(self.out / f"standing-{name}")

    def _start(self, stack: ExitStack, boxes: dict[str, Sandbox]) -> None:
        logs = {name: self.out / "logs" / f"{name}.log" for name in boxes}
        (self.out / "logs").mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(len(boxes)) as pool:
            entered = {
                name: pool.submit(stack.enter_context, serving(box, self.stage.serve, logs[name]))
                for name, box in boxes.items()
            }
        for name, future in entered.items():
            found = future.result()
            if isinstance(found, NotReady):
                print(f"{name}: {found}\n{logs[name].read_text(errors='replace')[-2500:]}", flush=True)
            else:
                print(f"{name}: ready after {found.seconds:.1f} s", flush=True)
                self.servers[name] = found

    def _order(self, number: int) -> list[str]:
        """Gold is first, then last; the others turn, so that none always follows the same one."""
        others = [name for name in self.servers if name != "gold"]
        turned = others[number % len(others) :] + others[: number % len(others)] if others else []
        return ["gold", *turned] if number % 2 == 0 else [*reversed(turned), "gold"]

    def _block(self, number: int, name: str, position: int) -> None:
        before = device_state() if number % 4 == 0 else {}
        self._ask(name, "warm-up", number, 4, None, length=8)
        blocks = self.out / "blocks"
        blocks.mkdir(parents=True, exist_ok=True)
        for kind, count, concurrency in (
            (grade.BATCH, self.stage.workload.prompts, None),
            (grade.SINGLE, self.single, 1),
        ):
            kept = blocks / f"{number:03d}-{name}-{kind}.jsonl"
            self._ask(name, kind, number, count, kept, concurrency=concurrency)
            for other, folder in self.folders.items():
                if name == "gold":
                    shutil.copy(kept, folder.requests(number, "gold", kind))
                elif name == other:
                    shutil.copy(kept, folder.requests(number, "model", kind))
        self.launches[name].append(
            grade.Launch(
                pair=number, side="gold" if name == "gold" else "model", position=position,
                ready_seconds=self.servers[name].seconds, warmup_rounds=1, steady=True, device_before=before,
                device_after={},
            )
        )  # fmt: skip

    def _ask(
        self, name: str, purpose: str, block: int, count: int, out: Path | None, *,
        concurrency: int | None = None, length: int = 0,
    ) -> list[Any]:  # fmt: skip
        stage = self.stage
        if length:
            stage = stage.model_copy(update={"workload": stage.workload.model_copy(update={"output_len": length})})
        asked = workload.requests(stage, self.place.entry.instance_id, self.words or 32, purpose, block, count)
        told = Plan(
            address=self.servers[name].address, path=PATHS["completions"], questions=asked,
            concurrency=concurrency or min(count, stage.workload.concurrency),
        )  # fmt: skip
        return perform(told) if out is None else measure(told, out)

    def _length(self) -> int:
        """Words of the workload's input length, by gold's own count."""
        counts = []
        for words in workload.PROBE_WORDS:
            self.words = words
            counts.append((words, self._ask("gold", "probe", words, 1, None, length=2)[0].prompt_tokens or words))
        return workload.words_for(self.stage.workload.input_len, (counts[0], counts[1]))

    def _write(self, seconds: float) -> None:
        """Everything a grade needs, after each round, and the grade."""
        schedule = Schedule()
        for name, folder in self.folders.items():
            if name not in self.servers:
                continue
            both = sorted(self.launches["gold"] + self.launches[name], key=lambda item: (item.pair, item.position))
            grade.write_launches(folder.launches, both)
            record = grade.LatencyRecord(
                model=ServerFacts(ready_seconds=self.servers[name].seconds), words=self.words, looks=schedule.looks,
                alpha=schedule.alpha, known=Baseline(), seconds=seconds,
            )  # fmt: skip
            write_model(folder.record, record)
            self._write_run(name, seconds)
            regrade(self._run(name))

    def _write_run(self, name: str, seconds: float) -> None:
        entry, side, run = self.place.entry, self.sides[name], self._run(name)
        base = base_repository(entry)
        with borrow_objects(base.path) as objects:
            plan = patch_plan(entry, objects, base.tree, side.patch, control=side.control)
        digest = task_digest(entry.task, entry.tests, patches_of(entry).as_mapping())
        key = ResumeKey(
            patch_sha256=sha256(side.patch), task_digest=digest, environment_digest=self.place.prepared.digest,
            harness_version=__version__, device_class=self.place.device_class, stages=("latency",), profile="robust",
        )  # fmt: skip
        record = RunRecord(
            run_id=run.path.name, created_at=datetime.now(UTC).isoformat(timespec="seconds"), rtb_version=__version__,
            suite=entry.suite.name, suite_digest=sha256(digest.encode()),
            categories={entry.instance_id: entry.task.category}, whole_suite=False, stages=("latency",),
            profile="robust", sandbox="local", isolation=environment.not_isolated("local"), predictions=name,
            predictions_sha256=key.patch_sha256, model_names=(name,), machine=machine.this_machine(),
            versions=machine.versions(), workers=1, devices=tuple(self.place.devices),
        )  # fmt: skip
        folder = run.task(entry.instance_id)
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.patch_diff.write_bytes(side.patch)
        write_model(run.record, record)
        task = TaskRecord(
            task=entry.task, tests=entry.tests, model_name_or_path=name, patch=plan.facts, audit=plan.audit, key=key,
            stages=("latency",),
        )  # fmt: skip
        write_model(folder.record, task)
        write_model(folder.times, StageTimes(total_seconds=seconds, stage_seconds={"latency": seconds}))
