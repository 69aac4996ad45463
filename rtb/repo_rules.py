"""Per-repository rules, as data: which paths are tests, which titles say nothing, how its tests are run.

Files: `rtb/rules/default.toml` and `rtb/rules/<owner>__<name>.toml`. A repository's lists are added to the default's,
its single values replace them.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from rtb.checkout import matches
from rtb.errors import InvalidFile
from rtb.task import Frozen, SplitRules

Device = Literal["hip", "npu", "xpu", "other"]
RULES = Path(__file__).parent / "rules"


class PathRules(Frozen):
    """Globs; see default.toml for what each list is for."""

    tests: tuple[str, ...] = ()
    not_tests: tuple[str, ...] = ()
    runnable: tuple[str, ...] = ()
    not_runnable: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    not_source: tuple[str, ...] = ()


class FilterRules(Frozen):
    """What makes a pull request a task."""

    accept: tuple[Literal["kernel", "config", "launcher"], ...]
    max_files: int
    max_kernels: int
    drop_titles: tuple[str, ...]


class Keywords(Frozen):
    """Regular expressions that speak for a category, or (relevance) for a change of host code being about kernels."""

    relevance: tuple[str, ...] = ()
    optimization: tuple[str, ...]
    modification: tuple[str, ...]


class CommandRules(Frozen):
    """`{files}` stands for the task's test files, quoted for a shell."""

    unit: str


class EnvironmentRules(Frozen):
    """How a task's environment is guessed."""

    dockerfile: str
    install: tuple[str, ...] = ()
    import_roots: tuple[str, ...] = (".",)
    files: tuple[str, ...] = ()


class ServeRules(Frozen):
    """The server of the accuracy and latency stages; `{model}` and `{port}` are filled in."""

    command: str
    model: str
    port: int = 8000


class LatencyRules(Frozen):
    """Lengths in tokens."""

    prompts: int
    input_len: int
    output_len: int
    concurrency: int


class RepoRules(Frozen):
    """Everything the miner knows about one repository."""

    repo: str
    aliases: tuple[str, ...] = ()
    wrappers: tuple[str, ...] = ()
    paths: PathRules
    devices: dict[Device, tuple[str, ...]] = {}
    filter: FilterRules
    keywords: Keywords
    commands: CommandRules
    environment: EnvironmentRules
    serve: ServeRules | None = None
    latency: LatencyRules | None = None

    @property
    def split(self) -> SplitRules:
        """The rules by which hydrate splits a landed diff."""
        return SplitRules(tests=self.paths.tests, not_tests=self.paths.not_tests, dropped=self.paths.dropped)

    @property
    def digest(self) -> str:
        """Stands for the rules in the key of a cached scan."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]

    @cached_property
    def drop_titles(self) -> tuple[re.Pattern[str], ...]:
        """The filter's title expressions, compiled."""
        return tuple(re.compile(item, re.IGNORECASE) for item in self.filter.drop_titles)


@lru_cache(maxsize=65536)
def _is_source(path: str, paths: PathRules) -> bool:
    return path.endswith((".py", ".jinja")) and not matches(path, paths.not_source)


def is_source(path: str, rules: RepoRules) -> bool:
    """Whether a kernel in this file could be a target."""
    return _is_source(path, rules.paths)


@lru_cache(maxsize=65536)
def _is_test(path: str, paths: PathRules) -> bool:
    return matches(path, paths.tests) and not matches(path, paths.not_tests)


def is_test(path: str, rules: RepoRules) -> bool:
    """Whether a path belongs to the held-out part."""
    return _is_test(path, rules.paths)


@lru_cache(maxsize=65536)
def _is_runnable(path: str, paths: PathRules) -> bool:
    named = path.endswith(".py") and matches(path, paths.runnable) and not matches(path, paths.not_runnable)
    return named and _is_test(path, paths)


def is_runnable(path: str, rules: RepoRules) -> bool:
    """Whether pytest can be pointed at this test file, as far as its name says."""
    return _is_runnable(path, rules.paths)


@lru_cache(maxsize=65536)
def _device_of(path: str, devices: tuple[tuple[Device, tuple[str, ...]], ...]) -> Device | None:
    return next((name for name, globs in devices if matches(path, globs)), None)


def device_of(path: str, rules: RepoRules) -> Device | None:
    """The vendor whose copy this file is, or None for code of the main device."""
    return _device_of(path, tuple(rules.devices.items()))


def load_rules(repo: str, folder: Path = RULES) -> RepoRules:
    """The rules of "owner/name". Raises InvalidFile when a rules file does not hold what it should."""
    document = _read(folder / "default.toml")
    own = folder / f"{repo.replace('/', '__')}.toml"
    if own.is_file():
        document = _merged(document, _read(own))
    try:
        rules = RepoRules.model_validate({**document, "repo": repo})
        assert rules.drop_titles is not None
        for pattern in (*rules.keywords.relevance, *rules.keywords.optimization, *rules.keywords.modification):
            re.compile(pattern)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise InvalidFile(f"{own if own.is_file() else folder / 'default.toml'}: {field}: {first['msg']}") from error
    except re.error as error:
        raise InvalidFile(f"{own}: not a regular expression: {error.pattern!r} ({error.msg})") from error
    return rules


def _read(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise InvalidFile(f"{path}: not valid TOML: {error}") from error
    except OSError as error:
        raise InvalidFile(f"{path}: cannot be read ({error.strerror})") from error


_REPLACED = frozenset(("install", "import_roots", "files", "accept"))


def _merged(base: dict[str, object], own: dict[str, object]) -> dict[str, object]:
    result = dict(base)
    for key, value in own.items():
        held = result.get(key)
        if isinstance(held, dict) and isinstance(value, dict):
            result[key] = _merged(held, value)
        elif isinstance(held, list) and isinstance(value, list) and key not in _REPLACED:
            result[key] = held + value
        else:
            result[key] = value
    return result
