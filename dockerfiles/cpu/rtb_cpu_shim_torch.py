"""The torch side of the CPU shim: "cuda" is the CPU, and torch.cuda answers like a machine with one GPU."""

# Parameters are those of what is replaced, used or not.
# ruff: noqa: ARG001, ARG002, ARG005, SIM905

import functools
import re
import time
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType, SimpleNamespace, TracebackType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_CUDA_DEVICE = re.compile(r"cuda(:\d+)?")
_GIB = 1024**3
_MEMORY = 80 * _GIB
_FACTORIES = (
    "arange as_tensor empty empty_like empty_strided eye full full_like linspace logspace ones ones_like rand "
    "rand_like randint randint_like randn randn_like randperm scalar_tensor tensor tril_indices triu_indices zeros "
    "zeros_like"
).split()


def on_cpu(value: Any) -> Any:
    """The same value, with a CUDA device (object or string) turned into the CPU."""
    if isinstance(value, str):
        return "cpu" if _CUDA_DEVICE.fullmatch(value) else value
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "cuda" else value
    return value


def _call_on_cpu(function: Callable[..., Any], args: Iterable[Any], kwargs: Mapping[str, Any]) -> Any:
    mapped = {name: on_cpu(value) for name, value in kwargs.items() if name != "pin_memory"}
    return function(*(on_cpu(value) for value in args), **mapped)


class CpuDevices(TorchFunctionMode):
    """Sends every torch call to the CPU, and makes Tensor.cuda and Tensor.pin_memory leave the tensor where it is."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.cuda or func is torch.Tensor.pin_memory:
            return args[0]
        result = _call_on_cpu(func, args, kwargs or {})
        if isinstance(result, torch.device) and result.type in ("cuda", "cpu"):
            # torch.device("cuda", 0) must equal the device of a tensor, which is "cpu" without a number.
            return torch.device("cpu")
        return result


def _wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return _call_on_cpu(function, args, kwargs)

    return call


class _AnyGenerator(type(torch._C.Generator)):  # type: ignore[misc]
    """Lets isinstance accept generators that torch made itself, such as the default one."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch._C.Generator)


class CpuGenerator(torch._C.Generator, metaclass=_AnyGenerator):
    """torch.Generator that accepts a CUDA device and lives on the CPU."""

    def __new__(cls, device: Any = None) -> "CpuGenerator":
        """Make a CPU generator, whatever device was asked for."""
        return super().__new__(cls, on_cpu("cpu" if device is None else device))


class Stream:
    """A stream on which everything is already done."""

    cuda_stream = 0
    stream_id = 0
    device_index = 0
    priority = 0

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        """Accept what torch.cuda.Stream accepts."""
        self.device = torch.device("cpu")

    def __enter__(self) -> "Stream":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        return None

    def record_event(self, event: "Event | None" = None) -> "Event":
        """Record an event now."""
        recorded = event or Event()
        recorded.record(self)
        return recorded

    def query(self) -> bool:
        """All work is done."""
        return True

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def wait_event(self, event: "Event") -> None:
        """Nothing to wait for."""

    def wait_stream(self, stream: "Stream") -> None:
        """Nothing to wait for."""


class Event:
    """An event that happens when it is recorded; elapsed_time is host time."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        """Accept what torch.cuda.Event accepts."""
        self.cuda_event = 0
        self._seconds = time.perf_counter()

    def record(self, stream: Any = None) -> None:
        """Note the time."""
        self._seconds = time.perf_counter()

    def elapsed_time(self, end_event: "Event") -> float:
        """Milliseconds from this event to the other."""
        return (end_event._seconds - self._seconds) * 1000.0

    def query(self) -> bool:
        """It has happened."""
        return True

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def wait(self, stream: Any = None) -> None:
        """Nothing to wait for."""


class OnlyDevice:
    """The context manager torch.cuda.device, for a machine with one device."""

    def __init__(self, device: Any = None) -> None:
        """Any device will do."""
        self.idx = 0
        self.prev_idx = 0

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        return None


def _always(value: Any) -> Callable[..., Any]:
    """A new function on each call: torch._dynamo's rule table wants no function under two names."""

    def answer(*args: Any, **kwargs: Any) -> Any:
        return value

    return answer


def _device_properties(capability: tuple[int, int]) -> SimpleNamespace:
    """Numbers of an H100, so that launch heuristics take their ordinary path."""
    return SimpleNamespace(
        name="RTB CPU shim",
        major=capability[0],
        minor=capability[1],
        total_memory=_MEMORY,
        multi_processor_count=132,
        max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=232448,
        shared_memory_per_multiprocessor=233472,
        warp_size=32,
        L2_cache_size=50 * 1024**2,
        is_integrated=0,
        is_multi_gpu_board=0,
        gcnArchName="",
    )


def _cuda_answers(fake_cuda: bool, capability: tuple[int, int]) -> dict[str, Any]:
    """Replacements for members of torch.cuda, by name."""
    default_stream = Stream()
    answers: dict[str, Any] = {
        "Stream": Stream,
        "Event": Event,
        "ExternalStream": Stream,
        "StreamContext": lambda stream=None: stream or default_stream,
        "stream": lambda stream=None: stream or default_stream,
        "device": OnlyDevice,
        "device_of": OnlyDevice,
        "_DeviceGuard": OnlyDevice,
        "current_stream": _always(default_stream),
        "default_stream": _always(default_stream),
        "current_device": _always(0),
        "get_device_properties": _always(_device_properties(capability)),
        "get_device_capability": _always(capability),
        "get_device_name": _always("RTB CPU shim"),
        "get_arch_list": _always([f"sm_{capability[0]}{capability[1]}"]),
        "mem_get_info": _always((_MEMORY, _MEMORY)),
        "memory_stats": _always({}),
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda new_state, device=None: torch.set_rng_state(new_state),
        "is_current_stream_capturing": _always(False),
        "is_bf16_supported": _always(True),
    }
    if fake_cuda:
        answers |= {"is_available": _always(True), "is_initialized": _always(True), "device_count": _always(1)}
    for counter in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        answers[counter] = _always(0)
    for action in (
        "init _lazy_init synchronize set_device set_stream empty_cache ipc_collect manual_seed manual_seed_all "
        "reset_peak_memory_stats reset_max_memory_allocated reset_accumulated_memory_stats"
    ).split():
        answers[action] = _always(None)
    return answers


def _replace(module: ModuleType | type, name: str, value: Any) -> None:
    setattr(module, name, value)


def _patch_modules() -> None:
    """torch.nn.Module parses devices in C++, where no function mode looks."""
    original_to = torch.nn.Module.to
    original_to_empty = torch.nn.Module.to_empty
    _replace(torch.nn.Module, "to", _wrapped(original_to))
    _replace(torch.nn.Module, "to_empty", _wrapped(original_to_empty))
    _replace(torch.nn.Module, "cuda", lambda self, device=None: self)


def install(*, fake_cuda: bool, wrap_factories: bool, capability: tuple[int, int], cuda_version: str | None) -> None:
    """Change torch in this process, for good. Call once, before the code under test imports torch's names."""
    for name, value in _cuda_answers(fake_cuda, capability).items():
        _replace(torch.cuda, name, value)
    if cuda_version is not None:
        _replace(torch.version, "cuda", cuda_version)
    _replace(torch, "Generator", CpuGenerator)
    _replace(torch, "set_default_device", _wrapped(torch.set_default_device))
    _patch_modules()
    if wrap_factories:
        for name in _FACTORIES:
            _replace(torch, name, _wrapped(getattr(torch, name)))
        for name in ("to", "new_empty", "new_full", "new_ones", "new_tensor", "new_zeros"):
            _replace(torch.Tensor, name, _wrapped(getattr(torch.Tensor, name)))
        for name in ("cuda", "pin_memory"):
            _replace(torch.Tensor, name, lambda self, *args, **kwargs: self)
    CpuDevices().__enter__()
