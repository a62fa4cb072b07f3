"""``atoll events``: the audit trail of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from atoll.cli.app import OPERATE, app
from atoll.cli.arguments import Json, output_of
from atoll.cli.asking import KitOption, PassphraseFile, ServerOption, asked, id_of, moment, open_kit
from atoll.runs.log import one_line

if TYPE_CHECKING:
    from atoll.runtime.admin import Admin


@app.command("events", rich_help_panel=OPERATE)
def command(
    context: typer.Context,
    job: Annotated[
        str | None, typer.Argument(help="Only this job, by its id or number.", metavar="[JOB]", show_default=False)
    ] = None,
    kit: KitOption = None,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Check that no event is missing, changed or added, and say how the trail ends."),
    ] = False,
    head: Annotated[
        str | None,
        typer.Option(
            "--head", help="With --verify: how the trail ended earlier, which it must contain.", metavar="NUMBER:HASH"
        ),
    ] = None,
    server: ServerOption = None,
    passphrase_file: PassphraseFile = None,
    json: Json = False,
) -> None:
    """Show the server's audit trail, oldest first: who requested what, when, and with what result."""
    output = output_of(context)
    if verify or head is not None:
        from atoll.runtime.store.records import Head

        known = None if head is None else Head.read(head)
        end = asked(open_kit(kit, passphrase_file), server, lambda admin: admin.verified(known))
        output.give(
            {"events": end.number, "head": str(end)},
            f"{end.number} events, none missing or changed; the trail ends with {end}",
        )
        return

    async def body(admin: Admin) -> list[dict[str, Any]]:
        events = []
        async for event in admin.events(None if job is None else await id_of(admin, job)):
            events.append(event)
            output.say(_line(event))
        return events

    output.give({"job": job, "events": asked(open_kit(kit, passphrase_file), server, body)})


def _line(event: dict[str, Any]) -> str:
    details = ", ".join(
        f"{name}={value}" for name, value in event["details"].items() if value not in ("", None, [], {})
    )
    words = f"{event['who']}  {event['what']}  {event['job']}  {details}".rstrip()
    return f"[dim]{moment(event['when'])}[/dim] {escape(one_line(words))}"
