"""The verbs `rtb leaderboard check|build|serve`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rtb.options import EXIT_EXPECTED, JsonOption, emit

if TYPE_CHECKING:
    from rtb.submission import Checked

leaderboard_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Check submissions, and make a site of those that hold."
)

KeysOption = Annotated[
    Path | None, typer.Option(help="File of OpenSSH public keys: only submissions signed with one are taken.")
]
SuitesOption = Annotated[
    Path | None, typer.Option(help="Folder of the suites to hold them against; default: tasks/.")
]


@leaderboard_app.command(
    "check", epilog="Example: rtb leaderboard check examples/leaderboard/example --suites examples/suites"
)
def check_command(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of submissions.")],
    keys: KeysOption = None,
    suites: SuitesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compute the grade of submissions anew from their raw files; name every reason to refuse one, with its file.

    Needs no Docker, no GPU and no network. Exit code 1 when one is refused.
    """
    from rtb.submit_command import check_document, checker, show_checks

    found = [checker(keys, suites).check(path) for path in folders]
    if as_json:
        emit([check_document(item) for item in found])
    show_checks(found)
    if not all(item.accepted for item in found):
        raise typer.Exit(EXIT_EXPECTED)


@leaderboard_app.command(
    "build", epilog="Example: rtb leaderboard build examples/leaderboard --suites examples/suites --out site"
)
def build_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that holds a folder a submission.")],
    out: Annotated[Path, typer.Option(help="The site's folder; an earlier site there is replaced.")],
    keys: KeysOption = None,
    suites: SuitesOption = None,
    url: Annotated[
        str, typer.Option(help="Where the site will stand, for the feed's links.")
    ] = "http://127.0.0.1:8000/",
    title: Annotated[str, typer.Option(help="The site's title.")] = "rtb leaderboard",
    as_json: JsonOption = False,
) -> None:
    """Check every submission and make a static site of those that hold; the others are named and left out.

    Exit code 1 when one is left out.
    """
    from harness.plots import history_plot
    from rtb.console import say
    from rtb.leaderboard_site import build_site
    from rtb.submit_command import check_document, show_faults

    every = _check_all(folder, keys, suites)
    for item in every:
        show_faults(item)
    taken = [item for item in every if item.accepted]
    pages = build_site(taken, out, title=title, url=url, plot=history_plot)
    if as_json:
        emit({"site": str(out), "pages": pages, "submissions": [check_document(item) for item in every]})
    say(f"{out}/index.html: {len(taken)} submission(s), {len(every) - len(taken)} left out, {pages} pages")
    say(f"next: rtb leaderboard serve {out}")
    if len(taken) < len(every):
        raise typer.Exit(EXIT_EXPECTED)


def _check_all(folder: Path, keys: Path | None, suites: Path | None) -> Sequence[Checked]:
    from harness.submission_check import check_all
    from rtb.submit_command import checker

    return check_all(checker(keys, suites), folder)


@leaderboard_app.command("serve", epilog="Example: rtb leaderboard serve site")
def serve_command(
    site: Annotated[Path, typer.Argument(metavar="SITE", help="What 'rtb leaderboard build' made.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
) -> None:
    """Show a site on this machine only, until Ctrl-C."""
    from rtb.leaderboard_server import serve

    serve(site, port)
