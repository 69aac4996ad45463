"""A repository's objects with a scratch store over them: trees are made, compared and read, and nothing stays.

EDGE git, plumbing only. Git runs in a bare repository of our own that borrows the objects, so no configuration, hook,
filter, attribute, replacement or outer repository of the given one can have a say.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rtb.checkout import GitResult, git_environment
from rtb.errors import ExpectedError, GitFailed, OutOfSpace
from rtb.sandbox import Change, Entry
from rtb.temporary import temporary_folder

GITLINK = 0o160000
SYMLINK = 0o120000
COMMAND_TIMEOUT_SECONDS = 120.0
SPARE_BYTES = 1_000_000  # with less, a command that failed did so for want of space

_CONFIG = """[core]
\trepositoryFormatVersion = 0
\tbare = false
\tautocrlf = false
\tsafecrlf = false
\tfileMode = true
\tsymlinks = true
\tignoreCase = false
\tprecomposeUnicode = false
\tprotectNTFS = true
\tprotectHFS = true
\tquotePath = true
\tfsmonitor = false
\tuntrackedCache = false
\thooksPath = /dev/null
\tlooseCompression = 0
[apply]
\twhitespace = nowarn
[gc]
\tauto = 0
[diff]
\talgorithm = myers
"""
# info/attributes outranks every .gitattributes of a tree: bytes are never converted on their way in or out.
_ATTRIBUTES = "* -text -eol -filter -ident -working-tree-encoding !diff !whitespace\n"


class GitTooSlow(GitFailed):
    """A git command did not end within its limit."""


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """What a tree holds at a path: a git mode (0o100644, 0o100755, 0o120000, 0o160000) and an object id."""

    mode: int
    id: str


@dataclass(frozen=True, slots=True)
class TreeDifference:
    """One path that differs between two trees; None where the path is not there."""

    path: str
    old: TreeEntry | None
    new: TreeEntry | None


class GitObjects:
    """Got from `with borrow_objects(repository)`; ids it returns can be read until that block ends. One thread only.

    Paths are text with surrogate escapes, as in `rtb.sandbox.Change`. Every method raises GitFailed when git fails
    and OutOfSpace on a full disk.
    """

    def __init__(self, home: Path, source: Path) -> None:
        self.home = home
        self._source = source
        self._indexes: dict[str, Path] = {}
        self._made = 0
        self._listings: dict[str, dict[str, TreeEntry]] = {}
        self._compared: dict[tuple[str, str], tuple[TreeDifference, ...]] = {}

    def run(
        self,
        arguments: Sequence[str],
        *,
        stdin: bytes = b"",
        index: Path | None = None,
        work_tree: Path | None = None,
        literal: bool = True,
        check: bool = True,
    ) -> GitResult:
        """Run git in the scratch repository. With `check`, an exit code other than 0 raises GitFailed.

        `literal` False lets paths on the command line be patterns, which some commands insist on.
        """
        env = git_environment(
            {
                "HOME": str(self.home),
                "XDG_CONFIG_HOME": str(self.home),
                "GIT_DIR": str(self.home / "git"),
                "GIT_WORK_TREE": str(work_tree or self.home / "empty"),
                "GIT_INDEX_FILE": str(index or self.home / "index"),
                "GIT_CEILING_DIRECTORIES": str(self.home),
                "GIT_LITERAL_PATHSPECS": "1" if literal else "0",
                "GIT_NO_REPLACE_OBJECTS": "1",
                "GIT_NO_LAZY_FETCH": "1",
            }
        )
        try:
            done = subprocess.run(
                ["git", *arguments],
                cwd=work_tree or self.home / "empty",
                input=stdin,
                env=env,
                capture_output=True,
                check=False,
                timeout=COMMAND_TIMEOUT_SECONDS,
            )
        except FileNotFoundError as error:
            raise ExpectedError("git is not installed: install it and run the same command again") from error
        except subprocess.TimeoutExpired as error:
            limit = f"{COMMAND_TIMEOUT_SECONDS:.0f} s"
            raise GitTooSlow(f"git {arguments[0]} on {self._source} took over {limit}") from error
        # git has many words for a full disk, and a patch that "does not apply" may be one.
        full = done.returncode != 0 and shutil.disk_usage(self.home).free < SPARE_BYTES
        if full or b"No space left on device" in done.stderr:
            raise OutOfSpace(f"the disk is full while git worked in {self.home}: free some space and run it again")
        if check and done.returncode != 0:
            tail = done.stderr.decode(errors="replace").strip()[-2000:]
            raise GitFailed(f"git {arguments[0]} on {self._source} failed with exit code {done.returncode}: {tail}")
        return GitResult(done.returncode, done.stdout, done.stderr)

    def tree_of(self, commit: str) -> str:
        """The tree id of a commit or tree id. Raises ExpectedError when the repository does not have it."""
        found = self.run(["rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{tree}}"], check=False)
        if found.returncode != 0:
            raise ExpectedError(f"{self._source} has no commit or tree {commit}: fetch it, or name another clone")
        return found.stdout.decode().strip().splitlines()[-1]

    def new_index(self, tree: str | None) -> Path:
        """A fresh index file that holds a tree (or nothing)."""
        self._made += 1
        index = self.home / f"index-{self._made}"
        if tree is None:
            return index
        if tree not in self._indexes:
            kept = self.home / f"kept-{len(self._indexes)}"
            self.run(["read-tree", tree], index=kept)
            self._indexes[tree] = kept
        # git puts a changed index in place by renaming a new file over it, so a second name of this one is enough.
        index.hardlink_to(self._indexes[tree])
        return index

    def write_tree(self, index: Path) -> str:
        """The tree id of an index. Blobs that the borrowed repository lacks are let through."""
        tree = self.run(["write-tree", "--missing-ok"], index=index).stdout.decode().strip()
        if tree not in self._indexes:
            kept = self.home / f"kept-{len(self._indexes)}"
            kept.hardlink_to(index)
            self._indexes[tree] = kept
        return tree

    def with_entries(self, tree: str | None, entries: Mapping[str, TreeEntry | None]) -> str:
        """A tree like `tree` (None: empty) with these paths set, or removed where None. A file in the way of a folder
        gives way, and the other way round."""
        index = self.new_index(tree)
        self.set_entries(index, entries)
        return self.write_tree(index)

    def set_entries(self, index: Path, entries: Mapping[str, TreeEntry | None]) -> None:
        """Set these paths of an index, or remove them where None."""
        if not entries:
            return
        removed = [path for path, entry in entries.items() if entry is None]
        kept = [(path, entry) for path, entry in entries.items() if entry is not None]
        lines = [b"0 %s\t%s\0" % (b"0" * 40, path.encode("utf-8", "surrogateescape")) for path in removed]
        lines += [
            b"%o %s\t%s\0" % (entry.mode, entry.id.encode(), path.encode("utf-8", "surrogateescape"))
            for path, entry in kept
        ]
        self.run(["update-index", "-z", "--index-info"], stdin=b"".join(lines), index=index)

    def differences(self, old: str, new: str) -> tuple[TreeDifference, ...]:
        """Every path whose mode or bytes differ; a rename is a removal and an addition."""
        if old == new:
            return ()
        if (old, new) in self._compared:
            return self._compared[old, new]
        raw = self.run(["diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", old, new]).stdout
        parts = raw.split(b"\0")
        found = tuple(_difference(parts[i], parts[i + 1]) for i in range(0, len(parts) - 1, 2))
        self._compared[old, new] = found
        return found

    def listing(self, tree: str) -> Mapping[str, TreeEntry]:
        """Every file, link and gitlink of a tree by path."""
        if tree not in self._listings:
            entries: dict[str, TreeEntry] = {}
            for line in self.run(["ls-tree", "-r", "-z", "--full-tree", tree]).stdout.split(b"\0"):
                if line:
                    head, _, path = line.partition(b"\t")
                    mode, _, name = head.split(b" ")
                    entries[path.decode("utf-8", "surrogateescape")] = TreeEntry(int(mode, 8), name.decode())
            self._listings[tree] = entries
        return self._listings[tree]

    def blobs(self, ids: Iterable[str]) -> dict[str, bytes]:
        """The bytes of blobs. Raises GitFailed when one is missing (a blobless clone)."""
        wanted = list(dict.fromkeys(ids))
        if not wanted:
            return {}
        raw = self.run(["cat-file", "--batch"], stdin="".join(f"{name}\n" for name in wanted).encode()).stdout
        found: dict[str, bytes] = {}
        at = 0
        for name in wanted:
            end = raw.index(b"\n", at)
            words = raw[at:end].split(b" ")
            if len(words) != 3 or words[1] != b"blob":
                raise GitFailed(f"{self._source} lacks blob {name}: an incomplete or broken clone; fetch it again")
            at = end + 1 + int(words[2])
            found[name] = raw[end + 1 : at]
            at += 1
        return found

    def store(self, contents: Sequence[bytes]) -> tuple[str, ...]:
        """Blobs made in the scratch store; their ids, in order."""
        if not contents:
            return ()
        folder = Path(tempfile.mkdtemp(dir=self.home))
        for number, data in enumerate(contents):
            (folder / str(number)).write_bytes(data)
        names = "".join(f"{folder / str(number)}\n" for number in range(len(contents))).encode()
        made = self.run(["hash-object", "-w", "--no-filters", "--stdin-paths"], stdin=names)
        return tuple(made.stdout.decode().split())

    def change(self, old: str, new: str) -> Change:
        """What turns one tree into the other. Raises GitFailed when a gitlink differs (it has no bytes to lay)."""
        differences = self.differences(old, new)
        if links := [item.path for item in differences if item.new is not None and item.new.mode == GITLINK]:
            raise GitFailed(f"{links[0]} is a submodule pointer in the wanted tree: it cannot be laid into a sandbox")
        contents = self.blobs(item.new.id for item in differences if item.new is not None)
        write = {
            item.path: Entry(contents[item.new.id], _laid_mode(item.new.mode))
            for item in differences
            if item.new is not None
        }
        return Change(write=write, delete=tuple(item.path for item in differences if item.new is None))


def _laid_mode(mode: int) -> int:
    if mode == SYMLINK:
        return SYMLINK
    return 0o755 if mode & 0o100 else 0o644


def _difference(head: bytes, path: bytes) -> TreeDifference:
    old_mode, new_mode, old, new, _ = head[1:].decode().split(" ")
    return TreeDifference(
        path.decode("utf-8", "surrogateescape"),
        TreeEntry(int(old_mode, 8), old) if int(old_mode, 8) else None,
        TreeEntry(int(new_mode, 8), new) if int(new_mode, 8) else None,
    )


@contextmanager
def borrow_objects(repository: Path | None) -> Iterator[GitObjects]:
    """Open a repository's objects (work tree, linked work tree or bare; None: no objects but our own).

    Nothing is written to the repository; all that was made is gone when the block ends.
    Raises ExpectedError when there is no git repository at this very path (an outer one does not count).
    """
    with temporary_folder("objects") as home:
        git = home / "git"
        for folder in (home / "empty", git / "refs", git / "objects" / "info", git / "info"):
            folder.mkdir(parents=True)
        (git / "HEAD").write_text("ref: refs/heads/none\n")
        (git / "config").write_text(_CONFIG)
        (git / "info" / "attributes").write_text(_ATTRIBUTES)
        if repository is not None:
            (git / "objects" / "info" / "alternates").write_text(f"{objects_folder(repository)}\n")
        yield GitObjects(home, repository or home)


def objects_folder(repository: Path) -> Path:
    """Where a repository keeps its objects. Raises ExpectedError when it is no repository."""
    repository = repository.resolve()
    git = repository / ".git"
    if git.is_file():
        pointer = re.match(r"gitdir: (.+)\n?", git.read_text(errors="surrogateescape"))
        git = repository / pointer[1] if pointer else git
    elif not git.is_dir():
        git = repository
    if (git / "commondir").is_file():
        git = git / (git / "commondir").read_text().strip()
    if not (git / "HEAD").exists() or not (git / "objects").is_dir():
        raise ExpectedError(f"{repository}: not a git repository; name the clone or work tree itself")
    return (git / "objects").resolve()
