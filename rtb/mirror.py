"""A repository's own history in the user's cache: a blobless fetch that is updated and can be taken up again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rtb.checkout import run_git
from rtb.console import say
from rtb.errors import ExpectedError, MachineError
from rtb.storage import cache_folder, locked

_BATCH = 4000


def mirror(repo: str, url: str | None = None, ref: str | None = None) -> Path:
    """Fetch (or update) all commits and trees of a repository's default branch, or of `ref`; no file contents.

    Raises ExpectedError with both ways out when the network or the repository cannot be reached.
    """
    address = url or f"https://github.com/{repo}.git"
    home = cache_folder("mirrors") / f"{repo.replace('/', '__')}.git"
    with locked(home):
        if not home.is_dir():
            run_git(["init", "-q", "--bare", "--object-format=sha1", str(home)], repository=home.parent)
            run_git(["remote", "add", "origin", address], repository=home)
            run_git(["config", "remote.origin.promisor", "true"], repository=home)
            run_git(["config", "remote.origin.partialclonefilter", "blob:none"], repository=home)
        say(f"fetching commits and trees of {repo} into {home}")
        wanted = ref or "HEAD"
        fetch = ["fetch", "-q", "--no-tags", "--filter=blob:none", "origin", f"+{wanted}:refs/heads/mined"]
        done = run_git(fetch, repository=home, check=False)
        if done.returncode != 0:
            told = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no answer"]
            raise ExpectedError(
                f"{repo} cannot be fetched from {address} ({told[0]}). Two ways out: make the address reachable, or "
                f"mine a clone that you have: rtb mine --repo {repo} --clone PATH"
            )
    return home


def prefetch(repository: Path, blobs: Sequence[str], quiet: bool = False) -> int:
    """Fetch blobs that a blobless mirror lacks, many at once; what has arrived stays when it is interrupted.

    Returns how many were asked for. Raises MachineError when the remote refuses.
    """
    for start in range(0, len(blobs), _BATCH):
        batch = blobs[start : start + _BATCH]
        if not quiet:
            say(f"fetching file contents: {start + len(batch)} of {len(blobs)}")
        arguments = [
            "-c", "fetch.negotiationAlgorithm=noop", "fetch", "-q", "origin", "--no-tags", "--no-write-fetch-head",
            "--recurse-submodules=no", "--filter=blob:none", "--stdin",
        ]  # fmt: skip
        names = "".join(f"{name}\n" for name in batch).encode()
        done = run_git(arguments, repository=repository, stdin=names, check=False)
        if done.returncode != 0:
            raise MachineError(
                f"{repository}: the remote did not send {len(batch)} file contents "
                f"({done.stderr.decode(errors='replace').strip()[-300:]}); run the same command to go on from here"
            )
    return len(blobs)


def is_mirror(repository: Path) -> bool:
    """Whether this is one of ours, whose blobs may be fetched."""
    return repository.parent == Path(os.path.realpath(cache_folder("mirrors"))) or repository.parent == cache_folder(
        "mirrors"
    )
