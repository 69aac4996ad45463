"""JSON that somebody else wrote: a patch's process, a server, a model. Bytes in, values or JSONDecodeError out."""

from __future__ import annotations

import json
import re
from typing import Any

_HALF = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")


def read_foreign_json(data: bytes | str) -> Any:
    """The value, whose texts can all be written again as UTF-8: bad bytes become U+FFFD, half characters `?`.

    Raises json.JSONDecodeError and nothing else, also for nesting that is too deep to be read and for numbers of more
    digits than Python reads: whoever wrote those must not be able to end a run.
    """
    text = data if isinstance(data, str) else data.decode("utf-8", "replace")
    value = parse_foreign_json(text)
    return writable(value) if _HALF.search(text) else value


def writable(value: Any) -> Any:
    """The same value with `?` for half characters (lone surrogates), which no UTF-8 file can hold."""
    return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def parse_foreign_json(text: str) -> Any:
    """The value with its half characters. Raises json.JSONDecodeError and nothing else."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise json.JSONDecodeError("nested too deep", "", 0) from None
    except ValueError:
        raise json.JSONDecodeError("a number has too many digits", "", 0) from None
