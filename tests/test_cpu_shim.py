"""The CPU shim: GPU tests of a Triton project run on a CPU with it, and do not without it."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "dockerfiles" / "cpu"
GPU_TESTS = """
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings, strategies
from triton.language.extra import libdevice

TUNED = []
EXAMPLES = []


def note(args):
    TUNED.append(args["BLOCK"])


@triton.autotune(
    configs=[triton.Config({"BLOCK": 8}, pre_hook=note), triton.Config({"BLOCK": 16}, pre_hook=note)],
    key=["n", "no_argument"],
)
@triton.jit
def rsqrt_kernel(x, y, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(y + offsets, libdevice.rsqrt(tl.load(x + offsets, mask=mask, other=1.0)), mask=mask)


@torch.library.custom_op("shimtest::ones", mutates_args=())
def ones(like: torch.Tensor) -> torch.Tensor:
    return torch.ones(like.shape, device="cuda")


def test_kernel():
    x = torch.rand(21, device="cuda") + 0.5
    y = torch.empty_like(x)
    rsqrt_kernel[lambda meta: (triton.cdiv(21, meta["BLOCK"]),)](x, y, 21)
    torch.testing.assert_close(y, x.rsqrt())
    assert TUNED == [8]


def test_devices():
    module = torch.nn.Linear(2, 2).to("cuda:0").cuda()
    generator = torch.Generator(device="cuda").manual_seed(1)
    x = torch.randn(3, 2, device=torch.device("cuda"), generator=generator, pin_memory=False).cuda()
    assert isinstance(torch.default_generator, torch.Generator)
    assert module(x).device == torch.device("cpu") == torch.device("cuda", 0)
    assert torch.zeros(2).pin_memory().tolist() == [0, 0]


def test_custom_operator():
    assert ones(torch.zeros(2, 3)).device.type == "cpu"


def test_cuda_module():
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(torch.cuda.Stream()), torch.cuda.device(0):
        start.record()
        end.record()
    torch.cuda.synchronize()
    assert start.elapsed_time(end) >= 0
    assert torch.cuda.is_available() and torch.cuda.device_count() == 1
    assert torch.cuda.get_device_capability() == (10, 0)
    assert torch.cuda.get_device_properties("cuda").major == 10
    assert torch.version.cuda == "12.9"


def test_driver():
    driver = triton.runtime.driver.active
    assert driver.get_current_target().arch == 100
    assert driver.utils.get_device_properties(driver.get_current_device())["multiprocessor_count"] > 0


def test_stub():
    from no_such_package.inside import Thing

    with pytest.raises(RuntimeError, match="no_such_package.inside.Thing is a stub"):
        Thing()


@settings(max_examples=50, deadline=None)
@given(strategies.integers())
def test_drawn(number):
    EXAMPLES.append(number)


def test_few_drawn():
    assert 1 <= len(EXAMPLES) <= 4
"""
ALL = {
    "FAKE_CUDA": "1",
    "WRAP": "1",
    "DRIVER": "1",
    "CC": "10,0",
    "CUDA_VER": "12.9",
    "HYP": "4",
    "STUB": "no_such_package",
}


def shim() -> ModuleType:
    """The plugin's own module; it imports neither torch nor Triton before a run starts."""
    spec = importlib.util.spec_from_file_location("rtb_cpu_shim", FOLDER / "rtb_cpu_shim.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def run(folder: Path, *options: str, settings: dict[str, str]) -> str:
    """pytest's output for GPU_TESTS in a process of its own."""
    (folder / "test_gpu.py").write_text(GPU_TESTS)
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("RTB_CPU_SHIM_", "PYTEST_"))}
    clean |= {"TRITON_INTERPRET": "1", "PYTHONPATH": str(FOLDER), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    clean |= {f"RTB_CPU_SHIM_{key}": value for key, value in settings.items()}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rA", *options, "test_gpu.py"]
    done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True, timeout=600, check=False)
    return done.stdout + done.stderr


def passed(output: str) -> set[str]:
    return set(re.findall(r"^PASSED test_gpu\.py::(\w+)", output, re.MULTILINE))


@pytest.mark.slow
def test_gpu_tests_run_on_a_cpu(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    output = run(tmp_path, "-p", "rtb_cpu_shim", settings=ALL)
    assert passed(output) == set(re.findall(r"^def (test_\w+)", GPU_TESTS, re.MULTILINE)), output


@pytest.mark.slow
def test_each_part_is_asked_for(tmp_path: Path) -> None:
    """Without settings there is no GPU to be seen, no driver, no stub, and hypothesis draws what the test says."""
    pytest.importorskip("triton")
    output = run(tmp_path, "-p", "rtb_cpu_shim", settings={})
    assert passed(output) == {"test_kernel", "test_devices", "test_drawn"}, output


def test_settings_have_defaults() -> None:
    settings = shim().Settings.from_environment(
        {"PATH": "/bin", "RTB_CPU_SHIM_CC": "8,6", "RTB_CPU_SHIM_STUB": "a, b,"}
    )
    assert settings.capability == (8, 6)
    assert settings.stubs == ("a", "b")
    assert not settings.fake_cuda and not settings.driver and not settings.wrap_factories
    assert settings.cuda_version is None and settings.examples is None


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("FAKE_CUDA", "yes", "expected 0 or 1"),
        ("CC", "9.0", "expected MAJOR,MINOR"),
        ("HYP", "0", "at least 1"),
        ("FAKE_CUDDA", "1", "is not a setting of the CPU shim"),
    ],
)
def test_a_wrong_setting_is_named(name: str, value: str, message: str) -> None:
    with pytest.raises(pytest.UsageError, match=f"RTB_CPU_SHIM_{name}.*{message}"):
        shim().Settings.from_environment({f"RTB_CPU_SHIM_{name}": value})
