"""The verbs of the scaffold: `rtb solve`, `rtb replay`, `rtb audit`, `rtb export`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from rtb.errors import ExpectedError
from rtb.options import (
    EXIT_EXPECTED,
    EXIT_INCOMPLETE,
    IdsArgument,
    JsonOption,
    PlainOption,
    SandboxOption,
    SuiteOption,
    WorkersOption,
    choose,
    emit,
)

if TYPE_CHECKING:
    from scaffold.plans import SolveOptions
    from scaffold.solve import Summary

SOLVE_HELP = """Let an agent solve tasks; leaves predictions for 'rtb evaluate', and a trajectory for each attempt.

The key comes from the provider's variable (OPENAI_API_KEY, ...), or the one that --api-key-env names.

Example, with a server of your own: rtb solve --model vllm/NAME --suite demo --out preds.jsonl
"""
REPLAY_HELP = """Run a trajectory's commands again in a fresh sandbox, and report the first divergence.

Example: rtb replay preds.attempts/TASK_ID/attempt-1
"""
AUDIT_HELP = """Look through trajectories: history mining, network tries, edits to tests, reading of the evaluation.

Findings are evidence for a person to judge. Example: rtb audit preds.attempts
"""
EXPORT_HELP = """Write trajectories in the formats of others: ATIF, or Inspect's .eval log.

Example: rtb export preds.attempts --format inspect --out run.eval
"""


def solve_command(
    ids: IdsArgument = None,
    model: Annotated[
        str, typer.Option("--model", help="PROVIDER/NAME, or the server's own name with --base-url.")
    ] = "",
    suite: SuiteOption = None,
    out: Annotated[Path, typer.Option(help="Predictions file; attempts are kept beside it.")] = Path("preds.jsonl"),
    base_url: Annotated[str | None, typer.Option(help="Address of the API, e.g. http://localhost:8000/v1.")] = None,
    api_key_env: Annotated[str | None, typer.Option(help="Variable that holds the API key.")] = None,
    attempts: Annotated[int, typer.Option(min=1, help="Attempts at each task, each with a file of its own.")] = 1,
    workers: WorkersOption = 1,
    sandbox: SandboxOption = None,
    agent: Annotated[str, typer.Option(help="light (ours) or mini (mini-swe-agent's own loop).")] = "light",
    dialect: Annotated[str, typer.Option(help="tools, or text for models without tool calls.")] = "tools",
    stream: Annotated[bool, typer.Option(help="Ask for streamed answers.")] = True,
    temperature: Annotated[float, typer.Option(min=0.0)] = 0.0,
    max_output_tokens: Annotated[int | None, typer.Option(min=1, help="Of one turn.")] = None,
    model_option: Annotated[
        list[str] | None, typer.Option(help="KEY=JSON laid over each request; null removes a key.")
    ] = None,
    steps: Annotated[int, typer.Option(min=0, help="Turns of the model; 0: no limit.")] = 250,
    cost: Annotated[float, typer.Option(min=0.0, help="US dollars of an attempt; 0: no limit.")] = 3.0,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="Of an attempt; default: 2,000,000 when no price is known.")
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.0, help="Wall time of an attempt; 0: no limit.")] = 60.0,
    command_seconds: Annotated[float, typer.Option(min=0.1, help="Wall time of one command.")] = 60.0,
    context: Annotated[bool, typer.Option(help="Name the code around the targets in the prompt.")] = True,
    prompts: Annotated[Path | None, typer.Option(help="Folder of your own prompt templates.")] = None,
    published_prompts: Annotated[bool, typer.Option(help="mini-swe-agent's own prompts, with --agent mini.")] = False,
    prices: Annotated[Path | None, typer.Option(help="Your price table, laid over the shipped one.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the prompts and leave; no model is needed.")
    ] = False,
    plain: PlainOption = False,
    as_json: JsonOption = False,
) -> None:
    """Solve tasks."""
    from scaffold.attempt import AgentName
    from scaffold.budget import Budget
    from scaffold.endpoint import Dialect, ModelOptions
    from scaffold.plans import SolveOptions

    if not model and not dry_run:
        raise typer.BadParameter("name the model", param_hint="--model")
    line = ModelOptions(
        name=model, base_url=base_url, key_variable=api_key_env, stream=stream, temperature=temperature,
        dialect=_one_of(dialect, get_args(Dialect), "--dialect"), max_output_tokens=max_output_tokens,
        extra=_fields(model_option or []),
    )  # fmt: skip
    budget = Budget(
        steps=steps or None, cost_usd=cost or None, tokens=tokens, wall_seconds=minutes * 60 or None,
        command_seconds=command_seconds,
    )  # fmt: skip
    options = SolveOptions(
        model=line, out=out, attempts=attempts, workers=workers, sandbox=sandbox,
        agent=_one_of(agent, get_args(AgentName), "--agent"), budget=budget, with_context=context, prompts=prompts,
        published_prompts=published_prompts, prices=prices, plain=plain or None,
    )  # fmt: skip
    entries = choose(suite, ids, need=True)
    if dry_run:
        _print_prompts(entries, options, as_json)
        return
    from scaffold.solve import solve

    summary = solve(entries, options)
    if as_json:
        emit(summary_document(summary))
    else:
        _show_summary(summary)
    if summary.stopped and not any(row.record.finished for row in summary.rows):
        raise ExpectedError(f"nothing was solved: {summary.stopped}")
    if summary.incomplete:
        raise typer.Exit(EXIT_INCOMPLETE)


def _one_of(text: str, known: tuple[Any, ...], option: str) -> Any:
    if text not in known:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(known)}", param_hint=option)
    return text


def _fields(items: list[str]) -> dict[str, Any]:
    """Request fields from KEY=JSON; what is no JSON is a text."""
    found: dict[str, Any] = {}
    for item in items:
        name, sign, value = item.partition("=")
        if not sign or not name:
            raise typer.BadParameter(f"{item!r} is not KEY=JSON, e.g. top_p=0.9", param_hint="--model-option")
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
            found[name] = value
    return found


def _print_prompts(entries: Sequence[Any], options: SolveOptions, as_json: bool) -> None:
    from scaffold.solve import dry_run

    made = {entry.instance_id: dry_run(entry, options) for entry in entries}
    if as_json:
        emit({name: {"system": prompt.system, "instance": prompt.instance} for name, prompt in made.items()})
        return
    for name, prompt in made.items():
        typer.echo(f"===== {name}: system\n{prompt.system}\n===== {name}: user\n{prompt.instance}")


def summary_document(summary: Summary) -> dict[str, Any]:
    """What `rtb solve --json` prints."""
    return {
        "files": [str(path) for path in summary.files],
        "attempts_wanted": summary.wanted,
        "attempts": [
            {
                "instance_id": row.record.instance_id,
                "attempt": row.record.attempt,
                "exit_status": row.record.exit_status,
                "exit_reason": row.record.exit_reason,
                "finished": row.record.finished,
                "patch_bytes": row.record.patch_bytes,
                "steps": row.record.steps,
                "tokens": row.record.tokens,
                "cost_usd": row.record.cost_usd,
                "kept": row.kept,
            }
            for row in summary.rows
        ],
        "tokens": summary.tokens,
        "cost_usd": summary.cost_usd,
        "stopped": summary.stopped,
        "incomplete": summary.incomplete,
    }


def _show_summary(summary: Summary) -> None:
    from rtb.console import say, show_table

    rows = [
        (
            row.record.instance_id,
            str(row.record.attempt),
            row.record.exit_status,
            str(row.record.steps),
            _known(row.record.tokens, ","),
            _known(row.record.cost_usd, ".4f"),
            str(row.record.patch_bytes),
            "kept from before" if row.kept else "",
        )
        for row in summary.rows
    ]
    show_table(
        "",
        ("task", "attempt", "ended", "steps", "tokens", "cost ($)", "patch (bytes)", ""),
        rows,
        right=(1, 3, 4, 5, 6),
    )
    say(f"tokens {_known(summary.tokens, ',')}, cost in US dollars {_known(summary.cost_usd, '.4f')}")
    if summary.stopped:
        say(f"stopped early: {summary.stopped}")
    if summary.incomplete:
        missing = summary.wanted - sum(row.record.finished for row in summary.rows)
        say(f"{missing} of {summary.wanted} attempts are not finished: the same command does the rest")
    if not any(row.record.finished for row in summary.rows):
        return  # there is nothing to evaluate
    say(f"predictions: {', '.join(map(str, summary.files))}")
    several = f" --attempts {len(summary.files)}" if len(summary.files) > 1 else ""
    say(f"next: rtb evaluate --predictions {summary.files[0]}{several}")


def _known(value: float | None, form: str) -> str:
    return "unknown" if value is None else format(value, form)


def replay_command(
    trajectory: Annotated[Path, typer.Argument(help="A trajectory file, or the folder of an attempt.")],
    suite: SuiteOption = None,
    sandbox: SandboxOption = None,
    command_seconds: Annotated[float | None, typer.Option(min=0.1, help="Default: as it was recorded.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Replay a trajectory."""
    from rtb.console import say
    from scaffold.replay import ReplayOptions, replay

    chosen = ReplayOptions(trajectory, suite, sandbox, command_seconds)
    found = replay(chosen, lambda step, command: say(f"step {step}: {command.splitlines()[0][:100]}"))
    first = found.first
    if as_json:
        document = {
            "trajectory": str(found.trajectory), "instance_id": found.instance_id, "commands": found.commands,
            "same_patch": found.same_patch, "divergences": [vars(item) for item in found.divergences],
        }  # fmt: skip
        emit(document)
    elif first is None:
        patch = {True: "the same patch", False: "another patch", None: "no patch to compare with"}[found.same_patch]
        say(f"{found.commands} commands went as recorded; {patch}")
    else:
        say(f"first divergence at step {first.step}: {first.kind}")
        say(f"  command   {first.command}\n  recorded  {first.recorded}\n  now       {first.now}")
        say(f"{len(found.divergences)} divergences in {found.commands} commands")
    if first is not None or found.same_patch is False:
        raise typer.Exit(EXIT_EXPECTED)


def audit_command(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Trajectories, or folders that hold some.")],
    as_json: JsonOption = False,
) -> None:
    """Audit trajectories."""
    from rtb.console import say, show_table
    from scaffold.audit import audit

    found = audit(paths)
    if as_json:
        emit(found.model_dump(mode="json") | {"by_kind": found.by_kind})
        return
    rows = [(item.instance_id, str(item.step), item.kind, item.what, item.text) for item in found.findings]
    if rows:
        show_table("", ("task", "step", "kind", "what", "evidence"), rows, right=(1,))
    counts = ", ".join(f"{kind} {count}" for kind, count in found.by_kind.items())
    say(f"{found.trajectories} trajectories, {found.commands} commands; findings: {counts}")


def export_command(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Trajectories, or folders that hold some.")],
    out: Annotated[Path, typer.Option(help="A folder for atif, a file NAME.eval for inspect.")],
    form: Annotated[str, typer.Option("--format", help="atif or inspect.")] = "atif",
    as_json: JsonOption = False,
) -> None:
    """Export trajectories."""
    from rtb.console import say
    from scaffold.export import export

    written = export(paths, form, out)
    if as_json:
        emit({"files": [str(path) for path in written]})
    else:
        say(f"written: {', '.join(map(str, written))}")


solve_command.__doc__ = SOLVE_HELP
replay_command.__doc__ = REPLAY_HELP
audit_command.__doc__ = AUDIT_HELP
export_command.__doc__ = EXPORT_HELP
