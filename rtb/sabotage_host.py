"""Text that a sabotaged file carries so that its host functions give wrong results, or late ones.

Needs no import of torch: a tensor is what has `is_floating_point`.
"""

from __future__ import annotations

import re
from typing import Final

# A parameter that a function which returns nothing most likely writes to.
OUTPUT_NAMES: Final = re.compile(
    r"(?:out(?:put)?s?|o|y|dst|result)(?:_.*)?|.*_(?:out|output)(?:_ptr)?", re.IGNORECASE
)

_FRAME: Final = """\
def _rtb_{kind}(*values, in_place=False):
    import numbers

    def spoil(value):
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(spoil(item) for item in value))
        if isinstance(value, (tuple, list)):
            return type(value)(spoil(item) for item in value)
        if isinstance(value, dict):
            return {{name: spoil(item) for name, item in value.items()}}
        if isinstance(value, numbers.Number):
            number = {number}
            try:
                return type(value)(number)  # a subclass stays one: it may say that it equals anything
            except (TypeError, ValueError):
                return number
        if not hasattr(value, "is_floating_point"):
            return value
        wrong = value.clone()
{body}
        return wrong

    if not in_place:
        return spoil(values[0])
    for value in values:
        if hasattr(value, "is_floating_point"):
            value.copy_(spoil(value))


"""
# A host function may give plain numbers; only a scaled one is surely wrong.
_NUMBERS: Final = {"scale": "(not value) if isinstance(value, bool) else value * 2 + 3"}
_BODIES: Final = {
    "scale": "        wrong = ~wrong if str(wrong.dtype) == 'torch.bool' else (wrong * 2 + 3).to(value.dtype)",
    "drop_rows": "        if wrong.dim():\n            wrong[::2] = 0\n        else:\n            wrong.zero_()",
    "low_precision": ("        if value.is_floating_point():\n            wrong = wrong.bfloat16().to(value.dtype)"),
}
HELPERS: Final = {
    **{
        kind: _FRAME.format(kind=kind, body=body, number=_NUMBERS.get(kind, "value"))
        for kind, body in _BODIES.items()
    },
    "busy_loop": (
        "def _rtb_busy_loop(microseconds):\n"
        "    import time\n\n"
        "    end = time.perf_counter() + microseconds * 1e-6\n"
        "    while time.perf_counter() < end:\n"
        "        pass\n\n\n"
    ),
}
