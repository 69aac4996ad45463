"""Per-test records, written by our own pytest plugin inside the sandbox. Standard library only, Python 3.8+.

What a test's record says comes from three places that do not share code: the reports pytest's hooks made, what
`item.runtest` did when we called it, and whether the test's own function was entered and how it left. The host
compares them.

How far this can be trusted. The code under test lives in the same process, so nothing here is a secret from code
that goes looking: the key sits in a C object that a closure holds, and frames and the garbage collector lead to that
closure. A patch that finds it can sign what it likes. The records catch a patch that rewrites reports, swallows
exceptions, replaces test functions, ends the process, forks, or edits the file; against one that hunts the closure,
or that makes the tested values themselves lie, other evidence is needed (launch trace, sabotage twin, audit).
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import hmac
import inspect
import json
import os
import sys
import threading
import time

TAIL_CHARACTERS = 4000
MESSAGE_CHARACTERS = 400
EXIT_RECORDS_FULL = 86  # no space for a record
EXIT_RECORDS_LOST = 87  # the record file's descriptor was closed or replaced

# What tests lean on to decide. A function here whose code comes from the tree was put there by the code under test.
LEANED_ON = (
    ("builtins", "all any abs len isinstance max min sum bool round sorted zip"),
    ("math", "isclose isnan isinf isfinite"),
    ("torch", "allclose equal isclose all any manual_seed rand randn testing.assert_close"),
    ("torch.testing", "assert_close assert_allclose"),
    ("torch.testing._comparison", "assert_close assert_equal not_close_error_metas are_tensors_close"),
    ("torch.Tensor", "allclose equal eq __eq__ isclose all any item max abs sub __sub__"),
    ("torch.cuda", "synchronize"),
    ("numpy", "allclose isclose array_equal all any"),
    ("numpy.testing", "assert_allclose assert_array_equal assert_equal assert_almost_equal"),
    ("unittest.TestCase", "assertEqual assertTrue assertFalse assertRaises fail run __call__ _callTestMethod"),
    ("unittest.mock", "patch"),
    ("pytest", "approx raises fail"),
    ("_pytest.python", "Function.runtest pytest_pyfunc_call"),
    ("_pytest.unittest", "TestCaseFunction.runtest TestCaseFunction.addFailure TestCaseFunction.addError"),
    ("_pytest.runner", "call_and_report runtestprotocol pytest_runtest_makereport pytest_runtest_call"),
    ("_pytest.runner", "CallInfo.from_call SetupState.setup SetupState.teardown_exact"),
    ("_pytest.python_api", "approx raises"),
    ("_pytest.assertion.rewrite", "rewrite_asserts AssertionRewriter.run AssertionRewriter.visit_Assert"),
    ("pluggy", "PluginManager.register HookCaller.__call__"),
)


def open_channel(path, key):
    """Open the record file and return `emit(kind, fields)`. Each line is JSON, a tab and an HMAC over the line
    before it and this one, so a cut, edited or reordered file shows. A forked child is silent."""
    write, getpid, dumps, leave = os.write, os.getpid, json.dumps, os._exit
    low = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
    descriptor = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 200)  # away from what programs close by habit
    os.close(low)
    identity = (os.fstat(descriptor).st_dev, os.fstat(descriptor).st_ino)
    keyed = hmac.new(key, digestmod=hashlib.sha256)
    owner = getpid()
    lock = threading.Lock()
    chain = {"seq": 0, "mac": b""}

    def hush():
        try:
            os.close(descriptor)
        except OSError:
            pass

    os.register_at_fork(after_in_child=hush)

    def emit(kind, fields):
        if getpid() != owner:
            return
        with lock:
            payload = dumps({"seq": chain["seq"], "kind": kind, **fields}).encode("ascii")
            mac = keyed.copy()
            mac.update(chain["mac"] + payload)
            chain["mac"] = mac.hexdigest().encode("ascii")
            chain["seq"] += 1
            line = payload + b"\t" + chain["mac"] + b"\n"
            try:
                found = os.fstat(descriptor)
                if (found.st_dev, found.st_ino) != identity:
                    leave(EXIT_RECORDS_LOST)
                while line:
                    line = line[write(descriptor, line) :]
            except OSError as error:
                leave(EXIT_RECORDS_FULL if error.errno in (28, 122, 27) else EXIT_RECORDS_LOST)

    return emit


def report_phase(report):
    """One phase of one test as plain data."""
    outcome = str(getattr(report, "outcome", ""))
    phase = {
        "when": str(getattr(report, "when", "")),
        "outcome": outcome,
        "xfail": hasattr(report, "wasxfail"),
        "seconds": round(float(getattr(report, "duration", 0.0)), 6),
    }
    if outcome != "passed" or phase["xfail"]:
        phase["message"] = report_message(report)[:MESSAGE_CHARACTERS]
        phase["text"] = str(getattr(report, "longreprtext", ""))[-TAIL_CHARACTERS:]
    return phase


def report_message(report):
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


def test_codes(item):
    """The code objects behind a test, through its decorators. Found by name on the parent: asking the item itself
    would make the class instance too early."""
    parent = getattr(getattr(item, "parent", None), "obj", None)
    name = getattr(item, "originalname", None) or getattr(item, "name", "")
    function = getattr(parent, name, None)
    codes = []
    while function is not None and len(codes) < 20:
        code = getattr(function, "__code__", None)
        if code is not None:
            codes.append(code)
        function = getattr(function, "__wrapped__", None)
    return codes


def watch_body(item, seen):
    """Put a counting wrapper round the test's own function; returns what undoes it."""
    body = getattr(item, "obj", None)
    coroutine = inspect.iscoroutinefunction(body)
    unittest_item = type(item).__name__ == "TestCaseFunction"
    generator = inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body)
    if not callable(body) or generator or (coroutine and unittest_item):
        return lambda: None
    seen["body"] = "not entered"

    def entered():
        seen["body"] = "entered"

    def left(error):
        seen["body"] = "returned" if error is None else "raised"
        seen["raised"] = "" if error is None else type(error).__name__

    if coroutine:

        @functools.wraps(body)
        async def watched(*args, **kwargs):
            entered()
            try:
                result = await body(*args, **kwargs)
            except BaseException as error:
                left(error)
                raise
            left(None)
            return result

    else:

        @functools.wraps(body)
        def watched(*args, **kwargs):
            entered()
            try:
                result = body(*args, **kwargs)
            except BaseException as error:
                left(error)
                raise
            left(None)
            return result

    if hasattr(body, "__self__"):
        watched.__self__ = body.__self__
    item.obj = watched

    def undo():
        item.obj = body

    return undo


def watch_item(item, seen):
    """Record what `setup` and `runtest` of this very item do, whatever hooks make of it later."""
    runtest, setup = item.runtest, item.setup

    def watched_setup(*args, **kwargs):
        seen["setup"] = "raised"
        result = setup(*args, **kwargs)
        seen["setup"] = "returned"
        return result

    def watched_runtest(*args, **kwargs):
        seen["run"] = "raised"
        undo = watch_body(item, seen)
        try:
            result = runtest(*args, **kwargs)
        finally:
            undo()
        seen["run"] = "returned"
        return result

    item.setup, item.runtest = watched_setup, watched_runtest

    def undo():
        for name in ("setup", "runtest"):
            vars(item).pop(name, None)

    return undo


def attribute(module_name, dotted):
    """The object behind a dotted name of a module that is already loaded, or None."""
    found = sys.modules.get(module_name)
    if found is None:
        head, _, rest = module_name.rpartition(".")
        found = getattr(sys.modules.get(head), rest, None)
    for part in dotted.split("."):
        found = getattr(found, part, None)
    return found


def code_file(thing):
    """Where the code of a callable was written, or an empty string for what is not Python."""
    for _ in range(5):
        inner = getattr(thing, "func", None) if type(thing) is functools.partial else None
        inner = inner or getattr(thing, "__func__", None)
        if inner is None:
            break
        thing = inner
    code = getattr(thing, "__code__", None)
    if code is None:
        code = getattr(getattr(type(thing), "__call__", None), "__code__", None)
    return str(getattr(code, "co_filename", ""))


def replaced(tree):
    """Name and file of everything in LEANED_ON whose code comes from the tree (or from text run by exec)."""
    found = []
    for module_name, names in LEANED_ON:
        for name in names.split():
            file = code_file(attribute(module_name, name))
            if file.startswith(tree + os.sep) or file in ("<string>", "<stdin>"):
                found.append([module_name + "." + name, relative(file, tree)])
    return found


def relative(path, tree):
    """A path below the tree as the repository names it; any other as it is."""
    path = os.path.realpath(path) if os.path.isabs(path) else path
    return path[len(tree) + 1 :] if path.startswith(tree + os.sep) else path


def plugin_list(manager, tree):
    """Every plugin pytest has: name and file (relative when in the tree)."""
    found = []
    for name, plugin in manager.list_name_plugin():
        if plugin is None:
            continue
        file = getattr(plugin, "__file__", None)
        if file is None:
            module = sys.modules.get(type(plugin).__module__)
            file = getattr(module, "__file__", None)
        found.append([str(name)[:300], relative(str(file or ""), tree)])
    return sorted(found)


def build(pytest, runtestprotocol, emit, tree, before_conftests):
    """The plugin object. Its state is in this closure, not in attributes. `before_conftests()` puts the tree on
    the path: until then nothing of the tree can be imported."""
    state = {"tests": 0, "current": None, "foreign": [], "codes": {}, "replaced": set()}

    def look_for_replacements(where):
        for name, file in replaced(tree):
            if name not in state["replaced"]:
                state["replaced"].add(name)
                emit("replaced", {"name": name, "file": file, "where": where})

    class Recorder:
        @pytest.hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_load_initial_conftests(self):
            before_conftests()
            outcome = yield
            if outcome.excinfo is not None:
                error = outcome.excinfo[1]
                path = getattr(error, "path", "")
                emit(
                    "conftest_error",
                    {"path": relative(str(path), tree), "text": (str(error) or repr(error))[-TAIL_CHARACTERS:]},
                )

        @pytest.hookimpl(tryfirst=True)
        def pytest_sessionstart(self, session):
            config = session.config
            ini = getattr(config, "inipath", None) or ""
            emit(
                "start",
                {
                    "pytest": pytest.__version__,
                    "python": sys.version.split()[0],
                    "rootdir": str(getattr(config, "rootpath", "")),
                    "ini": relative(str(ini), tree),
                    "args": [str(argument) for argument in config.invocation_params.args],
                },
            )

        @pytest.hookimpl(tryfirst=True)
        def pytest_collectreport(self, report):
            if report.outcome == "failed":
                text = str(report.longrepr)
                emit("collect_error", {"id": str(report.nodeid), "text": text[-TAIL_CHARACTERS:]})
            elif report.outcome == "skipped":
                emit("collect_skip", {"id": str(report.nodeid), "message": report_message(report)[:400]})

        @pytest.hookimpl(trylast=True)
        def pytest_collection_finish(self, session):
            for item in session.items:
                state["codes"][id(item)] = test_codes(item)
            emit(
                "collected",
                {
                    "ids": [str(item.nodeid) for item in session.items],
                    "plugins": plugin_list(session.config.pluginmanager, tree),
                },
            )
            look_for_replacements("collection")

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_protocol(self, item, nextitem):
            node = str(item.nodeid)
            number = state["tests"]
            state["tests"] = number + 1
            emit("begin", {"id": node, "number": number})
            state["current"] = seen = {"id": node, "setup": "", "run": "", "body": "none"}
            seen["errors"], seen["failed"] = [], []
            known = state["codes"].get(id(item))
            seen["same_code"] = known is not None and all(one is two for one, two in zip(known, test_codes(item)))
            item.user_properties.append(("rtb", str(number)))
            undo = watch_item(item, seen)
            started = time.monotonic()
            try:
                item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
                reports = runtestprotocol(item, nextitem=nextitem, log=True)
                item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            except BaseException as error:
                # pytest.exit() or an interrupt: the session ends here, in the middle of a test.
                emit("stopped", {"id": node, "by": type(error).__name__})
                raise
            finally:
                undo()
                state["current"] = None
            look_for_replacements(node)
            seen["phases"] = [report_phase(report) for report in reports]
            seen["number"] = number
            seen["seconds"] = round(time.monotonic() - started, 6)
            emit("test", seen)
            return True

        @pytest.hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_runtest_makereport(self, item, call):
            before = call.excinfo
            yield
            current = state["current"]
            error = call.excinfo or before
            if current is not None and current["id"] == str(item.nodeid) and error is not None:
                current["errors"].append([str(call.when), type(error.value).__name__])

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_logreport(self, report):
            current = state["current"]
            if current is None or current["id"] != str(report.nodeid):
                state["foreign"].append(str(report.nodeid)[:500])
            elif report.outcome == "failed" and report.when == "call":
                # A failed subtest is logged on its own: pytest 9 lets the unittest test round it pass.
                current["failed"].append(report_message(report)[:MESSAGE_CHARACTERS])

        @pytest.hookimpl(tryfirst=True)
        def pytest_internalerror(self, excrepr):
            emit("internal_error", {"text": str(excrepr)[-TAIL_CHARACTERS:]})

        @pytest.hookimpl(tryfirst=True)
        def pytest_unconfigure(self, config):
            look_for_replacements("end")
            emit("plugins", {"plugins": plugin_list(config.pluginmanager, tree)})

    def finish(exit_status):
        emit("finish", {"exit": int(exit_status), "tests": state["tests"], "foreign": state["foreign"][:20]})

    return Recorder(), finish
