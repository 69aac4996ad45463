"""What hostile code finds when it looks for the answers, from inside an evaluation's sandbox and an agent's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from rtb import environment, hydration
from rtb.environment import Kind, Prepared
from rtb.sandbox import Sandbox
from rtb.suite import LoadedSuite
from scaffold.places import LIMITS
from tests import pocketsuite, trapsuite
from tests.variables import variables

KINDS = [pytest.param("docker", marks=pytest.mark.docker), "local"]


class House(NamedTuple):
    suite: LoadedSuite
    runs: Path


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A suite whose gold patch and held-out tests lie in files of this machine, and a run folder with gold in it."""
    root = tmp_path_factory.mktemp("leaks")
    suite = trapsuite.make(root, 1)
    settings = {
        "RTB_TASKS": str(root / "tasks"),
        "RTB_DOCKERFILES": str(pocketsuite.dockerfiles(root)),
        "RTB_CACHE": str(root / "cache"),
        "RTB_SECRET_KEY": "planted-secret",
    }
    with variables(settings):
        runs = root / "runs"
        (runs / "gold" / "rtb__trap-1").mkdir(parents=True)
        (runs / "gold" / "rtb__trap-1" / "patch.diff").write_bytes(hydration.patches_of(suite.entries[0]).gold)
        yield House(suite, runs)


# Each prints something only when it found what it must not. $LANDED is the later commit, $GOLD a line of the gold
# patch, $TEST one of the held-out tests, $HOST the folder of this machine where they lie.
PROBES = {
    "refs": 'git for-each-ref; git rev-list --all --not HEAD; git cat-file -t "$LANDED" 2>/dev/null; git remote',
    "reflog": "git reflog --all 2>/dev/null | grep -v 'HEAD@{0}'; cat .git/logs/* .git/*_HEAD 2>/dev/null",
    "objects": "git cat-file --batch-all-objects --batch-check 2>/dev/null | while read name kind _; do "
    '[ "$kind" = blob ] && git cat-file blob $name | grep -F -e "$GOLD" -e "$TEST"; done; '
    "git cat-file --batch-all-objects --batch-check | grep -c commit | grep -v '^1$'",
    "alternates": "cat .git/objects/info/alternates 2>/dev/null; git config --get-regexp 'remote|alternate|url'; "
    "find .git -type l",
    "wheels": "find / -xdev -name '*.whl' 2>/dev/null | grep -i -e trap -e tinyserve; "
    "python -c \"import importlib.metadata as m; print(*[d.name for d in m.distributions() if 'trap' in d.name])\" "
    "| grep trap",
    "pip-cache": 'grep -rlF -e "$GOLD" -e "$TEST" "$HOME" "$HOME/.cache" /root/.cache/pip 2>/dev/null',
    "environment": 'env | grep -i -e planted-secret -e RTB_TASKS -e RTB_CACHE -e "$LANDED" -e "$HOST" '
    '| grep -v -e ^LANDED= -e ^HOST= -e hidden -e "$HOST/cache/venvs"',
    "mounts": 'grep -F "$HOST" /proc/mounts | grep -v "^none\\|^tmpfs" | grep -e " rw," -e gold -e runs -e tasks; '
    'umount "$HOST"/* 2>/dev/null; grep -rlF -e "$GOLD" "$HOST"/tasks "$HOST"/runs 2>/dev/null',
    "processes": "for p in /proc/[0-9]*; do tr '\\0' '\\n' < $p/cmdline; tr '\\0' '\\n' < $p/environ; done "
    "| grep -v grep | grep -e 'planted[-]secret' -e 'RTB_TASKS[=]'",  # patterns that do not find themselves
    "proc": 'for p in /proc/[0-9]*; do for d in root"$HOST"/tasks root"$HOST"/runs cwd/tasks cwd/runs; do '
    'grep -rlF -e "$GOLD" -e "$TEST" $p/$d 2>/dev/null; done; ls -l $p/fd 2>/dev/null; done '
    "| grep -e gold.patch -e test.patch -e patch.diff",
    # The local sandbox shows this machine's /tmp, with whatever other tests left there; only our own answers count.
    "files": '[ -d "$HOST" ] || more=/tmp; '
    'grep -rlF -e "$GOLD" -e "$TEST" . $more "$HOST"/tasks "$HOST"/cache/patches "$HOST"/runs 2>/dev/null '
    "| grep -v /upstream/",
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture(scope="module")
def prepared(house: House, kind: Kind) -> Prepared:
    return environment.prepare(house.suite.entries[0], kind)


@pytest.fixture(scope="module", params=["evaluation", "agent"])
def sandbox(request: pytest.FixtureRequest, house: House, prepared: Prepared) -> Iterator[Sandbox]:
    limits = LIMITS if request.param == "agent" else None
    with (
        environment.session(hidden=(house.runs,)) as session,
        session.open_sandbox(prepared, limits=limits) as opened,
    ):
        yield opened


@pytest.mark.parametrize("probe", PROBES)
def test_a_probe_finds_nothing(house: House, kind: Kind, sandbox: Sandbox, probe: str, tmp_path: Path) -> None:
    if kind == "local" and not sandbox.isolation.processes:
        pytest.skip("this kernel gives no name spaces: the local sandbox says that files are not isolated")
    entry = house.suite.entries[0]
    wanted = {
        "LANDED": entry.task.merge_commit, "GOLD": "return 2 * x", "TEST": "def test_is_close",
        "HOST": str(house.suite.path.parent.parent),
    }  # fmt: skip
    log = tmp_path / "log"
    sandbox.execute(
        ["sh", "-c", f"exec 2>/dev/null; {PROBES[probe]}; :"], output=log, timeout_seconds=120, env=wanted
    )
    found = [line for line in log.read_text(errors="replace").splitlines() if entry.task.base_commit not in line]
    assert found == []


def test_the_probes_see_what_is_there(house: House, tmp_path: Path) -> None:
    """The same look outside finds both answers: the probes are not blind."""
    entry = house.suite.entries[0]
    assert b"return 2 * x" in entry.folder.gold_patch.read_bytes()
    assert b"def test_is_close" in entry.folder.test_patch.read_bytes()
    assert list(house.runs.rglob("patch.diff"))
    assert entry.task.merge_commit != entry.task.base_commit
