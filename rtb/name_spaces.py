"""Which name spaces of its own this kernel lets us give a process, found by trying. EDGE: unshare."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from dataclasses import dataclass


@dataclass(frozen=True)
class NameSpaces:
    command: tuple[str, ...]
    network: bool
    processes: bool
    mounts: bool = False


@functools.cache
def name_spaces(network: bool) -> NameSpaces:
    """The strongest `unshare` that this kernel lets us use, found by trying. `network`: the host's is kept."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return NameSpaces((), network=False, processes=False)
    net = () if network else ("--net",)
    pid = ("--pid", "--fork", "--kill-child")
    user = () if os.getuid() == 0 else ("--user", "--map-root-user")
    for spaces in ((*user, *net, *pid, "--mount-proc"), (*user, *net, *pid), (*user, *net)):
        try:
            tried = subprocess.run([unshare, *spaces, "true"], capture_output=True, timeout=10, check=False)
        except subprocess.TimeoutExpired:
            continue
        if tried.returncode == 0 and spaces:
            return NameSpaces(
                (unshare, *spaces),
                network=bool(net),
                processes="--pid" in spaces,
                mounts="--mount-proc" in spaces,
            )
    return NameSpaces((), network=False, processes=False)
