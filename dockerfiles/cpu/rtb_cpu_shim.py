"""A pytest plugin that lets GPU test suites of Triton projects run on a CPU.

It belongs to an environment, never to a verdict: it makes the words "cuda" and "GPU" mean the CPU, and Triton's
interpreter (TRITON_INTERPRET=1) runs the kernels. It is installed into the environment's site-packages with its two
neighbours and loaded with ``-p rtb_cpu_shim``. Device strings, Triton's autotuner and libdevice are always handled.
The rest is asked for by environment variables, because some projects take another path once they believe in a GPU:

RTB_CPU_SHIM_FAKE_CUDA=1     torch.cuda.is_available() is true
RTB_CPU_SHIM_WRAP=1          torch's factory functions map devices themselves (inside torch.library custom operators
                             the function mode is not active)
RTB_CPU_SHIM_DRIVER=1        Triton finds an active driver
RTB_CPU_SHIM_CC=10,0         compute capability to report (default 9,0)
RTB_CPU_SHIM_CUDA_VER=12.9   torch.version.cuda to report (default: what torch says, None for a CPU build)
RTB_CPU_SHIM_HYP=3           hypothesis draws this many examples per test, always the same ones
RTB_CPU_SHIM_STUB=a,b        packages that a project imports and the tests never use: imports of them work
"""

# Parameters are those of what is replaced, used or not.
# ruff: noqa: ARG001, ARG002

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

import pytest

_PREFIX = "RTB_CPU_SHIM_"


@dataclass(frozen=True)
class Settings:
    """What one environment asks of the shim."""

    fake_cuda: bool = False
    wrap_factories: bool = False
    driver: bool = False
    capability: tuple[int, int] = (9, 0)
    cuda_version: str | None = None
    examples: int | None = None
    stubs: tuple[str, ...] = ()

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Settings":
        """Read the RTB_CPU_SHIM_ variables; a value that means nothing raises pytest.UsageError."""
        known = {"FAKE_CUDA", "WRAP", "DRIVER", "CC", "CUDA_VER", "HYP", "STUB"}
        given = {name.removeprefix(_PREFIX): value for name, value in environ.items() if name.startswith(_PREFIX)}
        unknown = sorted(set(given) - known)
        if unknown:
            raise pytest.UsageError(
                f"{_PREFIX}{unknown[0]} is not a setting of the CPU shim; known: {', '.join(sorted(known))}"
            )
        return cls(
            fake_cuda=_switch(given, "FAKE_CUDA"),
            wrap_factories=_switch(given, "WRAP"),
            driver=_switch(given, "DRIVER"),
            capability=_capability(given.get("CC", "9,0")),
            cuda_version=given.get("CUDA_VER"),
            examples=_examples(given.get("HYP")),
            stubs=tuple(name.strip() for name in given.get("STUB", "").split(",") if name.strip()),
        )


def _switch(given: Mapping[str, str], name: str) -> bool:
    value = given.get(name, "0")
    if value not in ("0", "1"):
        raise pytest.UsageError(f"{_PREFIX}{name}={value!r}: expected 0 or 1")
    return value == "1"


def _capability(value: str) -> tuple[int, int]:
    major, comma, minor = value.partition(",")
    if not (comma and major.isdecimal() and minor.isdecimal()):
        raise pytest.UsageError(f"{_PREFIX}CC={value!r}: expected MAJOR,MINOR, such as 9,0")
    return int(major), int(minor)


def _examples(value: str | None) -> int | None:
    if value is None:
        return None
    if not value.isdecimal() or int(value) < 1:
        raise pytest.UsageError(f"{_PREFIX}HYP={value!r}: expected a whole number of examples, at least 1")
    return int(value)


class StubImporter(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Importer of packages that are not there: every submodule exists, every name in them is a class of no use."""

    def __init__(self, names: Sequence[str]) -> None:
        """Names are of top-level packages."""
        self._names = frozenset(names)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A spec for a stubbed package or anything inside it."""
        if fullname.partition(".")[0] not in self._names:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        """Give the module names on demand."""

        def missing(name: str) -> type:
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {"__init__": _refuse, "__module__": module.__name__})

        setattr(module, "__getattr__", missing)  # noqa: B010 - a module's own __getattr__ (PEP 562)


def _refuse(self: object, *args: object, **kwargs: object) -> None:
    raise RuntimeError(f"{type(self).__module__}.{type(self).__name__} is a stub of the CPU shim")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Put the shim in place before any conftest or test module imports torch or Triton."""
    import rtb_cpu_shim_torch
    import rtb_cpu_shim_triton

    settings = Settings.from_environment(os.environ)
    if settings.stubs:
        sys.meta_path.insert(0, StubImporter(settings.stubs))
    rtb_cpu_shim_torch.install(
        fake_cuda=settings.fake_cuda,
        wrap_factories=settings.wrap_factories,
        capability=settings.capability,
        cuda_version=settings.cuda_version,
    )
    rtb_cpu_shim_triton.install(capability=settings.capability, driver=settings.driver)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Cut property-based tests down, where asked: interpreted kernels are a thousand times slower."""
    examples = Settings.from_environment(os.environ).examples
    if examples is None:
        return
    from hypothesis import HealthCheck, Phase, settings

    for item in items:
        function = getattr(item, "obj", None)
        function = getattr(function, "__func__", function)
        if getattr(function, "is_hypothesis_test", False):
            own = getattr(function, "_hypothesis_internal_use_settings", None)
            function._hypothesis_internal_use_settings = settings(
                own,
                max_examples=examples,
                derandomize=True,
                database=None,
                deadline=None,
                phases=(Phase.explicit, Phase.generate),
                suppress_health_check=list(HealthCheck),
            )
