"""What can go wrong, as types.

Two families that are never mixed: `ExpectedError` is the user's to mend (exit code 1), `MachineError` is a broken
machine (recorded as status `error`, exit code 4, never a failed model). A bad patch is neither: it is a value.
"""

from __future__ import annotations


class RtbError(Exception):
    """Base of everything rtb raises on purpose. The message says what happened, where, and what to do next."""


class ExpectedError(RtbError):
    """Input or set-up that the user can mend: exit code 1, no traceback."""


class InvalidFile(ExpectedError):
    """A file that does not hold what it should. Names file, field and line where known."""


class MachineError(RtbError):
    """The machine, not the patch: recorded as `error`, retried with a bound, never counted against a model."""


class SandboxGone(MachineError):
    """The sandbox ended while work in it was not done (killed container, stopped engine)."""


class EngineUnreachable(MachineError):
    """The Docker engine does not answer."""


class OutOfSpace(MachineError):
    """A disk or size limit of the host was reached."""


class StageBroken(MachineError):
    """A stage ended without a result that says anything about the patch. The message says what is missing."""


class BuildFailed(MachineError):
    """An environment could not be built. The message quotes the failing step and the end of its log."""


class LeakFound(BuildFailed):
    """A tree that should hold only its base commit lets something later be reached."""


class GitFailed(MachineError):
    """A git command of ours failed for a reason that is not the patch's."""


class StoredRunBroken(ExpectedError):
    """A stored run cannot be graded: a file is missing, cut or does not match its digest."""
