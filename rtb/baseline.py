"""Baseline: what validate measured with gold for a task on a class of device. File: baselines.json."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from rtb.result import CoverageFacts
from rtb.storage import write_model
from rtb.suite import TaskEntry, read_model
from rtb.task import SCHEMA_VERSION, Frozen, InstanceId, StageName

MetricName = Literal["s_ttft", "s_tpot"]


class Baseline(Frozen):
    """Null or empty where it was not measured. Ratios are of medians; 1 is equal."""

    environment: str = Field(default="", description="digest of the environment it was measured in")
    flip_rate: float | None = Field(default=None, description="share of answers that differ between two runs of gold")
    gold_over_gold: dict[MetricName, float] = {}
    deviation: dict[MetricName, float] = Field(default={}, description="of ln gold / gold between block pairs")
    gold_over_base: dict[MetricName, float] = Field(default={}, description="base's time / gold's: gold's own gain")
    unmeasurable: str | None = Field(default=None, description="why latency cannot be told here")
    coverage: dict[StageName, CoverageFacts] = {}


class Baselines(Frozen):
    """By class of device: the GPU's name, or cpu."""

    schema_version: Literal[1] = SCHEMA_VERSION
    instance_id: InstanceId
    devices: dict[str, Baseline] = {}


def baselines_path(entry: TaskEntry) -> Path:
    """Where a task's baselines are kept."""
    return entry.folder.path / "baselines.json"


def read_baseline(entry: TaskEntry, device_class: str) -> Baseline:
    """The baseline for a class of device; an empty one when validate has not run there. Raises InvalidFile."""
    path = baselines_path(entry)
    if not path.is_file():
        return Baseline()
    return read_model(path, Baselines).devices.get(device_class, Baseline())


def write_baseline(entry: TaskEntry, device_class: str, baseline: Baseline) -> None:
    """Keep a baseline beside those of other classes of device."""
    path = baselines_path(entry)
    known = read_model(path, Baselines).devices if path.is_file() else {}
    devices = dict(sorted({**known, device_class: baseline}.items()))
    write_model(path, Baselines(instance_id=entry.instance_id, devices=devices))
