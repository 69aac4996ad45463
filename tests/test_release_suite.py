"""Suite vllm-gpu on a release's wheel: what a bundle pins, and what it does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.gpu import release

NAMES = release.names("vllm-project__vllm-42080")
COMMITS = {name: (f"{number:040x}", f"{number + 16:040x}") for number, name in enumerate(NAMES)}


def bundle(folder: Path, **other: object) -> Path:
    """A bundle as an earlier day made it: what the made repository tells, and facts of then that have no say."""
    for name in NAMES:
        base, merge = COMMITS[name]
        pinned = {"base_commit": base, "merge_commit": merge, "patches": {"gold": {"sha256": "a" * 64}}} | other
        (folder / name).mkdir(parents=True)
        (folder / name / "how.json").write_text("{}")
        (folder / name / "pinned.json").write_text(json.dumps(pinned))
        (folder / name / "task.json").write_text(json.dumps({**pinned, "latency": None, "title": "of then"}))
    return folder


def test_a_task_s_workload_is_the_suite_s_of_now_however_old_the_bundle(tmp_path: Path) -> None:
    release.make_suite(bundle(tmp_path / "bundle"), COMMITS, tmp_path / "suite", NAMES[0])
    for name in NAMES:
        now = release.facts_of(name)
        made = json.loads((tmp_path / "suite" / name / "task.json").read_text())
        assert (made["latency"], made["title"], made["unit"]) == (now["latency"], now["title"], now["unit"])
        assert (made["base_commit"], made["merge_commit"]) == COMMITS[name]
        assert made["patches"]["gold"]["sha256"] == "a" * 64


def test_a_bundle_of_another_wheel_is_refused(tmp_path: Path) -> None:
    old = bundle(tmp_path / "bundle", merge_commit="f" * 40)
    with pytest.raises(SystemExit, match="make the bundle anew"):
        release.make_suite(old, COMMITS, tmp_path / "suite", NAMES[0])


@pytest.mark.parametrize(("there", "held"), [((), "0"), (("a", "b"), "2")])
def test_a_folder_without_just_one_wheel_of_the_release_is_named(
    tmp_path: Path, there: tuple[str, ...], held: str
) -> None:
    name, _, version = release.RELEASE.partition("==")
    (tmp_path / f"{name}-0.1-py3-none-any.whl").touch()
    for tag in there:
        (tmp_path / f"{name}-{version}-{tag}.whl").touch()
    with pytest.raises(SystemExit, match=f"one wheel of {release.RELEASE}, it holds {held}"):
        release.wheel_in(tmp_path)
    (tmp_path / f"{name}-{version}-a.whl").touch()
    (tmp_path / f"{name}-{version}-b.whl").unlink(missing_ok=True)
    assert release.wheel_in(tmp_path).name == f"{name}-{version}-a.whl"
