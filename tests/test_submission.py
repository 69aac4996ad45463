"""Submissions: everything that is handed in is computed again, and whatever was changed is named with its file."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from rtb import manifest, signature, submit_command
from rtb.errors import ExpectedError
from rtb.manifest import seal
from rtb.submission import SubmissionFolder
from tests.cases import case_folder
from tests.examples import ROOT, TASK, as_model, checker, copy_of, count, edit, rtb, said


@pytest.mark.parametrize("name", [path.name for path in sorted((ROOT / "examples/leaderboard").iterdir())])
def test_the_shipped_examples_hold(name: str) -> None:
    found = submit_command.checker(suites=ROOT / "examples" / "suites").check(
        ROOT / "examples" / "leaderboard" / name
    )
    assert found.accepted, f"{said(found)}\nto make it again: scripts/make-example-leaderboard"
    assert found.report is not None and found.report.tasks == len(found.tasks)
    assert found.report.outcomes["resolved"] == {"gold": 11, "base": 0, "example": 1, "agent": 7}[name]


def test_every_single_bytecounts(tmp_path: Path) -> None:
    folder = copy_of("example", tmp_path / "s")
    assert not manifest.compare(folder)
    for name, path in folder.sealed_files():
        whole = path.read_bytes()
        place = len(whole) // 2
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :] if whole else b"x")
        assert [fault.file for fault in manifest.compare(folder)] == [name]
        path.unlink()
        assert [(fault.file, fault.kind) for fault in manifest.compare(folder)] == [(name, "digest")]
        path.write_bytes(whole)
    (folder.run.path / "more.txt").write_text("x")
    assert [fault.message for fault in manifest.compare(folder)] == ["not listed in MANIFEST.json"]


def _json(file: str, change: Callable[[Any], None]) -> Callable[[SubmissionFolder], None]:
    return lambda folder: edit(folder.path / file, change)


def _claim(document: Any) -> None:
    document["metrics"]["success"]["value"] = 100.0


def _resolved(document: Any) -> None:
    document.update(outcome="resolved", reason="unit: all passed")


def _failing(folder: SubmissionFolder) -> str:
    """A task whose tests ran and failed."""
    for path in sorted(folder.run.path.glob("*/verdict.json")):
        verdict = json.loads(path.read_text())
        if verdict["outcome"] == "unresolved" and verdict["stages"]:
            return path.parent.name
    raise AssertionError("no failing task in the example")


def _forged_verdict(folder: SubmissionFolder) -> None:
    name = _failing(folder)
    edit(folder.run.task(name).verdict, _resolved)
    edit(folder.report, count)


def _forged_junit(folder: SubmissionFolder) -> None:
    """Failures taken out of the JUnit file, its digest mended, verdict and report written to match."""
    name = _failing(folder)
    raw = folder.run.task(name).path / "unit"
    text = re.sub(r"<failure.*?</failure>|<error.*?</error>", "", (raw / "junit.xml").read_text(), flags=re.DOTALL)
    (raw / "junit.xml").write_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    edit(raw / "exec.json", lambda document: document.update(junit_sha256=digest, exit_code=0))
    _forged_verdict(folder)


def _forged_records(folder: SubmissionFolder) -> None:
    name = _failing(folder)
    raw = folder.run.task(name).path / "unit"
    text = (raw / "records.jsonl").read_text().replace('"failed"', '"passed"')
    (raw / "records.jsonl").write_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    edit(raw / "exec.json", lambda document: document.update(records_sha256=digest))
    _forged_verdict(folder)


def _fewer_tests(document: Any) -> None:
    document["tests"]["pass_to_pass"] = []
    document["tests"]["fail_to_pass"] = document["tests"]["fail_to_pass"][:1]


def _other_suite(folder: SubmissionFolder) -> None:
    """A task of somewhere else among those of the suite."""
    shutil.copytree(folder.run.task(TASK).path, folder.run.path / "toy__toy-1")
    edit(folder.run.record, lambda document: document["categories"].update({"toy__toy-1": "modification"}))


def _a_machine_fault(folder: SubmissionFolder) -> None:
    one = {"number": 1, "error": "gone", "kind": "SandboxGone", "seconds": 1.0}
    log = {"schema_version": 1, "attempts": [one], "final": True}
    folder.run.task(TASK).attempts.write_text(json.dumps(log))


def _linked(folder: SubmissionFolder) -> None:
    (folder.path / "link").symlink_to("/etc/passwd")


def _secret(folder: SubmissionFolder) -> None:
    folder.trajectories.mkdir()
    (folder.trajectories / "x.txt").write_text("line one\nkey: " + "sk-proj-" + "a1B2" * 8 + "\n")


def _escaping(folder: SubmissionFolder) -> None:
    edit(folder.run.record, lambda document: document["categories"].update({"../../x": "modification"}))


def _another_patch(folder: SubmissionFolder) -> None:
    folder.run.task(TASK).patch_diff.write_bytes(b"diff --git a/x b/x\n")


@pytest.mark.parametrize(
    ("spoil", "kind", "file", "words"),
    [
        (_json("report.json", count), "report", "report.json", "says 2 resolved; the raw files give 1"),
        (_json("report.json", _claim), "report", "report.json", "metrics"),
        (_forged_verdict, "verdict", "verdict.json", "says resolved; the raw files give unresolved"),
        (_forged_junit, "verdict", "verdict.json", "the raw files give tampered"),
        (_forged_records, "verdict", "verdict.json", "raw files give"),
        (lambda f: (f.run.task(TASK).path / "unit/console.log").unlink(), "raw", f"run/{TASK}", "console.log"),
        (lambda f: (f.run.task(TASK).path / "unit/exec.json").unlink(), "raw", f"run/{TASK}", "exec.json"),
        (lambda f: (f.run.task(TASK).path / "unit/exec.json").write_text("[" * 9999), "raw", f"run/{TASK}", "graded"),
        (lambda f: shutil.rmtree(f.run.task(TASK).path), "raw", f"run/{TASK}", "missing"),
        (lambda f: f.run.task(TASK).record.unlink(), "raw", "record.json", "missing"),
        (lambda f: f.run.task(TASK).verdict.unlink(), "verdict", "verdict.json", "missing"),
        (lambda f: f.report.unlink(), "report", "report.json", "missing"),
        (lambda f: f.metadata.write_text("{}"), "metadata", "metadata.json", "model"),
        (_json(f"run/{TASK}/record.json", _fewer_tests), "task", "record.json", "not the suite's test ids"),
        (_json(f"run/{TASK}/record.json", lambda d: d["task"].update(title="t")), "task", "", "title differ"),
        (_json(f"run/{TASK}/record.json", lambda d: d.update(stages=[])), "task", "record.json", "other stages"),
        (_json(f"run/{TASK}/record.json", lambda d: d["key"].update(device_class="B200")), "hardware", "", "B200"),
        (_json(f"run/{TASK}/record.json", lambda d: d["key"].update(environment_digest="")), "version", "", "image"),
        (_json(f"run/{TASK}/record.json", lambda d: d["key"].update(harness_version="9")), "version", "", "by rtb 9"),
        (_json("run/run.json", lambda d: d.update(rtb_version="0.0.9")), "version", "run/run.json", "0.0.9"),
        (_json("run/run.json", lambda d: d.update(suite="real-cpu")), "suite", "run/run.json", "not known here"),
        (_json("run/run.json", lambda d: d.update(suite="../demo")), "suite", "run/run.json", "not known here"),
        (_json("run/run.json", lambda d: d["categories"].pop(TASK)), "incomplete", "run.json", "left out"),
        (_json("metadata.json", lambda d: d["hardware"].update(device_class="B200")), "hardware", "a.json", ""),
        (_json("metadata.json", lambda d: d["attempts"].update(count=3)), "attempts", "a.json", "say how"),
        (_json("metadata.json", lambda d: d["model"].update(name_or_path="z")), "metadata", "a.json", "'z'"),
        (_json("metadata.json", lambda d: d.update(example=False)), "trajectory", f"trajectories/{TASK}", "missing"),
        (_other_suite, "suite", "run/run.json", "toy__toy-1 is no task of suite demo"),
        (_a_machine_fault, "incomplete", f"run/{TASK}", "machine fault"),
        (_another_patch, "prediction", "patch.diff", "not the patch of all_preds.jsonl"),
        (lambda f: f.predictions.write_text(""), "prediction", "all_preds.jsonl", ""),
        (_linked, "layout", "link", "not a plain file"),
        (_secret, "secret", "trajectories/x.txt", "OpenAI"),
        (_escaping, "layout", "run/run.json", "no instance id"),
    ],
)  # fmt: skip
def test_whatever_is_wrong_is_refused_with_its_file_although_it_was_sealed_again(
    spoil: Callable[[SubmissionFolder], object], kind: str, file: str, words: str, tmp_path: Path
) -> None:
    folder = copy_of("example", tmp_path / "s")
    spoil(folder)
    if kind != "layout" or file != "link":
        seal(folder)
    found = checker().check(folder.path)
    assert not found.accepted
    matching = [
        fault for fault in found.faults if fault.kind == kind and file in fault.file and words in fault.message
    ]
    assert matching, said(found)


def test_a_check_does_not_stop_at_the_first_fault(tmp_path: Path) -> None:
    folder = copy_of("example", tmp_path / "s")
    edit(folder.report, count)
    (folder.run.task(TASK).path / "unit" / "console.log").unlink()
    edit(folder.metadata, lambda document: document["attempts"].update(count=3))
    found = checker().check(folder.path)
    assert {"digest", "raw", "attempts", "report"} <= {fault.kind for fault in found.faults} | {"report"}
    done = rtb("leaderboard", "check", str(folder.path), "--json")
    assert done.returncode == 1
    assert [item["file"] for item in json.loads(done.stdout)[0]["faults"]] == [fault.file for fault in found.faults]
    assert f"{folder.path}/report.json: digest: changed after it was sealed" in done.stderr


def test_the_public_case_is_refused_with_all_its_faults() -> None:
    folder = case_folder("106-submission-check")
    expected = json.loads((folder / "case.json").read_text())["expected"]
    found = checker().check(folder / "sub")
    text = said(found)
    assert not found.accepted
    assert len(expected["refused_with_all_faults"]) == 6
    assert "says 3 resolved, results.json says 2" in text
    assert "logs missing for org__a-2, claimed resolved" in text
    assert "org__a-4 is resolved in its log, unresolved in results.json" in text
    assert "trajectory of org__a-1 is empty" in text
    for name in ("org__a-2", "org__a-3", "org__a-4"):
        assert f"trajectory of {name} is missing" in text
        assert f"no prediction for {name}" in text
    assert "harness version, dataset revision, image digests missing" in text
    assert found.report is None, "nothing is computed silently in place of what was claimed"


def test_the_same_faults_in_our_own_layout(tmp_path: Path) -> None:
    folder = as_model(copy_of("example", tmp_path / "s"), "some/model")
    assert checker().check(folder.path).accepted
    edit(folder.report, count)
    shutil.rmtree(folder.run.task(TASK).path / "unit")
    (folder.trajectories / TASK / "notes.txt").write_text("{}")
    shutil.rmtree(folder.trajectories / "rtb__tinyserve-15")
    edit(folder.run.task(TASK).record, lambda document: document["key"].update(harness_version=""))
    lines = [line for line in folder.predictions.read_text().splitlines() if "tinyserve-20" not in line[:60]]
    folder.predictions.write_text("\n".join(lines) + "\n")
    seal(folder)
    text = said(checker().check(folder.path))
    assert f"trajectories/{TASK}: trajectory: empty" in text
    assert "trajectories/rtb__tinyserve-15: trajectory: missing" in text
    assert f"run/{TASK}: raw: cannot be graded" in text
    assert "evaluated by rtb (unknown)" in text
    assert "all_preds.jsonl: prediction: no prediction for rtb__tinyserve-20" in text


TRAJECTORY = {
    "trajectory_format": "mini-swe-agent-1.1",
    "instance_id": TASK,
    "info": {"exit_status": "Submitted", "submission": "", "config": {"model": {"model_name": "m"}}},
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "", "extra": {"actions": [{"command": "git log --all"}]}},
        {"role": "user", "content": "o", "extra": {"returncode": 0, "raw_output": ""}},
    ],
}


def test_trajectories_are_audited_and_findings_are_shown_not_judged(tmp_path: Path) -> None:
    folder = as_model(copy_of("example", tmp_path / "s"), "some/model")
    attempt = folder.trajectories / TASK / "attempt-1"
    attempt.mkdir()
    (attempt / "trajectory.traj.json").write_text(json.dumps(TRAJECTORY))
    (attempt / "patch.diff").write_bytes(folder.run.task(TASK).patch_diff.read_bytes())
    seal(folder)
    found = checker().check(folder.path)
    assert found.accepted, said(found)
    assert [(item.kind, item.step, item.text) for item in found.audit.findings] == [("history", 1, "git log --all")]
    assert any("for a person to judge" in note for note in found.notes)
    (attempt / "patch.diff").write_bytes(b"another")
    (folder.trajectories / "rtb__tinyserve-9" / "x.traj.json").write_text(json.dumps(TRAJECTORY))
    (folder.trajectories / "rtb__tinyserve-15" / "x.traj.json").write_text("{}")
    seal(folder)
    text = said(checker().check(folder.path))
    assert "no attempt here ended with the patch that was submitted" in text
    assert f"the trajectory is of '{TASK}'" in text
    assert "rtb__tinyserve-15/x.traj.json: trajectory: cannot be read" in text


def _key(path: Path) -> str:
    key = Ed25519PrivateKey.generate()
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def test_a_signature_is_by_a_known_key_over_this_manifest(tmp_path: Path) -> None:
    folder = copy_of("example", tmp_path / "s")
    public = _key(tmp_path / "key")
    mark = signature.sign(folder.manifest, tmp_path / "key", folder.signature)
    trusted, others = tmp_path / "keys", tmp_path / "others"
    trusted.write_text(f"# ours\n{public} ada@example\n")
    others.write_text(_key(tmp_path / "other") + "\n")
    assert checker().check(folder.path).signer == mark
    assert checker(trusted).check(folder.path).signer == f"ada@example ({mark})"
    assert "not in the list of trusted keys" in said(checker(others).check(folder.path))
    folder.manifest.write_bytes(folder.manifest.read_bytes() + b"\n")
    assert "MANIFEST.sig: signature: the signature does not fit" in said(checker(trusted).check(folder.path))
    folder.signature.unlink()
    assert "only signed submissions are taken" in said(checker(trusted).check(folder.path))
    with pytest.raises(ExpectedError, match="ssh-keygen"):
        signature.sign(folder.manifest, trusted, folder.signature)


def test_keys_of_ssh_keygen_are_taken(tmp_path: Path) -> None:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("no ssh-keygen here")
    make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "ada", "-f", str(tmp_path / "key")]
    subprocess.run(make, check=True, timeout=60)
    (tmp_path / "m").write_bytes(b"x")
    mark = signature.sign(tmp_path / "m", tmp_path / "key", tmp_path / "sig")
    assert signature.read_keys(tmp_path / "key.pub") == {mark: "ada"}
    shown = subprocess.run(
        ["ssh-keygen", "-l", "-f", str(tmp_path / "key.pub")], capture_output=True, text=True, check=True, timeout=60
    )
    assert mark in shown.stdout
