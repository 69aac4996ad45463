"""Pull requests of a history, each kept or dropped with its reason and the evidence. Pure.

The criteria are the paper's: the change is about a Triton kernel, tests can judge it, its objective is clear. What
counts for each is data (`rtb/rules`); what was found is said in `evidence`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from rtb.commit_record import Record
from rtb.kernels import FunctionChange
from rtb.landing import Landing, Reverts, title_key
from rtb.repo_rules import RepoRules, device_of, is_runnable

Kind = Literal["kernel", "config", "launcher"]
_FEW_FILES = 12  # a change of more, whose title speaks of no kernel, touches launchers in passing
Reason = Literal[
    "kept",
    "no_number",
    "shallow_boundary",
    "is_revert",
    "was_reverted",
    "bundle",
    "duplicate",
    "ambiguous",
    "no_triton_change",
    "other_device",
    "not_accepted",
    "too_large",
    "no_objective",
    "no_tests",
    "tests_unchanged",
    "unreadable",
]


@dataclass(frozen=True)
class PullRequest:
    """The commits of one pull request on the first-parent line, oldest first; usually one."""

    number: int | None
    records: tuple[Record, ...]
    adjacent: bool

    @property
    def landing(self) -> Landing:
        """How its last commit landed."""
        return self.records[-1].landing

    @property
    def base(self) -> str | None:
        """The commit before it, on the first-parent line."""
        return self.records[0].parents[0] if self.records[0].parents else None

    @property
    def landed(self) -> str:
        """Its last commit."""
        return self.records[-1].sha

    @property
    def title(self) -> str:
        """The title without the number."""
        return self.records[0].landing.title


@dataclass(frozen=True)
class Judgement:
    """What was decided on a pull request. `targets` are the changes a solver would have to make."""

    pull: PullRequest
    reason: Reason
    detail: str
    kind: Kind | None = None
    targets: tuple[FunctionChange, ...] = ()
    tests: tuple[str, ...] = ()
    tests_changed: bool = True
    evidence: tuple[str, ...] = ()

    @property
    def kept(self) -> bool:
        """Whether it becomes a task."""
        return self.reason == "kept"


@dataclass(frozen=True)
class Context:
    """What a judgement needs of the rest of the history."""

    reverted: Mapping[str, str]
    numbers: Mapping[str, int | None]
    titles: Mapping[int, str]
    commits: frozenset[str]


def pull_requests(records: Sequence[Record]) -> list[PullRequest]:
    """Group a history (oldest first) by pull request; a commit without a number stands alone."""
    groups: dict[int, list[int]] = {}
    alone: list[int] = []
    for index, record in enumerate(records):
        if record.landing.number is None:
            alone.append(index)
        else:
            groups.setdefault(record.landing.number, []).append(index)
    found = [PullRequest(None, (records[index],), True) for index in alone]
    for number, places in groups.items():
        adjacent = places[-1] - places[0] == len(places) - 1
        found.append(PullRequest(number, tuple(records[index] for index in places), adjacent))
    return sorted(found, key=lambda item: item.records[-1].committed_at)


def context_of(records: Sequence[Record]) -> Context:
    """Follow reverts and collect titles through a history, oldest first."""
    reverts = Reverts()
    for record in records:
        reverts.add(record.sha, record.landing)
    numbers = {record.sha: record.landing.number for record in records}
    titles = {record.landing.number: record.landing.title for record in records if record.landing.number}
    return Context(reverts.state, numbers, titles, frozenset(numbers))


def judge_all(records: Sequence[Record], rules: RepoRules, alive: Iterable[str] = ()) -> Iterator[Judgement]:
    """Judge every pull request of a history, oldest first; `alive` are the test files before its first commit."""
    context = context_of(records)
    ends = {pull.landed: pull for pull in pull_requests(records)}
    files = set(alive)
    for record in records:
        files.update(record.came)
        files.difference_update(record.went)
        if record.sha in ends:
            yield judge(ends[record.sha], rules, context, files)


def judge(pull: PullRequest, rules: RepoRules, context: Context, alive: Collection[str] = ()) -> Judgement:
    """Keep or drop a pull request by everything the history itself shows.

    `alive` are the test files of the tree it left, for one that changes no test but is covered by some.
    """
    evidence = _evidence(pull, rules)
    changes = tuple(change for record in pull.records for change in record.changes)

    def drop(reason: Reason, detail: str) -> Judgement:
        return Judgement(pull, reason, detail, evidence=evidence)

    landed = _by_landing(pull, context)
    if landed is not None:
        return drop(*landed)
    if not changes:  # most of a history
        return drop("no_triton_change", _what_instead(pull, changes))
    ours = tuple(item for item in changes if device_of(item.path, rules) is None)
    kind = _kind(ours)
    if kind is None:
        if _kind(changes) is not None:
            devices = sorted({device_of(item.path, rules) or "" for item in changes} - {""})
            return drop("other_device", f"the kernels are copies for {', '.join(devices)}")
        return drop("no_triton_change", _what_instead(pull, changes))
    if kind not in rules.filter.accept:
        return drop("not_accepted", f"only a {kind} changed, and the rules accept {', '.join(rules.filter.accept)}")
    if kind == "config" and rules.latency is None:
        detail = "only configurations changed: a latency task, and the rules name no workload for this repository"
        return replace(drop("not_accepted", detail), kind=kind)
    targets = _targets(ours, kind)
    files = sum(record.files for record in pull.records)
    if files > rules.filter.max_files:
        return drop("too_large", f"{files} files changed, more than {rules.filter.max_files}")
    if len(targets) > rules.filter.max_kernels:
        return drop("too_large", f"{len(targets)} functions changed, more than {rules.filter.max_kernels}")
    if word := next((item.pattern for item in rules.drop_titles if item.search(pull.title)), None):
        return drop("no_objective", f"the title matches {word!r}")
    paths = dict.fromkeys(path for record in pull.records for path in record.tests)
    tests = tuple(path for path in paths if is_runnable(path, rules))
    speaks, said = _about_kernels(kind, targets, tests if files <= _FEW_FILES else (), _relevant(pull.title, rules))
    if not speaks:
        return drop("not_accepted", said)
    evidence = (*evidence, said) if said else evidence
    changed = bool(tests)
    if not changed and kind != "config":
        tests = covering_tests(targets, alive)
        if not tests:
            other = f"; {len(paths)} other files of the test folders changed" if paths else ""
            return drop("no_tests", f"no test file that pytest can run changed, and none is named like it{other}")
        evidence = (*evidence, *(f"test file that was there: {path}" for path in tests))
    return Judgement(pull, "kept", _kept_because(kind, changed), kind, targets, tests, changed, evidence)


def _about_kernels(
    kind: Kind, targets: Sequence[FunctionChange], tests: Sequence[str], word: str | None
) -> tuple[bool, str]:
    """Whether a change is about a kernel, with what speaks for it, or what is missing. Of launchers a test has to
    know one, too: that is seen when the tests are read."""
    if kind != "launcher":
        return True, ""
    if word is not None:
        return True, f"the title speaks of {word!r}"
    beside = [item.name for item in targets if item.beside]
    if beside and tests:
        return True, f"tests changed with launchers beside their kernels: {', '.join(beside)}"
    missing = "no test changed in a small change" if beside else "no launcher that stands beside its kernel"
    return False, f"only host code that launches kernels changed, the title speaks of no kernel, and {missing}"


def _relevant(title: str, rules: RepoRules) -> str | None:
    for pattern in rules.keywords.relevance:
        if match := re.search(pattern, title, re.IGNORECASE):
            return match[0]
    return None


def covering_tests(targets: Sequence[FunctionChange], alive: Collection[str]) -> tuple[str, ...]:
    """Test files named like a target's file or function: `test_awq_triton.py` for `awq_triton.py`.

    A test that says nothing in its name is not found; one that is named here still has to be read.
    """
    stems = set()
    for item in targets:
        stems.add(_core_of_file(item.path))
        stems.add(core(item.name.rsplit(".", 1)[-1]))
    stems = {stem for stem in stems if len(stem) > 4 and stem not in GENERIC}
    if not stems:
        return ()
    words = "\n".join(stems)
    found = []
    for path in alive:
        name = _core_of_file(path)
        if not name or name in GENERIC:
            continue
        if (len(name) > 6 and name in words) or any(stem in name for stem in stems):
            found.append(path)
    return tuple(sorted(found))


GENERIC = frozenset(
    ("common", "utils", "kernel", "kernels", "forward", "backward", "attention", "triton", "layer", "layers")
)
_AFFIX = re.compile(r"^(?:test_|_)+|(?:_test|_kernels?|_ops?|_fwd|_bwd|_impl)+$")


def core(name: str) -> str:
    """A file's or function's name without what says only that it is a test or a kernel."""
    return _AFFIX.sub("", name.lower())


@lru_cache(65_536)  # the same test files are looked through for every pull request
def _core_of_file(path: str) -> str:
    return core(path.rsplit("/", 1)[-1].removesuffix(".py"))


def _by_landing(pull: PullRequest, context: Context) -> tuple[Reason, str] | None:
    """Reasons that lie in how it landed."""
    landing = pull.landing
    if any(record.boundary for record in pull.records):
        return "shallow_boundary", "the clone ends here: its files cannot be compared with those before"
    if pull.number is None:
        return "no_number", landing.reason or "no pull request is named"
    if landing.is_revert:
        what = ", ".join(f"{item.kind} {item.value}" for item in landing.reverts)
        return "is_revert", f"takes back {what}"
    for record in pull.records:
        if by := context.reverted.get(record.sha):
            number = context.numbers.get(by)
            return "was_reverted", f"reverted by {f'#{number}' if number else by[:12]}"
    if landing.bundle:
        return "bundle", "the message says that it carries several changes of others"
    if landing.cherry_pick and (original := _original(landing, context)):
        return "duplicate", f"a cherry-pick of {original}, which is in this history"
    if len(pull.records) > 1 and not pull.adjacent:
        return "ambiguous", f"{len(pull.records)} commits carry the number, with others between them"
    return None


def _original(landing: Landing, context: Context) -> str | None:
    for sha in landing.original_commits:
        if any(item.startswith(sha) for item in context.commits):
            return sha[:12]
    key = title_key(landing.title)
    for number in landing.originals:
        title = context.titles.get(number)
        if title is not None and title_key(title) in key:
            return f"#{number}"
    return None


def _kind(changes: Sequence[FunctionChange]) -> Kind | None:
    if any(item.is_kernel and item.is_edit for item in changes):
        return "kernel"
    if any(item.is_kernel and (item.label == "config" or "config" in item.also) for item in changes):
        return "config"
    if any(not item.is_kernel and item.is_edit for item in changes):
        return "launcher"
    return None


def _targets(changes: Sequence[FunctionChange], kind: Kind) -> tuple[FunctionChange, ...]:
    """Edited kernels, and the launchers that belong to them."""
    if kind == "config":
        return tuple(item for item in changes if item.is_kernel and (item.label == "config" or "config" in item.also))
    if kind == "launcher":
        return tuple(item for item in changes if item.is_edit)
    kernels = [item for item in changes if item.is_kernel and item.is_edit]
    files = {item.path for item in kernels}
    names = {item.name.rsplit(".", 1)[-1] for item in kernels}
    return tuple(
        item for item in changes if item.is_edit and (item.is_kernel or item.path in files or item.uses & names)
    )


def _kept_because(kind: Kind, changed: bool) -> str:
    if kind == "config":
        return "only configurations changed: a latency task, never a unit one"
    what = {
        "kernel": "a Triton kernel does something else afterwards",
        "launcher": "only host code that launches kernels changed",
    }[kind]
    return f"{what}, and {'tests changed with it' if changed else 'tests for it were there'}"


def _what_instead(pull: PullRequest, changes: Sequence[FunctionChange]) -> str:
    """Why no Triton function counts as changed."""
    kernels = [item for item in changes if item.is_kernel]
    labels = list(dict.fromkeys(item.label for item in kernels))
    words = {
        "text": "comments, docstrings or layout only",
        "renamed": "renamed only",
        "moved": "moved only",
        "copied": "copied only",
        "removed": "removed",
    }
    if labels:
        return "kernels are " + ", ".join(words.get(item, item) for item in labels)
    dialects = [name for record in pull.records for name in record.dialects]
    if dialects:
        return f"no Triton function changed; the files hold kernels of {', '.join(dict.fromkeys(dialects))}"
    return "no Triton function outside tests, benches and documents changed"


def _evidence(pull: PullRequest, rules: RepoRules) -> tuple[str, ...]:
    """What was found, one line each, for a person to check."""
    lines = [f"commit {record.sha[:12]}: {record.landing.style}, {record.files} files" for record in pull.records]
    for record in pull.records:
        for change in record.changes:
            device = device_of(change.path, rules)
            also = f" (also {', '.join(change.also)})" if change.also else ""
            origin = f" from {change.origin}" if change.origin else ""
            where = f" [{device}]" if device else ""
            lines.append(f"{change.role} {change.label}{also}: {change.path}:{change.name}{origin}{where}")
        lines += [f"skipped {path}: {reason}" for path, reason in record.skipped]
        lines += [f"test path: {path}" for path in record.tests]
    if pull.landing.says_revert and not pull.landing.is_revert:
        lines.append("the title says revert, but no pull request is taken back")
    if pull.landing.reland:
        lines.append("lands again what was taken back before")
    if pull.landing.cherry_pick:
        lines.append("a cherry-pick or backport")
    return tuple(lines)
