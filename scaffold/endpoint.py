"""Where a model is served and how it is called: provider table, key from the environment, extra request fields."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Literal
from urllib.parse import urlsplit

from rtb.errors import ExpectedError

Dialect = Literal["tools", "text"]


@dataclass(frozen=True)
class ModelOptions:
    """How to call a model. `name` is PROVIDER/NAME as the user gave it; what the server sees is `served_name`.

    `extra` is laid over each request's JSON (a null removes a key). The key itself is never part of this.
    """

    name: str
    base_url: str | None = None
    key_variable: str | None = None
    dialect: Dialect = "tools"
    stream: bool = True
    temperature: float | None = 0.0
    max_output_tokens: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    read_timeout_seconds: float = 600.0
    connect_timeout_seconds: float = 20.0
    tries: int = 8
    backoff_seconds: float = 2.0
    longest_wait_seconds: float = 120.0


@dataclass(frozen=True)
class Endpoint:
    """A resolved address. `key` is not shown by repr, and is written nowhere but into the request's header."""

    url: str
    served_name: str
    key_variable: str | None
    key: str | None = field(default=None, repr=False)


@cache
def providers() -> dict[str, dict[str, str | None]]:
    """providers.json: for each prefix the address, the variable that overrides it and the variable of the key."""
    text = resources.files("scaffold").joinpath("providers.json").read_text(encoding="utf-8")
    document: dict[str, dict[str, str | None]] = json.loads(text)
    return document


def resolve(options: ModelOptions, environ: Mapping[str, str] | None = None) -> Endpoint:
    """The address and key of a model. Raises ExpectedError for an unknown provider or a missing key."""
    environ = os.environ if environ is None else environ
    provider, _, served = options.name.partition("/")
    known = providers().get(provider)
    if known is None or not served:
        if options.base_url is None:
            raise ExpectedError(
                f"--model {options.name!r}: use PROVIDER/NAME with one of {', '.join(sorted(providers()))}, "
                "or give --base-url"
            )
        # With an address of its own, the name is the server's, slashes and all.
        known, served = {"base_url": None, "base_url_variable": None, "key_variable": None}, options.name
    variable = known.get("base_url_variable")
    base = options.base_url or (environ.get(variable) if variable else None) or known.get("base_url")
    if not base:
        raise ExpectedError(f"--model {options.name!r}: no address; give --base-url or set {variable}")
    parts = urlsplit(base)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ExpectedError(f"{base!r} is no http(s) address of an API, e.g. http://localhost:8000/v1")
    if parts.username or parts.password:
        raise ExpectedError("the address of the API holds a user or password: give the key by a variable instead")
    name = options.key_variable or known.get("key_variable")
    key = environ.get(name) if name else None
    if name and not key and (options.key_variable or options.base_url is None):
        raise ExpectedError(f"--model {options.name!r}: the variable {name} is not set; export the API key in it")
    return Endpoint(f"{base.rstrip('/')}/chat/completions", served, name if key else None, key or None)
