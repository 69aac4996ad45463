"""Signatures of submissions: Ed25519 over the manifest. EDGE cryptography.

A signature says who answers for a submission; it cannot say that the numbers are true.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)
from pydantic import StringConstraints

from rtb.errors import ExpectedError
from rtb.storage import write_model
from rtb.task import Frozen

PASSPHRASE = "RTB_KEY_PASSPHRASE"
_CONTEXT = b"rtb submission 1\0"  # so that a signature made for something else is none of ours
_Hex = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]+$")]


class Signature(Frozen):
    """MANIFEST.sig. `public_key` in OpenSSH's form, `signature` in hexadecimal."""

    schema_version: Literal[1] = 1
    algorithm: Literal["ed25519"] = "ed25519"
    public_key: str
    signature: _Hex


def sign(manifest: Path, key: Path, out: Path) -> str:
    """Sign a manifest with a private key (PEM, or OpenSSH as ssh-keygen makes it). Returns the fingerprint.

    Raises ExpectedError when the key cannot be read or is not Ed25519.
    """
    private = _private_key(key)
    public = private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    made = Signature(public_key=public, signature=private.sign(_CONTEXT + manifest.read_bytes()).hex())
    write_model(out, made)
    return fingerprint(public)


def verify(manifest: bytes, signature: Signature) -> str | None:
    """Why the signature does not hold, or None."""
    try:
        _public_key(signature.public_key).verify(bytes.fromhex(signature.signature), _CONTEXT + manifest)
    except (InvalidSignature, ValueError):
        return "the signature does not fit MANIFEST.json: one of them was changed, or another key signed"
    return None


def fingerprint(public: str) -> str:
    """A key's fingerprint as ssh-keygen -l prints it. Raises ValueError when it is no key."""
    parts = public.split()
    if len(parts) < 2:
        raise ValueError("no OpenSSH public key")
    digest = hashlib.sha256(base64.b64decode(parts[1], validate=True)).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def read_keys(path: Path) -> Mapping[str, str]:
    """Names of trusted keys by fingerprint, from a file of OpenSSH public keys, one a line. Raises ExpectedError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ExpectedError(f"{path}: cannot be read as a list of public keys ({error})") from error
    found = {}
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                _public_key(line)
                found[fingerprint(line)] = " ".join(line.split()[2:]) or f"line {number}"
            except ValueError as error:
                raise ExpectedError(f"{path}:{number}: no ssh-ed25519 public key ({error})") from error
    return found


def _public_key(text: str) -> Ed25519PublicKey:
    try:
        key = load_ssh_public_key(text.encode())
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from error
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("not an Ed25519 key")
    return key


def _private_key(path: Path) -> Ed25519PrivateKey:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ExpectedError(f"--key {path}: cannot be read ({error.strerror})") from error
    passphrase = os.environ.get(PASSPHRASE)
    secret = passphrase.encode() if passphrase else None
    load = load_ssh_private_key if b"OPENSSH PRIVATE KEY" in data else load_pem_private_key
    try:
        key = load(data, secret)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ExpectedError(
            f"--key {path}: no private key that can be opened ({error}); make one with 'ssh-keygen -t ed25519', and "
            f"put the passphrase of an encrypted key into {PASSPHRASE}"
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ExpectedError(f"--key {path}: not an Ed25519 key; make one with 'ssh-keygen -t ed25519'")
    return key
