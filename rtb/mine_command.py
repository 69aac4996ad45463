"""The verb `rtb mine`: its options, what it prints, what it writes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rtb.errors import ExpectedError

if TYPE_CHECKING:
    from rtb.candidate import Judgement
    from rtb.description import Ask
    from rtb.draft_store import Draft
    from rtb.mining import Mined, Wish

HELP = """Turn a repository's merged pull requests into draft tasks.

Example, with a clone and no network: rtb mine --repo vllm-project/vllm --clone ./vllm --out mined
With a model's descriptions: rtb mine --repo vllm-project/vllm --clone ./vllm --limit 5 --describe openai/NAME
"""


OpenModel = Callable[[str, str | None, str | None], AbstractContextManager["Ask"]]


def mining_verb(open_model: OpenModel | None = None) -> Callable[..., None]:
    """The verb. `open_model` opens the line to a language model by its name, address and the variable of its key.

    The command line hands it in: mining itself knows no model.
    """

    def mine_command(
        repo: Annotated[str, typer.Option("--repo", help="OWNER/NAME on GitHub; names the tasks and the rules.")],
        clone: Annotated[Path | None, typer.Option(help="Mine this clone, with no network at all.")] = None,
        ref: Annotated[str | None, typer.Option(help="Branch, tag or commit; default: the default branch.")] = None,
        github: Annotated[
            bool, typer.Option("--github", help="Add titles, bodies, labels, dates and reviews from GitHub.")
        ] = False,
        since: Annotated[str | None, typer.Option(help="Landed on or after this day, e.g. 2024-05-01.")] = None,
        until: Annotated[str | None, typer.Option(help="Landed before this day.")] = None,
        out: Annotated[Path, typer.Option(help="Folder of the suite of drafts.")] = Path("mined"),
        limit: Annotated[int | None, typer.Option(min=1, help="Stop after this many drafts.")] = None,
        explain: Annotated[int | None, typer.Option(help="Say why this pull request is kept or dropped.")] = None,
        describe: Annotated[
            str | None, typer.Option(metavar="MODEL", help="Have PROVIDER/NAME write the descriptions.")
        ] = None,
        base_url: Annotated[str | None, typer.Option(help="Address of the model's API, with --describe.")] = None,
        api_key_env: Annotated[str | None, typer.Option(help="Variable of the API key, with --describe.")] = None,
        workers: Annotated[int, typer.Option(min=1, help="Processes that read the history.")] = 2,
        fresh: Annotated[bool, typer.Option("--fresh", help="Forget what was read of this history before.")] = False,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")] = False,
    ) -> None:
        """Run the miner and show what came of it."""
        from rtb.mining import Wish, describe_all, write

        wish = Wish(
            repo=_repository_name(repo), clone=clone, ref=ref, since=_day(since, "--since"),
            until=_day(until, "--until"), limit=limit, only=explain, workers=workers, cached=not fresh,
        )  # fmt: skip
        with ExitStack() as stack:
            ask = None
            if describe is not None:
                if open_model is None:
                    raise ExpectedError("--describe: this command has no line to a model")
                ask = stack.enter_context(open_model(describe, base_url, api_key_env))
            mined = _mined(wish, github)
            if explain is not None:
                _explain(mined, explain, as_json)
                return
            folders = list(write(mined, out))
            if describe is not None and ask is not None:
                mined = replace(mined, drafts=tuple(describe_all(mined, out, describe, ask)))
        if as_json:
            sys.stdout.write(json.dumps(document(mined, folders), indent=2, ensure_ascii=False) + "\n")
        else:
            _show(mined, out)

    mine_command.__doc__ = HELP
    return mine_command


def _mined(wish: Wish, github: bool) -> Mined:
    """Mine, and with GitHub once more with what only it knows of those that are kept."""
    from rtb.mining import mine

    mined = mine(wish)
    if not github:
        return mined
    from rtb.pull_request import facts_for

    numbers = [item.pull.number for item in mined.judgements if item.kept and item.pull.number is not None]
    return mine(replace(wish, facts=facts_for(wish.repo, numbers)))


def _repository_name(text: str) -> str:
    if text.count("/") != 1 or not all(text.split("/")):
        raise typer.BadParameter(f"{text!r} is not OWNER/NAME", param_hint="--repo")
    return text


def _day(text: str | None, option: str) -> datetime | None:
    if text is None:
        return None
    try:
        day = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no date such as 2024-05-01", param_hint=option) from None
    return day if day.tzinfo else day.replace(tzinfo=UTC)


def document(mined: Mined, folders: list[Path]) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "repo": mined.repo,
        "newest": mined.newest,
        "commits": mined.commits,
        "commits_read": mined.read,
        "pull_requests": dict(mined.counts),
        "files_skipped": dict(mined.skipped),
        "drafts": [
            {**_row(draft), "folder": str(folder)} for draft, folder in zip(mined.drafts, folders, strict=True)
        ],
    }


def _row(draft: Draft) -> dict[str, Any]:
    task = draft.task
    return {
        "instance_id": task.instance_id,
        "category": task.category,
        "confidence": task.provenance.confidence,
        "targets": [f"{item.path}:{item.name}" for item in task.targets],
        "test_files": list(task.unit.files) if task.unit else [],
        "leaked_lines": list(draft.leaked),
    }


_WORDS = {
    "kept": "kept as drafts",
    "no_number": "no pull request number",
    "shallow_boundary": "at the end of a shallow clone",
    "is_revert": "reverts",
    "was_reverted": "reverted later",
    "bundle": "bundles of others' changes",
    "duplicate": "cherry-picks of one that is here",
    "ambiguous": "commits of one number, scattered",
    "no_triton_change": "no Triton function changed",
    "other_device": "copies for other vendors' devices",
    "not_accepted": "launchers or configurations only",
    "too_large": "too large for one objective",
    "no_objective": "no objective of its own",
    "no_tests": "no tests",
    "tests_unchanged": "tests said nothing new",
    "unreadable": "a file that cannot be read",
}


def _show(mined: Mined, out: Path) -> None:
    from rtb.console import say, show_table

    rows = [
        (draft.task.instance_id, draft.task.category, str(len(draft.task.targets)), draft.task.title)
        for draft in mined.drafts
    ]
    show_table("", ("task", "category", "targets", "title"), rows, right=(2,))
    say(f"{mined.repo}: {mined.commits} commits ({mined.read} read anew)")
    for reason, count in sorted(mined.counts.items(), key=lambda item: -item[1]):
        say(f"  {count:6} {_WORDS.get(reason, reason)}")
    for reason, count in sorted(mined.skipped.items()):
        say(f"  {count:6} files passed over: {reason}")
    if leaked := [draft.task.instance_id for draft in mined.drafts if draft.leaked]:
        say(f"descriptions that repeat lines of the gold patch: {', '.join(leaked)}")
    say(f"{len(mined.drafts)} drafts in {out}; 'rtb tasks review --suite {out}/' walks through them")


def _explain(mined: Mined, number: int, as_json: bool) -> None:
    found = [item for item in mined.judgements if item.pull.number == number]
    if not found:
        raise ExpectedError(
            f"{mined.repo}: no commit of this history names pull request {number}; it may have landed on another "
            "branch (see --ref), under another number, or not at all"
        )
    if as_json:
        sys.stdout.write(json.dumps([explanation(item, mined) for item in found], indent=2) + "\n")
        return
    for item in found:
        told = explanation(item, mined)
        typer.echo(f"#{number} {told['title']}")
        typer.echo(f"{'kept' if item.kept else 'dropped'} ({told['reason']}): {told['detail']}")
        for line in told["evidence"]:
            typer.echo(f"  {line}")


def explanation(item: Judgement, mined: Mined) -> dict[str, Any]:
    """Why a pull request was kept or dropped, with everything that was found."""
    draft = next((one for one in mined.drafts if one.task.pull_number == item.pull.number), None)
    evidence = list(draft.task.provenance.evidence) if draft else list(item.evidence)
    if draft:
        evidence.append(f"category {draft.task.category}, confidence {draft.task.provenance.confidence}")
        evidence += [f"the description repeats: {line}" for line in draft.leaked]
    return {
        "number": item.pull.number,
        "title": item.pull.title,
        "kept": item.kept,
        "reason": item.reason,
        "detail": item.detail,
        "evidence": evidence,
    }


mine_command = mining_verb()
