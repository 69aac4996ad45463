"""Tar archives, for the engine: files into a container, a build's context, a file out of a container. Bytes exact."""

from __future__ import annotations

import io
import os
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from rtb.sandbox import SYMBOLIC_LINK, Entry


def pack_files(files: Mapping[str, Entry], owner: int) -> bytes:
    """A tar of the files, owned by user and group number `owner`.

    Every folder on the way is in it too: that makes missing ones, and replaces a link or file in its place, so that
    nothing is written through a link.
    """
    folders = {str(parent) for path in files for parent in PurePosixPath(path).parents} - {"."}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8") as archive:
        for folder in sorted(folders):
            archive.addfile(_member(folder, tarfile.DIRTYPE, 0o755, owner))
        for path, entry in files.items():
            if entry.mode == SYMBOLIC_LINK:
                member = _member(path, tarfile.SYMTYPE, 0o777, owner)
                member.linkname = entry.data.decode(errors="surrogateescape")
                archive.addfile(member)
                continue
            member = _member(path, tarfile.REGTYPE, entry.mode, owner)
            member.size = len(entry.data)
            archive.addfile(member, io.BytesIO(entry.data))
    return buffer.getvalue()


def pack_context(destination: BinaryIO, files: Mapping[str, bytes], folders: Mapping[str, Path]) -> None:
    """A build context: `files` by name, and whole `folders` under a name; all owned by root, modes and links kept."""
    with tarfile.open(fileobj=destination, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8") as archive:
        for name, data in files.items():
            member = _member(name, tarfile.REGTYPE, 0o644, 0)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        for name, folder in folders.items():
            archive.add(str(folder), arcname=name, filter=_as_root)


def unpack_file(data: bytes) -> bytes | None:
    """The one regular file in a tar, else None."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        member = archive.next()
        file = archive.extractfile(member) if member and member.isreg() else None
        return file.read() if file else None


def _as_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _member(path: str, kind: bytes, mode: int, owner: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(os.fspath(path))
    member.type = kind
    member.mode = mode
    member.uid = member.gid = owner
    member.mtime = int(time.time())
    return member
