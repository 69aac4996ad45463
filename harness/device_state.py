"""What the device and the machine were doing around a measurement. EDGE: nvidia-smi. Recorded, deciding nothing."""

from __future__ import annotations

import os
import shutil
import subprocess

_QUERY = (
    "index,name,driver_version,pstate,clocks.sm,clocks.mem,clocks.max.sm,power.draw,power.limit,temperature.gpu,"
    "utilization.gpu,memory.used,clocks_throttle_reasons.active"
)
QUERY_SECONDS = 10.0


def device_state() -> dict[str, str]:
    """Load of the machine, and of each GPU clocks, power, temperature and who else uses it. Empty where not known."""
    state = {"load_1min": f"{os.getloadavg()[0]:.2f}", "cores": str(os.cpu_count() or 0)}
    if shutil.which("nvidia-smi") is None:
        return state
    state |= _rows("gpu", ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader"])
    state |= _rows("process", ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader"])
    return state


def _rows(name: str, command: list[str]) -> dict[str, str]:
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {f"{name}_0": "nvidia-smi did not answer"}
    return {f"{name}_{number}": line.strip() for number, line in enumerate(asked.stdout.splitlines())}
