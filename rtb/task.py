"""Task and suite: what is to be done, where, and how it is judged. Frozen data, no behaviour of a repository."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

SCHEMA_VERSION: Final = 1

InstanceId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]+__[A-Za-z0-9._-]+-[0-9]+[a-z]?$")]
Commit = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
RepositoryName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$")]


def _inside_the_tree(path: str) -> str:
    if path.startswith("/") or ".." in path.split("/") or "\0" in path:
        raise ValueError(f"{path!r} is not a path inside the tree")
    return path


RelativePath = Annotated[str, StringConstraints(min_length=1), AfterValidator(_inside_the_tree)]

Category = Literal["optimization", "modification", "new_kernel"]
CATEGORIES: tuple[Category, ...] = ("optimization", "modification", "new_kernel")
StageName = Literal["unit", "accuracy", "latency"]
STAGES: tuple[StageName, ...] = ("unit", "accuracy", "latency")


class Frozen(BaseModel):
    """What reaches disk: immutable, and an unknown key is an error rather than a silent loss."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Target(Frozen):
    """A function of a file that the task is about. `index` counts functions of one name in a file, from 0."""

    path: RelativePath
    name: str = Field(min_length=1, description="qualified name, e.g. Class.method or outer.<locals>.inner")
    index: int = Field(default=0, ge=0)
    signature: str = Field(default="", description="parameters as written at the landed commit, e.g. (x, n: int)")
    kind: Literal["triton_kernel", "launcher", "host"]
    change: Literal["added", "modified"]
    device: Literal["cuda", "hip", "xpu", "npu", "other"] | None = Field(
        default=None, description="set when the code is a copy for one vendor's device"
    )


class ContextReference(Frozen):
    """Names only: what the targets use, or are used by, in the repository at the base commit."""

    path: RelativePath
    functions: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()


class PatchFacts(Frozen):
    """A patch by reference: its digest and the paths it touches. `sha256` is null until pinned by hydrate."""

    sha256: Sha256 | None
    paths: tuple[RelativePath, ...]


class Patches(Frozen):
    """Gold (the source part of the landed diff) and test (the held-out part)."""

    gold: PatchFacts
    test: PatchFacts


class GpuNeeds(Frozen):
    """What a task asks of the device. Count 0: runs on a CPU."""

    count: int = Field(default=0, ge=0)
    min_compute_capability: float | None = None
    min_memory_gib: float | None = None


class Environment(Frozen):
    """How the task's image (or local virtual environment) is made. Data for one Dockerfile and one task layer."""

    dockerfile: str = Field(description="folder under dockerfiles/ with the base image")
    lock: str | None = Field(default=None, description="lock file in that folder, installed with --no-deps")
    build_args: dict[str, str] = {}
    install: tuple[str, ...] = Field(default=(), description="shell commands run in the tree after the checkout")
    fixes: tuple[str, ...] = Field(default=(), description="shell commands that mend the tree or packages")
    env: dict[str, str] = Field(default={}, description="environment variables of every command in the sandbox")
    import_roots: tuple[str, ...] = Field(default=(".",), description="folders of the tree put on PYTHONPATH")
    plugins: tuple[str, ...] = Field(
        default=(), description="pytest plugins of the environment, never of the verdict"
    )
    python: str = "3.11"
    cuda: str | None = None
    torch: str | None = None
    gpu: GpuNeeds = GpuNeeds()


class UnitStage(Frozen):
    """The task's own tests. `command` starts with `python -m pytest`; `files` are the test files of the task."""

    command: str
    files: tuple[RelativePath, ...]
    timeout_seconds: float = Field(default=1800.0, gt=0)

    @model_validator(mode="after")
    def _starts_pytest(self) -> Self:
        if not re.match(r"python3? -m pytest( |$)", self.command):
            raise ValueError("unit.command must start with 'python -m pytest' (our plugin supplies the records)")
        return self


class Serve(Frozen):
    """How the server under test is started."""

    command: str = Field(description="a shell command; {port} and {model} in it stand for the fields")
    port: int = Field(default=8000, ge=1, le=65535)
    env: dict[str, str] = {}
    model: str
    ready_timeout_seconds: float = Field(default=1800.0, gt=0)
    endpoint: Literal["completions", "chat"] = "completions"
    request: dict[str, Any] = Field(
        default={}, description="keys added to each request's body; null takes a key away that the server refuses"
    )


class AccuracyStage(Frozen):
    """GSM8K over HTTP from outside the sandbox. `margin` is in points of percent."""

    serve: Serve
    dataset: str = "gsm8k"
    model: str
    shots: int = Field(default=5, ge=0)
    limit: int | None = Field(default=None, ge=1)
    margin: float = Field(default=2.0, gt=0)


class Workload(Frozen):
    """Lengths in tokens; `rate` in requests a second, null for a closed loop."""

    prompts: int = Field(ge=1)
    input_len: int = Field(ge=1)
    output_len: int = Field(ge=2)
    concurrency: int = Field(ge=1)
    rate: float | None = None
    seed: int = 0


class LatencyStage(Frozen):
    """TTFT and TPOT from an external client; thresholds are ratios gold / model."""

    serve: Serve
    workload: Workload
    thresholds: dict[Literal["s_ttft", "s_tpot"], float] = {"s_ttft": 0.98, "s_tpot": 0.98}


class Provenance(Frozen):
    """Where the facts come from and what was corrected."""

    source: str
    notes: tuple[str, ...] = ()
    state: Literal["draft", "accepted", "rejected"] = "accepted"
    confidence: float | None = Field(default=None, ge=0, le=1, description="of the category, when mined")
    evidence: tuple[str, ...] = ()


class Task(Frozen):
    """One merged pull request, as data. File: `<suite>/<instance_id>/task.json`."""

    schema_version: Literal[1] = SCHEMA_VERSION
    instance_id: InstanceId
    repo: RepositoryName
    pull_number: int = Field(ge=1)
    base_commit: Commit
    merge_commit: Commit
    created_at: str | None = None
    merged_at: str | None = None
    title: str
    category: Category
    targets: tuple[Target, ...] = Field(min_length=1)
    context: tuple[ContextReference, ...] = ()
    patches: Patches
    environment: Environment
    unit: UnitStage | None
    accuracy: AccuracyStage | None = None
    latency: LatencyStage | None = None
    provenance: Provenance

    @model_validator(mode="after")
    def _id_names_the_pull_request(self) -> Self:
        owner, name = self.repo.split("/")
        wanted = f"{owner}__{name}-{self.pull_number}"
        # A letter may follow: one pull request can carry two tasks (vLLM 16366 does in the paper).
        if self.instance_id.rstrip("abcdefghijklmnopqrstuvwxyz") != wanted and self.instance_id != wanted:
            raise ValueError(
                f"instance_id {self.instance_id!r} does not name {self.repo} pull request: use {wanted!r}"
            )
        return self

    @property
    def stages(self) -> tuple[StageName, ...]:
        """The stages this task has, in the order they run."""
        present = {"unit": self.unit, "accuracy": self.accuracy, "latency": self.latency}
        return tuple(name for name in STAGES if present[name] is not None)


class TestIds(Frozen):
    """tests.json: which pytest node ids must pass, from repeated gold and base runs.

    `fail_to_pass`: fail or do not exist at base with the tests laid over, pass with gold in every run. None: only
    another stage, such as latency, can tell base from gold.
    `pass_to_pass`: pass in every run of both. `new_to_pass`: the part of `fail_to_pass` whose ids did not exist at
    base (not collected). `quarantined`: ids that flipped between equal runs, with the reason; never graded.
    """

    __test__ = False  # not a pytest class

    schema_version: Literal[1] = SCHEMA_VERSION
    instance_id: InstanceId
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    new_to_pass: tuple[str, ...] = ()
    quarantined: dict[str, str] = {}
    gold_runs: int = Field(ge=0, description="how many gold runs the lists come from")
    base_runs: int = Field(ge=0)
    twin: Literal["noticed", "unnoticed"] | None = Field(
        default=None,
        description="whether these tests fail on gold with its targets made wrong; only then may a twin decide",
    )
    twin_noticed_by: tuple[str, ...] = Field(
        default=(), description="the expected ids that failed there; each must fail on a prediction made wrong, too"
    )
    provenance: str = ""

    @model_validator(mode="after")
    def _lists_are_sound(self) -> Self:
        if not self.expected:
            raise ValueError("fail_to_pass and pass_to_pass are both empty: no test is expected to pass")
        both = set(self.fail_to_pass) & set(self.pass_to_pass)
        if both:
            raise ValueError(f"id in both fail_to_pass and pass_to_pass: {sorted(both)[0]}")
        if stray := set(self.new_to_pass) - set(self.fail_to_pass):
            raise ValueError(f"new_to_pass id is not in fail_to_pass: {sorted(stray)[0]}")
        if stray := set(self.twin_noticed_by) - set(self.expected):
            raise ValueError(f"twin_noticed_by id is not expected: {sorted(stray)[0]}")
        if self.twin_noticed_by and self.twin != "noticed":
            raise ValueError("twin_noticed_by names tests that notice the twin, so twin must be 'noticed'")
        for node in (*self.fail_to_pass, *self.pass_to_pass):
            reason = unsound_node_id(node)
            if reason:
                raise ValueError(f"{node!r}: {reason}")
        return self

    @property
    def expected(self) -> tuple[str, ...]:
        """Every id that gold passes, fail-to-pass first."""
        return self.fail_to_pass + self.pass_to_pass


def unsound_node_id(node: str) -> str | None:
    """Why a pytest node id cannot be real, or None. Catches ids cut at a space by a text summary."""
    path, found, name = node.partition("::")
    if not found or not name:
        return "not a pytest node id (path::name)"
    if not path.endswith(".py"):
        return "the part before '::' is no Python file"
    if "[" in name and not node.endswith("]"):
        return "id is cut (open bracket)"
    return None


class Source(Frozen):
    """Where a repository's commits come from: a URL to fetch, or a patch series beside the suite."""

    url: str | None = None
    series: RelativePath | None = None
    committer: str = Field(
        default="rtb <rtb@example.invalid>",
        pattern=r"^[^<>]+ <[^<> ]+>$",
        description="of every commit of a series; part of the commit ids",
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.url is None) == (self.series is None):
            raise ValueError("a source has exactly one of url and series")
        return self


class SplitRules(Frozen):
    """Which paths of a landed diff are tests. Glob patterns on the whole path; `**` crosses folders."""

    tests: tuple[str, ...]
    not_tests: tuple[str, ...] = ()
    dropped: tuple[str, ...] = Field(default=(), description="in neither patch, e.g. benchmarks' data files")


class Suite(Frozen):
    """suite.json: a named set of tasks and what is common to them."""

    schema_version: Literal[1] = SCHEMA_VERSION
    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    title: str
    sources: dict[RepositoryName, Source] = {}
    split: dict[RepositoryName, SplitRules] = {}
    notes: tuple[str, ...] = ()


def canonical_json(model: BaseModel) -> bytes:
    """The bytes that reach disk: sorted nowhere (field order), two spaces, one newline at the end, UTF-8.

    A name of bytes that are no UTF-8 (a patch may bring one) stands as text like `\\udcff`, which can be read again.
    """
    text = json.dumps(model.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"
    try:
        return text.encode()
    except UnicodeEncodeError:
        return re.sub("[\ud800-\udfff]", lambda half: f"\\\\u{ord(half[0]):04x}", text).encode()


def task_digest(task: Task, tests: TestIds | None, patches: dict[str, bytes]) -> str:
    """sha256 over everything that decides a grade: the task, its ids and the bytes of its patches."""
    return task_digest_from(task, tests, {name: hashlib.sha256(data).hexdigest() for name, data in patches.items()})


def task_digest_from(task: Task, tests: TestIds | None, patch_sha256: dict[str, str]) -> str:
    """The same from the digests of the patches: for one who has the task, and not its patches."""
    digest = hashlib.sha256(canonical_json(task))
    if tests is not None:
        digest.update(canonical_json(tests))
    for name in sorted(patch_sha256):
        digest.update(name.encode() + b"\0" + bytes.fromhex(patch_sha256[name]))
    return digest.hexdigest()


class TaskFolder:
    """Every file name of a task is a property here and nowhere else."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def task_json(self) -> Path:
        return self.path / "task.json"

    @property
    def problem_statement(self) -> Path:
        return self.path / "problem_statement.md"

    @property
    def gold_patch(self) -> Path:
        return self.path / "gold.patch"

    @property
    def test_patch(self) -> Path:
        return self.path / "test.patch"

    @property
    def tests_json(self) -> Path:
        return self.path / "tests.json"
