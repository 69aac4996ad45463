"""The leaderboard as a static site: pages, the data behind every table, badges, a feed. Whole or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from markupsafe import Markup

from rtb import leaderboard_data as data
from rtb import leaderboard_tables as tables
from rtb.errors import ExpectedError
from rtb.leaderboard import (
    Entry,
    Milestone,
    TaskView,
    entries_of,
    every_category,
    history,
    ranking,
    task_views,
)
from rtb.page import Table, asset, page, render, table_html
from rtb.published import published
from rtb.storage import storage_error
from rtb.submission import Checked
from rtb.task import Category

Plot = Callable[[str, Sequence[Milestone]], Markup]
MARK = ".rtb-leaderboard"  # says that a folder is a site of ours, which may be replaced
_NAV = (("index.html", "Ranking"), ("tasks.html", "Tasks"), ("history.html", "History"), ("feed.xml", "Feed"))


def build_site(checked: Iterable[Checked], out: Path, *, title: str, url: str, plot: Plot) -> int:
    """Write the site of the accepted submissions to `out`; returns the number of pages.

    An earlier site there is replaced. Raises ExpectedError when `out` is something else.
    """
    if out.exists() and not (out / MARK).is_file() and (not out.is_dir() or any(out.iterdir())):
        raise ExpectedError(f"--out {out} is there and is no leaderboard's site: choose another name, or remove it")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as temporary:
            home = Path(temporary) / "site"
            home.mkdir()
            pages = _Site(home, title, url, plot, entries_of(checked)).write()
            (home / MARK).write_text("")
            if out.exists():
                shutil.rmtree(out)
            home.replace(out)
    except OSError as error:
        raise storage_error(error, out) from error
    return pages


class _Site:
    """One site on its way to disk."""

    def __init__(self, home: Path, title: str, url: str, plot: Plot, entries: list[Entry]) -> None:
        self._home = home
        self._title = title
        self._url = url
        self._plot = plot
        self._entries = entries
        self._pages = 0

    def write(self) -> int:
        views = task_views(self._entries)
        for folder in ("data", "models", "tasks", "badges"):
            (self._home / folder).mkdir()
        self._index()
        self._tasks(views)
        self._models({(view.group, view.task.instance_id): view.page for view in views})
        self._history()
        (self._home / "feed.xml").write_bytes(data.feed(self._entries, self._title, self._url))
        return self._pages

    def _index(self) -> None:
        whole = tables.ranking_table(ranking(self._entries))
        parts = [item for name in every_category(self._entries) for item in ranking(self._entries, name)]
        body = render(
            "leaderboard.html.jinja",
            examples=all(entry.metadata.example for entry in self._entries),
            ranking=self._table(whole, "ranking"),
            by_category=self._table(tables.ranking_table(parts, by_category=True), "ranking-by-category"),
            published=self._table(tables.published_table(published()), "published"),
            published_note=published().note,
        )
        self._page("index.html", self._title, body)

    def _tasks(self, views: Sequence[TaskView]) -> None:
        self._page("tasks.html", "Tasks", self._table(tables.tasks_table(views), "tasks"))
        for view in views:
            task = view.task
            body = render(
                "leaderboard_task.html.jinja",
                view=view,
                solvers=self._table(tables.solvers_table(view), f"task-{view.page}", root="../"),
                failures=self._table(tables.failures_table(view), f"failures-{view.page}", root="../"),
            )
            heading = f"{task.instance_id}: {task.title}" if task.title else task.instance_id
            self._page(
                f"tasks/{view.page}.html", heading, body, root="../", subtitle=f"{view.group}; {task.category}"
            )

    def _models(self, pages: dict[tuple[str, str], str]) -> None:
        for model in dict.fromkeys(entry.model_id for entry in self._entries):
            mine = [entry for entry in self._entries if entry.model_id == model]
            sections = []
            for entry in mine:
                numbers = self._table(tables.category_table(entry, _resolved(entry)), f"numbers-{entry.id}", "../")
                tasks = self._table(tables.submission_table(entry, pages), f"submission-{entry.id}", "../")
                sections.append({"entry": entry, "numbers": numbers, "tasks": tasks})
            body = render("leaderboard_model.html.jinja", sections=sections)
            facts = mine[0].metadata.model
            weights = "open weights" if facts.open_weights else "closed weights"
            subtitle = ", ".join(text for text in (facts.organisation, weights) if text)
            self._page(f"models/{model}.html", facts.name, body, root="../", subtitle=subtitle)
            for entry in mine:
                value = f"{len(entry.solved)}/{len(entry.checked.tasks)}" + " example" * entry.metadata.example
                badge = data.badge_svg(f"rtb {entry.run.suite}", value)
                (self._home / "badges" / f"{entry.id}.svg").write_bytes(badge)

    def _history(self) -> None:
        found = history(self._entries)
        plots = [self._plot(group, lines) for group, lines in found.items()]
        body = Markup('<div class="plots history">{}</div>').format(Markup("").join(plots))
        body += self._table(tables.history_table(found), "history")
        style = Markup("<style>{} .history {{ max-width: 45rem; }}</style>").format(asset("report.css"))
        self._page("history.html", "History", body, head=style)

    def _table(self, table: Table, name: str, root: str = "") -> Markup:
        """A table, its data beside the site, and the links to that."""
        (self._home / "data" / f"{name}.json").write_bytes(data.as_json(table))
        (self._home / "data" / f"{name}.csv").write_bytes(data.as_csv(table))
        links = Markup('<p class="muted">Data of this table: <a href="{0}data/{1}.json">JSON</a>, ')
        links += Markup('<a href="{0}data/{1}.csv">CSV</a></p>')
        return table_html(table) + links.format(root, name)

    def _page(
        self, path: str, heading: str, body: Markup, *, root: str = "", subtitle: str = "", head: Markup = Markup("")
    ) -> None:
        feed = Markup('<link rel="alternate" type="application/rss+xml" title="Submissions" href="{}feed.xml">')
        text = page(
            heading if heading == self._title else f"{heading} – {self._title}",
            body,
            heading=heading,
            subtitle=subtitle,
            nav=[(root + address, name) for address, name in _NAV],
            footer="Made by rtb from submissions that were computed again from their raw files; nothing is fetched.",
            head=feed.format(root) + head,
        )
        (self._home / path).write_text(text, encoding="utf-8")
        self._pages += 1


def _resolved(entry: Entry) -> dict[Category, tuple[int, int]]:
    found: dict[Category, tuple[int, int]] = {}
    for task in entry.checked.tasks:
        solved, count = found.get(task.category, (0, 0))
        found[task.category] = (solved + (task.outcome == "resolved"), count + 1)
    return found
