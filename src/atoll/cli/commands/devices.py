"""``atoll devices``: what each device of a run did."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group
from rich.table import Table

from atoll.cli.app import INSPECT, app
from atoll.cli.arguments import Json, Root, find_run, output_of
from atoll.cli.output import PlainTable
from atoll.core.errors import CheckpointError
from atoll.core.overview import human_bytes
from atoll.core.persistence.files import write_bytes
from atoll.runs.folder import devices_table, read_devices

if TYPE_CHECKING:
    from atoll.rounds.by_device import ByDevice

_WIDTH = 40
"""Length of the longest bar in characters."""
_BARS = 20
"""Maximum number of bars; beyond it, a bar stands for a range of numbers of replies."""


@app.command("devices", rich_help_panel=INSPECT)
def command(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="A run's name or folder.")],
    output: Annotated[
        Path | None, typer.Option("--output", help="Write one line per device, separated by commas.", metavar="FILE")
    ] = None,
    root: Root = Path("runs"),
    json: Json = False,
) -> None:
    """Show which clients took part in a run, how often, and what it cost them."""
    folder = find_run(run, root)
    found = read_devices(folder.devices_file)
    if found is None:
        raise CheckpointError(
            "there is no record of the devices: the run has not ended, or is not a training",
            where=str(folder.devices_file),
            remedy=f"resume the run: atoll run {folder.path} --resume",
        )
    if output is not None:
        write_bytes(output, devices_table(found).encode())
        output_of(context).note(f"Table: {output}")
    result = {"run": folder.name, **found.summary(), "regions": found.by_region(), "devices": list(found.rows())}
    output_of(context).give(result, Group(_replies(found), _totals(found)))


def _replies(found: ByDevice) -> Table:
    """How many clients sent how many replies."""
    bars = _together(found.histogram())
    most = max((clients for _, clients in bars), default=0)
    table = PlainTable(header_style="bold")
    table.add_column("replies", justify="right")
    table.add_column("clients", justify="right")
    table.add_column("")
    for label, clients in bars:
        table.add_row(label, f"{clients:,}", "█" * max(1, round(_WIDTH * clients / most)))
    return table


def _together(histogram: dict[int, int]) -> list[tuple[str, int]]:
    """One bar a number, or as few bars of equal width as needed."""
    step = 1 if len(histogram) <= _BARS else max(histogram) // _BARS + 1
    bars: dict[int, int] = {}
    for value, clients in histogram.items():
        bars[value // step] = bars.get(value // step, 0) + clients
    return [(str(k) if step == 1 else f"{k * step} to {k * step + step - 1}", n) for k, n in sorted(bars.items())]


def _totals(found: ByDevice) -> Table:
    """What all devices, and those of each region, were asked and did; columns of zeros are left out."""
    often = ("crashed", "called_off", "refused")
    columns = ("asked", "answered", *(name for name in often if found[name].any()), "bytes_up", "bytes_down")
    table = PlainTable(header_style="bold")
    table.add_column("region" if found.regions else "")
    for name in ("clients", *(column.removeprefix("bytes_").replace("_", " ") for column in columns)):
        table.add_column(name, justify="right")
    if found.powered:
        table.add_column("Wh", justify="right")
        table.caption = f"the busiest tenth of the clients used {100 * found.share('energy'):.0f} % of the energy"
    every = {"clients": len(found), **{name: found[name].sum().item() for name in (*columns, "energy")}}
    for label, of in {**found.by_region(), "all": every}.items():
        shown = [human_bytes(of[name]) if name.startswith("bytes") else f"{of[name]:,}" for name in columns]
        power = [f"{of['energy'] / 3600:,.3g}"] if found.powered else []
        table.add_row(label, f"{of['clients']:,}", *shown, *power)
    return table
