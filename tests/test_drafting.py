"""Drafts of kept pull requests: targets, tests that judge them, what a statement says. Histories made here."""

from __future__ import annotations

from pathlib import Path

import pytest

from rtb.draft import leaks
from rtb.pull_request import PullFacts
from tests.small_history import HEAD, KERNEL, LAUNCH, TEST, begun, mined, put, reasons


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RTB_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return begun(tmp_path / "serve")


def test_what_github_knows_is_evidence(repo: Path) -> None:
    put(repo, "Add it (#1)", pkg__ops__py=KERNEL + LAUNCH, tests__test_ops__py=TEST)
    facts = PullFacts(title="Faster scaling", body="For long rows.", author="me", reviews=("ada: APPROVED",))
    draft = mined(repo, facts={1: facts}).drafts[0]
    assert draft.task.title == "Faster scaling" and "For long rows." in draft.statement
    assert {"author: me", "review by ada: approved"} <= set(draft.task.provenance.evidence)


def test_context_reaches_files_that_the_change_does_not_touch(repo: Path) -> None:
    user = "from pkg.ops import run\n\n\nclass Layer:\n    def step(self, x):\n        return run(x)\n\n\n"
    helper = "def check_rows(x):\n    assert x\n"
    launch = LAUNCH.replace("    scale[", "    check_rows(x)\n    scale[").replace("def run", "def run_scaling")
    ops = "from pkg.checks import check_rows\n" + KERNEL + launch
    put(repo, "Add it (#1)", pkg__ops__py=ops, tests__test_ops__py=TEST.replace("run", "run_scaling"))
    put(
        repo,
        "Use it",
        pkg__model__py=user.replace("run", "run_scaling"),
        pkg__checks__py=helper,
        pkg__notes__py="# run_scaling is fast\n",
    )
    put(
        repo,
        "[Kernel] Other sign (#2)",
        pkg__ops__py=ops.replace("* n", "- n").replace("2)\n", "3)\n"),
        tests__test_ops__py=TEST.replace("run", "run_scaling") + "x = 1\n",
    )
    draft = next(item for item in mined(repo).drafts if item.task.pull_number == 2)
    assert [(item.path, item.functions, item.classes) for item in draft.task.context] == [
        ("pkg/checks.py", ("check_rows",), ()),
        ("pkg/model.py", (), ("Layer",)),
    ]


def test_a_launcher_alone_needs_its_kernel_beside_it_and_a_test_that_names_it(repo: Path) -> None:
    put(repo, "Add it (#1)", pkg__ops__py=KERNEL + LAUNCH, tests__test_ops__py=TEST)
    launch = LAUNCH.replace("(1,)", "(2,)")
    put(repo, "Fix empty rows (#2)", pkg__ops__py=KERNEL + launch, tests__test_ops__py=TEST + "x = 1\n")
    put(repo, "Fix no rows (#3)", pkg__ops__py=KERNEL + launch.replace("(2,)", "(3,)"))
    put(
        repo,
        "Fix odd rows (#4)",
        pkg__ops__py=KERNEL + launch.replace("(2,)", "(4,)"),
        tests__test_other__py="def test_other():\n    assert 1\n",
    )
    put(
        repo,
        "Serve it (#5)",
        pkg__serve__py="from triton_lib import scale_kernel\n\n\ndef serve(x):\n    scale_kernel[(1,)](x)\n",
        tests__test_serve__py="from pkg.serve import serve\n\n\ndef test_serve():\n    serve(1)\n",
    )
    found = mined(repo)
    told = reasons(found)
    assert (told[2], told[3], told[4], told[5]) == ("kept", "not_accepted", "tests_unchanged", "not_accepted")
    assert [item.name for item in found.judgements if item.pull.number == 2 for item in item.targets] == ["run"]


def test_a_function_that_begins_to_launch_is_changed_and_not_new(repo: Path) -> None:
    plain = "\n\ndef run(x):\n    return x * 2\n\n\nclass Layer:\n    def step(self, x):\n        return run(x)\n"
    put(repo, "Add it (#1)", pkg__ops__py=HEAD + plain, tests__test_ops__py=TEST)
    fast = plain.replace("return x * 2", "scale[(1,)](x, 2)").replace("return run(x)", "scale[(2,)](x, 3)")
    fresh = "\n\nclass Other:\n    def step(self, x):\n        scale[(3,)](x, 4)\n"
    fresh += "\n\ndef step(x):\n    scale[(4,)](x, 5)\n"
    put(repo, "Triton for it (#2)", pkg__ops__py=KERNEL + fast + fresh, tests__test_ops__py=TEST + "x = 1\n")
    (draft,) = (item for item in mined(repo).drafts if item.task.pull_number == 2)
    assert {item.name: item.change for item in draft.task.targets} == {
        "scale": "added", "run": "modified", "Layer.step": "modified", "Other.step": "added", "step": "added",
    }  # fmt: skip
    assert "change the launcher function `run`; its parameters become `(x)`" in draft.statement
    assert draft.task.category == "new_kernel"


def test_a_title_about_kernels_does_not_make_a_launcher_a_task_whose_tests_do_not_know_it(repo: Path) -> None:
    put(repo, "Add it (#1)", pkg__ops__py=KERNEL + LAUNCH, tests__test_ops__py=TEST)
    other = "from pkg import model\n\n\ndef test_model():\n    assert model.answer() == 2\n"
    launch = LAUNCH.replace("(1,)", "(2,)")
    put(repo, "Faster kernel (#2)", pkg__ops__py=KERNEL + launch, tests__test_model__py=other)
    launch = LAUNCH.replace("(1,)", "(3,)")
    put(repo, "Another kernel grid (#3)", pkg__ops__py=KERNEL + launch, tests__test_ops__py=TEST + "x = 1\n")
    for number, title in ((4, "[Kernel] Grid"), (5, "Modular kernel grid"), (6, "A CUDA kernel")):
        launch = LAUNCH.replace("(1,)", f"({number},)")
        put(repo, f"{title} (#{number})", pkg__ops__py=KERNEL + launch)
    told = reasons(mined(repo))
    assert [told[number] for number in (2, 3)] == ["tests_unchanged", "kept"]
    assert [told[number] for number in (4, 5, 6)] == ["not_accepted"] * 3


def test_a_gate_of_a_test_is_no_change_of_it(repo: Path) -> None:
    put(repo, "Add it (#1)", pkg__ops__py=KERNEL + LAUNCH, tests__test_ops__py=TEST)
    gated = TEST.replace("def test", "@pytest.mark.skipif(HIP, reason='no')\ndef test")
    put(repo, "Round (#2)", pkg__ops__py=KERNEL.replace("* n", "* n * 2") + LAUNCH, tests__test_ops__py=gated)
    checked = gated.replace("is None", "is not True")
    put(repo, "Cut (#3)", pkg__ops__py=KERNEL.replace("* n", "* n * 3") + LAUNCH, tests__test_ops__py=checked)
    told = reasons(mined(repo))
    assert (told[2], told[3]) == ("tests_unchanged", "kept")


def test_a_module_of_another_package_that_is_called_alike_is_not_the_targets(repo: Path) -> None:
    theirs = "import turbo\n\n\ndef test_it():\n    turbo.go()\n"
    put(repo, "Add it (#1)", pkg__turbo__py=KERNEL + LAUNCH, tests__test_turbo__py=theirs)
    put(repo, "2x faster (#2)", pkg__turbo__py=KERNEL.replace("* n", "* (n + 0)") + LAUNCH)
    ours = "from pkg import turbo\n\n\ndef test_it():\n    turbo.go()\n"
    put(repo, "Tests (#3)", tests__test_turbo__py=ours)
    put(repo, "3x faster (#4)", pkg__turbo__py=KERNEL.replace("* n", "* (n + 1 - 1)") + LAUNCH)
    told = reasons(mined(repo))
    assert (told[2], told[4]) == ("tests_unchanged", "kept")


def test_the_statement_names_what_the_tests_use_and_nobody_can_guess(repo: Path) -> None:
    put(repo, "Add it (#1)", pkg__ops__py=KERNEL + LAUNCH, tests__test_ops__py=TEST)
    more = "\n\nLIMIT = 8\nUNSEEN = 9\n\n\ndef reference(x):\n    return x\n"
    test = TEST.replace("import run", "import LIMIT, reference, run") + "    assert reference(1) < LIMIT\n"
    put(repo, "Cut (#2)", pkg__ops__py=KERNEL.replace("* n", "* n * 3") + LAUNCH + more, tests__test_ops__py=test)
    statements = {item.task.pull_number: item.statement for item in mined(repo).drafts}
    assert "## New names that the tests use\n\n- `pkg/ops.py`: `LIMIT`, `reference`\n" in statements[2]
    assert "New names" not in statements[1]


def test_leaks_are_lines_of_the_gold_patch() -> None:
    gold = b"+++ b/pkg/ops.py\n+    tl.store(x, tl.load(x) * n)\n+    return\n+# Scale the rows\n"
    assert leaks("Write `tl.store(x,  tl.load(x) * n)` there.", gold) == ("tl.store(x, tl.load(x) * n)",)
    assert leaks("Scale the rows and return.", gold) == ()
