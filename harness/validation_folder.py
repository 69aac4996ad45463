"""The files of one task's validation, and whether an interrupted one may go on from them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rtb.errors import InvalidFile
from rtb.storage import write_model
from rtb.suite import read_model
from rtb.task import SCHEMA_VERSION, Frozen, StageName


class ValidationKey(Frozen):
    """key.json: what control runs must have in common to be one validation's."""

    schema_version: Literal[1] = SCHEMA_VERSION
    task_digest: str
    environment_digest: str
    harness_version: str
    device_class: str
    looks: tuple[int, ...]


@dataclass(frozen=True)
class ValidationFolder:
    """Every file name of a validation is a property here and nowhere else."""

    path: Path

    @property
    def key(self) -> Path:
        return self.path / "key.json"

    @property
    def record(self) -> Path:
        return self.path / "validation.json"

    def control(self, stage: StageName, control: str, number: int) -> Path:
        """The raw files of one control run."""
        return self.path / stage / f"{control}-{number}"

    def begin(self, key: ValidationKey) -> None:
        """Keep what an interrupted validation of this very key left; else an empty folder. A finished one is not gone
        on with: whoever asks again wants to see it measured again."""
        try:
            goes_on = not self.record.is_file() and self.key.is_file() and read_model(self.key, ValidationKey) == key
        except InvalidFile:
            goes_on = False
        if not goes_on:
            shutil.rmtree(self.path, ignore_errors=True)
            write_model(self.key, key)
