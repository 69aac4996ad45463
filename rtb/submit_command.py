"""The verb `rtb submit`, and how a check is wired together: grading of the harness, audit of the scaffold."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rtb.errors import ExpectedError
from rtb.options import EXIT_EXPECTED, JsonOption, emit

if TYPE_CHECKING:
    from harness.submission_check import Checker
    from rtb.run import Run
    from rtb.submission import Checked, Metadata, TrajectoryAudit

SUBMIT_HELP = """Make a submission from a run: a folder that anybody can grade again; with --repo, a pull request.

What the run does not know (model, scaffold, contact, ...) is asked for, or read from --metadata.

Example: rtb submit RUN_ID --out my-submission
"""
_MOST_SHOWN = 50

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run: its id under runs/, or its folder.")]


def submit_command(
    run: RunArgument,
    out: Annotated[
        Path | None, typer.Option(help="The folder to make; default with --repo: submissions/DATE-MODEL.")
    ] = None,
    repo: Annotated[
        str | None, typer.Option(help="OWNER/NAME: open a pull request there; needs GITHUB_TOKEN.")
    ] = None,
    metadata: Annotated[Path | None, typer.Option(help="JSON file with the answers; see --draft.")] = None,
    trajectories: Annotated[
        Path | None, typer.Option(help="Folder of trajectories; default: the .attempts beside the predictions.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="Ed25519 private key to sign with (ssh-keygen's or PEM).")] = None,
    draft: Annotated[bool, typer.Option("--draft", help="Print the metadata that the run knows, and leave.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a submission."""
    from rtb import metadata_draft, packing
    from rtb.console import say
    from rtb.run import find_run

    stored = find_run(run)
    known = metadata_draft.draft(stored)
    if draft:
        emit(known)
        return
    if out is None and repo is None:
        raise typer.BadParameter("say where to: --out DIR, or --repo OWNER/NAME", param_hint="--out")
    told = _metadata(known, metadata)
    source = trajectories or _default_trajectories(stored)
    target = out or Path("submissions") / folder_name(told)
    folder = packing.pack(stored, target, told, trajectories=source, key=key, own_secrets=_own_secrets())
    found = checker().check(folder.path)
    say(f"submission: {folder.path}")
    if not found.accepted:
        if as_json:
            emit(check_document(found))
        show_faults(found)
        say("it would be refused: mend the above and make it again")
        raise typer.Exit(EXIT_EXPECTED)
    address = _propose(repo, folder.path, found) if repo is not None else None
    if as_json:
        emit({**check_document(found), "pull_request": address})
    elif address is None:
        say(f"next: rtb leaderboard check {folder.path}, or rtb submit {run} --repo OWNER/NAME")


def _propose(repo: str, folder: Path, found: Checked) -> str:
    from rtb.console import say
    from rtb.proposal import Text, propose
    from rtb.pull_request import API

    assert found.metadata is not None and found.report is not None
    metric = found.report.metrics.success
    title = f"Submission: {found.metadata.model.name} with {found.metadata.scaffold.name} on {found.report.suite}"
    body = (
        f"{found.report.outcomes['resolved']} of {found.report.tasks} tasks resolved ({metric.value or 0:.1f} %). "
        f"Checked with `rtb leaderboard check`: every number was computed again from the raw files.\n\n"
        f"sha256 of MANIFEST.json: `{found.digest}`"
    )
    name = f"{folder_name(found.metadata)}-{found.digest[:8]}"
    address = propose(repo, folder, Text(name, title, body), api=os.environ.get("GITHUB_API_URL") or API)
    say(f"pull request: {address}")
    return address


def folder_name(metadata: Metadata) -> str:
    """A submission's name: date, model, scaffold; safe as a folder and as a branch."""
    from rtb.leaderboard import slug

    return f"{metadata.date:%Y%m%d}-{slug(metadata.model.name)}-{slug(metadata.scaffold.name)}"


def _metadata(known: dict[str, Any], path: Path | None) -> Metadata:
    from rtb import metadata_draft
    from rtb.console import say

    if path is not None:
        return metadata_draft.read_metadata(path, known)
    if not sys.stdin.isatty():
        raise metadata_draft.missing_fields(known)

    def ask(question: str, default: str) -> str:
        return str(typer.prompt(question, default=default, show_default=bool(default), err=True))

    return metadata_draft.ask_for(known, ask, say)


def _default_trajectories(run: Run) -> Path | None:
    beside = Path(run.read_record().predictions).with_suffix(".attempts")
    return beside if beside.is_dir() else None


def _own_secrets() -> tuple[str, ...]:
    from scaffold.keys import Secrets

    return Secrets.of_environment().values


def checker(keys: Path | None = None, suites: Path | None = None) -> Checker:
    """What submissions are held against: the suites here, and the keys that are trusted."""
    from harness.submission_check import Checker
    from rtb.signature import read_keys
    from rtb.submission_rules import KnownSuites

    return Checker(KnownSuites(suites), audit_trajectories, read_keys(keys) if keys is not None else None)


def audit_trajectories(folder: Path) -> TrajectoryAudit:
    """The scaffold's audit over a submission's trajectories, in the submission's words."""
    from rtb.submission import Evidence, TrajectoryAudit
    from scaffold.audit import audit_one
    from scaffold.trajectory import read_trajectory

    findings: list[Evidence] = []
    unread: list[tuple[str, str]] = []
    commands = count = 0
    for path in sorted(folder.rglob("*.traj.json")):
        name = path.relative_to(folder).as_posix()
        try:
            trajectory = read_trajectory(path)
            found = audit_one(trajectory)
        except (ExpectedError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            # A stranger's file: whatever its shape breaks is said of the file.
            unread.append((name, f"cannot be read as a trajectory: {str(error).replace(str(folder) + '/', '')}"))
            continue
        count += 1
        commands += sum(1 for _ in trajectory.commands)
        task = name.partition("/")[0]
        if trajectory.instance_id not in ("", task):
            unread.append((name, f"the trajectory is of {trajectory.instance_id[:100]!r}"))
        findings += [
            Evidence(instance_id=task, file=name, step=item.step, kind=item.kind, what=item.what, text=item.text)
            for item in found
        ]
    return TrajectoryAudit(
        trajectories=count, commands=commands, findings=tuple(findings), unread=tuple(unread),
        patches=_attempt_patches(folder),
    )  # fmt: skip


def _attempt_patches(folder: Path) -> dict[str, tuple[str, ...]]:
    """sha256 of the patch each attempt ended with; those that a machine fault ended do not count."""
    found: dict[str, tuple[str, ...]] = {}
    for path in sorted(folder.glob("*/attempt-*/patch.diff")):
        if ".fault-" not in path.parent.name:
            task = path.parent.parent.name
            found[task] = (*found.get(task, ()), hashlib.sha256(path.read_bytes()).hexdigest())
    return found


def check_document(found: Checked) -> dict[str, Any]:
    """What `--json` prints of a check."""
    report = found.report
    return {
        "folder": found.folder,
        "accepted": found.accepted,
        "digest": found.digest,
        "signer": found.signer,
        "faults": [item.model_dump(mode="json") for item in found.faults],
        "notes": list(found.notes),
        "resolved": report.outcomes["resolved"] if report else None,
        "tasks": report.tasks if report else None,
        "findings": [item.model_dump(mode="json") for item in found.audit.findings],
    }


def show_faults(found: Checked) -> None:
    """Every fault with its file, then the remarks, on standard error."""
    from rtb.console import say

    for fault in found.faults:
        say(f"{found.folder}/{fault.place}: {fault.kind}: {fault.message}")
    for note in found.notes:
        say(f"{found.folder}: note: {note}")


def show_checks(every: Sequence[Checked]) -> None:
    """Faults, remarks and one line of result a submission."""
    from rtb.console import say

    for found in every:
        show_faults(found)
        for item in found.audit.findings[:_MOST_SHOWN]:
            say(f"{found.folder}/trajectories/{item.file}: step {item.step}: {item.kind}: {item.text}")
        if found.accepted and found.report is not None:
            outcomes = json.dumps({key: count for key, count in found.report.outcomes.items() if count})
            signed = f"signed by {found.signer}" if found.signer else "not signed"
            say(f"{found.folder}: accepted; computed again from the raw files: {outcomes}; {signed}")
        else:
            say(f"{found.folder}: refused ({len(found.faults)} reason(s))")


submit_command.__doc__ = SUBMIT_HELP
