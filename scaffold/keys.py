"""Keys that must not reach a file: found in the environment by name, taken out of any text by value."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

HIDDEN = "[secret removed]"
_NAME = re.compile(r"(?:^|_)(?:API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)
_SHORTEST = 8  # shorter values would take ordinary words out of a text


@dataclass(frozen=True)
class Secrets:
    """Values to keep out of files. Its repr shows none of them."""

    values: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def of_environment(cls, *more: str | None, environ: Mapping[str, str] | None = None) -> Secrets:
        """Values of variables that are named like keys, and `more`, longest first."""
        environ = os.environ if environ is None else environ
        found = {value.strip() for name, value in environ.items() if _NAME.search(name)}
        found |= {value.strip() for value in more if value}
        return cls(tuple(sorted((value for value in found if len(value) >= _SHORTEST), key=len, reverse=True)))

    @classmethod
    def of_names(cls, names: Iterable[str], environ: Mapping[str, str]) -> Secrets:
        """Values of named variables only."""
        return cls(tuple(environ[name] for name in names if len(environ.get(name, "")) >= _SHORTEST))

    def hide(self, text: str) -> str:
        """The text without any of the values."""
        for value in self.values:
            if value in text:
                text = text.replace(value, HIDDEN)
        return text

    def hide_in(self, document: Any) -> Any:
        """A JSON value without any of the values, in keys and texts at any depth."""
        if not self.values:
            return document
        if isinstance(document, str):
            return self.hide(document)
        if isinstance(document, dict):
            return {self.hide_in(key): self.hide_in(value) for key, value in document.items()}
        if isinstance(document, list | tuple):
            return [self.hide_in(item) for item in document]
        return document
