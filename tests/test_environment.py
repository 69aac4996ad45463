"""Environments: made once, named by content, clean of later commits, with errors that say what to do."""

from __future__ import annotations

import dataclasses
import json
import shlex
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
import pytest

from rtb import environment
from rtb.checkout import run_git
from rtb.container import NotThere
from rtb.environment import Kind, Prepared
from rtb.errors import BuildFailed, ExpectedError, LeakFound, SandboxGone
from rtb.leaks import find_leaks
from rtb.owner import owner_id
from rtb.recipe import Recipe, dockerfiles_root, read_recipe
from rtb.suite import TaskEntry, load_suite
from tests import gitrepo
from tests.cases import case_folder
from tests.wheels import make_wheel

KINDS = [pytest.param("local"), pytest.param("docker", marks=pytest.mark.docker)]
ROOT = Path(__file__).resolve().parent.parent
LOCK = "tiny-dep==1.0\n"


@pytest.fixture(autouse=True)
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache, Dockerfiles and a package index of the test's own; no network."""
    dockerfiles = tmp_path / "dockerfiles"
    for name in ("cpu", "task"):
        (dockerfiles / name).mkdir(parents=True)
        shutil.copy(dockerfiles_root() / name / "Dockerfile", dockerfiles / name)
    (dockerfiles / "cpu" / "tiny.lock").write_text(LOCK)
    (dockerfiles / "cpu" / "plug.py").write_text("WHO = 'plug'\n")
    (dockerfiles / "cpu" / "plug_more.py").write_text("WHO = 'more'\n")
    (tmp_path / "wheels").mkdir()
    make_wheel(tmp_path / "wheels", "tiny_dep", "VALUE = 42\n")
    monkeypatch.setenv("RTB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RTB_DOCKERFILES", str(dockerfiles))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    return tmp_path


@pytest.fixture
def make_entry(tmp_path: Path) -> Callable[..., TaskEntry]:
    """A task of a small repository with a fix after the base commit; `environment` fields by name."""
    origin = gitrepo.init(tmp_path / "origin")
    project = b'[project]\nname = "tiny-project"\nversion = "0"\n'
    files: dict[str, bytes | None] = {"m.py": b"x = 1\n", "pyproject.toml": project, "run.sh": b"#!/bin/sh\n"}
    base = gitrepo.commit(origin, "base", files)
    fix = gitrepo.commit(origin, "Fix the thing (#7)", {"m.py": b"x = 2\n"})
    run_git(["tag", "v2"], repository=origin)

    def make(**fields: Any) -> TaskEntry:
        facts = {"dockerfile": "cpu", "lock": "tiny.lock", "python": f"{sys.version_info[0]}.{sys.version_info[1]}"}
        task = {
            "instance_id": "o__r-7", "repo": "o/r", "pull_number": 7, "base_commit": base, "merge_commit": fix,
            "title": "Fix", "category": "optimization",
            "targets": [{"path": "m.py", "name": "k", "kind": "triton_kernel", "change": "modified"}],
            "patches": {"gold": {"sha256": None, "paths": ["m.py"]}, "test": {"sha256": None, "paths": ["t.py"]}},
            "environment": {**facts, **fields}, "unit": {"command": "python -m pytest t.py", "files": ["t.py"]},
            "provenance": {"source": "test"},
        }  # fmt: skip
        folder = tmp_path / "suite" / "o__r-7"
        folder.mkdir(parents=True, exist_ok=True)
        suite = {"name": "s", "title": "S", "sources": {"o/r": {"url": str(origin)}}}
        (tmp_path / "suite" / "suite.json").write_text(json.dumps(suite))
        (folder / "task.json").write_text(json.dumps(task))
        return load_suite(str(tmp_path / "suite")).entries[0]

    return make


def run_in(prepared: Prepared, tmp_path: Path, script: str) -> str:
    """Output of a shell command in a fresh sandbox; it must succeed."""
    out = tmp_path / "out"
    with environment.open_sandbox(prepared, run="test") as sandbox:
        result = sandbox.execute(["sh", "-c", script], output=out, timeout_seconds=60)
    assert result.exit_code == 0, out.read_text()
    return out.read_text()


@pytest.fixture
def docker_rest() -> Any:
    """Removes the images that a test made."""
    client = docker.from_env()
    yield client
    for found in client.images.list(filters={"label": "rtb.instance_id=o__r-7"}):
        client.images.remove(found.id, force=True)
    client.close()


@pytest.mark.parametrize("kind", KINDS)
def test_made_once_with_lock_steps_fixes_and_plugins(
    kind: Kind, make_entry: Callable[..., TaskEntry], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if kind == "docker":
        request.getfixturevalue("docker_rest")
    steps = {
        "install": ['echo "VIRTUAL_ENV is $VIRTUAL_ENV"', "python -c 'import tiny_dep' && echo built > built.txt"],
        "fixes": ["sed -i 's/42/43/' \"$(python -c 'import tiny_dep; print(tiny_dep.__file__)')\""],
    }
    entry = make_entry(**steps, plugins=["plug"], env={"OF_TASK": "$RTB_TREE"})
    said: list[str] = []
    prepared = environment.prepare(entry, kind, progress=said.append)
    assert said
    script = (
        'python -c "import tiny_dep, plug, plug_more; print(tiny_dep.VALUE, plug.WHO, plug_more.WHO)"; '
        "cat m.py built.txt; git log --format=%s --all; git status --short m.py; "
        'test "$OF_TASK" = "$PWD" && touch new && echo x >> m.py && ls -A /rtb-inputs 2>/dev/null; '
        "env | grep PIP; true"
    )
    assert run_in(prepared, tmp_path, script) == "43 plug more\nx = 1\nbuilt\nbase\n"
    said.clear()
    assert environment.prepare(entry, kind, progress=said.append) == prepared
    assert said == []
    assert run_in(prepared, tmp_path, "cat m.py; ls") == "x = 1\nbuilt.txt\nm.py\npyproject.toml\nrun.sh\n"


def test_tasks_of_one_lock_share_a_virtual_environment(make_entry: Callable[..., TaskEntry]) -> None:
    plain = environment.prepare(make_entry(), "local")
    other = environment.prepare(make_entry(env={"A": "1"}), "local")
    own = environment.prepare(make_entry(fixes=["true"]), "local")
    assert plain.venv == other.venv and plain.digest != other.digest
    assert own.venv not in (None, plain.venv)  # steps may change packages: never in a shared place


def test_digest_covers_every_ingredient(make_entry: Callable[..., TaskEntry]) -> None:
    recipe = read_recipe(make_entry())

    def digests(changed: Recipe, base: str = "sha256:1", python: str = "3.11.7") -> tuple[str, str]:
        return changed.image_digest(changed.environment_digest(base)), changed.local_digest(
            changed.venv_digest(python)
        )

    def facts(**fields: Any) -> Recipe:
        return dataclasses.replace(recipe, environment=recipe.environment.model_copy(update=fields))

    same = digests(recipe)
    assert digests(dataclasses.replace(recipe, instance_id="other")) == same
    both = [
        dataclasses.replace(recipe, lock=b"tiny-dep==1.1\n"),
        dataclasses.replace(recipe, base_commit="0" * 40),
        dataclasses.replace(recipe, repo="o/s"),
        dataclasses.replace(recipe, plugins={"plug.py": b""}),
        facts(install=("true",)),
        facts(fixes=("true",)),
        facts(env={"A": "1"}),
        facts(import_roots=("src",)),
    ]
    for changed in both:
        assert digests(changed)[0] != same[0] and digests(changed)[1] != same[1]
    only_image = [
        dataclasses.replace(recipe, dockerfile=b"FROM x\n"),
        dataclasses.replace(recipe, task_dockerfile=b"FROM x\n"),
        facts(build_args={"A": "1"}),
    ]
    for changed in only_image:
        assert digests(changed)[0] != same[0]
    assert digests(recipe, base="sha256:2")[0] != same[0]
    assert digests(recipe, python="3.12.1")[1] != same[1]
    assert len({digests(changed) for changed in both}) == len(both)
    swapped = facts(install=("a",), fixes=("b",)), facts(install=("b",), fixes=("a",)), facts(install=("a", "b"))
    assert len({digests(changed) for changed in swapped}) == 3


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"dockerfile": "nothing"}, "nothing/Dockerfile"),
        ({"lock": "no.lock"}, "no.lock"),
        ({"plugins": ["nope"]}, "nope.py"),
    ],
)
def test_missing_file_is_named(make_entry: Callable[..., TaskEntry], fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ExpectedError, match=named):
        environment.prepare(make_entry(**fields), "local")


@pytest.mark.parametrize("kind", KINDS)
def test_failing_step_is_quoted_with_the_end_of_its_log(kind: Kind, make_entry: Callable[..., TaskEntry]) -> None:
    noise = "for i in $(seq 200); do echo line $i; done; echo the reason >&2; exit 5"
    with pytest.raises(BuildFailed) as caught:
        environment.prepare(make_entry(install=["echo fine", noise]), kind)
    text = str(caught.value)
    assert "[rtb] step 2 of 2 (install)" in text and "the reason" in text and "line 190" in text
    assert "line 100\n" not in text
    log = next(Path(word.strip("():,")) for word in text.split() if word.strip("():,").endswith(".log"))
    assert "line 100\n" in log.read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_activation_script_may_read_unset_variables(
    kind: Kind, make_entry: Callable[..., TaskEntry], request: pytest.FixtureRequest
) -> None:
    if kind == "docker":
        request.getfixturevalue("docker_rest")
    folder = case_folder("90-activate-under-set-u")
    hook = (folder / "activate.d" / "gdal.sh").read_text()
    write = f"mkdir -p activate.d && printf '%s' {shlex.quote(hook)} > activate.d/gdal.sh"
    environment.prepare(make_entry(install=[write, ". activate.d/gdal.sh && echo ready"]), kind)
    with pytest.raises(BuildFailed, match="GDAL_DATA: unbound variable"):
        environment.prepare(make_entry(install=[write, "set -u; . activate.d/gdal.sh; echo ready"]), kind)


@pytest.mark.docker
def test_one_failure_marks_the_layer(make_entry: Callable[..., TaskEntry], house: Path) -> None:
    (house / "dockerfiles" / "cpu" / "tiny.lock").write_text("tiny-dep==1.0\n")
    entry = make_entry(install=["echo tried; exit 1"])
    with pytest.raises(BuildFailed) as first:
        environment.prepare(entry, "docker")
    log = next((house / "cache" / "build-logs").glob("*.failed")).with_suffix(".log")
    log.write_text("would be overwritten by another try")
    with pytest.raises(BuildFailed) as second:
        environment.prepare(entry, "docker")
    assert str(first.value) == str(second.value)
    assert log.read_text() == "would be overwritten by another try"


# Leaks


def _add_alternate(tree: Path, origin: Path) -> None:
    (tree / ".git" / "objects" / "info").mkdir(exist_ok=True)
    (tree / ".git" / "objects" / "info" / "alternates").write_text(f"{origin}/.git/objects\n")


LEAKS: dict[str, Callable[[Path, Path], object]] = {
    "remote": lambda tree, _: run_git(["remote", "add", "o", "https://example.invalid/r"], repository=tree),
    "refs/tags/base": lambda tree, _: run_git(["tag", "base"], repository=tree),
    "refs/stash": lambda tree, _: run_git(["update-ref", "refs/stash", "HEAD"], repository=tree),
    "alternates": _add_alternate,
    "FETCH_HEAD": lambda tree, origin: run_git(["fetch", "-q", str(origin), "HEAD"], repository=tree),
    "objects are not": lambda tree, _: run_git(["hash-object", "-w", "--stdin"], repository=tree, stdin=b"fix"),
    "modules": lambda tree, _: (tree / ".git" / "modules").mkdir(),
    "HEAD is": lambda tree, _: gitrepo.commit(tree, "later"),
}  # fmt: skip


@pytest.mark.parametrize("trace", LEAKS)
def test_every_way_out_is_found(trace: str, make_entry: Callable[..., TaskEntry], tmp_path: Path) -> None:
    prepared = environment.prepare(make_entry(lock=None), "local")
    assert prepared.tree is not None
    tree = tmp_path / "tree"
    shutil.copytree(prepared.tree, tree, symlinks=True)
    base = gitrepo.head(tree)
    assert find_leaks(tree, base) == []
    LEAKS[trace](tree, tmp_path / "origin")
    assert trace in "\n".join(find_leaks(tree, base))


@pytest.mark.parametrize("kind", KINDS)
def test_build_fails_when_a_step_brings_a_later_commit(kind: Kind, make_entry: Callable[..., TaskEntry]) -> None:
    step = "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m later"
    with pytest.raises(LeakFound, match="HEAD is"):
        environment.prepare(make_entry(install=[step]), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_build_fails_when_the_own_package_comes_from_an_index(
    kind: Kind, make_entry: Callable[..., TaskEntry], house: Path
) -> None:
    make_wheel(house / "wheels", "tiny_project", "x = 2\n")
    (house / "dockerfiles" / "cpu" / "tiny.lock").write_text("tiny-dep==1.0\ntiny-project==1.0\n")
    with pytest.raises(LeakFound, match="own package tiny-project"):
        environment.prepare(make_entry(), kind)


# Images


@pytest.mark.docker
def test_image_is_labelled_clean_and_owned(
    make_entry: Callable[..., TaskEntry], tmp_path: Path, docker_rest: docker.DockerClient
) -> None:
    prepared = environment.prepare(make_entry(), "docker")
    found = docker_rest.images.get(prepared.image)
    assert found.labels["rtb.digest"] == prepared.digest
    assert prepared.image == f"rtb/task:{prepared.digest[:12]}"
    assert not [line for line in found.attrs["Config"]["Env"] if "PIP" in line or "CERT" in line or "PROXY" in line]
    script = "stat -c '%u %g' . m.py .git/HEAD; "
    script += "find / -xdev '(' -path '*rtb-inputs*' -o -name 'tiny_dep*.whl' ')' 2>&-; true"
    assert run_in(prepared, tmp_path, script) == "10001 10001\n" * 3
    ours = ["rtb.stage=builder", f"rtb.owner={owner_id()}"]
    assert docker_rest.images.list(filters={"dangling": True, "label": ours}) == []


@pytest.mark.docker
def test_base_image_that_cannot_be_had(make_entry: Callable[..., TaskEntry]) -> None:
    entry = make_entry(build_args={"BASE_IMAGE": "localhost:9/nothing/here:v1"})
    with pytest.raises((BuildFailed, NotThere), match=r"localhost:9/nothing/here:v1.*BASE_IMAGE"):
        environment.prepare(entry, "docker")


# The host's settings


def test_a_package_that_is_not_there(make_entry: Callable[..., TaskEntry], house: Path) -> None:
    (house / "dockerfiles" / "cpu" / "tiny.lock").write_text("tiny-dep==9.9\n")
    with pytest.raises(BuildFailed, match=r"(?s)tiny-dep==9.9.*no such version"):
        environment.prepare(make_entry(), "local")


def test_a_hosts_own_packages_stand_in_for_the_lock_where_nothing_can_be_installed(
    make_entry: Callable[..., TaskEntry], house: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (house / "dockerfiles" / "cpu" / "tiny.lock").write_text("tiny-dep==9.9\n")  # of no index
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(house / "host")], check=True, timeout=120)
    packages = next((house / "host" / "lib").glob("python*")) / "site-packages"
    with zipfile.ZipFile(next((house / "wheels").glob("*.whl"))) as wheel:
        wheel.extractall(packages)
    monkeypatch.setenv("RTB_LOCAL_PYTHON", str(house / "host" / "bin" / "python"))
    prepared = environment.prepare(make_entry(), "local")
    assert run_in(prepared, tmp_path, "python -c 'import tiny_dep; print(tiny_dep.VALUE)'; cat m.py") == "42\nx = 1\n"
    (packages / "tiny_dep-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: x\nVersion: 1.1\n")
    assert environment.prepare(make_entry(), "local").digest != prepared.digest
    monkeypatch.setenv("RTB_LOCAL_PYTHON", str(house / "nobody"))
    with pytest.raises(ExpectedError, match=r"RTB_LOCAL_PYTHON=.*nobody is no Python"):
        environment.prepare(make_entry(), "local")


# Processes and sessions


def test_processes_at_once_make_it_once(make_entry: Callable[..., TaskEntry], tmp_path: Path) -> None:
    make_entry(install=[f"echo made >> {tmp_path}/count"])
    script = (
        "import sys; from rtb import environment; from rtb.suite import load_suite\n"
        "print(environment.prepare(load_suite(sys.argv[1]).entries[0], 'local').digest)"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "suite")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(2)]
    said = {process.communicate(timeout=900)[0] for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert len(said) == 1
    assert (tmp_path / "count").read_text() == "made\n"


def test_what_runs_share_cannot_be_changed_by_one(make_entry: Callable[..., TaskEntry], tmp_path: Path) -> None:
    prepared = environment.prepare(make_entry(), "local")
    if not environment.isolation("local").processes:
        pytest.skip("this kernel lets nobody make mount name spaces")
    script = f"echo y > {prepared.venv}/x; echo y > {prepared.tree}/m.py; echo y > m.py; cat m.py"
    assert run_in(prepared, tmp_path, script).endswith("y\n")
    assert prepared.venv and prepared.tree
    assert not (prepared.venv / "x").exists()
    assert (prepared.tree / "m.py").read_text() == "x = 1\n"


def test_half_made_environment_is_made_again(make_entry: Callable[..., TaskEntry], tmp_path: Path) -> None:
    entry = make_entry()
    prepared = environment.prepare(entry, "local")
    assert prepared.venv and prepared.tree
    for folder in (prepared.venv, prepared.tree.parent):
        (folder / ".complete").unlink()
    (prepared.tree / "m.py").write_text("half")
    assert environment.prepare(entry, "local") == prepared
    assert run_in(prepared, tmp_path, "cat m.py; python -c 'import tiny_dep'") == "x = 1\n"


@pytest.mark.parametrize("kind", KINDS)
def test_interrupt_ends_what_runs(
    kind: Kind, make_entry: Callable[..., TaskEntry], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if kind == "docker":
        request.getfixturevalue("docker_rest")
    prepared = environment.prepare(make_entry(), kind)
    with environment.session() as session:
        with session.open_sandbox(prepared, run="test") as sandbox:
            timer = threading.Timer(1.0, session.interrupt)
            timer.start()
            with pytest.raises(SandboxGone):
                sandbox.execute(["sleep", "600"], output=tmp_path / "out", timeout_seconds=900)
        with session.open_sandbox(prepared, run="test") as late, pytest.raises(SandboxGone):
            late.execute(["true"], output=tmp_path / "out", timeout_seconds=60)


def test_what_is_not_isolated_is_said() -> None:
    assert "commands can read the host's files" in environment.not_isolated("local")
    assert environment.not_isolated("docker") == ()
    assert environment.choose_kind("local") == "local"
    with pytest.raises(ExpectedError, match="docker and local"):
        environment.choose_kind("podman")
    assert {fact.what for fact in environment.diagnose()} >= {"Docker", "CPU speed", "local sandbox", "git", "disk"}
