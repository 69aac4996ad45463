"""Environment variables for a while: rtb is pointed at a test's own suite, Dockerfiles and cache by them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def variables(settings: Mapping[str, str]) -> Iterator[None]:
    """Set them, and put back what was there."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
