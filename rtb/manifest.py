"""The manifest of a submission: made over a folder, and held against it, with every difference by file."""

from __future__ import annotations

import hashlib
from pathlib import Path

from rtb.errors import InvalidFile
from rtb.storage import write_model
from rtb.submission import Fault, FileFacts, Manifest, SubmissionFolder
from rtb.suite import read_model

MOST_BYTES = 100 * 1024**2  # of one file: what GitHub takes


def file_facts(path: Path) -> FileFacts:
    """Digest and size of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileFacts(sha256=digest, bytes=file.tell())


def seal(folder: SubmissionFolder) -> Manifest:
    """Write MANIFEST.json over what is there. The last step of making a submission, before the signature."""
    manifest = Manifest(files={name: file_facts(path) for name, path in folder.sealed_files()})
    write_model(folder.manifest, manifest)
    return manifest


def compare(folder: SubmissionFolder) -> list[Fault]:
    """Files that are changed, missing or not listed; links and files that are too large."""
    found: list[Fault] = []
    there: dict[str, Path] = {}
    for name, path in folder.sealed_files():
        if path.is_symlink() or not path.is_file():
            found.append(Fault(file=name, kind="layout", message="not a plain file; links and devices are not taken"))
        elif path.stat().st_size > MOST_BYTES:
            size = path.stat().st_size
            found.append(Fault(file=name, kind="layout", message=f"{size} bytes; at most {MOST_BYTES} are taken"))
        else:
            there[name] = path
    if folder.manifest.is_symlink() or not folder.manifest.is_file():
        missing = "missing; 'rtb submit' writes it, with the sha256 of every file"
        return [*found, Fault(file=folder.manifest.name, kind="layout", message=missing)]
    try:
        manifest = read_model(folder.manifest, Manifest)
    except InvalidFile as error:
        return [*found, Fault(file=folder.manifest.name, kind="layout", message=str(error))]
    for name, facts in manifest.files.items():
        if name not in there:
            found.append(Fault(file=name, kind="digest", message="listed in MANIFEST.json, and not there"))
        elif (now := file_facts(there[name])) != facts:
            found.append(Fault(file=name, kind="digest", message=_difference(facts, now)))
    strange = (name for name in there if name not in manifest.files)
    found += (Fault(file=name, kind="digest", message="not listed in MANIFEST.json") for name in strange)
    return found


def _difference(sealed: FileFacts, now: FileFacts) -> str:
    size = f", {sealed.bytes} bytes then and {now.bytes} now" if sealed.bytes != now.bytes else ""
    return f"changed after it was sealed: sha256 {now.sha256[:16]}, MANIFEST.json says {sealed.sha256[:16]}{size}"
