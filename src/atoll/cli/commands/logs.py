"""``atoll logs``: the log of a job's processes."""

from __future__ import annotations

from json import loads as json_of
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from atoll.cli.app import OPERATE, app
from atoll.cli.arguments import Json, output_of
from atoll.cli.asking import JobName, KitOption, PassphraseFile, ServerOption, asked, goes_on, id_of, moment, open_kit
from atoll.runs.log import one_line

if TYPE_CHECKING:
    from atoll.runtime.admin import Admin


def readable(text: str) -> str:
    """A line of a log as people read it: of an entry of Atoll its level, message and what belongs to it; of other output the line itself."""
    try:
        entry = json_of(text)
    except ValueError:
        return one_line(text)
    if not isinstance(entry, dict) or not isinstance(entry.get("message"), str):
        return one_line(text)
    level = str(entry.get("level", "info"))
    rest = {
        name: value for name, value in entry.items() if name not in ("time", "level", "logger", "message", "traceback")
    }
    record = rest.pop("record", None)
    told = [
        f"{name} {_short(value)}" for name, value in {**rest, **(record if isinstance(record, dict) else {})}.items()
    ]
    trace = str(entry.get("traceback", "")).strip().splitlines()
    words = [*([] if level == "info" else [f"{level}:"]), entry["message"], *([f"({', '.join(told)})"] if told else [])]
    return "\n  ".join([one_line(" ".join(words)), *map(one_line, trace)])


def _short(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


@app.command("logs", rich_help_panel=OPERATE)
def command(
    context: typer.Context,
    job: JobName,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Keep printing until the job has ended.")] = False,
    kit: KitOption = None,
    server: ServerOption = None,
    passphrase_file: PassphraseFile = None,
    json: Json = False,
) -> None:
    """Show the log of a job: what its server process and each site's process say, a line each. With --json the lines are as they were written."""
    output = output_of(context)

    async def body(admin: Admin) -> list[dict[str, Any]]:
        lines, found = [], await id_of(admin, job)
        output.if_stopped = goes_on(found) if follow else ""
        async for when, node, text in admin.logs(found, follow):
            lines.append({"when": when, "node": node, "text": text})
            if not output.json:
                output.say(f"[dim]{moment(when)}[/dim] [bold]{escape(node)}[/bold] {escape(readable(text))}")
        return lines

    lines = asked(open_kit(kit, passphrase_file), server, body)
    output.give({"job": job, "lines": lines})
