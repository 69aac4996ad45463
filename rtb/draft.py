"""A judged pull request as a task of state `draft`: task.json and a problem statement that a person reviews. Pure."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rtb.candidate import Judgement
from rtb.category import Decision
from rtb.changed_tests import ChangedTests
from rtb.environment_guess import Guess
from rtb.kernels import FunctionChange
from rtb.repo_rules import RepoRules, device_of
from rtb.task import (
    AccuracyStage,
    ContextReference,
    Environment,
    GpuNeeds,
    LatencyStage,
    Patches,
    PatchFacts,
    Provenance,
    Serve,
    Target,
    Task,
    UnitStage,
    Workload,
)
from rtb.tested_names import tested_names

_TRAILERS = re.compile(
    r"^(?:co-authored-by|signed-off-by|reviewed[- ]by|differential revision|fbshipit-source-id|x-link|pulled by|"
    r"pull[- ]request[- ]resolved|approved by|ghstack-source-id|imported-from-github|test plan|---+\s*$|\* )",
    re.IGNORECASE,
)
_KIND = {"kernel": "triton_kernel", "device": "triton_kernel", "template": "triton_kernel"}


@dataclass(frozen=True)
class Patch:
    """One half of a landed diff."""

    data: bytes
    paths: tuple[str, ...]

    @property
    def facts(self) -> PatchFacts:
        return PatchFacts(sha256=hashlib.sha256(self.data).hexdigest(), paths=self.paths)


@dataclass(frozen=True)
class Material:
    """Everything a draft is made of."""

    judgement: Judgement
    decision: Decision
    tests: tuple[ChangedTests, ...]
    context: tuple[ContextReference, ...]
    environment: Guess
    gold: Patch
    test: Patch
    title: str
    body: str
    created_at: str | None = None
    hosting: tuple[str, ...] = ()


def draft_task(material: Material, rules: RepoRules) -> Task:
    """The task.json of a draft."""
    judgement = material.judgement
    pull = judgement.pull
    assert pull.number is not None and pull.base is not None
    files = tuple(item.path for item in material.tests)
    merged = datetime.fromtimestamp(pull.records[-1].committed_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    unit = None
    if files and judgement.kind != "config":
        unit = UnitStage(command=rules.commands.unit.format(files=shlex.join(files)), files=files)
    return Task(
        instance_id=f"{rules.repo.replace('/', '__')}-{pull.number}",
        repo=rules.repo,
        pull_number=pull.number,
        base_commit=pull.base,
        merge_commit=pull.landed,
        created_at=material.created_at,
        merged_at=merged,
        title=material.title,
        category=material.decision.category,
        targets=tuple(_target(item, rules) for item in judgement.targets),
        context=material.context,
        patches=Patches(gold=material.gold.facts, test=material.test.facts),
        environment=_environment(material, rules),
        unit=unit,
        accuracy=_accuracy(rules),
        latency=_latency(rules),
        provenance=Provenance(
            source=f"mined from the history of {rules.repo}",
            notes=_notes(material, rules),
            state="draft",
            confidence=material.decision.confidence,
            evidence=(
                *judgement.evidence,
                *material.decision.evidence,
                *_test_evidence(material.tests),
                *material.hosting,
            ),
        ),
    )


def _target(change: FunctionChange, rules: RepoRules) -> Target:
    kind = _KIND.get(change.role, change.role)
    return Target(
        path=change.path,
        name=change.name,
        index=change.index,
        signature=change.signature,
        kind=kind,  # type: ignore[arg-type]
        change="added" if change.label == "added" else "modified",
        device=device_of(change.path, rules),
    )


def _environment(material: Material, rules: RepoRules) -> Environment:
    found = material.environment
    return Environment(
        dockerfile=rules.environment.dockerfile,
        install=rules.environment.install,
        import_roots=rules.environment.import_roots,
        python=found.python,
        cuda=found.cuda,
        torch=found.torch,
        gpu=GpuNeeds(count=1),
    )


def _serve(rules: RepoRules) -> Serve | None:
    if rules.serve is None:
        return None
    command = rules.serve.command.format(model=rules.serve.model, port=rules.serve.port)
    return Serve(command=command, port=rules.serve.port, model=rules.serve.model)


def _accuracy(rules: RepoRules) -> AccuracyStage | None:
    serve = _serve(rules)
    return AccuracyStage(serve=serve, model=serve.model) if serve is not None else None


def _latency(rules: RepoRules) -> LatencyStage | None:
    serve = _serve(rules)
    if serve is None or rules.latency is None:
        return None
    return LatencyStage(serve=serve, workload=Workload(**rules.latency.model_dump()))


def _notes(material: Material, rules: RepoRules) -> tuple[str, ...]:
    notes = ["environment guessed: " + ("; ".join(material.environment.evidence) or "no file says anything")]
    if rules.serve is not None:
        notes.append("accuracy and latency commands are candidates: nothing proves yet that they reach the target")
    if not material.judgement.tests_changed and material.judgement.kind != "config":
        notes.append(
            "the pull request changed no test; the unit files were there before, so unit alone proves nothing"
        )
    if material.judgement.kind == "launcher":
        notes.append("no kernel body changed: the targets are launchers")
    if material.judgement.kind == "config":
        notes.append("only decorators or autotune lists changed: a latency task")
    return tuple(notes)


def _test_evidence(tests: Sequence[ChangedTests]) -> tuple[str, ...]:
    lines = []
    for item in tests:
        what = f"{len(item.functions)} test functions" if item.functions else "no test function"
        more = ", and other parts" if item.elsewhere else ""
        lines.append(f"test file {item.state}: {item.path} ({what}{more})")
    return tuple(lines)


def clean_body(message: str) -> str:
    """A commit message's body without the trailers of tools."""
    _, _, body = message.partition("\n")
    lines = [line.rstrip() for line in body.splitlines() if not _TRAILERS.match(line.strip())]
    text = re.sub(r"<!--.*?-->", "", "\n".join(lines), flags=re.DOTALL)
    text = re.sub(r"^Summary:\s*$", "", text, flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def problem_statement(material: Material) -> str:
    """A draft of the task's description from title, body and structure; holds no code of the gold patch."""
    lines = [f"# {material.title}", ""]
    if material.body:
        lines += [material.body, ""]
    lines += ["## What is to be changed", ""]
    for item in material.judgement.targets:
        lines.append(f"- `{item.path}`: {_describe(item)}")
    targets = {item.name for item in material.judgement.targets}
    if used := tested_names(material.gold.data, material.test.data, targets):
        lines += ["", "## New names that the tests use", ""]
        lines += [f"- `{path}`: {', '.join(f'`{name}`' for name in names)}" for path, names in used.items()]
    if material.context:
        lines += ["", "## What is around it", ""]
        for reference in material.context:
            names = ", ".join(f"`{name}`" for name in (*reference.functions, *reference.classes))
            lines.append(f"- `{reference.path}`: {names}")
    return "\n".join(lines).rstrip() + "\n"


def stood_there(name: str, before: bytes) -> bool:
    """Whether a file's bytes define a function: one that launches nothing is in no record, so it is looked for in the
    text. `name` has its class in front, as in `Layer.step`."""
    owner, _, last = name.rpartition(".")
    indent = r"[ \t]+" if owner else ""
    wanted = [rf"^{indent}(?:async[ \t]+)?def[ \t]+{re.escape(last)}\b"]
    if owner:
        wanted.append(rf"^[ \t]*class[ \t]+{re.escape(owner.rpartition('.')[2])}\b")
    return all(re.search(pattern.encode(), before, re.MULTILINE) for pattern in wanted)


def _describe(item: FunctionChange) -> str:
    kind = {"kernel": "Triton kernel", "device": "Triton device function", "template": "Triton template"}.get(
        item.role, f"{item.role} function"
    )
    if item.label == "added":
        return f"add the {kind} `{item.name}{item.signature}`"
    if item.label == "moved_modified" and item.origin:
        path, _, name = item.origin.partition(":")
        return f"change the {kind} `{name}` of `{path}`, which becomes `{item.name}{item.signature}` here"
    if "signature" in (item.label, *item.also):
        return f"change the {kind} `{item.name}`; its parameters become `{item.signature}`"
    if item.label == "config":
        return f"change the launch or autotune configurations of the {kind} `{item.name}`"
    return f"change the {kind} `{item.name}`"


_CODE = re.compile(r"[=()\[\]{}<>+*/%]|\b(?:if|for|while|return|import|def)\b")


def leaks(statement: str, gold: bytes, targets: Sequence[FunctionChange] = ()) -> tuple[str, ...]:
    """Lines of a gold patch that a problem statement repeats.

    Compared without blanks; a line counts from 16 characters on when it looks like code. Signatures of targets are
    part of the question and are no leak.
    """
    whole = _squeezed(statement)
    asked = "".join(_squeezed(f"{item.name}{item.signature}") for item in targets)
    found = []
    for line in gold.decode("utf-8", "replace").splitlines():
        if not line.startswith("+") or line.startswith("+++"):
            continue
        text = line[1:].strip()
        if len(text) < 16:
            continue
        key = _squeezed(text)
        if len(key) >= 16 and key in whole and key not in asked and _CODE.search(text):
            found.append(text)
    return tuple(dict.fromkeys(found))


def _squeezed(text: str) -> str:
    return "".join(text.split()).replace("`", "")
