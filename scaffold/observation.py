"""What a command left, as the model reads it: exit code and output, head and tail kept when it is long."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

MARKER = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
HEAD_CHARACTERS = 5000
TAIL_CHARACTERS = 5000
_READ_BYTES = 4 * (HEAD_CHARACTERS + TAIL_CHARACTERS)  # a character is at most four bytes


@dataclass(frozen=True)
class Output:
    """The output of a command as far as it is looked at. `size_bytes` counts all that was written."""

    head: str
    tail: str
    size_bytes: int
    sha256: str

    @property
    def text(self) -> str:
        """All of it, or head, a line that says how much is left out, and tail."""
        if not self.tail:
            return self.head
        kept = len((self.head + self.tail).encode("utf-8", "surrogateescape"))
        return (
            f"{self.head}\n[{max(0, self.size_bytes - kept)} bytes left out here: the output is too long. "
            f"Use head, tail, sed -n or grep, or send it to a file and look at parts.]\n{self.tail}"
        )


@dataclass(frozen=True)
class Observation:
    """A command that ran. `returncode` is -1 when the time limit ended it."""

    command: str
    returncode: int
    output: Output
    seconds: float
    timed_out: bool = False
    out_of_memory: bool = False
    note: str = ""

    @property
    def submission(self) -> str | None:
        """What follows the marker, or None when this did not submit: first line the marker, exit code 0."""
        if self.returncode != 0:
            return None
        first, _, rest = self.output.head.lstrip().partition("\n")
        return rest if first.strip() == MARKER else None

    def render(self) -> str:
        """The text the model is shown."""
        lines = [f"<exception>{self.note}</exception>"] if self.note else []
        lines.append(f"<returncode>{self.returncode}</returncode>")
        text = self.output.text
        lines.append(f"<output>\n{text}{'' if text.endswith(chr(10)) or not text else chr(10)}</output>")
        return "\n".join(lines)


def read_output(path: Path, size_bytes: int) -> Output:
    """Head and tail of an output file, read without loading the rest. Bytes that are no UTF-8 become U+FFFD."""
    digest = hashlib.sha256()
    stored = path.stat().st_size
    with path.open("rb") as file:
        if stored <= _READ_BYTES:
            data = file.read()
            digest.update(data)
            text = data.decode("utf-8", "replace")
            if len(text) <= HEAD_CHARACTERS + TAIL_CHARACTERS:
                return Output(text, "", size_bytes, digest.hexdigest())
            return Output(text[:HEAD_CHARACTERS], text[-TAIL_CHARACTERS:], size_bytes, digest.hexdigest())
        head = file.read(4 * HEAD_CHARACTERS).decode("utf-8", "replace")[:HEAD_CHARACTERS]
        file.seek(-4 * TAIL_CHARACTERS, 2)
        tail = file.read().decode("utf-8", "replace")[-TAIL_CHARACTERS:]
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256")
    return Output(head, tail, size_bytes, digest.hexdigest())
