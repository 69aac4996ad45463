"""The local counterpart of an image: a virtual environment per lock file, and a task's tree, both kept in the cache.
EDGE: venv and pip.

Where nothing can be installed (a GPU host without network), `RTB_LOCAL_PYTHON=/path/to/python` names an interpreter
whose own packages stand in for every lock file. Their versions are part of the digest.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rtb import host_pip
from rtb.base_tree import base_tree
from rtb.errors import BuildFailed, ExpectedError, LeakFound, OutOfSpace
from rtb.guarded_folder import remove_folder
from rtb.image import build_log, build_problem
from rtb.leaks import find_leaks
from rtb.recipe import Recipe, steps_script
from rtb.storage import cache_folder, locked
from rtb.suite import TaskEntry

Say = Callable[[str], None]
LOCAL_PYTHON = "RTB_LOCAL_PYTHON"
# What an interpreter says of itself: version, folders of packages, and every package with its version.
_ASK = """
import json, platform, site, sys
from importlib.metadata import distributions
found = sorted({f"{item.metadata['Name']}=={item.version}" for item in distributions() if item.metadata["Name"]})
print(json.dumps([platform.python_version(), [path for path in sys.path if path.endswith("-packages")], found]))
"""


@dataclass(frozen=True)
class LocalEnvironment:
    """`tree` is kept as it is; each run gets a copy. `python` is the version that was really used."""

    digest: str
    venv: Path
    tree: Path
    python: str

    @property
    def path(self) -> str:
        """PATH of a command."""
        return os.pathsep.join([str(self.venv / "bin"), "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"])


def build_local(entry: TaskEntry, recipe: Recipe, *, rebuild: bool, progress: Say) -> LocalEnvironment:
    """Make what is not there yet; parallel runs make it once. Raises BuildFailed, LeakFound, OutOfSpace."""
    host = host_python()
    python, version = (host.path, host.version) if host else interpreter(recipe.environment.python)
    where = f"{version} {platform.system()} {platform.machine()}"
    venv_digest = recipe.venv_digest(f"{where} {' '.join(host.packages)}" if host else where)
    digest = recipe.local_digest(venv_digest)
    venv = cache_folder("venvs") / venv_digest[:12]
    home = cache_folder("trees") / digest[:12]
    # A rebuild never takes a shared virtual environment from under another run: only what is this task's own.
    with locked(venv):
        if not (venv / ".complete").exists() or (rebuild and recipe.has_steps):
            filled = f"the packages of {host.path}" if host else recipe.environment.lock or "no lock file"
            progress(f"making virtual environment {venv.name} ({filled})")
            _make_venv(recipe, python, venv, venv_digest, host)
    with locked(home):
        if not (home / ".complete").exists() or rebuild:
            progress(f"making the tree of {entry.instance_id}")
            _make_tree(entry, recipe, venv, home, digest)
    return LocalEnvironment(digest, venv, home / "tree", version)


@dataclass(frozen=True)
class HostPython:
    """An interpreter whose packages are taken as they are: `folders` hold them, `packages` are `name==version`."""

    path: str
    version: str
    folders: tuple[str, ...]
    packages: tuple[str, ...]


def host_python() -> HostPython | None:
    """The interpreter that RTB_LOCAL_PYTHON names. Raises ExpectedError when it cannot be asked."""
    named = os.environ.get(LOCAL_PYTHON)
    if not named:
        return None
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    try:
        said = subprocess.run([named, "-c", _ASK], capture_output=True, text=True, timeout=60, env=clean, check=True)
        version, folders, packages = json.loads(said.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise ExpectedError(f"{LOCAL_PYTHON}={named} is no Python that tells its packages: {error}") from None
    return HostPython(named, version, tuple(folders), tuple(packages))


def interpreter(wanted: str) -> tuple[str, str]:
    """A Python of the wanted minor version, else the one that runs us: (path, version).

    The version is part of the digest, so that results of different ones are never taken for the same.
    """
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    found = shutil.which(f"python{wanted}")
    if wanted == ours or found is None:
        return sys.executable, platform.python_version()
    said = subprocess.run([found, "-IV"], capture_output=True, text=True, timeout=30, check=False)
    return found, said.stdout.split()[-1] if said.returncode == 0 and said.stdout else wanted


def _make_venv(recipe: Recipe, python: str, venv: Path, digest: str, host: HostPython | None) -> None:
    if venv.exists():
        remove_folder(venv)
    # Our own pip fills it, which takes a fortieth of the time of giving it one; only steps may want theirs.
    bare = ["--without-pip"] if host or (host_pip.can_install_elsewhere() and not recipe.has_steps) else []
    _run([python, "-m", "venv", *bare, str(venv)], "making a virtual environment", digest, cwd=venv.parent)
    inside = venv / "bin" / "python"
    if host:
        # A path file and not --system-site-packages: the interpreter may live in a virtual environment itself.
        (_packages(venv) / "rtb_host.pth").write_text("".join(f"{folder}\n" for folder in host.folders))
    elif recipe.lock:
        requirements = venv / "requirements.lock"
        requirements.write_bytes(recipe.lock)
        command = host_pip.install_command(inside, requirements)
        _run(command, f"installing {recipe.environment.lock}", digest, cwd=venv)
        host_pip.check_torch([path.name for path in _packages(venv).iterdir()], recipe.lock)
    for name, data in recipe.plugins.items():
        (_packages(venv) / name).write_bytes(data)
    (venv / ".complete").touch()


def _packages(venv: Path) -> Path:
    return next((venv / "lib").glob("python*")) / "site-packages"


def _make_tree(entry: TaskEntry, recipe: Recipe, venv: Path, home: Path, digest: str) -> None:
    if home.exists():
        remove_folder(home)
    home.mkdir(parents=True)
    tree = base_tree(entry, home / "tree")
    if recipe.has_steps:
        script = home / "steps.sh"
        script.write_bytes(steps_script(recipe.environment))
        found = {"PATH": f"{venv / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}", "VIRTUAL_ENV": str(venv)}
        _run(["bash", str(script)], "install steps", digest, cwd=tree.path, env=found)
    leaks = find_leaks(tree.path, tree.commit)
    inside = [str(venv / "bin" / "python"), "-I", str(Path(__file__).with_name("leaks.py"))]
    checked = subprocess.run(
        [*inside, str(tree.path), tree.commit], capture_output=True, text=True, errors="replace", check=False
    )
    if leaks or checked.returncode != 0:
        said = checked.stdout + checked.stderr or "\n".join(f"LEAK: {leak}" for leak in leaks)
        raise LeakFound(f"{entry.instance_id}: the tree must hold its base commit and nothing later:\n{said}")
    (home / ".complete").touch()


def _run(command: Sequence[str], what: str, digest: str, *, cwd: Path, env: Mapping[str, str] | None = None) -> None:
    """One step, its output added to the log of this digest."""
    log = build_log(digest)
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(
            list(command), cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, check=False,
            env={**{key: value for key, value in os.environ.items() if key != "PYTHONPATH"}, **(env or {})},
        )  # fmt: skip
        output.seek(0)
        text = output.read().decode(errors="replace")
    with log.open("a", errors="replace") as file:
        file.write(f"[rtb] {what}: {' '.join(command)}\n{text}")
    if done.returncode == 0:
        return
    if "[rtb] step" in text:
        problem = build_problem(f"environment {digest[:12]}", text, log, _free(cwd))
    else:
        problem = host_pip.pip_failure(f"{what} (log: {log})", text)
    raise problem if isinstance(problem, (BuildFailed, OutOfSpace)) else BuildFailed(str(problem))


def _free(folder: Path) -> str:
    return f"{shutil.disk_usage(folder).free / 1e9:.1f} GB free in {folder}"
