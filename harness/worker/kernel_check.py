"""Compare a candidate kernel with a reference, believing neither. Called as `python -S kernel_check.py PLAN RESULT`.

Runs in the sandbox, in a process of its own for each candidate. The plan is JSON: reference and candidate (paths),
function, shape (null for functions without input), rounds, device. The result is JSON: correct, reason, timing_valid,
timing_reason, samples_ms. No result file means that nothing was compared. Imports torch only when there is an input.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Tuple


def load(path: str, name: str, function: str) -> Callable[..., Any]:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, function)  # type: ignore[no-any-return]


def compare_plain(reference: Callable[..., Any], candidate: Callable[..., Any]) -> Dict[str, Any]:
    """Functions without input: equal results of calls that came to their end."""
    wanted, got = reference(), candidate()
    same = type(wanted) is type(got) and wanted is not None and wanted == got
    return {"correct": bool(same), "reason": "equal" if same else "%r, the reference gives %r" % (got, wanted)}


class Judge:
    """One pair of functions of a tensor. Our own functions are bound before the candidate is loaded."""

    def __init__(self, plan: Dict[str, Any], torch: Any) -> None:
        self.torch = torch
        self.plan = plan
        self.plain, self.equal, self.close, self.clock = torch.Tensor, torch.equal, torch.allclose, time.perf_counter
        self.cuda = plan["device"] == "cuda"
        self.synchronize = torch.cuda.synchronize if self.cuda else lambda: None
        self.chance = torch.Generator(device="cpu").manual_seed(plan["seed"])

    def data(self) -> Any:
        return self.torch.randn(self.plan["shape"], generator=self.chance).to(self.plan["device"])

    def poison(self, like: Any) -> None:
        """What the allocator hands out next holds no number: a result that was never written is seen."""
        spoilt = [self.torch.full_like(like, float("nan")) for _ in range(4)]
        del spoilt

    def fault(self, got: Any, wanted: Any) -> Optional[str]:
        if type(got) is not self.plain:
            return "rejected: the result is a %s, not a plain tensor" % type(got).__name__
        if got.shape != wanted.shape or got.dtype != wanted.dtype:
            return "%s of %s, not %s of %s" % (list(got.shape), got.dtype, list(wanted.shape), wanted.dtype)
        if not self.close(got, wanted, rtol=1e-4, atol=1e-5):
            return "the result is not the reference's"
        return None

    def results(self, reference: Callable[..., Any], candidate: Callable[..., Any]) -> Optional[str]:
        """Each side gets a copy of its own; the reference's result stays alive while the candidate runs."""
        kept: List[Any] = []  # alive, so that no two inputs share an address
        for _ in range(self.plan["rounds"]):
            data = self.data()
            wanted = reference(data.clone()).clone()
            given = data.clone()
            kept.append(given)
            self.poison(wanted)
            got = candidate(given)
            self.synchronize()
            fault = self.fault(got, wanted)
            if fault is not None:
                return fault
            if not self.equal(given, data):
                return "it changes its input"
        return None

    def times(
        self, reference: Callable[..., Any], candidate: Callable[..., Any]
    ) -> Tuple[Optional[str], List[float]]:
        """Timed calls on fresh data in one place; each result is looked at when the clock has stopped."""
        place = self.data()
        samples: List[float] = []
        for _ in range(self.plan["rounds"]):
            place.copy_(self.data())
            data = place.clone()
            self.synchronize()
            started = self.clock()
            got = candidate(place)
            self.synchronize()
            samples.append(1000 * (self.clock() - started))
            fault = self.fault(got, reference(data))
            if fault is not None:
                return "a timed call: %s" % fault, samples
        if self.cuda and self.runs_elsewhere(reference, candidate, place):
            return "it works on a stream of its own: only a wait for the whole device stops its clock", samples
        return None, samples

    def runs_elsewhere(self, reference: Callable[..., Any], candidate: Callable[..., Any], place: Any) -> bool:
        """Whether the result is there while the caller's stream still has not come to it."""
        torch = self.torch
        wanted = reference(place.clone())
        self.poison(wanted)
        self.synchronize()
        torch.cuda._sleep(400_000_000)  # some 0.2 s of the caller's stream
        got = candidate(place)
        time.sleep(0.02)
        other = torch.cuda.Stream()
        with torch.cuda.stream(other):
            early = got.clone()
        other.synchronize()
        waiting = not torch.cuda.current_stream().query()
        self.synchronize()
        return bool(waiting and self.close(early, wanted))


def main(arguments: List[str]) -> int:
    with open(arguments[0]) as file:
        plan = json.load(file)
    if plan["shape"] is None:
        reference = load(plan["reference"], "reference", plan["function"])
        found = compare_plain(reference, load(plan["candidate"], "candidate", plan["function"]))
    else:
        import torch

        judge = Judge(plan, torch)
        reference = load(plan["reference"], "reference", plan["reference_function"])
        candidate = load(plan["candidate"], "candidate", plan["function"])
        fault = judge.results(reference, candidate)
        found = {"correct": fault is None, "reason": fault or "equal"}
        if fault is None:
            slip, samples = judge.times(reference, candidate)
            found.update(timing_valid=slip is None, timing_reason=slip or "", samples_ms=samples)
    with open(arguments[1] + ".part", "w") as file:
        json.dump(dict(found, nonce=plan["nonce"]), file)
    os.replace(arguments[1] + ".part", arguments[1])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
