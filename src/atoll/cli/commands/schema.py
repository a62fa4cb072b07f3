"""``atoll schema``: the JSON Schema of a configuration, for editors."""

from __future__ import annotations

import typer

from atoll.cli.app import EXTRAS, app
from atoll.cli.arguments import Json, output_of
from atoll.core.persistence.files import as_json
from atoll.runs import json_schema


@app.command("schema", rich_help_panel=EXTRAS)
def command(context: typer.Context, json: Json = False) -> None:
    """Print the JSON Schema of a configuration file."""
    made = json_schema()
    if output_of(context).json:
        output_of(context).give(made)
    else:
        typer.echo(as_json(made, indent=2))
