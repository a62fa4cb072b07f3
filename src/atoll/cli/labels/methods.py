"""``atoll labels methods``: the methods, what each needs and what it exposes."""

from __future__ import annotations

import typer

from ..arguments import Json, output_of
from ..output import PlainTable

__all__ = ["labels_methods"]


def labels_methods(context: typer.Context, json: Json = False) -> None:
    """List the survey's methods: setting, client state, bits of a round, and what is exposed besides parameters."""
    from atoll.labels.survey import survey_rows

    rows = survey_rows()
    table = PlainTable(header_style="bold")
    for name in ("method", "setting", "a client keeps", "bits up", "exposed"):
        table.add_column(name)
    for row in rows:
        name = row["name"] + ("" if row["here"] else f" (to come {row['to_come']})")
        table.add_row(name, row["setting"], row["state"], row["bits_up"], row["exposes"])
    output_of(context).give({"methods": rows}, table)
