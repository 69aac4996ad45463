"""What a task needs of a host, against what a host has: GPUs, the driver's CUDA, Python and torch."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rtb.local_environment import LOCAL_PYTHON, HostPython
from rtb.machine import Card
from rtb.task import Environment


@dataclass(frozen=True)
class Host:
    """`cuda`: the newest CUDA that the driver serves. `python`: it stands in for lock files, if it is there."""

    cards: tuple[Card, ...]
    cuda: str | None
    python: HostPython | None


def unmet(environment: Environment, host: Host) -> tuple[str, ...]:
    """Each need that this host does not meet, in one sentence; none: the task can run here."""
    return (*_gpu(environment, host), *_packages(environment, host.python))


def _gpu(environment: Environment, host: Host) -> list[str]:
    needs = environment.gpu
    if not needs.count:
        return []
    if len(host.cards) < needs.count:
        return [f"{needs.count} GPU(s) are needed, {len(host.cards)} can be seen"]
    found = []
    for card in host.cards[: needs.count]:
        if needs.min_compute_capability and card.capability < needs.min_compute_capability:
            found.append(
                f"{card.name} has compute capability {card.capability}, {needs.min_compute_capability} is needed"
            )
        if needs.min_memory_gib and card.memory_gib < needs.min_memory_gib:
            found.append(f"{card.name} has {card.memory_gib:.0f} GiB, {needs.min_memory_gib:.0f} GiB are needed")
    # Within one major version a newer minor one runs on an older driver.
    if environment.cuda and host.cuda and _number(host.cuda)[0] < _number(environment.cuda)[0]:
        found.append(
            f"the driver serves CUDA {host.cuda}, the task's is {environment.cuda}: a newer driver is needed"
        )
    return list(dict.fromkeys(found))


def _packages(environment: Environment, python: HostPython | None) -> list[str]:
    """Of the interpreter that RTB_LOCAL_PYTHON names; without one, pip installs what the task's lock file says."""
    if python is None:
        return []
    found = []
    if _number(python.version)[:2] != _number(environment.python)[:2]:
        found.append(f"{LOCAL_PYTHON} is Python {python.version}, the task's is {environment.python}")
    torch = next((item.partition("==")[2] for item in python.packages if item.startswith("torch==")), None)
    if environment.torch and (torch is None or _number(torch)[:2] != _number(environment.torch)[:2]):
        found.append(f"{LOCAL_PYTHON} has torch {torch or 'not at all'}, the task's is {environment.torch}")
    return found


def _number(version: str) -> tuple[int, ...]:
    """(2, 11, 0) of 2.11.0+cu130."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0]))
