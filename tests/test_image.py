"""What building an image takes from outside: answers of registries, logs, pip settings of the host."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rtb import host_pip, image
from rtb.container import NotThere
from rtb.errors import BuildFailed, ExpectedError, MachineError, OutOfSpace
from tests.cases import case_folder


def test_registry_answers() -> None:
    folder = case_folder("92-pull-answers")
    scenario = {item["image"]: item for item in json.loads((folder / "scenario.json").read_text())}
    waits: list[float] = []

    def fetcher(answers: list[Any]) -> Callable[[str], None]:
        left = list(answers)

        def fetch(_name: str) -> None:
            answer = left.pop(0)
            if answer != 200:
                raise MachineError(f"pulling: the engine answers: {answer}")

        return fetch

    for name in ("r/a:latest", "r/c:latest"):
        image.pull(fetcher(scenario[name]["answers"]), name, lambda _: None, waits.append)
    assert len(waits) == 2  # r/a was asked three times, r/c once
    for name, words in (("r/b:latest", "no such tag"), ("r/d:latest", "docker login")):
        with pytest.raises(NotThere, match=words):
            image.pull(fetcher(scenario[name]["answers"]), name, lambda _: None, waits.append)
    assert len(waits) == 2  # nothing to wait for
    wrong = scenario["r/c:latest"]
    assert not image.same_architecture(wrong["wanted"], wrong["arch"])
    assert image.same_architecture("x86_64", "amd64")
    with pytest.raises(BuildFailed, match="still says"):
        image.pull(fetcher([429] * 9), "r/e:latest", lambda _: None, waits.append)


def test_full_disk_in_a_build_log() -> None:
    log = case_folder("93-disk-full-while-building") / "build.log"
    problem = image.build_problem("rtb/task:1", log.read_text(), log, "1.2 GB free in /x")
    assert isinstance(problem, OutOfSpace)
    for words in ("Step 4/7 : RUN pip install -e .", "1.2 GB free", "docker image prune", "no further build"):
        assert words in str(problem)


def test_host_settings_reach_a_build_and_secrets_do_not_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(b"certificates")
    monkeypatch.setenv("PIP_CERT", str(bundle))
    monkeypatch.setenv("PIP_INDEX_URL", "https://me:word@index.example.invalid/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "file:///a/folder https://more.example.invalid/simple")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.invalid:3128")
    found = host_pip.host_pip()
    assert found.ca == b"certificates"
    assert found.settings["index-url"] == "https://me:word@index.example.invalid/simple"
    assert found.settings["extra-index-url"] == "https://more.example.invalid/simple"
    assert found.proxies["HTTPS_PROXY"] == "http://proxy.example.invalid:3128"
    files = found.files()
    assert b"cert = /rtb-inputs/ca.pem" in files["pip.conf"] and b"me:word" in files["pip.conf"]
    kept = found.without_secrets().files()["pip.conf"]
    assert b"me:word" not in kept and b"more.example.invalid" in kept


def test_torch_of_the_wrong_kind_is_refused_with_the_way_out() -> None:
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        pytest.skip("PyPI's torch is a CUDA build on Linux for x86-64 only")
    host_pip.check_torch(["torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl", "numpy-2.2.6.whl"], b"torch==2.13.0\n")
    host_pip.check_torch(["torch-2.13.0-cp311.whl"], b"torch==2.13.0\nnvidia-cudnn-cu12==9\n")
    host_pip.check_torch(["numpy-2.2.6.whl"], b"numpy==2.2.6\n")
    with pytest.raises(ExpectedError, match="RTB_TORCH_INDEX"):
        host_pip.check_torch(["torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl"], b"torch==2.13.0\n")
