"""Suite vllm-gpu on the wheel of a release: the wheel's Python as a repository, tasks whose commits are there.

A task's base and gold are the release's package with a few files in place of its own. They become two commits of a
repository that the wheel and a small bundle give again, byte for byte, on any machine; so `rtb` meets an ordinary
task with an ordinary clone. What git does not hold (compiled libraries) is laid into the tree by the task's install
step.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.gpu.plant import PLANTS, planted

ROOT = Path(__file__).resolve().parent.parent.parent
SUITE = ROOT / "tasks" / "vllm-gpu"
RELEASE = "vllm==0.22.0"
# Dropped from what the release asks for: the host has them, or this path never imports them.
DROPPED = (
    "torch", "torchvision", "torchaudio", "torchcodec", "triton", "numpy", "scipy", "pandas", "numba", "llvmlite",
    "opencv-python-headless", "flashinfer-python", "flashinfer-cubin", "tilelang", "nvidia-cutlass-dsl",
    "quack-kernels", "nvidia-cudnn-frontend", "tokenspeed-mla", "humming-kernels", "PyNvVideoCodec",
    "fastsafetensors",
)  # fmt: skip
EXTRA = ("docker",)  # rtb's own needs that the release does not bring
ENV = {
    "PYTHONPATH": "$RTB_TREE", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_USE_DEEP_GEMM": "0", "VLLM_HOST_IP": "127.0.0.1",
    "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1", "TOKENIZERS_PARALLELISM": "false", "VLLM_RPC_BASE_PATH": "/tmp",
}  # fmt: skip
TEXT = (".py", ".json", ".jinja", ".md", ".sh", ".typed", ".txt", ".toml")
WHO = {
    "GIT_AUTHOR_NAME": "rtb", "GIT_AUTHOR_EMAIL": "rtb@example.invalid", "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "rtb", "GIT_COMMITTER_EMAIL": "rtb@example.invalid",
    "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull,
}  # fmt: skip
COMPILED = ("*.so", "*.h", "*.hpp", "*.cuh", "*.inl", "*.cpp", "*.js", "*.css", "*.jpg", "vllm/vllm-rs")
IGNORED = (*COMPILED, "/rtb_models/", "/models/", "/tinyserve/", "__pycache__/")
# Every run of the tests compiles their kernels anew; whole files take 20 runs of one to fifteen minutes.
SELECTED = {
    "vllm-project__vllm-42080": "16-128-num_heads1 and 2048 and not 50.0 and not 64-16 and not 256-16 and not use_td",
    "vllm-project__vllm-37225": "1024-8",
    "vllm-project__vllm-42739": "noncontiguous or (1024-8 and only)",
}
PINNED = ("base_commit", "merge_commit", "patches")  # what only the made repository tells
# The folder to lay is named when the tree is made: it is not of the task.
OVERLAY = "RTB_RELEASE_OVERLAY"


def names(first: str) -> list[str]:
    """The suite's tasks, the one of the serving steps first."""
    found = sorted(path.parent.name for path in SUITE.glob("*/task.json"))
    return sorted(found, key=lambda name: name != first)


def facts_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((SUITE / name / "task.json").read_text())
    return found


# ---- where there is a network


def fetch_wheels(folder: Path, exclude_newer: str | None) -> int:
    """Resolve the release for Python 3.12 without what is dropped (uv), and fetch wheels (pip)."""
    folder.mkdir(parents=True, exist_ok=True)
    asked, overrides, found = folder / "in.txt", folder / "overrides.txt", folder / "resolved.txt"
    asked.write_text("\n".join((RELEASE, *EXTRA)) + "\n")
    overrides.write_text("".join(f"{name}; sys_platform == 'never'\n" for name in DROPPED))
    compile_ = ["uv", "pip", "compile", "-q", "--override", str(overrides), "--python-version", "3.12"]
    compile_ += ["--python-platform", "x86_64-manylinux_2_28", "--no-annotate", str(asked), "-o", str(found)]
    if exclude_newer:
        compile_ += ["--exclude-newer", exclude_newer]
    subprocess.run(compile_, check=True)
    download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(folder)]
    download += ["--python-version", "3.12", "--implementation", "cp", "--abi", "cp312", "--abi", "abi3"]
    for tag in (34, 31, 28, 27, 26, 24, 17, 5):
        download += ["--platform", f"manylinux_2_{tag}_x86_64"]
    for old in ("manylinux2014", "manylinux2010", "manylinux1"):
        download += ["--platform", f"{old}_x86_64"]
    return subprocess.run([*download, "--abi", "none", "-r", str(found)], check=False).returncode


def wheel_in(folder: Path) -> Path:
    """The release's wheel among the others."""
    name, _, version = RELEASE.partition("==")
    found = sorted(folder.glob(f"{name}-{version}-*.whl"))
    if len(found) != 1:
        raise SystemExit(
            f"{folder} must hold one wheel of {RELEASE}, it holds {len(found)}: fetch it with scripts/gpu_vllm wheels"
        )
    return found[0]


def write_bundle(wheel: Path, clone: Path, out: Path, first: str) -> None:
    """What each task needs beside the wheel: files of base and gold that differ from it, tests, its patches."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "bundle"
        with zipfile.ZipFile(wheel) as release:
            for name in names(first):
                how = lay_task(folder / name, release, facts_of(name), clone)
                print(name, json.dumps(how, indent=1))
            text = Path(made) / "text"
            unpack(release, text, lambda path: path.endswith(TEXT))
        commits = make_repository(text, folder, Path(made) / "repository", first)
        suite = Path(made) / "tasks" / "vllm-gpu"
        make_suite(folder, commits, suite, first)
        env = {**os.environ, "PYTHONPATH": str(ROOT), "RTB_TASKS": str(suite.parent)}
        env["RTB_CACHE"] = str(Path(made) / "cache")
        words = ["tasks", "hydrate", "--suite", "vllm-gpu", "--clone", str(Path(made) / "repository"), "--pin"]
        subprocess.run([sys.executable, "-m", "rtb.cli", *words], env=env, cwd=ROOT, check=True)
        for name in names(first):
            task = json.loads((suite / name / "task.json").read_text())
            pinned = {key: task[key] for key in PINNED}
            (folder / name / "pinned.json").write_text(json.dumps(pinned, indent=1) + "\n")
        with tarfile.open(out, "w:gz") as packed:
            packed.add(folder, ".")
    print(f"{out}: {out.stat().st_size // 1024} KiB")


def lay_task(folder: Path, release: zipfile.ZipFile, task: dict[str, Any], clone: Path) -> dict[str, str]:
    """A file of the release that is neither base's nor gold's has the pull request taken back (`git apply -R`)."""
    how = {}
    for path in task["patches"]["gold"]["paths"]:
        base, gold = (show(clone, task[commit], path) for commit in ("base_commit", "merge_commit"))
        shipped = release.read(path)
        if shipped == base and gold is not None:
            how[path] = "the release has base's file"
            put(folder / "gold" / path, gold)
        elif shipped == gold and base is not None:
            how[path] = "the release has gold's file"
            put(folder / "base" / path, base)
        else:
            how[path] = "the release's file differs from both; base is the release's with the pull request taken back"
            put(folder / "base" / path, taken_back(clone, task, path, shipped))
    for path in task["unit"]["files"]:
        for side, commit in (("base", "base_commit"), ("gold", "merge_commit")):
            data = show(clone, task[commit], path)
            if data is not None:
                put(folder / side / path, data)
        if data is None:
            raise SystemExit(f"{clone} has no {path} at {task['merge_commit']}")
    put(folder / "how.json", json.dumps(how, indent=1).encode())
    return how


def put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def show(clone: Path, commit: str, path: str) -> bytes | None:
    done = subprocess.run(["git", "-C", str(clone), "show", f"{commit}:{path}"], capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else None


def taken_back(clone: Path, task: dict[str, Any], path: str, shipped: bytes) -> bytes:
    diff = ["git", "-C", str(clone), "diff", "--full-index", task["base_commit"], task["merge_commit"], "--", path]
    patch = subprocess.run(diff, capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory() as made:
        put(Path(made) / path, shipped)
        subprocess.run(["git", "init", "-q", made], check=True)
        subprocess.run(["git", "-C", made, "apply", "-R", "-"], input=patch, check=True)
        return (Path(made) / path).read_bytes()


# ---- on both machines


def unpack_metadata(wheel: zipfile.ZipFile, folder: Path) -> None:
    """What tells an installed package's version: vLLM takes no GPU for its platform without it."""
    wheel.extractall(
        folder, [name for name in wheel.namelist() if name.startswith("vllm-") and ".dist-info/" in name]
    )


def unpack(wheel: zipfile.ZipFile, folder: Path, wanted: Callable[[str], bool]) -> None:
    """The package's files that are wanted; what belongs to the wheel itself stays out."""
    for item in wheel.infolist():
        if item.filename.startswith("vllm/") and not item.is_dir() and wanted(item.filename):
            put(folder / item.filename, wheel.read(item))


def make_repository(text: Path, bundle: Path, out: Path, first: str) -> dict[str, tuple[str, str]]:
    """Commits of each task, (base, gold), over the release's text files. `text` becomes the work tree's content."""
    shutil.copytree(text, out)
    (out / ".gitignore").write_text("".join(f"{line}\n" for line in IGNORED))
    git(out, "init", "-q", "--template=", "--object-format=sha1", "-b", "release")
    commit(out, f"{RELEASE} without what is compiled")
    held = len(git(out, "ls-files", "-z").split("\0")) - 2  # the last one is empty, and .gitignore is ours
    if held != (there := sum(path.is_file() for path in text.rglob("*"))):
        raise SystemExit(f"the repository holds {held} of the release's {there} files: mend IGNORED in {__file__}")
    commits = {}
    for name in names(first):
        git(out, "checkout", "-q", "-B", name, "release")
        lay(out, bundle / name / "base")
        base = commit(out, f"{name}: base")
        lay(out, bundle / name / "gold")
        for path in facts_of(name)["patches"]["gold"]["paths"]:
            if not (bundle / name / "gold" / path).exists():  # the release has it
                shutil.copy(text / path, out / path)
        commits[name] = (base, commit(out, f"{name}: landed"))
    git(out, "checkout", "-q", "release")
    return commits


def lay(tree: Path, files: Path) -> None:
    if files.is_dir():
        shutil.copytree(files, tree, dirs_exist_ok=True)


def commit(repository: Path, message: str) -> str:
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "--allow-empty", "--no-gpg-sign", "-m", message)
    return git(repository, "rev-parse", "HEAD").strip()


def git(repository: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=repository, env={**os.environ, **WHO}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"git {' '.join(words)} failed in {repository}: {done.stderr}")
    return done.stdout


def make_suite(bundle: Path, commits: dict[str, tuple[str, str]], out: Path, first: str) -> None:
    """The suite's tasks with commits of the made repository, and with the patches that the bundle has pinned, when it
    has. All else (workloads, thresholds, commands) is the suite's of now, however old the bundle is."""
    out.mkdir(parents=True)
    shutil.copy(SUITE / "suite.json", out / "suite.json")
    shutil.copytree(ROOT / "tasks" / "demo" / "questions", out / "questions")
    for name in names(first):
        (out / name).mkdir()
        for path in ("problem_statement.md", "tests.json"):
            if (SUITE / name / path).is_file():  # test ids are there once `validate` has found them
                shutil.copy(SUITE / name / path, out / name / path)
        facts = derived(name, bundle, commits[name])
        pinned = bundle / name / "pinned.json"
        if pinned.is_file():
            facts |= json.loads(pinned.read_text())
        if (facts["base_commit"], facts["merge_commit"]) != commits[name]:
            raise SystemExit(f"{name}: this wheel does not give the bundle's commits; make the bundle anew")
        (out / name / "task.json").write_text(json.dumps(facts, indent=2) + "\n")


def derived(name: str, bundle: Path, commits: tuple[str, str]) -> dict[str, Any]:
    facts = facts_of(name)
    how = json.loads((bundle / name / "how.json").read_text())
    facts["base_commit"], facts["merge_commit"] = commits
    facts["environment"] |= {"env": ENV, "install": [f'cp -rn "${OVERLAY}/." .'], "lock": None}
    facts["accuracy"]["dataset"] = "questions"
    facts["provenance"]["notes"] += [f"on {RELEASE}: {path}: {text}" for path, text in how.items()]
    return facts


def resized(facts: dict[str, Any], sizes: dict[str, Any], select: str) -> dict[str, Any]:
    """A task with the sizes asked for in place of its own; with the demo's server in vLLM's place for a rehearsal."""
    facts["unit"]["command"] += f" -k '{select}'" if select else ""
    facts["accuracy"]["limit"] = sizes.get("limit", facts["accuracy"]["limit"])
    named = ("prompts", "input_len", "output_len", "concurrency")
    facts["latency"]["workload"] |= {key: sizes[key] for key in named if key in sizes}
    if sizes["rehearsal"]:
        facts["environment"]["gpu"]["count"] = 0
        for stage in ("accuracy", "latency"):
            serve = facts[stage]["serve"]
            serve["command"] = "exec python -m tinyserve.server --model {model} --port {port}"
            serve["model"] = "models/tally" if stage == "accuracy" else "random:small"
            serve["request"] = {}
    return facts


# ---- on the GPU host


def plants(repository: Path, out: Path, name: str) -> None:
    """Predictions files of gold with every step of the GPU made longer: `planted-3.jsonl`, `planted-10.jsonl`."""
    out.mkdir(parents=True, exist_ok=True)
    base = git(repository, "rev-parse", f"{name}~1").strip()
    for label, share in PLANTS.items():
        git(repository, "checkout", "-q", "-B", label, name)
        path = repository / "vllm" / "v1" / "worker" / "gpu_model_runner.py"
        path.write_text(planted(path.read_text(), share))
        commit(repository, label)
        paths = [*facts_of(name)["patches"]["gold"]["paths"], str(path.relative_to(repository))]
        patch = git(repository, "diff", "--full-index", base, label, "--", *paths)
        line = {"instance_id": name, "model_name_or_path": label, "model_patch": patch}
        (out / f"{label}.jsonl").write_text(json.dumps(line) + "\n")
    git(repository, "checkout", "-q", "release")


def read_bundle(path: Path, folder: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(path.read_bytes())) as packed:
        packed.extractall(folder, filter="data")
    if not list(folder.glob("*/pinned.json")):
        raise SystemExit(f"{path} is of an older form: make it anew with scripts/gpu_vllm bundle")
