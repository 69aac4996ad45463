"""What can go wrong, as types.

Two families that are never mixed: `ExpectedError` is the user's to mend (exit code 1), `MachineError` is a broken
machine (recorded as status `error`, exit code 4, never a failed model). A bad patch is neither: it is a value.
"""

from __future__ import annotations

import errno

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_EXHAUSTED = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EIO, errno.ESTALE, errno.ENOLCK)
_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)


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


def known_fault(error: BaseException) -> RtbError | None:
    """What an error of the interpreter says about the machine, or None when it says nothing (a fault of ours, then).

    A full disk, no memory, no process, no file descriptor left: MachineError. A place that may not be written:
    ExpectedError.
    """
    if isinstance(error, RtbError):
        return error
    if isinstance(error, MemoryError):
        return MachineError("this machine has no memory left: free some and run the same command again")
    if isinstance(error, RuntimeError):
        if "can't start new thread" not in str(error):
            return None
        return MachineError(
            "this machine lets no further thread be started (limit of processes): raise it, run again"
        )
    if not isinstance(error, OSError):
        return None
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in NO_SPACE:
        return OutOfSpace(f"the disk is full{where}: free some space and run the same command again")
    if error.errno in _EXHAUSTED:
        return MachineError(f"this machine has no more to give: {error.strerror}{where}; run the same command again")
    if error.errno in _FORBIDDEN:
        return ExpectedError(f"{error.strerror}{where}: choose another folder or mend its permissions")
    return None
