"""Per-test records, written by our own pytest plugin inside the sandbox. Standard library and pytest, 3.9+.

What a test's record says comes from three places that do not share code: the reports pytest's hooks made, what
`item.runtest` did when we called it, and whether the test's own function was entered and how it left. The host
compares them.

How far this can be trusted. The code under test lives in the same process, so nothing here is a secret from code
that goes looking: the key sits in a C object, and frames and the garbage collector lead to it. A patch that finds it
can sign what it likes. The records catch a patch that rewrites reports, swallows exceptions, replaces test functions,
ends the process, forks, or edits the file; against one that hunts the key, or that makes the tested values
themselves lie, other evidence is needed (launch trace, sabotage twin, audit).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import pytest

from .channel import Emit
from .integrity import ModuleWatch, Originals, plugin_list, relative, replaced
from .watch import test_codes, watch_item

TAIL_CHARACTERS = 4000
MESSAGE_CHARACTERS = 400


def report_phase(report: Any) -> dict[str, Any]:
    """One phase of one test as plain data."""
    outcome = str(getattr(report, "outcome", ""))
    phase: dict[str, Any] = {
        "when": str(getattr(report, "when", "")),
        "outcome": outcome,
        "xfail": hasattr(report, "wasxfail"),
        "seconds": round(float(getattr(report, "duration", 0.0)), 6),
    }
    if outcome != "passed" or phase["xfail"]:
        phase["message"] = report_message(report)[:MESSAGE_CHARACTERS]
        phase["text"] = str(getattr(report, "longreprtext", ""))[-TAIL_CHARACTERS:]
    return phase


def report_message(report: Any) -> str:
    """The line that says why: the crash message, the skip reason, or the end of the text."""
    longrepr = getattr(report, "longrepr", None)
    if isinstance(longrepr, tuple) and len(longrepr) == 3:
        return str(longrepr[2])
    crash = getattr(longrepr, "reprcrash", None)
    if crash is not None:
        return str(crash.message)
    if hasattr(report, "wasxfail"):
        return str(report.wasxfail)
    lines = str(getattr(report, "longreprtext", "") or longrepr or "").strip().splitlines()
    return lines[-1] if lines else ""


class Recorder:
    """The plugin. `before_conftests` puts the tree on the path: until then nothing of it can be imported. `only`: the
    ids to run (None: all).
    `runtestprotocol` is pytest's own, taken before any code of the tree could replace it."""

    def __init__(
        self,
        emit: Emit,
        tree: str,
        runtestprotocol: Callable[..., Any],
        before_conftests: Callable[[], None],
        stop_at_failure: bool,
        only: frozenset[str] | None,
    ) -> None:
        self._emit = emit
        self._tree = tree
        self._runtestprotocol = runtestprotocol
        self._before_conftests = before_conftests
        self._stop_at_failure = stop_at_failure
        self._only = only
        self._begun = 0
        self._current: dict[str, Any] | None = None
        self._foreign: list[str] = []
        self._codes: dict[int, list[CodeType]] = {}
        self._modules: dict[int, ModuleWatch] = {}
        self._replaced: set[str] = set()
        self._originals = Originals()

    def finish(self, exit_status: int) -> None:
        """The last record: pytest ended by itself."""
        self._emit("finish", {"exit": exit_status, "tests": self._begun, "foreign": self._foreign[:20]})

    def _look_for_replacements(self, where: str, item: Any = None) -> None:
        module = self._modules.get(id(getattr(item, "module", None)))
        for name, file in replaced(self._tree, self._originals) + (module.changes() if module else []):
            if name not in self._replaced:
                self._replaced.add(name)
                self._emit("replaced", {"name": name, "file": file, "where": where})

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_load_initial_conftests(self) -> Iterator[None]:
        """Let the tree in, and say when a conftest file cannot be imported."""
        self._originals.remember("")  # pytest has loaded all of its own by now, and nothing of the tree
        self._before_conftests()
        outcome: Any = yield
        if outcome.excinfo is not None:
            error = outcome.excinfo[1]
            path = relative(str(getattr(error, "path", "")), self._tree)
            self._emit("conftest_error", {"path": path, "text": (str(error) or repr(error))[-TAIL_CHARACTERS:]})

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: Any) -> None:
        """Versions and configuration."""
        config = session.config
        self._emit(
            "start",
            {
                "pytest": pytest.__version__,
                "python": sys.version.split()[0],
                "rootdir": str(getattr(config, "rootpath", "")),
                "ini": relative(str(getattr(config, "inipath", None) or ""), self._tree),
                "args": [str(argument) for argument in config.invocation_params.args],
            },
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_collectreport(self, report: Any) -> None:
        """A file that could not be collected, or skipped itself."""
        if report.outcome == "failed":
            self._emit("collect_error", {"id": str(report.nodeid), "text": str(report.longrepr)[-TAIL_CHARACTERS:]})
        elif report.outcome == "skipped":
            message = report_message(report)[:MESSAGE_CHARACTERS]
            self._emit("collect_skip", {"id": str(report.nodeid), "message": message})

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        """Leave out what was not asked for. By id after collection: ids on the command line choose another order."""
        if self._only is not None:
            left_out = [item for item in items if str(item.nodeid) not in self._only]
            items[:] = [item for item in items if str(item.nodeid) in self._only]
            if left_out:
                config.hook.pytest_deselected(items=left_out)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: Any) -> None:
        """What will be run, by whom, and the code of each test as it is now."""
        for item in session.items:
            self._codes[id(item)] = test_codes(item)
            module = getattr(item, "module", None)
            if module is not None and id(module) not in self._modules:
                self._modules[id(module)] = ModuleWatch(module, self._tree)
        plugins = plugin_list(session.config.pluginmanager, self._tree)
        self._emit("collected", {"ids": [str(item.nodeid) for item in session.items], "plugins": plugins})
        self._look_for_replacements("collection")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: Any, nextitem: Any) -> bool:
        """Run one test as pytest does, watching it."""
        node, number = str(item.nodeid), self._begun
        self._begun += 1
        self._emit("begin", {"id": node, "number": number})
        seen: dict[str, Any] = {"id": node, "number": number, "setup": "", "run": "", "body": "none"}
        codes = test_codes(item)
        known = self._codes.get(id(item))
        seen.update(errors=[], failed=[])
        seen["same_code"] = known is not None and all(one is two for one, two in zip(known, codes))
        seen["code_file"] = relative(codes[-1].co_filename, self._tree) if codes else ""
        self._current = seen
        item.user_properties.append(("rtb", str(number)))
        undo = watch_item(item, seen)
        started = time.monotonic()
        try:
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
            reports = self._runtestprotocol(item, nextitem=nextitem, log=True)
            item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        except BaseException as error:
            # pytest.exit() or an interrupt: the session ends here, in the middle of a test.
            self._emit("stopped", {"id": node, "by": type(error).__name__})
            raise
        finally:
            undo()
            self._current = None
        self._look_for_replacements(node, item)
        seen["phases"] = [report_phase(report) for report in reports]
        seen["seconds"] = round(time.monotonic() - started, 6)
        self._emit("test", seen)
        if self._stop_at_failure and any(phase["outcome"] == "failed" for phase in seen["phases"]):
            item.session.shouldstop = "one test has failed"
        return True

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Iterator[None]:
        """The exceptions pytest met, as its call objects have them before and after other hooks."""
        before = call.excinfo
        yield
        error = call.excinfo or before
        if self._current is not None and self._current["id"] == str(item.nodeid) and error is not None:
            self._current["errors"].append([str(call.when), type(error.value).__name__])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        """Reports that nobody asked for, and failed subtests."""
        if self._current is None or self._current["id"] != str(report.nodeid):
            self._foreign.append(str(report.nodeid)[:500])
        elif report.outcome == "failed" and report.when == "call":
            # A failed subtest is logged on its own: pytest 9 lets the unittest test round it pass.
            self._current["failed"].append(report_message(report)[:MESSAGE_CHARACTERS])

    @pytest.hookimpl(tryfirst=True)
    def pytest_internalerror(self, excrepr: Any) -> None:
        """pytest itself failed."""
        self._emit("internal_error", {"text": str(excrepr)[-TAIL_CHARACTERS:]})

    @pytest.hookimpl(tryfirst=True)
    def pytest_unconfigure(self, config: Any) -> None:
        """A last look at what was loaded and replaced."""
        self._look_for_replacements("end")
        self._emit("plugins", {"plugins": plugin_list(config.pluginmanager, self._tree)})
