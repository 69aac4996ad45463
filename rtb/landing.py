"""How a commit landed: its pull request's number, and whether it reverts, lands again or only carries others' work.

Pure: a commit message and its parents in, facts out. `Reverts` then reads a whole history in order and says which
commits still count at its end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Style = Literal["squash", "merge", "trailer", "none"]

_TRAILER = re.compile(
    r"Pull[ -]?Request[ -]resolved:\s*https?://github\.com/([\w.-]+/[\w.-]+)/pull/(\d+)\b", re.IGNORECASE
)
_X_LINK = re.compile(r"X-link:\s*https?://github\.com/([\w.-]+/[\w.-]+)/pull/(\d+)\b", re.IGNORECASE)
_DIFFERENTIAL = re.compile(r"^Differential Revision:\s*\[?(D\d+)\b", re.MULTILINE)
_MERGE = re.compile(r"^Merge pull request #(\d+) from (\S+)")
_BRANCH_MERGE = re.compile(r"^Merge (?:remote-tracking )?(?:branch|commit|tag)\b", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"[(（]\s*#(\d+)\s*[)）]\s*\.?\s*$")
_ANY_NUMBER = re.compile(r"#(\d+)\b")
_TAGS = re.compile(r"^(?:\s*[\[(][^\])]{1,60}[\])]\s*:?)+")
_REVERT_HEAD = re.compile(r"^(?:Revert|Back\s?out|Undo)\b[:\s]*", re.IGNORECASE)
_RELAND = re.compile(r"^(?:Re-?land(?:ing)?|Re-?apply)\b", re.IGNORECASE)
_REVISION = re.compile(r"^(D\d{5,})\b:?\s*")
_QUOTED = re.compile(r"^[\"“'](?P<title>.*)[\"”']|^[\"“](?P<open>.*)$", re.DOTALL)
_REVERTS_COMMIT = re.compile(r"This reverts commit\s+([0-9a-f]{7,40})", re.IGNORECASE)
_REVERTS_NUMBER = re.compile(r"^(?:This )?reverts\s+(?:([\w.-]+/[\w.-]+))?#(\d+)", re.IGNORECASE | re.MULTILINE)
_ORIGINAL_DIFF = re.compile(r"Original Phabricator Diff:\s*(D\d+)", re.IGNORECASE)
_HEX = re.compile(r"^(?:commit\s+)?([0-9a-f]{7,40})\b")
_CHERRY = re.compile(r"\bcherry[ -]?pick|\bback-?port", re.IGNORECASE)
_CHERRY_FROM = re.compile(r"\(cherry picked from commit ([0-9a-f]{7,40})\)")
_BUNDLE = re.compile(
    r"upstream[ _-]?sync|sync(?:ed|ing)?\b.{0,20}\bupstream|main2main|\[bundle\]|merge upstream|"
    r"git cherry-pick [0-9a-f]{5,40}\.\.|cherry-pick \d+ (?:upstream|commits)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Reference:
    """What a revert names: a pull request, a commit, a title, or an internal revision."""

    kind: Literal["number", "commit", "title", "revision"]
    value: str


@dataclass(frozen=True)
class Landing:
    """Facts of one commit message. `reason` says why there is no `number`."""

    number: int | None
    style: Style
    title: str
    reason: str | None = None
    revision: str | None = None
    reverts: tuple[Reference, ...] = ()
    depth: int = 0
    says_revert: bool = False
    reland: bool = False
    cherry_pick: bool = False
    originals: tuple[int, ...] = ()
    original_commits: tuple[str, ...] = ()
    bundle: bool = False

    @property
    def is_revert(self) -> bool:
        """A revert of a pull request or commit; not merely a title with the word in it."""
        return bool(self.reverts)


def read_landing(message: str, parents: int, repo: str, aliases: Iterable[str] = ()) -> Landing:
    """Read a commit message of `repo` ("owner/name"; `aliases` are its earlier names)."""
    subject, _, body = message.partition("\n")
    subject = subject.strip()
    own = {name.lower() for name in (repo, *aliases)}
    number, style, reason = _number(subject, message, parents, own)
    title = _merge_title(body) or subject if style == "merge" else subject
    bare = _without_numbers(title)
    reverts, depth = _reverts(bare, title, body, own)
    stripped = _TAGS.sub("", bare).strip()
    others = tuple(n for n in map(int, _ANY_NUMBER.findall(title)) if n != number)
    cherry = bool(_CHERRY.search(title) or _CHERRY_FROM.search(body))
    revision = _DIFFERENTIAL.search(message)
    return Landing(
        number=number,
        style=style,
        title=bare,
        reason=reason,
        revision=revision[1] if revision else None,
        reverts=reverts,
        depth=depth,
        says_revert=bool(re.search(r"\b(?:revert|back(?:ing|ed)?[ -]?out)", title, re.IGNORECASE)),
        reland=bool(_RELAND.match(stripped)) or depth > 1,
        cherry_pick=cherry,
        originals=others if cherry else (),
        original_commits=tuple(_CHERRY_FROM.findall(body)),
        bundle=bool(_BUNDLE.search(title) or _BUNDLE.search(body[:400])) or (cherry and len(others) > 2),
    )


def _number(subject: str, message: str, parents: int, own: set[str]) -> tuple[int | None, Style, str | None]:
    """The pull request's number, by the strongest witness: trailer of this repository, merge, end of the subject."""
    trailers = [(name.lower(), int(number)) for name, number in _TRAILER.findall(message)]
    ours = [number for name, number in trailers if name in own]
    last = _LAST_NUMBER.search(subject)
    written = int(last[1]) if last else None
    if ours:
        return (written if written in ours else ours[0]), "trailer", None
    if merged := _MERGE.match(subject):
        return int(merged[1]), "merge", None
    if _BRANCH_MERGE.match(subject) and parents > 1:
        return None, "none", "a merge of a branch, not of a pull request"
    foreign = {number for _, number in trailers}
    if written is not None and written not in foreign:
        return written, "squash", None
    if foreign:
        return None, "none", f"only a pull request of {trailers[0][0]} is named"
    if link := _X_LINK.search(message):
        return None, "none", f"only an X-link to {link[1]} is named"
    if _DIFFERENTIAL.search(message):
        return None, "none", "only an internal revision is named"
    return None, "none", "no pull request is named"


def _merge_title(body: str) -> str:
    """A merge commit's title is the first line after its subject."""
    return next((line.strip() for line in body.splitlines() if line.strip()), "")


def _without_numbers(title: str) -> str:
    """The title without the numbers at its end."""
    while match := _LAST_NUMBER.search(title):
        title = title[: match.start()].rstrip()
    return title


def _reverts(bare: str, title: str, body: str, own: set[str]) -> tuple[tuple[Reference, ...], int]:
    """What a commit takes back, and how deep: 2 is the revert of a revert.

    Only a commit whose title says so is one: a body may list the steps of a squashed branch, reverts among them.
    """
    stripped = _TAGS.sub("", bare).strip()
    head = _REVERT_HEAD.match(stripped)
    found: list[Reference] = []
    depth = 0
    if head:
        rest = stripped[head.end() :]
        depth = 1 + len(re.findall(r"[\"“'](?:Revert|Back\s?out)\b", rest, re.IGNORECASE))
        found += _named_in_title(rest, title)
        found += [Reference("commit", sha.lower()) for sha in _REVERTS_COMMIT.findall(body)]
        for name, number in _REVERTS_NUMBER.findall(body):
            if not name or name.lower() in own:
                found.append(Reference("number", number))
        found += [Reference("revision", item) for item in _ORIGINAL_DIFF.findall(body)]
    return tuple(dict.fromkeys(found)), max(depth, 1) if found else 0


def _named_in_title(rest: str, title: str) -> list[Reference]:
    found: list[Reference] = []
    if revision := _REVISION.match(rest):
        found.append(Reference("revision", revision[1]))
        rest = rest[revision.end() :]
    if quoted := _QUOTED.search(rest):
        inner = quoted["title"] if quoted["title"] is not None else quoted["open"]
        numbers = _ANY_NUMBER.findall(inner)
        if quoted["title"] is None:  # the closing quote was cut off: numbers before the last are the reverted one's
            numbers = _ANY_NUMBER.findall(title)[:-1]
        if numbers:
            found.append(Reference("number", numbers[-1]))
        if inner.strip():
            found.append(Reference("title", title_key(inner)))
    if found:
        return found
    if sha := _HEX.match(rest):
        return [Reference("commit", sha[1])]
    if number := re.match(r"(?:PR\s*|pull request\s*)?#(\d+)", rest, re.IGNORECASE):
        return [Reference("number", number[1])]
    # `Revert "..." (#1) (#2)` lost its quotes to a truncated subject.
    numbers = _ANY_NUMBER.findall(title)
    return [Reference("number", numbers[-2])] if len(numbers) > 1 and title.rstrip().endswith(")") else []


def title_key(title: str) -> str:
    """A title in the form in which two are compared: no numbers at its end, one blank between words, lower case."""
    return " ".join(_without_numbers(title.strip()).lower().replace("…", "").split())


@dataclass
class Reverts:
    """Follows reverts through a history, oldest commit first."""

    state: dict[str, str] = field(default_factory=dict)
    _by_number: dict[int, list[str]] = field(default_factory=dict)
    _by_title: dict[str, str] = field(default_factory=dict)
    _by_revision: dict[str, str] = field(default_factory=dict)
    _reverted: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _commits: list[str] = field(default_factory=list)

    def add(self, commit: str, landing: Landing) -> None:
        """Take in the next commit; after the last one `state` maps a reverted commit to the one that did it."""
        if landing.is_revert:
            targets = self._targets(landing)
            self._reverted[commit] = targets
            for target in targets:
                self._take_back(target, commit)
        self._commits.append(commit)
        self._by_title[title_key(landing.title)] = commit
        if landing.number is not None:
            self._by_number.setdefault(landing.number, []).append(commit)
        if landing.revision is not None and not (landing.is_revert and landing.revision in self._by_revision):
            self._by_revision[landing.revision] = commit

    def _take_back(self, target: str, by: str) -> None:
        self.state[target] = by
        for restored in self._reverted.get(target, ()):
            if self.state.get(restored) == target:
                del self.state[restored]

    def _targets(self, landing: Landing) -> tuple[str, ...]:
        """The commits a revert names, by the first kind of reference that is found in the history."""
        order: Mapping[str, int] = {"commit": 0, "revision": 1, "title": 2, "number": 3}
        if landing.depth > 1:  # a number inside `Revert "Revert "X (#1)" (#2)"` is ambiguous, the title is not
            order = {"commit": 0, "title": 1, "revision": 2, "number": 3}
        for reference in sorted(landing.reverts, key=lambda item: order[item.kind]):
            found = self._find(reference)
            if found:
                return found
        return ()

    def _find(self, reference: Reference) -> tuple[str, ...]:
        if reference.kind == "number":
            return tuple(self._by_number.get(int(reference.value), ()))
        if reference.kind == "revision":
            found = self._by_revision.get(reference.value)
            return (found,) if found else ()
        if reference.kind == "commit":
            return tuple(item for item in self._commits if item.startswith(reference.value))[:1]
        exact = self._by_title.get(reference.value)
        if exact is None and len(reference.value) > 30:  # a title cut with an ellipsis
            exact = next((c for t, c in reversed(self._by_title.items()) if t.startswith(reference.value)), None)
        return (exact,) if exact else ()
