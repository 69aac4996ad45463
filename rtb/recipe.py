"""What an environment is made of, read from disk once, and the digests that name the result. Pure after reading."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rtb.errors import ExpectedError
from rtb.suite import TaskEntry
from rtb.task import Environment

# Counted up when images or virtual environments are made another way, so that none of before is taken for one of now.
BUILDER_VERSION = "1"
DEFAULT_BASE = re.compile(rb"^ARG\s+BASE_IMAGE=(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Recipe:
    """Everything that decides an environment. `plugins` are files by name."""

    instance_id: str
    repo: str
    base_commit: str
    environment: Environment
    dockerfile: bytes
    task_dockerfile: bytes
    lock: bytes | None
    plugins: dict[str, bytes]

    @property
    def has_steps(self) -> bool:
        return bool(self.environment.install or self.environment.fixes)

    @property
    def installed(self) -> frozenset[str]:
        """Import names of what the lock file installs, as far as a distribution's name tells them."""
        names = re.findall(rb"^([A-Za-z0-9][A-Za-z0-9._-]*)==", self.lock or b"", re.MULTILINE)
        return frozenset(re.sub(r"[-.]", "_", name.decode().lower()) for name in names)

    @property
    def base_image(self) -> str:
        """The base image's name: the task's build argument, else the Dockerfile's own default."""
        if named := self.environment.build_args.get("BASE_IMAGE"):
            return named
        found = DEFAULT_BASE.search(self.dockerfile)
        if found is None:
            raise ExpectedError(
                f"dockerfiles/{self.environment.dockerfile}/Dockerfile has no line 'ARG BASE_IMAGE=NAME'"
            )
        return found.group(1).decode()

    def environment_digest(self, base_image_id: str) -> str:
        """Of the first layer: base image, Dockerfile, lock file, build arguments."""
        arguments = json.dumps(self.environment.build_args, sort_keys=True).encode()
        return _digest(b"environment", base_image_id.encode(), self.dockerfile, self.lock or b"", arguments)

    def image_digest(self, environment_digest: str) -> str:
        """Of the second layer: the tree, the steps, the plugins and what every command sees."""
        return _digest(b"image", environment_digest.encode(), self.task_dockerfile, *self._task_parts())

    def venv_digest(self, python: str) -> str:
        """Of a virtual environment. Without steps, tasks of one lock file share it; steps may change packages."""
        own = self._task_parts() if self.has_steps else self._plugin_parts()
        return _digest(b"venv", python.encode(), self.lock or b"", *own)

    def local_digest(self, venv_digest: str) -> str:
        """Of a virtual environment with a tree."""
        return _digest(b"local", venv_digest.encode(), *self._task_parts())

    def _task_parts(self) -> Iterable[bytes]:
        facts = self.environment
        steps = {
            "repo": self.repo,
            "base_commit": self.base_commit,
            "install": facts.install,
            "fixes": facts.fixes,
            "env": facts.env,
            "import_roots": facts.import_roots,
            "plugins": facts.plugins,
        }
        return [json.dumps(steps, sort_keys=True).encode(), *self._plugin_parts()]

    def _plugin_parts(self) -> list[bytes]:
        return [part for name in sorted(self.plugins) for part in (name.encode(), self.plugins[name])]


def read_recipe(entry: TaskEntry) -> Recipe:
    """Read a task's Dockerfile, lock file and plugins. Raises ExpectedError that names the missing file."""
    environment = entry.task.environment
    folder = dockerfiles_root() / environment.dockerfile
    where = f"{entry.instance_id}: environment.dockerfile {environment.dockerfile!r}"
    plugins: dict[str, bytes] = {}
    for name in environment.plugins:
        # A plugin may bring neighbours: NAME.py and NAME_*.py.
        for path in (folder / f"{name}.py", *sorted(folder.glob(f"{name}_*.py"))):
            plugins[path.name] = _read(path, f"{where}, plugin {name!r}")
    return Recipe(
        instance_id=entry.instance_id,
        repo=entry.task.repo,
        base_commit=entry.task.base_commit,
        environment=environment,
        dockerfile=_read(folder / "Dockerfile", where),
        task_dockerfile=_read(dockerfiles_root() / "task" / "Dockerfile", where),
        lock=_read(folder / environment.lock, f"{where}, lock {environment.lock!r}") if environment.lock else None,
        plugins=plugins,
    )


def dockerfiles_root() -> Path:
    """The folder of Dockerfiles: `RTB_DOCKERFILES`, else `dockerfiles/` here or above, else beside the package."""
    named = os.environ.get("RTB_DOCKERFILES")
    if named:
        return Path(named)
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "dockerfiles" / "task" / "Dockerfile").is_file():
            return folder / "dockerfiles"
    return Path(__file__).resolve().parent.parent / "dockerfiles"


def steps_script(environment: Environment) -> bytes:
    """A shell script that runs a task's install steps and fixes, each in a bash of its own, in the current folder.

    Without `set -u`: activation scripts of compilers and of conda read variables that may not be set.
    """
    steps = [("install", step) for step in environment.install] + [("fix", step) for step in environment.fixes]
    # A fix that leaves a file's size and second as they were is hidden by byte code: steps write none, and what pip
    # compiled before a step is at least a second older than what the step edits.
    lines = ["set -e", "export PYTHONDONTWRITEBYTECODE=1"]
    for number, (kind, step) in enumerate(steps, 1):
        name = f"[rtb] step {number} of {len(steps)} ({kind})"
        lines.append(f"printf '%s\\n' {shlex.quote(f'{name}: {step}')}")
        lines.append("sleep 1")
        failed = f"code=$?; printf '%s\\n' {shlex.quote(f'{name} failed: {step}')}; exit $code"
        lines.append(f"bash -e -o pipefail -c {shlex.quote(step)} || {{ {failed}; }}")
    return ("\n".join(lines) + "\n").encode()


def _read(path: Path, where: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ExpectedError(f"{where}: {path} is not there") from None


def _digest(*parts: bytes) -> str:
    """sha256 over parts that cannot run into each other."""
    digest = hashlib.sha256(BUILDER_VERSION.encode())
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()
