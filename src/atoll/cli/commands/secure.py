"""``atoll secure``: plan a secure sum, and try one on files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from atoll.cli.app import EXTRAS, app
from atoll.cli.arguments import Json, output_of
from atoll.cli.output import PlainTable

group = typer.Typer(help="Plan a secure sum, or try one on files.", no_args_is_help=True)
app.add_typer(group, name="secure", rich_help_panel=EXTRAS)

Loss = Annotated[float, typer.Option("--loss", help="Share of the parties that may drop out.", min=0.0, max=0.99)]
Corrupt = Annotated[
    float, typer.Option("--corrupt", help="Share of the parties that may collude with the server.", min=0.0, max=0.99)
]


@group.command("plan")
def plan(
    context: typer.Context,
    parties: Annotated[int, typer.Option("--parties", help="Number of parties.", min=2)],
    loss: Loss = 0.1,
    corrupt: Corrupt = 0.05,
    json: Json = False,
) -> None:
    """Compute how many neighbours and which threshold masks need (SecAgg+, semi-honest)."""
    from atoll.secure.masking import plan as made

    found = made(parties, loss, corrupt)
    asked = {"parties": parties, "loss": loss, "corrupt": corrupt}
    output_of(context).give(
        {**asked, "neighbours": found.neighbours, "threshold": found.threshold},
        f"Each of {parties} parties shares masks with {found.neighbours} neighbours; {found.threshold} of them open a seed.",
    )


@group.command("sum")
def add(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="One .npy file a party.", metavar="DIR", exists=True, file_okay=False)],
    protocol: Annotated[str, typer.Option("--protocol", help="How the sum is made.")] = "secagg",
    encode: Annotated[str, typer.Option("--encode", help="How numbers become words.")] = "fixed",
    bits: Annotated[int | None, typer.Option("--bits", help="Bits of a value or code.", min=1)] = None,
    modulus_bits: Annotated[int | None, typer.Option("--modulus-bits", help="Bits of a word.", min=1, max=64)] = None,
    value_range: Annotated[
        float | None, typer.Option("--range", help="Largest magnitude of a value; by default that of the files.")
    ] = None,
    block: Annotated[int | None, typer.Option("--block", help="Entries of a block.", min=1)] = None,
    codewords: Annotated[int | None, typer.Option("--codewords", help="Codewords of a codebook.", min=2)] = None,
    keep: Annotated[float | None, typer.Option("--keep", help="Share of the entries that are kept.")] = None,
    threshold: Annotated[
        str | None, typer.Option("--threshold", help="Parties that open the sum: a number, or a share such as 0.6.")
    ] = None,
    neighbours: Annotated[
        int | None, typer.Option("--neighbours", help="Parties that each shares a mask with.", min=1)
    ] = None,
    loss: Loss = 0.1,
    corrupt: Corrupt = 0.05,
    norm: Annotated[
        float | None,
        typer.Option("--norm", help="Largest L2 norm of an array (bounded); by default that of the files."),
    ] = None,
    active: Annotated[bool, typer.Option("--active", help="Protect against a server that lies.")] = False,
    drop: Annotated[
        str | None, typer.Option("--drop", help="Parties that drop out, by step: share:N,masked:N,reveal:N.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Decides who drops out.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="File for the sum.", metavar="FILE.npy")] = None,
    json: Json = False,
) -> None:
    """Add up one array a party so that only the sum is seen, and compare it with the exact sum."""
    import numpy as np

    from atoll.cli.sums.settings import SumSettings, drops_of, number_of
    from atoll.cli.sums.trial import arrays_in, run_trial

    settings = SumSettings(
        bits=bits, modulus_bits=modulus_bits, value_range=value_range, block=block, codewords=codewords, keep=keep,
        threshold=number_of(threshold), neighbours=neighbours, loss=loss, corrupt=corrupt, active=active,
        drop=drops_of(drop), norm=norm, seed=seed,
    )  # fmt: skip
    if out is not None:
        out = out if out.suffix == ".npy" else out.with_name(out.name + ".npy")  # as np.save names it
        _require_writable(out)
    found = run_trial(arrays_in(folder, out), protocol, encode, settings)
    total = found.pop("sum")
    if out is not None:
        np.save(out, total)
        found["out"] = str(out)
    output_of(context).give(found, _table(found))


@group.command("attack")
def attack(
    context: typer.Context,
    protocol: Annotated[str, typer.Option("--protocol", help="A protocol, or all of them.")] = "all",
    move: Annotated[list[str] | None, typer.Option("--move", help="A move of the server; by default all.")] = None,
    real: Annotated[bool, typer.Option("--real", help="Between real site processes.")] = False,
    json: Json = False,
) -> None:
    """Let a server lie to secure sums in every way it can, and say what it learns."""
    from atoll.cli.sums.settings import findings_table, run_attacks

    output = output_of(context)
    found = run_attacks(protocol, move or (), real, output.note)
    output.give(found.message(), findings_table(found))
    if found.learned:
        raise typer.Exit(1)


def _require_writable(out: Path) -> None:
    """Refuse a file that cannot be written, before the sum is made.

    Raises:
        ConfigError: it cannot.
    """
    from atoll.core.errors import ConfigError

    if out.is_dir() or not out.parent.is_dir():
        what = "is a folder" if out.is_dir() else "is in a folder that does not exist"
        raise ConfigError(f"--out {out}, which {what}", remedy="name a file in a folder that exists")


def _table(found: dict[str, Any]) -> PlainTable:
    table = PlainTable(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in found.items():
        shown = (
            ", ".join(map(str, value))
            if isinstance(value, list | dict)
            else f"{value:.6g}"
            if isinstance(value, float)
            else value
        )
        table.add_row(name, str(shown))
    return table
