"""How this machine reaches package indexes, so that builds inside containers can: CA bundle, pip's settings, wheels.

They are inputs of a build and stay out of the image. EDGE: pip.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from rtb.errors import BuildFailed, ExpectedError, OutOfSpace
from rtb.storage import cache_folder, locked

# Set to PyTorch's index of CPU wheels where pip's own settings do not lead to a CPU build of torch.
TORCH_INDEX = "RTB_TORCH_INDEX"
_CA_VARIABLES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
_KEPT = ("index-url", "extra-index-url", "no-index", "trusted-host", "timeout", "retries")


@dataclass(frozen=True)
class HostPip:
    """`settings` are pip's own, by name; `ca` is the bundle's bytes, empty when the machine needs none."""

    settings: dict[str, str]
    ca: bytes
    proxies: dict[str, str] = field(default_factory=dict)

    def files(self) -> dict[str, bytes]:
        """Files for a build: ca.pem, pip.conf, and env.sh, which a step sources first."""
        lines = ["[global]", "disable-pip-version-check = true", "find-links = /rtb-inputs/wheels"]
        lines += [f"{name} = {value}" for name, value in sorted(self.settings.items())]
        exports = ["PIP_CONFIG_FILE=/rtb-inputs/pip.conf", "PIP_NO_CACHE_DIR=1", "PIP_ROOT_USER_ACTION=ignore"]
        if self.ca:
            lines.append("cert = /rtb-inputs/ca.pem")
            names = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO")
            exports += [f"{name}=/rtb-inputs/ca.pem" for name in names]
        return {
            "ca.pem": self.ca,
            "pip.conf": ("\n".join(lines) + "\n").encode(),
            "env.sh": "".join(f"export {export}\n" for export in exports).encode(),
        }

    def without_secrets(self) -> HostPip:
        """The same less index addresses that carry a password: for a build whose inputs stay in a layer."""
        kept = {name: value for name, value in self.settings.items() if "@" not in _netlocs(value)}
        return HostPip(kept, self.ca, self.proxies)


def host_pip() -> HostPip:
    """This machine's settings: pip's configuration and environment, the CA bundle, proxies."""
    said = _pip(["config", "list"], check=False)
    settings = {}
    # Lines are `global.index-url='…'`, `:env:.cert='…'`; what the environment says comes last and wins.
    for line in sorted(said.splitlines(), key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        name, value = name.rpartition(".")[2], value.strip().strip("'\"")
        settings[name.replace("default-timeout", "timeout")] = value
    bundle = settings.get("cert") or next((os.environ[name] for name in _CA_VARIABLES if os.environ.get(name)), "")
    ca = Path(bundle).read_bytes() if bundle and Path(bundle).is_file() else b""
    kept = {name: _reachable(settings[name]) for name in _KEPT if name in settings}
    proxies = {name: os.environ[name] for name in _PROXIES if os.environ.get(name)}
    return HostPip({name: value for name, value in kept.items() if value}, ca, proxies)


def wheelhouse(lock: bytes, python: str, progress: Callable[[str], None]) -> Path:
    """A folder with the wheels of a lock file, fetched by this machine's pip and kept in the cache.

    A container's own pip would take torch's CUDA build, gigabytes that no CPU can use. The folder is empty when this
    machine has another minor version of Python than `python`: then the container's pip must fetch by itself.
    Raises BuildFailed, OutOfSpace.
    """
    folder = cache_folder("wheels", hashlib.sha256(lock + python.encode()).hexdigest()[:12])
    if python != f"{sys.version_info.major}.{sys.version_info.minor}":
        return folder
    with locked(folder):
        if (folder / ".complete").exists():
            return folder
        progress(f"fetching the wheels of {lock.count(b'==')} packages")
        requirements = folder / "requirements.lock"
        requirements.write_bytes(lock)
        fetch = ["download", "-q", "--no-deps", "-d", str(folder)]
        if torch := torch_requirement(lock):
            _pip([*fetch, *_torch_index(), torch])
        _pip([*fetch, "--find-links", str(folder), "-r", str(requirements)])
        check_torch([path.name for path in folder.glob("*.whl")], lock)
        requirements.unlink()
        (folder / ".complete").touch()
    return folder


def torch_requirement(lock: bytes) -> str | None:
    """The lock's line for torch."""
    found = re.search(rb"^torch==[^\s;#]+", lock, re.MULTILINE)
    return found.group().decode() if found else None


def _torch_index() -> list[str]:
    return ["--index-url", os.environ[TORCH_INDEX]] if os.environ.get(TORCH_INDEX) else []


def can_install_elsewhere() -> bool:
    """Whether the Python that runs us has a pip that can fill another environment (22.3 or later)."""
    try:
        version = metadata.version("pip")
    except metadata.PackageNotFoundError:
        return False
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2]) >= (22, 3)


def install_command(python: Path, requirements: Path) -> list[str]:
    """The command that installs a lock file into an environment; with torch's index as one more place to look."""
    extra = ["--extra-index-url", os.environ[TORCH_INDEX]] if os.environ.get(TORCH_INDEX) else []
    if can_install_elsewhere():
        pip = [sys.executable, "-P", "-m", "pip", "--python", str(python)]
    else:
        pip = [str(python), "-m", "pip"]
    return [*pip, "install", "--no-deps", *extra, "-r", str(requirements)]


def check_torch(names: list[str], lock: bytes) -> None:
    """Raises ExpectedError when a lock without nvidia packages got a CUDA build of torch, which cannot be imported.

    `names`: of wheels or .dist-info folders. On Linux for x86-64 PyPI's torch is a CUDA build; elsewhere it is not.
    """
    builds = [name for name in names if re.match(r"torch-\d", name)]
    if re.search(rb"^nvidia-", lock, re.MULTILINE) or not builds or sys.platform != "linux":
        return
    if os.uname().machine == "x86_64" and not any("+cpu" in name for name in builds):
        raise ExpectedError(
            f"pip gave a CUDA build of torch ({builds[0]}), but this environment is for a CPU and has none of its"
            f" libraries; set {TORCH_INDEX} to PyTorch's index of CPU wheels (pytorch.org, 'Get started', Compute"
            " Platform 'CPU') and run the same command again"
        )


def pip_failure(what: str, output: str) -> BuildFailed | OutOfSpace:
    """pip's words as an error of ours."""
    tail = "\n".join(output.splitlines()[-20:])
    if "No space left on device" in output:
        return OutOfSpace(f"{what}: the disk is full\n{tail}")
    hint = ""
    if "CERTIFICATE_VERIFY_FAILED" in output:
        hint = "\nThe index's certificate is not trusted: set PIP_CERT to this machine's CA bundle."
    elif "No matching distribution" in output:
        hint = "\nThe index that pip uses has no such version for this Python and platform."
    return BuildFailed(f"{what} failed:\n{tail}{hint}")


def _pip(arguments: list[str], check: bool = True) -> str:
    # Isolated from PYTHONPATH and the folder, not from the user's pip settings.
    command = [sys.executable, "-P", "-m", "pip", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if check and done.returncode != 0:
        raise pip_failure(f"pip {arguments[0]}", done.stdout + done.stderr)
    return done.stdout


def _reachable(value: str) -> str:
    """Addresses on this machine's disk mean nothing in a container."""
    return " ".join(word for word in value.replace("\\n", " ").split() if not word.startswith("file:"))


def _netlocs(value: str) -> str:
    return " ".join(urllib.parse.urlsplit(word).netloc for word in value.split())
