"""``atoll algorithms``: the algorithms, their costs and their properties."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from atoll.cli.app import EXTRAS, app
from atoll.cli.arguments import Json, output_of
from atoll.cli.output import PlainTable
from atoll.learn.catalogue import Exchange, Fact, facts

__all__ = ["page"]

_MARKS = {True: "yes", False: "", None: "?"}
_COLUMNS = ("algorithm", "family", "down", "up", "bits up", "client state", "secure", "unbiased", "everyone")
_MEANING = "Floats per client and round, phase by phase, in d = number of parameters."
_HEAD = f"""# Algorithms

<!-- Made by `atoll algorithms --markdown > docs/algorithms.md`; a test compares the two. -->

This page lists every algorithm of `atoll.learn.algorithms`, as `atoll algorithms` prints it. It also lists the programs of `atoll.learn.admm`, which you run with
[`atoll.simulate(atoll.learn.admm.DADMM(...).program, islands)`](howto/programs.md).

**down** and **up**: {_MEANING[:1].lower()}{_MEANING[1:]} Semicolons separate phases. Atoll measures these floats: it runs each algorithm dry with its
default settings, on a model with `d` parameters. A single number that an algorithm also sends, such as the learning rate, is the 1 in `d + 1`. Stages, those of a
training and those of the method itself, do not count here. They turn these floats into fewer bytes. Programs declare their floats instead. In
their rows, `a neighbour` means one in the graph. `n` is the number of a client's rows, `M` of items and `D` of latent dimensions.

The other columns:

* **bits up**: only for methods with stages of their own. It is the size of a reply that these stages declare, for a model of 32-bit floats in `G` arrays, phase by phase. "?"
  means that the size depends on the values. `40 of d = 200` is the size for 200 parameters, where no formula in `d` fits. A training's history
  records the declared size as `bits_declared`, beside the measured `bytes_up`.
* **client state**: the floats that a client keeps between rounds, including what the method's own stages remember. With "none", the clients can differ in every round.
* **secure**: a reducer that sees only sums can add up the replies as the method sends them.
* **unbiased**: with all clients and equal numbers of steps, the fixed point is the optimum of the global objective.
* **everyone**: the method needs all clients in every round.
"""


@app.command("algorithms", rich_help_panel=EXTRAS)
def command(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(help="List only these algorithms. Default: all.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the documentation page as Markdown.")] = False,
    json: Json = False,
) -> None:
    """List the algorithms: paper, client state, floats per round each way, and properties."""
    found = facts(tuple(names or ()))
    if markdown and not output_of(context).json:
        typer.echo(page(found), nl=False)
        return
    output_of(context).give({"algorithms": [asdict(fact) for fact in found]}, _cards(found) if names else _table(found))


def page(found: list[Fact]) -> str:
    """The documentation page that lists the algorithms."""
    titles = ("algorithm", *_COLUMNS[2:], "paper", "note")
    lines = [_HEAD]
    for family in dict.fromkeys(fact.family for fact in found):
        lines += [f"## {family[:1].upper()}{family[1:]}\n", _line(titles), _line(["---"] * len(titles))]
        for fact in found:
            if fact.family == family:
                name, _, *rest = _cells(fact)
                lines.append(_line([f"`{name}`", *rest, fact.paper, fact.note]))
        lines.append("")
    return "\n".join(lines)


def _line(cells: tuple[str, ...] | list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _cells(fact: Fact) -> list[str]:
    down = "; ".join(exchange.down for exchange in fact.exchanges)
    up = "; ".join(exchange.up for exchange in fact.exchanges)
    bits = (
        "; ".join(_declared(exchange) for exchange in fact.exchanges) if any(e.packed for e in fact.exchanges) else ""
    )
    state = "?" if fact.state is None else "none" if fact.stateless else fact.state
    marks = [_MARKS[mark] for mark in (fact.secure, fact.unbiased, fact.everyone)]
    return [fact.name, fact.family, down, up, bits, state, *marks]


def _declared(exchange: Exchange) -> str:
    return (exchange.bits or "?") if exchange.packed else "as floats"


def _table(found: list[Fact]) -> Table:
    caption = f"{_MEANING} Papers: --json, or name an algorithm."
    table = PlainTable(header_style="bold", caption=caption)
    for column in _COLUMNS:
        table.add_column(column)
    for fact in found:
        table.add_row(*_cells(fact))
    return table


def _cards(found: list[Fact]) -> Table:
    """One block of lines for each algorithm."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    for fact in found:
        for title, cell in zip((*_COLUMNS, "paper", "note"), (*_cells(fact), fact.paper, fact.note), strict=True):
            table.add_row(title, cell or "no")
        table.add_row()
    return table
