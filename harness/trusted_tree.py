"""Files that decide the grade, laid over the model's tree from the trusted side. The names are data."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from harness.patching import apply_patch
from rtb.checkout import matches
from rtb.errors import ExpectedError
from rtb.git_objects import SYMLINK, GitObjects, TreeDifference, TreeEntry
from rtb.sandbox import Change

# What pytest or the interpreter reads or runs by name, at any depth of the tree.
INFRASTRUCTURE_FILES = frozenset(
    {
        "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg", "pyproject.toml",
        "sitecustomize.py", "usercustomize.py",
    }
)  # fmt: skip
INFRASTRUCTURE_MODULES = frozenset({"conftest", "sitecustomize", "usercustomize"})
INFRASTRUCTURE_FOLDERS = re.compile(r".+\.(dist-info|egg-info)")
# Import names a repository's tests rely on; a new module of that name at an import root would stand in for them.
LIBRARY_MODULES = frozenset(
    {
        "torch", "triton", "numpy", "scipy", "pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments",
        "hypothesis", "xdist", "pytest_asyncio", "pytest_mock", "pytest_timeout", "pytest_cov", "coverage", "einops",
        "transformers", "tokenizers", "safetensors", "huggingface_hub", "datasets", "jax", "cupy", "pandas",
        "requests", "aiohttp", "pydantic", "fastapi", "uvicorn", "ray", "yaml", "tqdm", "psutil", "PIL",
        "parameterized", "expecttest", "absl", "pkg_resources", "setuptools", "py", "exceptiongroup", "tomli",
        "colorama", "typing_extensions", "attr", "attrs", "execnet", "sympy", "mpmath", "networkx", "jinja2",
        "markupsafe", "filelock", "fsspec", "ml_dtypes", "sentencepiece", "starlette", "httpx", "anyio", "certifi",
    }
)  # fmt: skip
_MODULE_ENDING = re.compile(r"\.(py|pyc|pyo|pyd|so|pyw)$")


@dataclass(frozen=True, slots=True)
class TrustedTree:
    """What is laid into the sandbox: `tree`, and the `change` that makes it from the base tree.

    `flags` say what of the model's was set aside, "KIND: PATH", sorted; kinds `test_infrastructure_touched`,
    `test_file_touched`, `module_shadowed`, `compiled_python_added`. `restored` are the paths that differ from the
    patched tree.
    """

    tree: str
    change: Change
    flags: tuple[str, ...]
    restored: tuple[str, ...]


def trusted_tree(
    objects: GitObjects,
    *,
    base_tree: str,
    patched_tree: str,
    test_patch: bytes,
    test_globs: Sequence[str] = (),
    not_test_globs: Sequence[str] = (),
    test_files: Sequence[str] = (),
    import_roots: Sequence[str] = (".",),
    installed: Collection[str] = (),
) -> TrustedTree:
    """The model's tree with every path that decides the grade as base and test patch have it.

    These are: paths of the test patch, `test_files` (what the unit command runs), paths that `test_globs` match and
    `not_test_globs` do not (a repository's rules for splitting a landed diff), test infrastructure by name, compiled
    Python, and new modules that would stand in for one of those, for the standard library, or for an `installed` or
    well-known package at an import root.
    Raises ExpectedError when the test patch does not apply strictly to the base: grading must not go on.
    """
    official = _official(objects, base_tree, test_patch)
    official_changes = {item.path: item.new for item in objects.differences(base_tree, official)}
    deciding = frozenset(official_changes) | frozenset(path.rstrip("/") for path in test_files)
    changes = objects.differences(base_tree, patched_tree)
    shadows = _Shadows(objects, base_tree, official_changes, changes, import_roots, deciding, frozenset(installed))
    plan: dict[str, TreeEntry | None] = dict(official_changes)
    flags: set[str] = set()
    for item in changes:
        tests = matches(item.path, test_globs) and not matches(item.path, not_test_globs)
        flag = _flag(item, deciding, tests) or shadows.flag(item)
        if flag:
            plan[item.path] = official_changes.get(item.path, item.old)
            if item.new != plan[item.path]:
                flags.add(f"{flag}: {item.path}")
    tree = objects.with_entries(patched_tree, plan)
    restored = tuple(item.path for item in objects.differences(patched_tree, tree))
    return TrustedTree(tree, objects.change(base_tree, tree), tuple(sorted(flags)), restored)


def _official(objects: GitObjects, base_tree: str, test_patch: bytes) -> str:
    if not test_patch.strip():
        return base_tree
    result = apply_patch(objects, base_tree, test_patch)
    if result.status != "applied" or result.method != "strict" or result.tree is None:
        said = result.reason or f"it needs repair ({result.method})"
        raise ExpectedError(
            f"the task's own test patch does not apply strictly to its base: {said}; make the task's patches again"
        )
    return result.tree


def _flag(item: TreeDifference, deciding: Collection[str], tests: bool) -> str:
    path = PurePosixPath(item.path)
    named = item.path in deciding or any(str(folder) in deciding for folder in path.parents)
    if named or tests:
        return "test_infrastructure_touched" if _is_infrastructure(path) else "test_file_touched"
    if _is_infrastructure(path):
        return "test_infrastructure_touched"
    if path.suffix in (".pyc", ".pyo") or "__pycache__" in path.parts:
        return "compiled_python_added"
    return ""


def _is_infrastructure(path: PurePosixPath) -> bool:
    if path.name in INFRASTRUCTURE_FILES or path.suffix == ".pth":
        return True
    # A module's file with any ending, or its package: conftest.cpython-311.so, conftest/__init__.py.
    if any(part.partition(".")[0] in INFRASTRUCTURE_MODULES for part in path.parts):
        return True
    return any(INFRASTRUCTURE_FOLDERS.fullmatch(part) for part in path.parts)


class _Shadows:
    """New modules that would be imported in place of a deciding file or of a library. Reads the base tree only when
    a new file's name gives cause."""

    def __init__(
        self,
        objects: GitObjects,
        base_tree: str,
        official: Mapping[str, TreeEntry | None],
        changes: Sequence[TreeDifference],
        import_roots: Sequence[str],
        deciding: frozenset[str],
        installed: frozenset[str],
    ) -> None:
        self._objects = objects
        self._base_tree = base_tree
        self._official = official
        self._stated = {"" if root in (".", "") else root.strip("/").removeprefix("./") for root in import_roots}
        self._deciding = deciding
        self._known = LIBRARY_MODULES | sys.stdlib_module_names | installed
        # A folder without __init__ gives way to a library of its name, so it shadows nothing.
        self._packages = {
            str(PurePosixPath(item.path).parent)
            for item in changes
            if item.new is not None and PurePosixPath(item.path).name.partition(".")[0] == "__init__"
        }
        self._found: frozenset[str] | None = None

    def flag(self, item: TreeDifference) -> str:
        """The flag's kind for one of the model's changes, or ""."""
        if item.old is not None or item.new is None:
            return ""
        parts = item.path.split("/")
        for depth, part in enumerate(parts):
            home = "/".join(parts[:depth])
            here = f"{home}/{part}" if home else part
            if depth < len(parts) - 1:
                if here in self._packages and self._stands_in(home, part):
                    return "module_shadowed"
            elif _MODULE_ENDING.search(part) or item.new.mode == SYMLINK:
                name = part.partition(".")[0]
                own = f"{home}/{name}.py" if home else f"{name}.py"
                if (own in self._deciding and here != own) or self._stands_in(home, name):
                    return "module_shadowed"
        return ""

    def _stands_in(self, home: str, name: str) -> bool:
        own = f"{home}/{name}.py" if home else f"{name}.py"
        if own in self._deciding:
            return True
        return name in self._known and home in self._roots() and not self._in_base(home, name)

    def _in_base(self, home: str, name: str) -> bool:
        """Whether the base has a module or package of that name there: then it is the repository's own."""
        start = f"{home}/{name}" if home else name
        listing = self._objects.listing(self._base_tree)
        return f"{start}.py" in listing or f"{start}/__init__.py" in listing

    def _roots(self) -> frozenset[str]:
        """Folders that end up on sys.path: the working folder, the environment's, and for every test and conftest
        file above one the first folder without __init__.py (pytest's prepend mode)."""
        if self._found is None:
            listing = self._objects.listing(self._base_tree)
            roots = {"", *self._stated}
            for path in self._deciding:
                parents = [str(parent).removeprefix(".") for parent in PurePosixPath(path).parents]
                holders = [home for home in parents if self._has(listing, home, "conftest.py")]
                for home in (parents[0] if parents else "", *holders):
                    roots.update(self._above(listing, home))
            self._found = frozenset(roots)
        return self._found

    def _above(self, listing: Mapping[str, TreeEntry], home: str) -> set[str]:
        """The import root for a file in `home`; two of them where the model made a package of a plain folder."""
        found: set[str] = set()
        while home and (self._has(listing, home, "__init__.py") or home in self._packages):
            if not self._has(listing, home, "__init__.py"):
                found.add(home)
            home = home.rpartition("/")[0]
        return found | {home}

    def _has(self, listing: Mapping[str, TreeEntry], home: str, name: str) -> bool:
        path = f"{home}/{name}" if home else name
        return self._official.get(path, listing.get(path)) is not None
