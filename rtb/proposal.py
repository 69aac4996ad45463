"""Proposal: a folder of files as a pull request on GitHub. EDGE GitHub, by PyGithub.

Every step first looks whether it was done: after a lost connection, or when the command is run again, nothing is made
twice. The branch is named by the submission's digest, and appears only when all its files are there.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rtb.console import say
from rtb.errors import ExpectedError, MachineError
from rtb.pull_request import API, TOKENS, PermissionDenied, client, message_of, pause_for, token

if TYPE_CHECKING:
    from github import GithubException, InputGitTreeElement
    from github.GitCommit import GitCommit
    from github.GitTree import GitTree
    from github.PullRequest import PullRequest
    from github.Repository import Repository

Done = TypeVar("Done")

_TRIES = 6
_TIMEOUT_SECONDS = 60
_TREE_BYTES = 4 * 1024**2  # of text in one request; GitHub cuts requests at tens of megabytes
_TREE_FILES = 500
_FORK_LOOKS = 10


@dataclass(frozen=True)
class Text:
    """What a reader of the pull request sees. `name`: of branch and folder; `folder`: where in the repository."""

    name: str
    title: str
    body: str

    @property
    def branch(self) -> str:
        return f"submission/{self.name}"

    @property
    def folder(self) -> str:
        return f"submissions/{self.name}"


def propose(
    repo: str,
    folder: Path,
    text: Text,
    *,
    secret: str | None = None,
    api: str = API,
    wait: Callable[[float], None] = time.sleep,
) -> str:
    """Open a pull request that adds `folder`, or find the one that is there. Returns its address.

    Raises ExpectedError without a token or on a refusal, MachineError when GitHub does not answer; the folder stays.
    """
    secret = secret or token()
    if secret is None:
        raise ExpectedError(
            f"no token: set {TOKENS[0]} (or {TOKENS[1]}) in the environment, one that may write contents and pull "
            f"requests of {repo} or of your fork; the submission stays in {folder}, and the same command goes on"
        )
    return _Proposal(repo, folder, text, _Patience(repo, folder, wait), secret, api).open()


@dataclass
class _Patience:
    """Asks, and asks again after the pauses that GitHub wants; a refusal is explained."""

    repo: str
    folder: Path
    wait: Callable[[float], None]

    def ask(self, what: str, call: Callable[[], Done]) -> Done:
        """`call` must be safe to repeat: it looks before it makes."""
        from github import GithubException

        for attempt in range(_TRIES):
            try:
                return call()
            except GithubException as error:
                pause = pause_for(error.status, message_of(error), error.headers or {}, attempt)
                if pause is None:
                    raise self._refusal(what, error) from error
                said = message_of(error) or f"status {error.status}"
            except OSError as error:  # requests' errors are OSErrors
                pause, said = 2.0**attempt, f"{type(error).__name__} while it was asked to {what}"
            say(f"GitHub ({self.repo}): {said}; going on in {pause:.0f} s")
            self.wait(pause)
        raise MachineError(
            f"GitHub did not {what} in {_TRIES} tries; the submission stays in {self.folder}, and the same command "
            "goes on from there"
        )

    def _refusal(self, what: str, error: GithubException) -> ExpectedError:
        told, stays = message_of(error), f"the submission stays in {self.folder}"
        if error.status == 401:
            return PermissionDenied(
                f"GitHub does not accept the token in {TOKENS[0]}: {told}; set a valid one; {stays}"
            )
        if error.status == 403:
            return PermissionDenied(
                f"GitHub refuses to {what}: {told}. The token needs 'contents' and 'pull requests' (write) of "
                f"{self.repo}, or the right to fork it; {stays}"
            )
        if error.status == 404:
            return ExpectedError(f"GitHub knows no {self.repo} (to {what}), or the token may not see it; {stays}")
        reasons = error.data.get("errors") if isinstance(error.data, dict) else None
        details = "; ".join(
            str(item.get("message") or item) if isinstance(item, dict) else str(item) for item in reasons or ()
        )
        return ExpectedError(
            f"GitHub refuses to {what} (status {error.status}): {told}{f' ({details})' if details else ''}; {stays}"
        )


class _Proposal:
    """One proposal on its way."""

    def __init__(self, repo: str, folder: Path, text: Text, patience: _Patience, secret: str, api: str) -> None:
        self._repo = repo
        self._folder = folder
        self._text = text
        self._ask = patience.ask
        self._wait = patience.wait
        self._github = client(secret, api, timeout_seconds=_TIMEOUT_SECONDS)

    def open(self) -> str:
        target = self._ask("read the repository", lambda: self._github.get_repo(self._repo))
        home = self._writable(target)
        head = f"{home.owner.login}:{self._text.branch}"
        if found := self._ask("list pull requests", lambda: self._existing(target, head)):
            return found.html_url
        if not self._ask("look for the branch", lambda: self._has_branch(home)):
            self._push(target, home)
        return self._ask("open the pull request", lambda: self._make(target, head)).html_url

    def _writable(self, target: Repository) -> Repository:
        """The repository itself where the token may write, else the user's fork of it (made if there is none)."""
        if target.permissions is not None and target.permissions.push:
            return target
        fork = self._ask(
            "fork the repository", target.create_fork
        )  # GitHub answers with a fork that is there already
        for attempt in range(_FORK_LOOKS):
            if self._ask("look for the fork", lambda: self._is_ready(fork, target.default_branch)):
                return fork
            self._wait(min(2.0**attempt, 30.0))
        raise MachineError(f"GitHub's fork {fork.full_name} is not ready yet; run the same command in some minutes")

    def _is_ready(self, fork: Repository, branch: str) -> bool:
        from github import UnknownObjectException

        try:
            fork.get_branch(branch)
        except UnknownObjectException:
            return False
        return True

    def _existing(self, target: Repository, head: str) -> PullRequest | None:
        for pull in target.get_pulls(state="all", head=head):
            if pull.head.ref == self._text.branch:
                return pull
        return None

    def _has_branch(self, home: Repository) -> bool:
        from github import UnknownObjectException

        try:
            home.get_git_ref(f"heads/{self._text.branch}")
        except UnknownObjectException:
            return False
        return True

    def _push(self, target: Repository, home: Repository) -> None:
        """One commit with all files on top of the default branch; the branch last."""
        from github import GithubException

        branch = self._ask("read the default branch", lambda: home.get_branch(target.default_branch))
        parent: GitCommit = self._ask("read its commit", lambda: home.get_git_commit(branch.commit.sha))
        tree: GitTree = parent.tree
        for batch in self._batches(home):
            tree = self._ask("store the files", partial(home.create_git_tree, list(batch), tree))
        commit = self._ask("store the commit", lambda: home.create_git_commit(self._text.title, tree, [parent]))

        def point() -> None:
            try:
                home.create_git_ref(f"refs/heads/{self._text.branch}", commit.sha)
            except GithubException as error:
                if error.status != 422 or not self._has_branch(home):
                    raise

        self._ask("make the branch", point)

    def _batches(self, home: Repository) -> Iterator[Sequence[InputGitTreeElement]]:
        """The files as tree entries: text in the request (few requests keep clear of limits), the rest as blobs."""
        from github import InputGitTreeElement

        batch: list[InputGitTreeElement] = []
        size = 0
        for path in sorted(item for item in self._folder.rglob("*") if item.is_file()):
            name = f"{self._text.folder}/{path.relative_to(self._folder).as_posix()}"
            data = path.read_bytes()
            text = _as_text(data)
            if text is not None:
                batch.append(InputGitTreeElement(name, "100644", "blob", content=text))
                size += len(data)
            else:
                content = base64.b64encode(data).decode()
                blob = self._ask("store a file", partial(home.create_git_blob, content, "base64"))
                batch.append(InputGitTreeElement(name, "100644", "blob", sha=blob.sha))
            if size >= _TREE_BYTES or len(batch) >= _TREE_FILES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _make(self, target: Repository, head: str) -> PullRequest:
        """Open it; when GitHub says that it exists, or the answer was lost before, the one that is there."""
        from github import GithubException

        if found := self._existing(target, head):
            return found
        try:
            return target.create_pull(target.default_branch, head, title=self._text.title, body=self._text.body)
        except GithubException as error:
            if error.status == 422 and (found := self._existing(target, head)):
                return found
            raise


def _as_text(data: bytes) -> str | None:
    """The text, when a JSON request gives back the same bytes; None for anything else and for large files."""
    if len(data) > _TREE_BYTES or b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
