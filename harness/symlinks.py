"""Symbolic links of a tree: where they lead, and paths that would go through one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from harness.patch_names import as_text, shown, unsafe_path
from harness.patch_text import Section
from rtb.git_objects import SYMLINK, TreeEntry

_MAX_STEPS = 200


def link_above(sections: Sequence[Section], listing: Mapping[str, TreeEntry]) -> str:
    """Why a section reaches through a symbolic link, of the tree or made by the patch, or ""."""
    made = {section.target for section in sections if section.new_mode == SYMLINK}
    gone = {section.old for section in sections if section.new is None or section.moved == "rename"}
    for section in sections:
        if section.new is None:
            continue
        parts = section.target.split(b"/")
        for depth in range(1, len(parts)):
            above = b"/".join(parts[:depth])
            entry = listing.get(as_text(above))
            in_tree = entry is not None and entry.mode == SYMLINK and above not in gone
            if above in made or in_tree:
                return f"{shown(section.target)} lies beyond the symbolic link {shown(above)}"
    return ""


def escaping_link(links: Mapping[str, bytes], new: Iterable[str]) -> str:
    """Why one of the new links leads out of the tree or into .git, or "". `links`: every link of the tree."""
    for path in new:
        target = links[path]
        if why := _leads_out(path, links):
            return f"the symbolic link {path!r} to '{shown(target)}' {why}"
    return ""


def _leads_out(path: str, links: Mapping[str, bytes]) -> str:
    """Walk a link component by component, through further links, as the kernel would."""
    at: list[str] = []
    todo = path.split("/")[::-1]
    steps = 0
    while todo:
        steps += 1
        if steps > _MAX_STEPS:
            return "goes round in circles"
        part = todo.pop()
        if part in ("", "."):
            continue
        if part == "..":
            if not at:
                return "leads out of the tree"
            at.pop()
            continue
        if unsafe_path(part.encode("utf-8", "surrogateescape")):
            return "leads into .git"
        here = "/".join([*at, part])
        target = links.get(here)
        if target is None:
            at.append(part)
        elif target.startswith(b"/") or not target:
            return "leads to an absolute path" if target else "has no target"
        else:
            todo.extend(as_text(target).split("/")[::-1])
    return ""
