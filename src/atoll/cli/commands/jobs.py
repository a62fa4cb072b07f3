"""``atoll jobs``: the jobs of a server."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.live import Live
from rich.table import Table

from atoll.cli.app import OPERATE, app
from atoll.cli.arguments import Json, output_of
from atoll.cli.asking import (
    COLOURS,
    KitOption,
    PassphraseFile,
    ServerOption,
    asked,
    moment,
    moment_of,
    open_kit,
    telling,
    why_of,
)
from atoll.cli.output import PlainTable
from atoll.core.errors import ConfigError, nearest

if TYPE_CHECKING:
    from atoll.cli.output import Output
    from atoll.runtime.admin import Admin


NEWEST = 100
"""Jobs that are listed if you do not say how many."""


@app.command("jobs", rich_help_panel=OPERATE)
def command(
    context: typer.Context,
    state: Annotated[
        list[str] | None, typer.Option("--state", help="Only jobs in this state; may be repeated.", metavar="STATE")
    ] = None,
    by: Annotated[str | None, typer.Option("--by", help="Only jobs of this admin.", metavar="ADMIN")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Only jobs of this name; * and ? are patterns.")] = None,
    site: Annotated[str | None, typer.Option("--site", help="Only jobs that ran at this site.")] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", help="Only jobs submitted since: 2026-01-31, or 36h or 7d ago.", metavar="WHEN"),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most jobs, the newest.")] = NEWEST,
    watch: Annotated[bool, typer.Option("--watch", help="Keep running and show every change; Ctrl-C ends it.")] = False,
    kit: KitOption = None,
    server: ServerOption = None,
    passphrase_file: PassphraseFile = None,
    json: Json = False,
) -> None:
    """List the newest jobs of the server, oldest first."""
    output = output_of(context)
    wanted: dict[str, Any] = {
        "states": _states(state), "submitter": by, "name": name, "site": site,
        "since": None if since is None else moment_of(since, time.time()),
    }  # fmt: skip

    async def always(admin: Admin) -> list[dict[str, Any]]:
        # A file cannot be redrawn, so it gets a line for every change.
        await (_drawn if output.console.is_terminal else _told)(admin, output, {**wanted, "limit": limit})
        return []

    async def once(admin: Admin) -> list[dict[str, Any]]:
        return await admin.jobs(limit=limit, **wanted)

    found = asked(open_kit(kit, passphrase_file), server, always if watch and not output.json else once)
    if len(found) == limit:
        output.note(f"These are the newest {limit}; --limit shows more.")
    filtered = any(value is not None for value in wanted.values())
    output.give({"jobs": found}, _table(found) if found else _none(filtered))


def _none(filtered: bool) -> str:
    return "No job matches." if filtered else "There are no jobs yet."


def _states(given: list[str] | None) -> list[str] | None:
    """Return the states that were named.

    Raises:
        ConfigError: a word is no state.
    """
    from atoll.runtime.store.records import JobState

    for word in given or ():
        if word not in set(JobState):
            raise ConfigError(
                f"{word!r} is not a state of a job.{nearest(word, list(JobState))}",
                where="--state",
                remedy=f"use {', '.join(JobState)}",
            )
    return given or None


async def _drawn(admin: Admin, output: Output, wanted: dict[str, Any]) -> None:
    with Live(console=output.console, auto_refresh=False) as live:
        async for found in admin.watch(**wanted):
            live.update(_table(found), refresh=True)


async def _told(admin: Admin, output: Output, wanted: dict[str, Any]) -> None:
    tells: defaultdict[str, Callable[[dict[str, Any]], None]] = defaultdict(lambda: telling(output))
    async for found in admin.watch(**wanted):
        for job in found:
            tells[job["job"]](job)


def _table(rows: list[dict[str, Any]]) -> Table:
    from rich.markup import escape

    table = PlainTable(header_style="bold")
    for name in ("job", "name", "state", "since", "attempts", "submitter", "handed in", "sites", "why"):
        table.add_column(name)
    for row in rows:
        colour = COLOURS.get(row["state"], "white")
        why = "" if row["state"] in ("finished", "running") else escape(why_of(row))
        table.add_row(
            row["job"], escape(row["name"]), f"[{colour}]{row['state']}[/{colour}]", moment(row["times"][-1][1]), str(row["attempts"]),
            escape(f"{row['submitter']} ({row['org']})"), moment(row["created"]), escape(", ".join(row["sites"])), why,
        )  # fmt: skip
    return table
