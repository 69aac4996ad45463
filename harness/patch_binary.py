"""The data of a `GIT binary patch`, decoded without git, so that its result is what the patch says and not an object
that git happens to know by the id in the header. Pure."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Sequence

MAX_BYTES = 64 * 1024**2
MAX_TOTAL_BYTES = 256 * 1024**2  # of all data of a patch, which git holds in memory at once
_SIZE = re.compile(rb"^[ \t>]*(?:literal|delta)\s+[+-]?(\d+)", re.MULTILINE)
_ODD = re.compile(rb"^(?!(?:literal|delta) \d+\r?$)(?:literal|delta)\s+[+-]?\d.*", re.MULTILINE)


def swollen(patch: bytes) -> str:
    """Why the binary data of a patch must not be given to git, which believes any size, or "". Zeros of a gigabyte
    are a megabyte of patch; what is inflated lies in this machine's memory, not in a sandbox."""
    if b"GIT binary patch" not in patch:
        return ""
    if odd := _ODD.search(patch):
        return f"no size of binary data that git would write: {odd[0][:60]!r}"
    total = sum(int(digits[:30]) for digits in _SIZE.findall(patch))
    return (
        f"the binary data of the patch are {total} bytes, more than {MAX_TOTAL_BYTES}"
        if total > MAX_TOTAL_BYTES
        else ""
    )


def swollen_delta(lines: Sequence[bytes]) -> str:
    """Why the delta of one file must not be given to git, or "". `lines` start at `GIT binary patch`."""
    found = re.match(rb"delta (\d{1,12})\b", lines[1]) if len(lines) > 1 else None
    data = _inflated(lines[2:], int(found[1])) if found else b""
    if not data or isinstance(data, str):
        return data or ""
    size, _ = _number(data, _number(data, 0)[1])
    return f"the binary delta makes {size} bytes, more than {MAX_BYTES}" if size > MAX_BYTES else ""


def decoded(lines: Sequence[bytes], base: bytes) -> bytes | str:
    """The file after the patch, or why it cannot be had. `lines` start at `GIT binary patch`."""
    found = re.fullmatch(rb"(literal|delta) (\d{1,12})\r?", lines[1]) if len(lines) > 1 else None
    if found is None:
        return "the binary patch has no data"
    size = int(found[2])
    if size > MAX_BYTES:
        return f"the binary patch holds {size} bytes, more than {MAX_BYTES}"
    data = _inflated(lines[2:], size)
    if isinstance(data, str) or found[1] == b"literal":
        return data
    return _delta(data, base)


def _inflated(lines: Sequence[bytes], size: int) -> bytes | str:
    packed = bytearray()
    for line in (each.rstrip(b"\r") for each in lines):
        if not line:
            break
        length = line[0] - 64 if 65 <= line[0] <= 90 else line[0] - 70 if 97 <= line[0] <= 122 else 0
        try:
            raw = base64.b85decode(line[1:])
        except ValueError:
            return "the binary patch has a line that is no base 85"
        if not 0 < length <= len(raw):
            return "the binary patch has a line of a wrong length"
        packed += raw[:length]
    try:
        data = zlib.decompressobj().decompress(bytes(packed), size + 1)
    except zlib.error:
        return "the binary patch has data that cannot be inflated"
    return data if len(data) == size else f"the binary patch says {size} bytes and holds {len(data)}"


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            break
    return value, at


def _delta(data: bytes, base: bytes) -> bytes | str:
    source, at = _number(data, 0)
    size, at = _number(data, at)
    if source != len(base):
        return f"the binary delta is for a file of {source} bytes, the tree's has {len(base)}"
    if size > MAX_BYTES:
        return f"the binary delta makes {size} bytes, more than {MAX_BYTES}"
    result = bytearray()
    while at < len(data):
        code = data[at]
        at += 1
        if code & 0x80:
            fields = []
            for bit in range(7):
                present = code >> bit & 1
                fields.append(data[at] if present and at < len(data) else 0)
                at += present
            offset = fields[0] | fields[1] << 8 | fields[2] << 16 | fields[3] << 24
            length = (fields[4] | fields[5] << 8 | fields[6] << 16) or 0x10000
            result += base[offset : offset + length]
        else:
            result += data[at : at + code]
            at += code
        if len(result) > size or code == 0:
            return "the binary delta is broken"
    return bytes(result) if len(result) == size else "the binary delta is broken"
