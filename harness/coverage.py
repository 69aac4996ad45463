"""Proof of coverage: did the stage launch what the task is about? Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rtb.foreign_json import read_foreign_json
from rtb.result import CoverageFacts
from rtb.task import Target

MAX_COUNT = 10**15  # no run has so many launches
MAX_KERNELS = 200  # kept in a result; a server of a large framework launches a few dozen


@dataclass(frozen=True)
class Launches:
    """One line of a trace. `how`: launch, hook, inside, unhooked (see harness/worker/launches.py)."""

    how: str
    phase: str
    kernel: str
    file: str
    count: int


def parse_trace(text: str) -> tuple[Launches, ...]:
    """Launches from what the processes of a run left: JSON lists, one after the other. What is broken is left out."""
    return tuple(_launches(text))


def _launches(text: str) -> Iterator[Launches]:
    for line in text.splitlines():
        try:
            rows = read_foreign_json(line)
        except ValueError:
            continue
        for row in rows if isinstance(rows, list) else ():
            match row:
                case [str(how), str(phase), str(kernel), str(file), int(count)] if 0 < count < MAX_COUNT:
                    yield Launches(how, phase, kernel, file, count)


def decide_coverage(
    targets: Sequence[Target], trace: Sequence[Launches] | None, phase: str | None = None
) -> CoverageFacts:
    """Covered when at least one target kernel was launched, or was inside a launched one.

    With `phase`, only launches in it count as proof. A task without a Triton kernel among its targets is untraced.
    """
    kernels = [target for target in targets if target.kind == "triton_kernel"]
    if trace is None:
        return CoverageFacts(state="untraced", reason="launches were not traced")
    totals, phases = _totals(trace)
    if not kernels:
        return CoverageFacts(state="untraced", reason="no target is a Triton kernel", launches=totals, phases=phases)
    proof = [item for item in trace if phase is None or item.phase == phase]
    counts = {f"{target.path}::{target.name}": _count(target, proof) for target in kernels}
    where = f" while it handled {phase}" if phase else ""
    missing = [name for name, count in counts.items() if count == 0]
    unhooked = next((item for item in trace if item.how == "unhooked"), None)
    if unhooked is not None and len(missing) == len(counts):
        reason = f"launches could not be traced with this Triton ({unhooked.kernel}: {unhooked.file})"
        return CoverageFacts(state="untraced", reason=reason, launches=totals, phases=phases)
    if len(missing) == len(counts):
        reason = f"uncovered: the stage never launched {', '.join(missing)}{where}"
        if not totals:
            reason += " (nor any other Triton kernel)"
    else:
        launched = sum(counts.values())
        reason = f"{launched} launches of target kernels{where}"
        if missing:
            reason += f"; not launched: {', '.join(missing)}"
    state = "uncovered" if len(missing) == len(counts) else "covered"
    return CoverageFacts.model_validate(
        {"state": state, "reason": reason, "targets": counts, "launches": totals, "phases": phases}
    )


def _totals(trace: Sequence[Launches]) -> tuple[dict[str, int], dict[str, int]]:
    """Launches by kernel and by phase; the hook counts only where our wrapper did not see the kernel."""
    seen = {item.kernel.rpartition(".")[2] for item in trace if item.how == "launch"}
    kernels: dict[str, int] = {}
    phases: dict[str, int] = {}
    for item in trace:
        if item.how == "launch" or (item.how == "hook" and item.kernel not in seen):
            kernels[item.kernel] = kernels.get(item.kernel, 0) + item.count
            phases[item.phase] = phases.get(item.phase, 0) + item.count
    most = sorted(kernels, key=lambda name: (-kernels[name], name))[:MAX_KERNELS]
    return {name: kernels[name] for name in most}, phases


def _count(target: Target, trace: Sequence[Launches]) -> int:
    """Launches of a target: by name and file where the file is known, by bare name where only the hook saw it."""
    own = sum(
        item.count
        for item in trace
        if item.how in ("launch", "inside") and item.kernel == target.name and _same_file(item.file, target.path)
    )
    bare = target.name.rpartition(".")[2]
    return own or sum(item.count for item in trace if item.how == "hook" and item.kernel == bare)


def _same_file(file: str, path: str) -> bool:
    return file == path or file.endswith(f"/{path}")
