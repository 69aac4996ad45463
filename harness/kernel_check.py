"""A candidate kernel against a reference, in a sandbox: what crashed or was never written is not correct.

Naive checks accept kernels that change their input, return freed memory that happens to hold the reference's result,
replay an earlier answer, or do the work when the checker looks. See harness/worker/kernel_check.py for what is done
against each.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path

from harness.kernel_times import Calls, summarise_calls
from rtb.foreign_json import read_foreign_json
from rtb.sandbox import Change, Entry, Sandbox

ROUNDS = 4
CHECK_SECONDS = 300.0
MAX_RESULT_BYTES = 1 << 20
_WORKER = Path(__file__).parent / "worker" / "kernel_check.py"


@dataclass(frozen=True)
class KernelCheck:
    """`timing_valid` is None where nothing was timed; `times` (milliseconds) are there only when they are valid."""

    correct: bool
    reason: str
    timing_valid: bool | None = None
    timing_reason: str = ""
    times: Calls | None = None


def check_kernel(
    sandbox: Sandbox,
    reference: bytes,
    candidate: bytes,
    function: str,
    *,
    log: Path,
    shape: tuple[int, ...] | None = None,
    reference_function: str | None = None,
    device: str = "cpu",
    seed: int = 0,
) -> KernelCheck:
    """Run both sources in one fresh process of the sandbox and compare what `function` gives.

    With `shape`, the function takes one float32 tensor of that shape; without, nothing. Output goes to the host file
    `log`. Raises what the sandbox raises.
    """
    folder = f"check-{secrets.token_hex(4)}"
    inside = f"{sandbox.scratch}/{folder}"
    nonce = secrets.token_hex(16)
    plan = {
        "reference": f"{inside}/reference.py", "candidate": f"{inside}/candidate.py", "function": function,
        "reference_function": reference_function or function, "shape": shape, "rounds": ROUNDS, "device": device,
        "seed": seed, "nonce": nonce,
    }  # fmt: skip
    files = {
        "reference.py": reference, "candidate.py": candidate, "check.py": _WORKER.read_bytes(),
        "plan.json": json.dumps(plan).encode(),
    }  # fmt: skip
    sandbox.write(sandbox.scratch, Change(write={f"{folder}/{name}": Entry(data) for name, data in files.items()}))
    argv = ["python", f"{inside}/check.py", f"{inside}/plan.json", f"{inside}/result.json"]
    done = sandbox.execute(argv, output=log, timeout_seconds=CHECK_SECONDS)
    if done.exit_code != 0:
        lines = log.read_text(errors="replace").strip().splitlines()
        how = "did not end" if done.timed_out else f"ended with exit code {done.exit_code}"
        return KernelCheck(False, f"no result compared: the process {how}: {lines[-1] if lines else 'no output'}")
    data = sandbox.read(f"{inside}/result.json", limit_bytes=MAX_RESULT_BYTES)
    return _read(data, nonce)


def _read(data: bytes | None, nonce: str) -> KernelCheck:
    try:
        match read_foreign_json(data or b""):
            case {"nonce": str(seen), "correct": bool(correct), "reason": str(reason), **rest} if seen == nonce:
                valid = rest.get("timing_valid")
                samples = rest.get("samples_ms") if valid is True else None
                times = summarise_calls([float(item) for item in samples], 1) if isinstance(samples, list) else None
                why = str(rest.get("timing_reason", ""))
                return KernelCheck(correct, reason, valid if isinstance(valid, bool) else None, why, times)
    except ValueError:
        pass
    return KernelCheck(False, "no result compared: the process left none that is whole")
