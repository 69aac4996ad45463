"""A folder with a report in it and one writer at a time: a run, or a series of runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rtb.storage import sole_folder, write_atomic, write_model
from rtb.task import Frozen


class ReportFolder:
    """`path` need not be there yet."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def report_json(self) -> Path:
        return self.path / "report.json"

    @property
    def report_markdown(self) -> Path:
        return self.path / "report.md"

    def write_report(self, report: Frozen, markdown: str) -> None:
        """Both forms of the report."""
        write_model(self.report_json, report)
        write_atomic(self.report_markdown, markdown.encode())

    @contextmanager
    def sole_writer(self) -> Iterator[None]:
        """Hold the folder for writing. Raises ExpectedError at once when another process evaluates into it."""
        told = f"another process is evaluating into {self.path}: wait for it, or choose another --run-id"
        with sole_folder(self.path, told):
            yield
