"""What a pull request is for: a new kernel, an optimization, or a modification. Pure.

A new kernel is seen in the structure. Optimization against modification is decided by words, with the title weighing
most, and by the shape of the change; the confidence says how one-sided the evidence was.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rtb.kernels import FunctionChange
from rtb.repo_rules import Keywords
from rtb.task import Category

_TITLE, _LABEL, _BODY = 3.0, 2.0, 0.5
_BODY_CHARACTERS = 2000


@dataclass(frozen=True)
class Decision:
    """A category, how sure it is (0.5 to 1), and why."""

    category: Category
    confidence: float
    evidence: tuple[str, ...]


def decide(
    changes: Sequence[FunctionChange], title: str, body: str, labels: Sequence[str], keywords: Keywords
) -> Decision:
    """The category of a set of target changes."""
    kernels = [item for item in changes if item.is_kernel]
    added = [item for item in kernels if item.label == "added" and item.role != "device"]
    edited = [item for item in kernels if item.label != "added"]
    if added:
        names = ", ".join(item.name for item in added[:4])
        evidence = [f"new kernels: {names}"]
        if edited:
            evidence.append(f"existing kernels changed too: {', '.join(item.name for item in edited[:4])}")
        share = len(added) / (len(added) + len([item for item in edited if item.role != "device"]))
        return Decision("new_kernel", round(0.5 + 0.5 * share, 2), tuple(evidence))
    speed, change, evidence = _weigh(title, body, labels, keywords)
    if kernels and all(item.label == "config" for item in kernels):
        return Decision("optimization", 0.9, (*evidence, "only configurations changed"))
    signatures = [item for item in edited if "signature" in (item.label, *item.also)]
    if signatures and speed and change:
        evidence.append(f"signature changed: {signatures[0].name}")
        change += 0.5
    total = speed + change
    if total == 0:
        return Decision("modification", 0.5, ("no word speaks for either; a change of a kernel is a modification",))
    category: Category = "optimization" if speed >= change else "modification"
    return Decision(category, round(0.5 + 0.5 * abs(speed - change) / total, 2), tuple(evidence))


def _weigh(title: str, body: str, labels: Sequence[str], keywords: Keywords) -> tuple[float, float, list[str]]:
    """Weights for optimization and for modification, and the words they come from."""
    evidence: list[str] = []
    weights = {"optimization": 0.0, "modification": 0.0}
    places = [("title", title, _TITLE)]
    places += [("label", label, _LABEL) for label in labels]
    places.append(("body", body[:_BODY_CHARACTERS], _BODY))
    for where, text, weight in places:
        for name, patterns in (("optimization", keywords.optimization), ("modification", keywords.modification)):
            words = {match[0].lower() for item in patterns if (match := re.search(item, text, re.IGNORECASE))}
            if words:
                # Several words of one place are not several witnesses: each further one adds little.
                weights[name] += weight * (1 + 0.3 * (len(words) - 1))
                evidence.append(f"{where} speaks for {name}: {', '.join(sorted(words))}")
    return weights["optimization"], weights["modification"], evidence
