"""``atoll provision``: a certificate authority, and one startup kit a party."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from atoll.cli.app import OPERATE, app
from atoll.cli.arguments import Json, output_of
from atoll.cli.output import PlainTable
from atoll.runtime.provision import CA_VARIABLE, Provisioned, find_passphrase, load_project, new_passphrase, provision
from atoll.runtime.provision.keys import close_memory

_PROJECT = typer.Argument(
    help="project.yaml: servers, sites, helpers and admins.", metavar="PROJECT", show_default=False
)


@app.command("provision", rich_help_panel=OPERATE)
def command(
    context: typer.Context,
    project: Annotated[Path, _PROJECT],
    out: Annotated[Path, typer.Option("--out", help="Folder for the kits.", metavar="FOLDER")] = Path("kits"),
    renew: Annotated[
        list[str] | None, typer.Option("--renew", help="Make a new certificate and key.", metavar="NAME")
    ] = None,
    same_key: Annotated[bool, typer.Option("--same-key", help="Renew certificates, not keys.")] = False,
    revoke: Annotated[
        list[str] | None, typer.Option("--revoke", help="Refuse the kits made so far for it.", metavar="NAME")
    ] = None,
    rotate: Annotated[
        bool, typer.Option("--rotate-ca", help="Make a new authority key; the old one stays trusted.")
    ] = False,
    encrypt: Annotated[bool, typer.Option("--encrypt", help="Encrypt the private keys of the kits made now.")] = False,
    passphrase_file: Annotated[
        Path | None, typer.Option("--passphrase-file", help="File whose first line encrypts the kits.", metavar="FILE")
    ] = None,
    encrypt_ca: Annotated[bool, typer.Option("--encrypt-ca", help="Encrypt the authority's key.")] = False,
    ca_passphrase_file: Annotated[
        Path | None,
        typer.Option("--ca-passphrase-file", help="File whose first line decrypts the authority.", metavar="FILE"),
    ] = None,
    json: Json = False,
) -> None:
    """Make a certificate authority and one startup kit per server, site, helper, admin and auditor.

    Run it again after you add a party: it makes only the new kit. Send each kit to its party over a safe channel, and keep FOLDER/ca to yourself.
    """
    close_memory()
    settings = load_project(project)
    done = provision(
        settings,
        out,
        renew=renew or (),
        revoke=revoke or (),
        same_key=same_key,
        rotate=rotate,
        passphrase=(lambda name: new_passphrase(passphrase_file, _asking(name))) if encrypt else None,
        ca_passphrase=_authority(out, encrypt_ca, ca_passphrase_file),
    )
    shown = {**vars(done), "folder": str(done.folder), "project": settings.project}
    output_of(context).give(shown, _table(done))
    for note in done.notes:
        output_of(context).note(f"[bold]To do:[/bold] {note}")


def _asking(whose: str, confirm: bool = True) -> Callable[[], str] | None:
    """Return a prompt for a passphrase if a person is at the terminal."""
    if not sys.stdin.isatty():
        return None
    text = f"Passphrase of {whose}"
    return lambda: str(typer.prompt(text, hide_input=True, confirmation_prompt=confirm, err=True))


def _authority(out: Path, encrypt: bool, file: Path | None) -> Callable[[], bytes | None]:
    @functools.cache
    def give() -> bytes | None:
        key = out / "ca" / "ca-key.pem"
        if key.exists() and b"ENCRYPTED" in key.read_bytes()[:64]:
            return find_passphrase(file, _asking("the authority", confirm=False), CA_VARIABLE)
        return new_passphrase(file, _asking("the authority"), CA_VARIABLE) if encrypt else None

    return give


def _table(done: Provisioned) -> Table:
    table = PlainTable(show_header=False)
    rows = {
        "new": [str(done.folder / name) for name in done.made],
        "renewed": [str(done.folder / name) for name in done.renewed],
        "revoked": list(done.revoked),
        "not touched": done.kept,
        "handed over before": done.handed,
    }
    for label, names in rows.items():
        if names:
            table.add_row(label, ", ".join(names))
    table.add_row("authority", f"{done.folder / 'ca'}: keep it to yourself, and keep a copy")
    return table
