"""Shared fixtures: a Docker engine where one answers, and a small image for sandboxes."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
from collections.abc import Iterator
from functools import cache

import pytest

from rtb.archive import pack_context
from rtb.container import Engine, connect
from rtb.errors import EngineUnreachable
from rtb.git_objects import GitObjects, borrow_objects
from rtb.run import Run
from tests import storedrun
from tests.browser import Browser, browser_problem, open_browser

SANDBOX_DOCKERFILE = """\
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
RUN useradd --create-home --uid 10001 rtb && install -d -o 10001 -g 10001 /testbed /rtb
RUN printf 'x = 1\\n' > /testbed/m.py && chown 10001:10001 /testbed/m.py
"""
BASES = ("rtb/base:cpu", "python:3.11-slim-bookworm")


# Files that take a minute or more, longest first: each is one worker's, and the last must not be waited for.
LONG_FILES = (
    "test_adversarial.py", "test_demo.py", "test_resumption.py", "test_latency.py", "test_evaluate.py",
    "test_validate.py", "test_chaos.py", "test_series.py", "test_model_stages.py", "test_environment.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first; pytest-xdist hands them out in this order (--no-loadscope-reorder)."""
    place = {name: number for number, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))


@cache
def _engine_problem() -> str | None:
    """Why Docker tests cannot run, or None."""
    try:
        with connect() as engine:
            if any(engine.image_id(name) for name in BASES):
                return None
    except EngineUnreachable as error:
        return str(error)
    return f"none of the base images {', '.join(BASES)} is there: run scripts/make-base-image"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests marked docker or browser: skipped with the reason, or failed where RTB_REQUIRE_DOCKER, _BROWSER is 1."""
    for marker, find in (("docker", _engine_problem), ("browser", browser_problem)):
        if item.get_closest_marker(marker) is None:
            continue
        problem = find()
        if problem is None:
            continue
        setting = f"RTB_REQUIRE_{marker.upper()}"
        if os.environ.get(setting) == "1":
            pytest.fail(f"{setting}=1, but {problem}", pytrace=False)
        pytest.skip(problem)


@pytest.fixture
def engine() -> Iterator[Engine]:
    """A connection to the engine. Tests that use it are marked docker."""
    with connect() as found:
        yield found


@pytest.fixture(scope="module")
def objects() -> Iterator[GitObjects]:
    """A store of git objects of its own, for the trees of one test file."""
    with borrow_objects(None) as opened:
        yield opened


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A stored run with every kind of answer, hostile text and model stages. Copy it before changing it."""
    return storedrun.every_kind(tmp_path_factory.mktemp("stored"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless Chromium, one a module. Tests that use it are marked browser."""
    with open_browser() as found:
        yield found


@pytest.fixture(scope="session")
def sandbox_image() -> str:
    """An image with a tree of one file, m.py, and the unprivileged user; built once."""
    name = f"rtb-test/sandbox:{hashlib.sha256(SANDBOX_DOCKERFILE.encode()).hexdigest()[:12]}"
    with connect() as engine:
        if engine.image_id(name) is None:
            base = next(image for image in BASES if engine.image_id(image))
            context = io.BytesIO()
            pack_context(context, {"Dockerfile": SANDBOX_DOCKERFILE.encode()}, {})
            context.seek(0)
            log = "".join(engine.build(context, tag=name, args={"BASE_IMAGE": base}, labels={}, network="none"))
            assert engine.image_id(name), log
    return name


def processes_with(text: str) -> list[str]:
    """Command lines of this machine's living processes that contain `text`; containers' are among them."""
    listing = subprocess.run(["ps", "-eo", "stat,args"], capture_output=True, text=True, check=True, timeout=30)
    return [line for line in listing.stdout.splitlines() if text in line and not line.startswith("Z")]
