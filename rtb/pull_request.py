"""Pull requests as GitHub knows them: titles, bodies, labels, dates, reviews. EDGE GitHub, by PyGithub.

Every answer is kept on disk with its ETag, so that a second run asks "has it changed?" and an interrupted one goes on
where it stopped. Rate limits are waited out, and each wait is said.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rtb.console import say
from rtb.errors import ExpectedError, MachineError
from rtb.storage import cache_folder, write_atomic

if TYPE_CHECKING:
    from github import Github, GithubException

API = "https://api.github.com"
TOKENS = ("GITHUB_TOKEN", "GH_TOKEN")
PER_PAGE = 100
_SECONDARY_SECONDS = 60.0  # GitHub's advice where a secondary limit names no time
_LONGEST_SECONDS = 3700.0  # a primary limit resets within the hour
_TRIES = 6


@dataclass(frozen=True)
class PullFacts:
    """What only the hosting service knows of a pull request."""

    title: str
    body: str
    labels: tuple[str, ...] = ()
    author: str = ""
    created_at: str | None = None
    merged_at: str | None = None
    reviews: tuple[str, ...] = ()

    @property
    def last_reviews(self) -> dict[str, str]:
        """Reviewer -> where his reviews ended: a remark after an approval takes nothing back, a dismissal does."""
        found: dict[str, str] = {}
        for review in self.reviews:
            name, _, state = review.partition(": ")
            state = state.lower().replace("_", " ")
            if name != self.author and (state not in ("commented", "pending") or name not in found):
                found[name] = state
        return found

    @property
    def evidence(self) -> tuple[str, ...]:
        """What the hosting service knows, for a reviewer of the draft: one line each."""
        lines = [f"author: {self.author}"] if self.author else []
        ends = self.last_reviews
        lines += [f"review by {name}: {state}" for name, state in sorted(ends.items()) if state != "pending"]
        if "approved" not in ends.values():
            lines.append("no review on GitHub approves it")
        if "changes requested" in ends.values():
            lines.append("it was merged although a review still asks for changes: its objective may be disputed")
        return tuple(lines)


class PermissionDenied(ExpectedError):
    """GitHub refuses, and not because of a rate limit."""


def token() -> str | None:
    """A token from the environment, or None."""
    return next((value for name in TOKENS if (value := os.environ.get(name))), None)


class PullRequests:
    """Reads pull requests of one repository through a cache on disk."""

    def __init__(
        self,
        repo: str,
        *,
        secret: str | None = None,
        api: str = API,
        home: Path | None = None,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._repo = repo
        self._home = home or cache_folder("github", repo.replace("/", "__"))
        self._wait = wait
        self._github = client(secret, api)

    def page(self, number: int) -> list[dict[str, Any]]:
        """One page of all closed pull requests, oldest first; from disk when it was full and is there."""
        path = self._home / f"closed-{number:05}.json"
        kept = _load(path)
        if kept is not None and len(kept["answer"]) == PER_PAGE:
            return list(kept["answer"])  # closed pull requests in order of creation: a full page does not change
        url = f"/repos/{self._repo}/pulls"
        query = {"state": "closed", "sort": "created", "direction": "asc", "per_page": PER_PAGE, "page": number}
        return list(self._ask(path, url, query))

    def listing(self) -> list[dict[str, Any]]:
        """All closed pull requests. What has arrived stays when it stops with an error."""
        found: list[dict[str, Any]] = []
        number = 1
        while True:
            page = self.page(number)
            found += page
            if len(page) < PER_PAGE and not self._has_next(number):
                return found
            number += 1

    def _has_next(self, number: int) -> bool:
        kept = _load(self._home / f"closed-{number:05}.json")
        return bool(kept and 'rel="next"' in kept.get("link", ""))

    def facts(self, number: int) -> PullFacts:
        """One pull request with the states of its reviews."""
        pull = self._ask(self._home / f"{number}.json", f"/repos/{self._repo}/pulls/{number}", {})
        whole = {"per_page": PER_PAGE}
        reviews = self._ask(
            self._home / f"{number}-reviews.json", f"/repos/{self._repo}/pulls/{number}/reviews", whole
        )
        return _facts(pull, reviews)

    def _ask(self, path: Path, url: str, query: Mapping[str, Any]) -> Any:
        """A request whose answer is kept; an unchanged one costs no budget."""
        kept = _load(path)
        headers = {"If-None-Match": kept["etag"]} if kept and kept.get("etag") else {}
        told, answer = self._patiently(url, query, headers)
        if answer is None and kept is not None:
            return kept["answer"]
        document = {"etag": told.get("etag", ""), "link": told.get("link", ""), "answer": answer}
        write_atomic(path, json.dumps(document).encode())
        return answer

    def _patiently(
        self, url: str, query: Mapping[str, Any], headers: Mapping[str, str]
    ) -> tuple[dict[str, Any], Any]:
        """Ask, and ask again after the pauses that GitHub wants."""
        from github import GithubException

        for attempt in range(_TRIES):
            try:
                return self._github.requester.requestJsonAndCheck("GET", url, dict(query), dict(headers))
            except GithubException as error:
                pause = pause_for(error.status, message_of(error), error.headers or {}, attempt)
                if pause is None:
                    raise self._refusal(url, error) from error
                say(f"GitHub ({self._repo}): {message_of(error) or error.status}; going on in {pause:.0f} s")
                self._wait(pause)
            except OSError as error:  # requests' errors are OSErrors
                pause = 2.0**attempt
                say(f"GitHub ({self._repo}): {type(error).__name__}; trying again in {pause:.0f} s")
                self._wait(pause)
        raise MachineError(f"GitHub did not answer {url} in {_TRIES} tries; run the same command to go on from here")

    def _refusal(self, url: str, error: GithubException) -> ExpectedError:
        told = message_of(error)
        if error.status == 401:
            return PermissionDenied(f"GitHub does not accept the token in {TOKENS[0]}: {told}; set a valid one")
        if error.status == 403:
            return PermissionDenied(
                f"GitHub refuses {url}: {told}. The token lacks a permission; what was read so far is kept in "
                f"{self._home}, and the same command goes on from there"
            )
        if error.status == 404:
            return ExpectedError(f"GitHub knows no {url.removeprefix('/')}, or the token may not see it")
        return ExpectedError(f"GitHub answers {url} with status {error.status}: {told}")


def client(secret: str | None, api: str, timeout_seconds: int = 15) -> Github:
    """A connection that neither retries nor sleeps by itself: what it meets is said here. Raises ExpectedError."""
    try:
        from github import Auth, Github
    except ImportError as error:
        raise ExpectedError("GitHub needs the PyGithub library: pip install PyGithub") from error
    auth = Auth.Token(secret) if secret else None
    return Github(
        auth=auth, base_url=api, per_page=PER_PAGE, retry=None, seconds_between_requests=None,
        seconds_between_writes=None, timeout=timeout_seconds,
    )  # fmt: skip


def message_of(error: GithubException) -> str:
    """What GitHub says, in its words."""
    data = error.data
    return str(data.get("message", "")) if isinstance(data, dict) else str(data or "")


def pause_for(status: int, message: str, headers: Mapping[str, str], attempt: int) -> float | None:
    """Seconds to wait before asking again, or None when asking again is no use.

    Pure but for the clock of a primary limit's reset. Rate limits come as 403 or 429, with or without a time.
    """
    told = {key.lower(): value for key, value in headers.items()}
    if status >= 500:
        return 2.0**attempt
    spent = told.get("x-ratelimit-remaining") == "0"
    limited = status == 429 or (status == 403 and ("rate limit" in message.lower() or "retry-after" in told or spent))
    if not limited:
        return None
    if (after := told.get("retry-after", "")).isdigit():
        return min(float(after), _LONGEST_SECONDS)
    if spent and (reset := told.get("x-ratelimit-reset", "")).isdigit():
        return min(max(float(reset) - time.time(), 1.0) + 1.0, _LONGEST_SECONDS)
    return min(_SECONDARY_SECONDS * 2.0**attempt, _LONGEST_SECONDS)


def _load(path: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return document if isinstance(document, dict) and "answer" in document else None


def _facts(pull: Mapping[str, Any], reviews: Sequence[Mapping[str, Any]]) -> PullFacts:
    return PullFacts(
        title=str(pull.get("title") or ""),
        body=str(pull.get("body") or "").replace("\r\n", "\n"),
        labels=tuple(str(item["name"]) for item in pull.get("labels") or ()),
        author=str((pull.get("user") or {}).get("login", "")),
        created_at=pull.get("created_at"),
        merged_at=pull.get("merged_at"),
        reviews=tuple(f"{(item.get('user') or {}).get('login', '')}: {item.get('state', '')}" for item in reviews),
    )


def facts_for(repo: str, numbers: Collection[int]) -> dict[int, PullFacts]:
    """Facts of some pull requests; without a token it says what is missing and returns none."""
    secret = token()
    if secret is None:
        say(
            f"no {' or '.join(TOKENS)} in the environment: titles and bodies come from the commits; labels, authors, "
            "opening dates and reviews are missing"
        )
        return {}
    source = PullRequests(repo, secret=secret)
    found: dict[int, PullFacts] = {}
    for number in sorted(numbers):
        try:
            found[number] = source.facts(number)
        except PermissionDenied:
            raise
        except ExpectedError as error:
            say(f"#{number}: {error}")
    return found


_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_FENCE = re.compile(r"^(```|~~~).*?(?:^\1|\Z)", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`[^`\n]*`")


def closed_issues(body: str | None, repo: str, pulls: Collection[int] = ()) -> tuple[int, ...]:
    """Issues of `repo` that a pull request's body closes, by GitHub's keywords; `pulls` are numbers that are none.

    Comments and code do not count; neither do other repositories' issues.
    """
    text = _INLINE.sub("", _FENCE.sub("", _COMMENT.sub("", (body or "").replace("\r\n", "\n"))))
    name = re.escape(repo)
    pattern = re.compile(
        rf"(?<![\w-])(?:close[sd]?|fix(?:es|ed)?|resolve[sd]?)(?::[ \t]*|[ \t]+)"
        rf"(?:https?://github\.com/{name}/issues/(\d+)|(?:{name})?#(\d+))(?![\w/])",
        re.IGNORECASE,
    )
    numbers = (int(first or second) for first, second in pattern.findall(text))
    return tuple(dict.fromkeys(number for number in numbers if number not in set(pulls)))
