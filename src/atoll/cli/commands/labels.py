"""``atoll labels``: what rows without labels are worth."""

from __future__ import annotations

import typer

from atoll.cli.app import EXTRAS, app
from atoll.cli.labels.adapt import labels_adapt
from atoll.cli.labels.compare import labels_compare
from atoll.cli.labels.methods import labels_methods

group = typer.Typer(help="Measure what rows without labels are worth.", no_args_is_help=True)
app.add_typer(group, name="labels", rich_help_panel=EXTRAS)
group.command("adapt")(labels_adapt)
group.command("compare")(labels_compare)
group.command("methods")(labels_methods)
