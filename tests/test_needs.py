"""What tasks need of a host, and what `rtb doctor` says of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rtb import machine
from rtb.local_environment import HostPython
from rtb.machine import Card
from rtb.needs import Host, unmet
from rtb.task import Environment, GpuNeeds

ROOT = Path(__file__).resolve().parent.parent
H200 = Card("NVIDIA H200", 9.0, 139.8)
T4 = Card("Tesla T4", 7.5, 15.0)
VLLM = Environment(
    dockerfile="vllm", python="3.12", cuda="13.0.2", torch="2.11.0",
    gpu=GpuNeeds(count=1, min_compute_capability=8.9, min_memory_gib=40.0),
)  # fmt: skip


def python(version: str, *packages: str) -> HostPython:
    return HostPython("/usr/bin/python3", version, (), packages)


@pytest.mark.parametrize(
    ("host", "words"),
    [
        (Host((H200,), "13.0", python("3.12.3", "torch==2.11.0+cu130")), []),
        (Host((H200,), "13.1", None), []),
        (Host((), None, None), ["1 GPU(s) are needed, 0 can be seen"]),
        (Host((T4,), "13.0", None), ["capability 7.5, 8.9 is needed", "has 15 GiB, 40 GiB are needed"]),
        (Host((H200,), "12.8", None), ["the driver serves CUDA 12.8, the task's is 13.0.2"]),
        (Host((H200,), "13.0", python("3.11.9", "torch==2.11.0")), ["is Python 3.11.9, the task's is 3.12"]),
        (Host((H200,), "13.0", python("3.12.1", "torch==2.9.1")), ["has torch 2.9.1, the task's is 2.11.0"]),
        (Host((H200,), "13.0", python("3.12.1", "numpy==2.0")), ["has torch not at all"]),
    ],
)
def test_each_need_that_a_host_does_not_meet_is_one_sentence(host: Host, words: list[str]) -> None:
    found = unmet(VLLM, host)
    assert len(found) == len(words)
    assert all(word in said for word, said in zip(words, found, strict=True))


def test_a_cpu_task_needs_no_card_and_cuda_of_the_same_major_version_is_enough() -> None:
    assert unmet(Environment(dockerfile="x", python="3.11"), Host((), None, None)) == ()
    older = VLLM.model_copy(update={"cuda": "12.9"})
    assert unmet(older, Host((H200,), "12.4", None)) == ()


SMI = """#!/bin/sh
case "$1" in
    *compute_cap*) echo "NVIDIA H200, 9.0, 143771"; echo "NVIDIA, odd name, [N/A], 1" ;;
    *driver*) echo "NVIDIA H200, 580.95.05" ;;
    *) echo "| NVIDIA-SMI 580.95.05    Driver Version: 580.95.05      CUDA Version: 13.0     |" ;;
esac
"""


def test_what_nvidia_smi_says_is_read_and_doctor_tells_it_by_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program named nvidia-smi that answers as a real one did on an H200."""
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    cards, cuda = machine.cards()
    assert [(card.name, card.capability, round(card.memory_gib)) for card in cards] == [("NVIDIA H200", 9.0, 140)]
    assert cuda == "13.0"
    assert machine.gpus() == (("NVIDIA H200",), "580.95.05")
    words = ["doctor", "vllm-project__vllm-42080", "vllm-project__vllm-11234", "rtb__tinyserve-9", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "rtb.cli", *words], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    facts = {fact["what"]: fact for fact in json.loads(done.stdout)}
    assert facts["vllm-project__vllm-42080"]["ok"]
    assert facts["rtb__tinyserve-9"]["found"] == "runs on a CPU"
    assert facts["vllm-project__vllm-11234"]["found"] == "8 GPU(s) are needed, 1 can be seen"
