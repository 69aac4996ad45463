"""A slow-down of a known size, planted into vLLM: after each step the GPU waits for a share of its time.

The step is timed by CUDA events, so that the wait follows the GPU's own time and not the CPU's.
"""

from __future__ import annotations

PLANTS = {"planted-3": 0.03, "planted-10": 0.10}
_CODE = """

def _planted(share):
    import torch

    original = GPUModelRunner.execute_model
    known, waiting, clock = {}, [], []

    def cycles_per_ms():
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(1000)
        first.record()
        torch.cuda._sleep(20000000)
        last.record()
        last.synchronize()
        return 20000000 / first.elapsed_time(last)

    def execute_model(self, scheduler_output, *args, **kwargs):
        tokens = getattr(scheduler_output, "total_num_scheduled_tokens", 0)
        if not tokens:
            return original(self, scheduler_output, *args, **kwargs)
        if not clock:
            clock.append(cycles_per_ms())
        while waiting and waiting[0][2].query():
            key, first, last = waiting.pop(0)
            took = first.elapsed_time(last)
            known[key] = took if key not in known else 0.8 * known[key] + 0.2 * took
        key = tokens if tokens <= 64 else 64 + tokens // 256
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        result = original(self, scheduler_output, *args, **kwargs)
        last.record()
        waiting.append((key, first, last))
        if key in known:
            torch.cuda._sleep(int(share * known[key] * clock[0]))
        return result

    GPUModelRunner.execute_model = execute_model


_planted(SHARE)
"""


def planted(source: str, share: float) -> str:
    """The model runner's source with the wait at its end."""
    if "class GPUModelRunner" not in source or "def execute_model" not in source:
        raise SystemExit("the model runner is not as expected: mend scripts/gpu/plant.py")
    return source.rstrip("\n") + "\n" + _CODE.replace("SHARE", str(share))
