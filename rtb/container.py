"""The Docker engine: containers, commands in them, images. EDGE: Docker; nothing else imports its library.

`Engine` is thin: one call each, every failure turned into one of ours. What a sandbox does with it is in
rtb.docker_sandbox, what an image is made of in rtb.environment.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

import docker
import docker.errors
import docker.types
import requests.exceptions
import urllib3.exceptions

from rtb.archive import unpack_file
from rtb.errors import EngineUnreachable, MachineError, OutOfSpace, SandboxGone
from rtb.exec_connection import READ_BYTES, ExecConnection
from rtb.owner import is_alive, owner_id, process_id
from rtb.sandbox import Limits

REQUEST_SECONDS = 120
# How the engine says that a container, or a command in it, has ended.
_GONE = (
    "No such container",
    "No such exec",
    "is not running",
    "marked for removal",
    "is dead",
    "is paused",
    # An engine that is taking a container away has lost its files before it says so.
    "RWLayer of container",
)
# How it says that a path leads nowhere, beside 404.
_NOWHERE = ("not a directory", "too many levels of symbolic links", "too many links", "file name too long")
# Go's file mode bits for folder, link, device, pipe, socket, character device, irregular.
_NOT_REGULAR = 0x8F280000


class NotThere(MachineError):
    """The engine knows no such image, tag or folder."""


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn every failure of the engine into one of ours. `what` says what was being done."""
    try:
        yield
    except docker.errors.APIError as error:
        text = str(error.explanation or error)
        if "no space left" in text or "disk quota" in text:
            raise OutOfSpace(f"{what}: the engine's disk is full: {text}") from error
        if any(sign in text for sign in _GONE):
            raise SandboxGone(f"{what}: {text}") from error
        if isinstance(error, docker.errors.NotFound) or any(sign in text for sign in _NOWHERE):
            raise NotThere(f"{what}: {text}") from error
        raise MachineError(f"{what}: the engine answers: {text}") from error
    except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, ConnectionError) as error:
        raise EngineUnreachable(f"{what}: the Docker engine does not answer ({error})") from error


@dataclass(frozen=True)
class ContainerState:
    running: bool
    exit_code: int
    oom_killed: bool


@contextmanager
def connect() -> Iterator[Engine]:
    """The engine that DOCKER_HOST names, or this machine's. Raises EngineUnreachable."""
    try:
        client = docker.from_env(version="auto", timeout=REQUEST_SECONDS)
    except docker.errors.DockerException as error:
        raise EngineUnreachable(
            f"no Docker engine answers ({error}). Start one (scripts/setup-docker does on Debian), set DOCKER_HOST,"
            " or use --sandbox local"
        ) from error
    try:
        yield Engine(client.api)
    finally:
        client.close()


class Engine:
    """One connection to the engine. Not shared between threads that open sandboxes: each takes its own."""

    def __init__(self, api: Any) -> None:
        self._api = api  # docker.APIClient; its stubs lack the calls that we need most

    def facts(self) -> dict[str, Any]:
        """What the engine says of itself, for `rtb doctor` and run.json."""
        with translated("asking the engine about itself"):
            said = self._api.info()
        return {
            "version": said["ServerVersion"],
            "storage": said["Driver"],
            "cgroup_version": said.get("CgroupVersion", ""),
            "cpus": said["NCPU"],
            "memory_bytes": said["MemTotal"],
            "runtimes": sorted(said.get("Runtimes", {})),
            "root": said["DockerRootDir"],
            "architecture": said["Architecture"],
        }

    # Containers

    @contextmanager
    def container(
        self,
        image: str,
        name: str,
        *,
        env: Mapping[str, str],
        limits: Limits,
        run: str,
        devices: Sequence[str] = (),
        binds: Mapping[str, str] | None = None,
    ) -> Iterator[str]:
        """A running container that does nothing; its id. Killed and removed at the end.

        `binds`: folder of this machine -> where it is seen inside.

        Its command is `cat` on a standard input that we hold: when this process dies, however hard, the input closes,
        `cat` ends and the engine removes the container by itself.
        """
        what = f"starting a container of {image}"
        with translated(what):
            config = self._config(image, env, limits, run, devices, binds or {})
            container = self._api.create_container_from_config(config, name)["Id"]
        try:
            with translated(what):
                held = self._api.attach_socket(container, params={"stdin": 1, "stream": 1})
                self._api.start(container)
            with contextlib.closing(held):
                yield container
        finally:
            self.remove(container)

    def _config(
        self,
        image: str,
        env: Mapping[str, str],
        limits: Limits,
        run: str,
        devices: Sequence[str],
        binds: Mapping[str, str],
    ) -> dict[str, Any]:
        """The request's body, written out because the library's call cannot ask for a one-time standard input."""
        ulimits = [
            docker.types.Ulimit(name="core", soft=0, hard=0),
            docker.types.Ulimit(name="fsize", soft=limits.disk_bytes, hard=limits.disk_bytes),
        ]
        if limits.address_space_bytes is not None:
            size = limits.address_space_bytes
            ulimits.append(docker.types.Ulimit(name="as", soft=size, hard=size))
        gpus = [docker.types.DeviceRequest(device_ids=list(devices), capabilities=[["gpu"]])] if devices else None
        host = self._api.create_host_config(
            network_mode=None if limits.network else "none",
            mem_limit=limits.memory_bytes,
            memswap_limit=limits.memory_bytes,  # equal: no swap
            pids_limit=limits.pids,
            shm_size=limits.shm_bytes,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            init=True,
            auto_remove=True,
            ulimits=ulimits,
            log_config=docker.types.LogConfig(type="none"),
            device_requests=gpus,
            binds={outside: {"bind": inside, "mode": "rw"} for outside, inside in binds.items()},
        )
        return {
            "Image": image,
            "Entrypoint": [],
            "Cmd": ["cat"],
            "User": "0:0",
            "WorkingDir": "/",
            "Env": [f"{name}={value}" for name, value in env.items()],
            "Labels": {"rtb.owner": owner_id(), "rtb.process": process_id(), "rtb.run": run},
            "OpenStdin": True,
            "StdinOnce": True,
            "AttachStdin": True,
            "Tty": False,
            "HostConfig": host,
        }

    def remove(self, container: str) -> None:
        """Kill and remove at once; one that is gone or going is as good."""
        try:
            with translated("removing a container"):
                self._api.remove_container(container, force=True, v=True)
        except SandboxGone:
            pass
        except MachineError as error:
            if "already in progress" not in str(error):
                raise

    def remove_leftovers(self) -> int:
        """Remove containers of ours whose process has died. Returns how many. Nobody else's are touched."""
        with translated("looking for leftover containers"):
            found = self._api.containers(all=True, filters={"label": [f"rtb.owner={owner_id()}"]})
        dead = [item["Id"] for item in found if not is_alive(item["Labels"].get("rtb.process", ""))]
        for container in dead:
            self.remove(container)
        return len(dead)

    def state(self, container: str) -> ContainerState:
        """Raises SandboxGone when there is no such container any more."""
        with translated("looking at a container"):
            said = self._api.inspect_container(container)["State"]
        return ContainerState(bool(said["Running"]), int(said["ExitCode"]), bool(said["OOMKilled"]))

    def written_bytes(self, container: str) -> int:
        """How much larger a container's files are than its image's. 0 for one that is gone."""
        with translated("measuring a container"):
            found = self._api.containers(all=True, filters={"id": container}, size=True)
        return int(found[0].get("SizeRw") or 0) if found else 0

    def process_count(self, container: str) -> int:
        with translated("counting processes"):
            return len(self._api.top(container, "-eo pid")["Processes"])

    def set_pids_limit(self, container: str, pids: int) -> None:
        """The library's own call knows no limit of processes."""
        with translated("changing a limit"):
            url = self._api._url("/containers/{0}/update", container)
            self._api._raise_for_status(self._api._post_json(url, data={"PidsLimit": pids}))

    # Commands in a container

    def start(
        self, container: str, command: Sequence[str], *, user: str, env: Mapping[str, str], stdin: bytes | None
    ) -> tuple[str, ExecConnection]:
        """Start a command; its id, and the connection that carries frames of its output."""
        with translated(f"running {command[0]!r}"):
            made = self._api.exec_create(
                container, list(command), stdin=stdin is not None, user=user, environment=dict(env)
            )
            return made["Id"], ExecConnection(self._api.exec_start(made["Id"], socket=True), stdin)

    def exit_code(self, command: str) -> tuple[bool, int | None]:
        """(still running, exit code or None when the engine does not know it)."""
        with translated("asking for an exit code"):
            said = self._api.exec_inspect(command)
        return bool(said["Running"]), said["ExitCode"]

    # Files in a container

    def put(self, container: str, folder: str, archive: bytes) -> None:
        """Unpack a tar in a folder. Raises NotThere when the folder is not there, MachineError when not taken."""
        with translated(f"writing into {folder}"):
            if not self._api.put_archive(container, folder, archive):
                raise MachineError(f"copy failed: the engine did not take the files for {folder}")

    def get(self, container: str, path: str, limit_bytes: int) -> bytes | None:
        """The bytes of a regular file, else None. Raises OutOfSpace beyond the limit."""
        try:
            with translated(f"reading {path}"):
                stream, facts = self._api.get_archive(container, os.fsencode(path), chunk_size=READ_BYTES)
                with contextlib.closing(stream):
                    if facts["mode"] & _NOT_REGULAR:
                        return None
                    if facts["size"] > limit_bytes:
                        raise OutOfSpace(f"{path} holds {facts['size']} bytes, over the limit of {limit_bytes}")
                    return unpack_file(b"".join(stream))
        except NotThere:
            return None

    # Images

    def image_id(self, image: str) -> str | None:
        """The content id of a local image, or None."""
        try:
            with translated(f"looking for image {image}"):
                return str(self._api.inspect_image(image)["Id"])
        except NotThere:
            return None

    def image_architecture(self, image: str) -> str:
        with translated(f"looking at image {image}"):
            return str(self._api.inspect_image(image)["Architecture"])

    def tags(self, repository: str) -> list[str]:
        """Local tags of a repository."""
        with translated(f"looking for images of {repository}"):
            found = self._api.images(name=repository)
        return sorted(tag for image in found for tag in image.get("RepoTags") or ())

    def pull(self, image: str) -> None:
        """Raises NotThere, EngineUnreachable, OutOfSpace or MachineError with the registry's words."""
        with translated(f"pulling {image}"):
            for line in self._api.pull(image, stream=True, decode=True):
                if "error" in line:
                    raise docker.errors.APIError(line["error"], explanation=line["error"])

    def build(
        self, context: BinaryIO, *, tag: str, args: Mapping[str, str], labels: Mapping[str, str], network: str | None
    ) -> Iterator[str]:
        """Build an image from a context; yields its log as it comes. A failing step ends the log with a line
        `ERROR: …`; whether the image is there says how it went."""
        with translated(f"building {tag}"):
            lines = self._api.build(
                fileobj=context,
                custom_context=True,
                tag=tag,
                buildargs={**args, "RTB_OWNER": owner_id()},
                labels={"rtb.owner": owner_id(), **labels},
                network_mode=network,
                rm=True,
                forcerm=True,
                decode=True,
                timeout=None,
            )
            for line in lines:
                if text := line.get("stream"):
                    yield text
                if "error" in line:
                    yield f"ERROR: {line['error']}\n"

    def remove_image(self, image: str) -> None:
        with translated(f"removing image {image}"), contextlib.suppress(docker.errors.NotFound):
            self._api.remove_image(image, noprune=False)

    def remove_stage_images(self) -> None:
        """What the first stages of our builds leave: unnamed images that hold wheels and host settings."""
        wanted = {"dangling": True, "label": ["rtb.stage=builder", f"rtb.owner={owner_id()}"]}
        with translated("removing build stages"):
            for pause in (0.2, 0.5, 1.0, 2.0, 0.0):
                for image in self._api.images(filters=wanted):
                    # In use by a build that runs now, or by a step's container whose removal is still under way.
                    with contextlib.suppress(docker.errors.APIError):
                        self._api.remove_image(image["Id"], noprune=False)
                if not self._api.images(filters=wanted):
                    return
                time.sleep(pause)
