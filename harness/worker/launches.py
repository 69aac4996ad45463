"""Count Triton launches in the sandbox. Laid into a folder of PYTHONPATH as sitecustomize.py: every Python has it.

Standard library only, Python 3.8+. Environment: RTB_TRACE is the folder for `launches-<pid>.json`; its file `phase`
holds the name of what goes on now. Wraps Triton when it is imported: the interpreter's call path on a CPU, and on a
GPU JITFunction's run and the launch hook (compiled launches that go round `run` reach the hook only). Never loaded in
a timed run.
"""

from __future__ import annotations

import atexit
import importlib.abc
import importlib.machinery
import json
import os
import sys
import threading
import types
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

FLUSH_SECONDS = 0.2
Key = Tuple[str, str, str, str]  # how, phase, kernel, file


class Tracer:
    """Counts by (how, phase, kernel, file).

    `how`: launch (seen by our wrapper), hook (by Triton's), inside (a device function of a launched kernel),
    unhooked (no launch: a module of Triton that we do not know how to watch).
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.phase = "start"
        self.counts: Dict[Key, int] = {}
        self.written = 0
        # By id: name, file, the device functions inside; and the function itself, so that the id stays its own.
        self.known: Dict[int, Tuple[str, str, Sequence[Any], Any]] = {}

    def count(self, how: str, name: str, file: str) -> None:
        key = (how, self.phase, name, file)
        self.counts[key] = self.counts.get(key, 0) + 1

    def facts(self, function: Any) -> Tuple[str, str, Sequence[Any], Any]:
        """Of a JITFunction or an InterpretedFunction."""
        found = self.known.get(id(function))
        if found is None:
            plain = function
            while hasattr(plain, "fn"):
                plain = plain.fn
            code = getattr(plain, "__code__", None)
            name = getattr(plain, "__qualname__", str(plain))
            found = (name, code.co_filename if code else "", inner_functions(function), function)
            self.known[id(function)] = found
        return found

    def launched(self, function: Any) -> None:
        name, file, inside, _ = self.facts(function)
        self.count("launch", name, file)
        for inner in inside:
            name, file, _, _ = self.facts(inner)
            self.count("inside", name, file)

    def read_phase(self) -> None:
        try:
            with open(os.path.join(self.folder, "phase")) as file:
                self.phase = file.read().strip() or self.phase
        except OSError:
            pass

    def flush(self) -> None:
        total = sum(self.counts.values())
        if total == self.written:
            return
        rows = [list(key) + [count] for key, count in list(self.counts.items())]
        path = os.path.join(self.folder, "launches-%d.json" % os.getpid())
        try:
            with open(path + ".part", "w") as file:
                json.dump(rows, file)
            os.replace(path + ".part", path)
            self.written = total
        except OSError:
            pass  # the folder is gone or full: the harness sees that nothing came

    def watch(self) -> None:
        pause = threading.Event()
        while not pause.wait(FLUSH_SECONDS):
            self.read_phase()
            self.flush()

    def start(self) -> None:
        self.read_phase()
        threading.Thread(target=self.watch, name="rtb-launches", daemon=True).start()

    def after_fork(self) -> None:
        """A child counts for itself: what its parent saw is the parent's."""
        self.counts.clear()
        self.written = 0
        self.start()


def inner_functions(kernel: Any) -> Sequence[Any]:
    """The device functions that a compiled kernel's source names: they are part of it and never launched."""
    found: Dict[int, Any] = {}
    waiting = [kernel]
    while waiting:
        function = waiting.pop()
        while hasattr(function, "fn") and not hasattr(function, "__globals__"):
            function = function.fn
        names = getattr(getattr(function, "__code__", None), "co_names", ())
        space = getattr(function, "__globals__", {})
        values = [space.get(name) for name in names]
        values += [
            getattr(value, name, None) for value in values if isinstance(value, types.ModuleType) for name in names
        ]
        for value in values:
            if type(value).__name__ in ("JITFunction", "InterpretedFunction") and id(value) not in found:
                found[id(value)] = value
                waiting.append(value)
    return list(found.values())


def wrap_jit(tracer: Tracer, module: Any) -> None:
    """triton.runtime.jit: every `kernel[grid](...)` of a compiled kernel goes through JITFunction.run."""
    original = module.JITFunction.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("warmup"):
            tracer.launched(self)
        return original(self, *args, **kwargs)

    module.JITFunction.run = run


def wrap_interpreter(tracer: Tracer, module: Any) -> None:
    """triton.runtime.interpreter: in every version a launch is a call of a GridExecutor, however it was made."""
    original = module.GridExecutor.__call__
    written: Dict[int, Any] = {}  # by id of the function the interpreter made of a kernel: the kernel as written

    def kernel_of(made: Any) -> Any:
        if id(made) not in written:
            pairs = getattr(module.InterpretedFunction, "rewritten_fn", {}).items()
            written[id(made)] = next((plain for plain, other in pairs if other is made), made)
        return written[id(made)]

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("warmup"):
            tracer.launched(kernel_of(self.fn))
        return original(self, *args, **kwargs)

    module.GridExecutor.__call__ = call


def hook(tracer: Tracer) -> Callable[[Any], None]:
    def entered(metadata: Any) -> None:
        try:
            facts = metadata.get()
        except (AttributeError, TypeError):
            facts = metadata if isinstance(metadata, dict) else {}
        tracer.count("hook", str(facts.get("name", "?")), "")

    return entered


def wrap_knobs(tracer: Tracer, module: Any) -> None:
    """triton.knobs: the launch hook of Triton 3.4 and later."""
    chain = getattr(getattr(module, "runtime", None), "launch_enter_hook", None)
    if chain is not None and hasattr(chain, "add"):
        chain.add(hook(tracer))
    elif chain is None and hasattr(module, "runtime"):
        module.runtime.launch_enter_hook = hook(tracer)


def wrap_compiler(tracer: Tracer, module: Any) -> None:
    """triton.compiler.compiler: the launch hook of older versions is an attribute of CompiledKernel."""
    compiled = getattr(module, "CompiledKernel", None)
    if compiled is not None and "launch_enter_hook" in vars(compiled):
        compiled.launch_enter_hook = hook(tracer)


WRAPPERS: Dict[str, Callable[[Tracer, Any], None]] = {
    "triton.runtime.jit": wrap_jit,
    "triton.runtime.interpreter": wrap_interpreter,
    "triton.knobs": wrap_knobs,
    "triton.compiler.compiler": wrap_compiler,
}


class Finder(importlib.abc.MetaPathFinder):
    """Wraps a module of Triton right after it has been loaded, and is nothing to any other import."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer

    def find_spec(self, name: str, path: Optional[Sequence[str]], target: Any = None) -> Any:
        if name not in WRAPPERS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            try:
                WRAPPERS[name](self.tracer, module)
            except AttributeError as error:  # another Triton: its launches are not seen, and that is said
                self.tracer.count("unhooked", name, str(error))

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def other_sitecustomize() -> None:
    """Ours stands first on the path: give the one behind it its turn."""
    own = os.path.dirname(os.path.abspath(__file__))
    this = sys.modules.pop("sitecustomize", None)
    kept = list(sys.path)
    sys.path[:] = [entry for entry in kept if os.path.abspath(entry or ".") != own]
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        if this is not None:
            sys.modules["sitecustomize"] = this
    finally:
        sys.path[:] = kept


def install() -> None:
    folder = os.environ.get("RTB_TRACE")
    if not folder:
        return
    tracer = Tracer(folder)
    sys.meta_path.insert(0, Finder(tracer))
    atexit.register(tracer.flush)
    os.register_at_fork(after_in_child=tracer.after_fork)
    tracer.start()


if __name__ == "sitecustomize":
    install()
    other_sitecustomize()
