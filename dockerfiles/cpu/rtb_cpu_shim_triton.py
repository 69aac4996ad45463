"""The Triton side of the CPU shim: a driver to ask, an autotuner that never measures, libdevice in numpy."""

# Parameters are those of what is replaced, used or not.
# ruff: noqa: ARG001, ARG002, ARG004

import importlib
import inspect
import math
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton
import triton.runtime.driver
from triton.backends.compiler import GPUTarget
from triton.runtime import interpreter
from triton.runtime.autotuner import Autotuner


class CpuDriver:
    """What code asks of triton.runtime.driver.active, answered for one device of the given compute capability."""

    def __init__(self, capability: tuple[int, int]) -> None:
        """Capability is (major, minor)."""
        self._capability = capability
        self.utils = SimpleNamespace(get_device_properties=self._properties)
        self.binary_ext = "cubin"

    @staticmethod
    def is_active() -> bool:
        """It is."""
        return True

    @staticmethod
    def _properties(device: int) -> dict[str, int]:
        return {
            "max_shared_mem": 232448,
            "max_num_regs": 65536,
            "multiprocessor_count": 132,
            "warpSize": 32,
            "sm_clock_rate": 1980000,
            "mem_clock_rate": 2619000,
            "mem_bus_width": 5120,
        }

    def get_current_device(self) -> int:
        """The only device."""
        return 0

    def set_current_device(self, device: int) -> None:
        """There is only one."""

    def get_current_stream(self, device: int = 0) -> int:
        """The default stream."""
        return 0

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        """(major, minor)."""
        return self._capability

    def get_current_target(self) -> GPUTarget:
        """A CUDA target: kernels that ask take the path of an NVIDIA GPU."""
        return GPUTarget("cuda", self._capability[0] * 10 + self._capability[1], 32)

    def get_active_torch_device(self) -> torch.device:
        """Where tensors live: the CPU."""
        return torch.device("cpu")

    def get_device_interface(self) -> ModuleType:
        """The (shimmed) torch.cuda."""
        return torch.cuda

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        """A small buffer; nothing here is timed."""
        return torch.empty(1, dtype=torch.int32)

    def clear_cache(self, cache: torch.Tensor) -> None:
        """No cache to clear."""

    def get_benchmarker(self) -> Callable[..., list[float]]:
        """A benchmarker that calls once and reports 1 ms."""

        def once(call: Callable[[], Any], *, quantiles: Any = None, **kwargs: Any) -> list[float]:
            call()
            return [1.0] * len(quantiles or (0,))

        return once


def _autotuner_init(original: Callable[..., None]) -> Callable[..., None]:
    parameters = list(inspect.signature(original).parameters)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        named = dict(zip(parameters[1:], args, strict=False)) | kwargs
        if named.get("key") is not None:
            named["key"] = [key for key in named["key"] if key in named["arg_names"]]
        original(self, **named)

    return init


def _run_first_config(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Autotuner.run without measuring: the first configuration that pruning leaves."""
    self.nargs = dict(zip(self.arg_names, args, strict=False))
    config = self.prune_configs(kwargs)[0] if len(self.configs) > 1 else self.configs[0]
    self.best_config = config
    chosen = config.all_kwargs()
    if config.pre_hook is not None:
        config.pre_hook({**self.nargs, **kwargs, **chosen})
    result = self.fn.run(*args, **kwargs, **chosen)
    self.nargs = None
    return result


def _erf_like(function: Callable[[float], float]) -> Callable[[Any], Any]:
    return np.vectorize(function, otypes=[np.float64])


def _numpy_functions() -> dict[str, Callable[..., Any]]:
    """libdevice functions by name; each takes and gives numpy arrays of 32 or 64 bit floats."""
    same = "sin cos tan sinh cosh tanh exp exp2 expm1 log log2 log10 log1p sqrt cbrt floor ceil trunc rint"
    same += " isnan isinf"
    functions: dict[str, Callable[..., Any]] = {name: getattr(np, name) for name in same.split()}
    functions |= {
        "abs": np.abs,
        "fabs": np.abs,
        "acos": np.arccos,
        "asin": np.arcsin,
        "atan": np.arctan,
        "acosh": np.arccosh,
        "asinh": np.arcsinh,
        "atanh": np.arctanh,
        "atan2": np.arctan2,
        "copysign": np.copysign,
        "erf": _erf_like(math.erf),
        "erfc": _erf_like(math.erfc),
        "exp10": lambda x: np.power(10.0, x),
        "fast_dividef": np.divide,
        "fast_expf": np.exp,
        "fast_logf": np.log,
        "fast_tanhf": np.tanh,
        "finitef": np.isfinite,
        "fma": lambda x, y, z: x * y + z,
        "fmod": np.fmod,
        "hypot": np.hypot,
        "div_rn": np.divide,
        "div_rz": np.divide,
        "llrint": np.rint,
        "nearbyint": np.rint,
        "pow": np.power,
        "rcp_rn": np.reciprocal,
        "round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
        "rsqrt": lambda x: 1.0 / np.sqrt(x),
        "sqrt_rn": np.sqrt,
        "tgamma": _erf_like(math.gamma),
        "lgamma": _erf_like(math.lgamma),
    }
    return functions


def _interpreted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Lift a numpy function to tensors of Triton's interpreter; truth values become int32, as libdevice has them."""
    language = triton.language

    def call(*args: Any, **kwargs: Any) -> Any:
        tensors = [language.core._unwrap_if_constexpr(arg) for arg in args]
        arrays = [getattr(getattr(tensor, "handle", None), "data", tensor) for tensor in tensors]
        first = next(tensor for tensor in tensors if hasattr(tensor, "handle"))
        scalar = first.type.scalar
        result = np.asarray(function(*arrays))
        if result.dtype == np.bool_:
            result, scalar = result.astype(np.int32), language.int32
        else:
            result = result.astype(first.handle.data.dtype)
        shape = [int(extent) for extent in np.broadcast_shapes(*(np.shape(array) for array in arrays))]
        block = first.type.is_block()
        if not block:
            result = result.reshape(1)
        kind = language.block_type(scalar, shape) if block else scalar
        return language.core.tensor(interpreter.TensorHandle(result, scalar), kind)

    return call


def _patch_libdevice() -> None:
    for name in ("triton.language.extra.libdevice", "triton.language.extra.cuda.libdevice"):
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        for function, numpy_function in _numpy_functions().items():
            if hasattr(module, function):
                setattr(module, function, _interpreted(numpy_function))


def install(*, capability: tuple[int, int], driver: bool) -> None:
    """Change Triton in this process, for good. Call once, before the code under test imports Triton's names."""
    if driver:
        triton.runtime.driver.set_active(CpuDriver(capability))
    Autotuner.__init__ = _autotuner_init(Autotuner.__init__)
    Autotuner.run = _run_first_config
    _patch_libdevice()
