"""``atoll events``: the audit trail of a server."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from atoll.cli.app import OPERATE, app
from atoll.cli.arguments import Json, output_of
from atoll.cli.asking import KitOption, PassphraseFile, ServerOption, asked, id_of, moment, open_kit
from atoll.core.errors import ConfigError
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
    site: Annotated[
        Path | None,
        typer.Option(
            "--site",
            help="The folder of a site: what it has answered to SQL, instead of the server's trail.",
            metavar="FOLDER",
        ),
    ] = None,
    server: ServerOption = None,
    passphrase_file: PassphraseFile = None,
    json: Json = False,
) -> None:
    """Show the server's audit trail, oldest first: who requested what, when, and with what result; or with --site what a site has answered."""
    output = output_of(context)
    if site is not None:
        _show_site(output, site, job, head, verify=verify or head is not None)
        return
    if verify or head is not None:
        from atoll.core.persistence.trail import Head

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


def _show_site(output: Any, folder: Path, job: str | None, head: str | None, *, verify: bool) -> None:
    """Show, or check, the events of each party of a site; ``head`` is the end of a chain of one of them.

    Raises:
        ConfigError: the site has answered nothing.
        JobError: a chain is broken.
    """
    from atoll.core.persistence.named_results import NamedResults
    from atoll.core.persistence.trail import Head
    from atoll.query.events import TRAIL, check_events, read_events

    kept = NamedResults(folder / "results" if (folder / "results").is_dir() else folder)
    parties = sorted({one.party for one in kept.all() if one.name.startswith(TRAIL)})
    if not parties:
        raise ConfigError(f"{folder} has no events of statements", where="--site", remedy="give the folder of the site that has answered, as `atoll site --folder` names it, or of `atoll sql --record`")  # fmt: skip
    if head is not None and len(parties) > 1:
        raise ConfigError(f"--head of {', '.join(parties)} together", remedy="give the folder results/PARTY of one of them, or leave --head out")  # fmt: skip
    known, ends, events = None if head is None else Head.read(head), {}, []
    for party in parties:
        left = partial(kept.get, party)
        if verify:
            end = ends[party] = check_events(left, party, known)
            output.say(f"{escape(party)}: {end.number} events, none missing or changed; they end with {end}")
            continue
        for event in read_events(left):
            if job in (None, event.job):
                events.append({"party": party, **asdict(event)})
                output.say(_line(asdict(event)))
    output.give({"parties": {party: {"events": end.number, "head": str(end)} for party, end in ends.items()}} if verify else {"job": job, "events": events})  # fmt: skip


def _line(event: dict[str, Any]) -> str:
    details = ", ".join(
        f"{name}={value}" for name, value in event["details"].items() if value not in ("", None, [], {})
    )
    words = f"{event['who']}  {event['what']}  {event['job']}  {details}".rstrip()
    return f"[dim]{moment(event['when'])}[/dim] {escape(one_line(words))}"
