"""SWE-bench's fields and back; rows of others, read with care; Hugging Face where its library is installed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from rtb.dataset import load_rows, save_rows
from rtb.errors import ExpectedError, InvalidFile
from rtb.review_command import bundle_of, export_command, import_command
from rtb.suite import load_suite
from rtb.swebench import FIELDS, from_row, read_ids, to_row
from tests.cases import cases_root
from tests.hub_server import HubServer

CASES = cases_root() or Path("shared/cases")
HAS_DATASETS = importlib.util.find_spec("datasets") is not None


def demo_rows() -> list[dict[str, str]]:
    return [to_row(bundle_of(entry)) for entry in load_suite("demo").entries]


def test_rows_have_swebenchs_fields_and_come_back_whole() -> None:
    for entry in load_suite("demo").entries:
        bundle = bundle_of(entry)
        row = to_row(bundle)
        assert set(FIELDS) <= set(row) and all(isinstance(value, str) for value in row.values())
        assert json.loads(row["FAIL_TO_PASS"]) == list(bundle.tests.fail_to_pass)
        assert from_row(json.loads(json.dumps(row))) == bundle


def test_bytes_that_are_no_text_come_back_whole() -> None:
    bundle = bundle_of(load_suite("demo").entries[0])
    odd = type(bundle)(bundle.task, bundle.tests, bundle.statement, b"+\xff\r\n", b"")
    assert from_row(to_row(odd)) == odd


def test_a_foreign_row_is_refused_with_its_place() -> None:
    with pytest.raises(InvalidFile, match=r"row 3: no field 'rtb_task'"):
        from_row({"instance_id": "a", "patch": ""}, "row 3")


@pytest.mark.parametrize("form", ["jsonl", "parquet", "disk"])
def test_every_form_round_trips(form: str, tmp_path: Path) -> None:
    if form != "jsonl" and not HAS_DATASETS:
        pytest.skip("the datasets library is not installed (rtb[hub])")
    rows = demo_rows()
    out = tmp_path / {"jsonl": "t.jsonl", "parquet": "t.parquet", "disk": "folder"}[form]
    save_rows(rows, out, form)
    assert load_rows(out) == rows


PUSH = """
import sys
from rtb.dataset import push_rows
from tests.test_swebench import demo_rows
push_rows(demo_rows(), "acme/tasks")
"""


PULL = """
import sys
from pathlib import Path
from rtb.review_command import import_command
import_command(Path("acme/tasks"), Path(sys.argv[1]), hub=True)
"""


def ask_hub(tmp_path: Path, hub: HubServer, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own: the library reads the hub's address when it is imported."""
    with hub.serve() as address:
        environment = {**os.environ, "HF_ENDPOINT": address, "HF_TOKEN": "hf_test", "HF_HOME": str(tmp_path / "hf")}
        environment |= {"HF_HUB_DISABLE_XET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.run(
            [sys.executable, "-c", script, *arguments],
            env=environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip


@pytest.mark.skipif(not HAS_DATASETS, reason="the datasets library is not installed (rtb[hub])")
def test_a_push_over_http_is_whole(tmp_path: Path) -> None:
    hub = HubServer()
    done = ask_hub(tmp_path, hub, PUSH)
    assert done.returncode == 0, done.stderr[-3000:]
    (name,) = (name for name in hub.files if name.endswith(".parquet"))
    (tmp_path / "pushed.parquet").write_bytes(hub.files[name])
    assert load_rows(tmp_path / "pushed.parquet") == demo_rows()
    again = ask_hub(tmp_path, hub, PULL, str(tmp_path / "again"))
    assert again.returncode == 0, again.stderr[-3000:]
    back = [to_row(bundle_of(entry)) for entry in load_suite(str(tmp_path / "again")).entries]
    assert sorted(back, key=str) == sorted(demo_rows(), key=str)


@pytest.mark.skipif(not HAS_DATASETS, reason="the datasets library is not installed (rtb[hub])")
def test_a_data_set_that_is_not_there_is_one_clear_error(tmp_path: Path) -> None:
    done = ask_hub(tmp_path, HubServer(), PULL, str(tmp_path / "again"))
    assert done.returncode != 0
    assert "ExpectedError: the data set acme/tasks cannot be loaded" in done.stderr


@pytest.mark.skipif(not HAS_DATASETS, reason="the datasets library is not installed (rtb[hub])")
def test_a_refused_push_is_one_clear_error(tmp_path: Path) -> None:
    done = ask_hub(tmp_path, HubServer(refuse=True), PUSH)
    assert done.returncode != 0
    assert "ExpectedError: the data set acme/tasks cannot be pushed" in done.stderr and "HF_TOKEN" in done.stderr


@pytest.mark.skipif(HAS_DATASETS, reason="the datasets library is installed")
def test_a_missing_library_is_said(tmp_path: Path) -> None:
    with pytest.raises(ExpectedError, match=r"rtb\[hub\]"):
        save_rows([], tmp_path / "x", "parquet")


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"a": "b"}\n{"a": \n')
    with pytest.raises(InvalidFile, match=r"t\.jsonl:2"):
        load_rows(path)


def test_export_and_import_give_the_same_files(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command("export")(export_command)
    app.command("import")(import_command)
    out = tmp_path / "demo.jsonl"
    done = CliRunner().invoke(app, ["export", "--suite", "demo", "--out", str(out)])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(app, ["import", str(out), "--out", str(tmp_path / "again")])
    assert done.exit_code == 0, done.output
    for entry in load_suite("demo").entries:
        again = tmp_path / "again" / entry.instance_id
        for name in ("task.json", "gold.patch", "test.patch", "problem_statement.md", "tests.json"):
            assert (again / name).read_bytes() == (entry.folder.path / name).read_bytes(), name


@pytest.mark.skipif(not CASES.is_dir(), reason="the public cases are not beside this repository")
def test_field_shapes_of_public_rows() -> None:
    folder = CASES / "84-task-field-shapes"
    wanted = json.loads((folder / "case.json").read_text())["expected"]
    rows = [json.loads(line) for line in (folder / "tasks.jsonl").read_text().splitlines()]
    told = {row["instance_id"]: read_ids(row) for row in rows}
    assert [name for name, ids in told.items() if not ids.rejected and not ids.warning] == wanted["usable"]
    assert [name for name, ids in told.items() if ids.warning and not ids.rejected] == ["org__a-3"]
    assert {name for name, ids in told.items() if ids.rejected} == set(wanted["rejected"])
    assert "any patch would count" in (told["org__a-4"].rejected or "")
    assert "cut" in (told["org__a-7"].rejected or "") and "both lists" in (told["org__a-8"].rejected or "")
