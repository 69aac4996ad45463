"""Images: a base, one layer per lock file, one per task; each named by what it is made of, and made once."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from rtb.archive import pack_context
from rtb.base_tree import base_tree
from rtb.container import Engine, NotThere
from rtb.errors import BuildFailed, EngineUnreachable, LeakFound, MachineError, OutOfSpace, RtbError
from rtb.host_pip import host_pip, wheelhouse
from rtb.owner import process_id
from rtb.recipe import Recipe, steps_script
from rtb.storage import cache_folder, locked, write_atomic
from rtb.suite import TaskEntry
from rtb.temporary import temporary_folder

# What scripts/make-base-image makes; stands in for a CPU base that cannot be pulled.
LOCAL_BASE = "rtb/base:cpu"
TAIL_LINES = 50
PULL_WAITS = (2.0, 8.0, 30.0)
Say = Callable[[str], None]


def image_name(digest: str) -> str:
    """The name of a task's image."""
    return f"rtb/task:{digest[:12]}"


def build_image(engine: Engine, entry: TaskEntry, recipe: Recipe, *, rebuild: bool, progress: Say) -> str:
    """Make a task's image where it is not there yet; its full digest.

    Raises BuildFailed, LeakFound, OutOfSpace, EngineUnreachable, ExpectedError.
    """
    base, base_id = find_base(engine, recipe, progress)
    environment_digest = recipe.environment_digest(base_id)
    digest = recipe.image_digest(environment_digest)
    if not rebuild and engine.image_id(image_name(digest)):
        return digest
    environment_image = f"rtb/env:{environment_digest[:12]}"
    with locked(cache_folder("locks") / environment_digest[:12]):
        if not engine.image_id(environment_image):
            progress(f"building {environment_image} ({recipe.environment.dockerfile}, {recipe.environment.lock})")
            _build_environment(engine, recipe, base, environment_image, environment_digest, progress)
    with locked(cache_folder("locks") / digest[:12]):
        if rebuild or not engine.image_id(image_name(digest)):
            progress(f"building {image_name(digest)} ({entry.instance_id})")
            _build_task(engine, entry, recipe, environment_image, digest)
    return digest


def _build_environment(engine: Engine, recipe: Recipe, base: str, name: str, digest: str, progress: Say) -> None:
    pip = host_pip()
    lock = recipe.lock or b""
    files = {f"inputs/{key}": data for key, data in pip.files().items()}
    files |= {"Dockerfile": recipe.dockerfile, "inputs/requirements.lock": lock}
    wheels = wheelhouse(lock, recipe.environment.python, progress) if lock else cache_folder("wheels", "none")
    arguments = {**recipe.environment.build_args, **pip.proxies, "BASE_IMAGE": base}
    labels = {"rtb.environment": digest}
    _build(engine, name, digest, files, {"inputs/wheels": wheels}, arguments, labels)
    engine.remove_stage_images()


def _build_task(engine: Engine, entry: TaskEntry, recipe: Recipe, environment_image: str, digest: str) -> None:
    pip = host_pip().without_secrets()  # this layer keeps its inputs in its history
    files = {f"inputs/{key}": data for key, data in pip.files().items()}
    files |= {f"inputs/plugins/{key}": data for key, data in recipe.plugins.items()}
    files["inputs/plugins/rtb_environment.txt"] = f"{digest}\n".encode()
    files["Dockerfile"] = recipe.task_dockerfile
    files["inputs/steps.sh"] = steps_script(recipe.environment)
    files["inputs/leaks.py"] = Path(__file__).with_name("leaks.py").read_bytes()
    labels = {"rtb.digest": digest, "rtb.instance_id": recipe.instance_id}
    with temporary_folder("tree") as folder:
        tree = base_tree(entry, folder / "tree")
        arguments = {"ENVIRONMENT_IMAGE": environment_image, "BASE_COMMIT": tree.commit, **pip.proxies}
        _build(engine, image_name(digest), digest, files, {"tree": tree.path}, arguments, labels)


def _build(
    engine: Engine,
    name: str,
    digest: str,
    files: Mapping[str, bytes],
    folders: Mapping[str, Path],
    arguments: Mapping[str, str],
    labels: Mapping[str, str],
) -> None:
    """One build with its log kept. A failure is remembered for the life of this process: the same thing is not tried
    again for every task that needs it."""
    log = build_log(digest)
    earlier = log.with_suffix(".failed")
    if earlier.is_file():
        process, _, text = earlier.read_text(errors="replace").partition("\n")
        if process == process_id():
            raise LeakFound(text) if "LEAK: " in text else BuildFailed(text)
        earlier.unlink(missing_ok=True)
    with tempfile.TemporaryFile(dir=cache_folder("tmp")) as context:
        try:
            pack_context(context, files, folders)
        except OSError as error:
            raise OutOfSpace(f"the context of {name} cannot be written: {error.strerror}") from error
        context.seek(0)
        failed = False
        with log.open("w", errors="replace") as file:
            for text in engine.build(context, tag=name, args=arguments, labels=labels, network=None):
                file.write(text)
                failed = failed or text.startswith("ERROR: ")
    if failed:
        problem = build_problem(name, log.read_text(errors="replace"), log, free_space(engine))
        if not isinstance(problem, OutOfSpace):
            write_atomic(earlier, f"{process_id()}\n{problem}".encode())
        raise problem


def build_log(digest: str) -> Path:
    """Where the log of a layer is kept."""
    return cache_folder("build-logs") / f"{digest[:12]}.log"


def build_problem(name: str, text: str, log: Path, free: str) -> RtbError:
    """What a failed build's log says. Pure. Quotes the failing step and the end of the log."""
    lines = text.splitlines()
    steps = [line for line in lines if line.startswith(("[rtb] step", "Step "))]
    step = steps[-1] if steps else "before the first step"
    tail = "\n".join(lines[-TAIL_LINES:])
    where = f"{name} cannot be built. Failing step: {step}"
    if "no space left on device" in text.lower():
        return OutOfSpace(
            f"{where}\nThe disk is full ({free}). 'docker system df' shows what a clean-up frees, 'docker image"
            f" prune' does it; no further build is begun.\n{tail}\n(log: {log})"
        )
    leaks = [line for line in lines if line.startswith("LEAK: ")]
    if leaks:
        return LeakFound(f"{where}\nThe tree must hold its base commit and nothing later:\n" + "\n".join(leaks))
    return BuildFailed(f"{where}\nLast lines of {log}:\n{tail}")


def free_space(engine: Engine) -> str:
    """How much is free where images are kept, in words. A remote engine's disk cannot be asked."""
    root = engine.facts()["root"]
    if not os.path.isdir(root):  # noqa: PTH112  (a PermissionError must not reach us)
        return f"free space in {root} of the engine is not known"
    return f"{shutil.disk_usage(root).free / 1e9:.1f} GB free in {root}"


def find_base(engine: Engine, recipe: Recipe, progress: Say) -> tuple[str, str]:
    """The base image's name and content id: here, pulled, or for a CPU the one of scripts/make-base-image.

    Raises BuildFailed with the way out.
    """
    wanted = recipe.base_image
    on_cpu = recipe.environment.gpu.count == 0 and "BASE_IMAGE" not in recipe.environment.build_args
    for name in (wanted, LOCAL_BASE) if on_cpu else (wanted,):
        if found := engine.image_id(name):
            return name, found
    try:
        pull(engine.pull, wanted, progress, time.sleep)
    except NotThere as error:
        tags = engine.tags(wanted.rpartition(":")[0])
        have = f" Here are: {', '.join(tags)}." if tags else ""
        raise BuildFailed(f"{error}{have}{_way_out(on_cpu)}") from error
    except MachineError as error:
        raise BuildFailed(f"{error}{_way_out(on_cpu)}") from error
    machine, image = engine.facts()["architecture"], engine.image_architecture(wanted)
    if not same_architecture(machine, image):
        raise BuildFailed(f"base image {wanted} is for {image}, this engine runs {machine}: set another BASE_IMAGE")
    found = engine.image_id(wanted)
    assert found is not None
    return wanted, found


def _way_out(on_cpu: bool) -> str:
    return (
        " Where no image registry can be reached, scripts/make-base-image makes a base image from Debian's packages."
        if on_cpu
        else " Set the task's build argument BASE_IMAGE to an image that this machine has or can pull."
    )


def pull(fetch: Callable[[str], None], image: str, progress: Say, sleep: Callable[[float], None]) -> None:
    """Pull, waiting where the registry asks for it. Raises NotThere, OutOfSpace, EngineUnreachable or BuildFailed."""
    for wait in (*PULL_WAITS, None):
        try:
            return fetch(image)
        except (OutOfSpace, EngineUnreachable):
            raise
        except MachineError as error:
            problem = pull_problem(image, str(error))
            if problem is not None or wait is None:
                raise problem or BuildFailed(f"{image} cannot be pulled: the registry still says: {error}") from error
            progress(f"{image}: the registry is busy; trying again in {wait:.0f} s")
            sleep(wait)
    return None


def pull_problem(image: str, text: str) -> MachineError | None:
    """What a registry's refusal means; None when waiting helps. Pure."""
    low = text.lower()
    if any(
        sign in low for sign in ("429", "toomanyrequests", "too many requests", "502", "503", "tls handshake timeout")
    ):
        return None
    if "access denied" in low or "unauthorized" in low or "authentication required" in low:
        return NotThere(f"image {image} is not there, or private: check the name, or run 'docker login' ({text}).")
    if "manifest unknown" in low or "not found" in low:
        return NotThere(f"image {image} is not there: the registry has no such tag ({text}).")
    if "no matching manifest" in low or "does not match the specified platform" in low:
        return BuildFailed(f"image {image} is not made for this machine's architecture ({text}).")
    return BuildFailed(f"image {image} cannot be pulled ({text}).")


def same_architecture(engine: str, image: str) -> bool:
    """The engine says x86_64 or aarch64 where images say amd64 or arm64."""
    names = {"x86_64": "amd64", "aarch64": "arm64"}
    return names.get(engine, engine) == names.get(image, image)
