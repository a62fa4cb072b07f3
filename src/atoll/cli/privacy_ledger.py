"""``atoll privacy ledger``: what each party has spent, by which job, and what is left of its budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atoll.cli.arguments import Json, output_of
from atoll.cli.output import PlainTable
from atoll.core.errors import ConfigError

if TYPE_CHECKING:
    from atoll.privacy import LedgerAccount, StatementEntry

__all__ = ["privacy_ledger"]

_SHOWN = 3
"""Parties of a row that are named."""


def privacy_ledger(
    context: typer.Context,
    place: Annotated[
        Path,
        typer.Argument(
            help="A kit, or a folder: of a site, a server, a run, a sweep; or a ledger file.", metavar="FOLDER|KIT"
        ),
    ] = Path(),
    folder: Annotated[
        Path | None,
        typer.Option("--folder", help="With a kit: the folder of its process; by default ./NAME.", metavar="FOLDER"),
    ] = None,
    delta: Annotated[
        float, typer.Option("--delta", help="Delta, in (0, 1); a party with a budget is counted at the budget's.")
    ] = 1e-5,
    adjacency: Annotated[
        str, typer.Option("--adjacency", help="Neighbours: add-remove or replace-one.")
    ] = "add-remove",
    unit: Annotated[
        str | None,
        typer.Option("--unit", help="Only this unit: example, user or island; by default all that are protected."),
    ] = None,
    records: Annotated[
        int, typer.Option("--records", help="Units that belong together, such as one person's rows.", min=1)
    ] = 1,
    head: Annotated[
        str | None,
        typer.Option("--head", help="An earlier end of the ledger: is it still there?", metavar="NUMBER:HASH"),
    ] = None,
    json: Json = False,
) -> None:
    """Show what each party has spent, of which unit, against whom, by which job, and what is left of its budget."""
    from atoll.core.event import Ledger
    from atoll.privacy import statement
    from atoll.runs.spending import account_of, ledgers_of

    found = ledgers_of(_folder(place, folder))
    if not found:
        raise ConfigError(
            f"there is no privacy ledger in {str(place)!r}",
            where="FOLDER|KIT",
            remedy="name a folder in which something was released: of a site, a server, a run or a sweep",
        )
    heads = {str(path): Ledger(path, readable=True) for _, path in found}
    if head is not None:
        for one in heads.values():
            one.require_head(head)
    account = account_of(found)
    entries = statement(account, delta, adjacency, unit=unit, records=records)
    told = {
        "ledgers": {path: one.head for path, one in heads.items()},
        "entries": [entry.packed() for entry in entries],
        "jobs": account.names,
        "notes": sorted(account.notes),
        "records": records,
    }
    output = output_of(context)
    output.give(told, _table(entries, account))
    for line in _said(entries, account, heads):
        output.say(line)


def _folder(place: Path, folder: Path | None) -> Path:
    """The folder that is meant by a kit, or the folder itself."""
    if not (place / "kit.yaml").is_file():
        return place
    from atoll.runtime.provision import Kit

    return folder or Path(Kit.read(place).name)


def _table(entries: Sequence[StatementEntry], account: LedgerAccount) -> PlainTable:
    """Parties that are alike share a row; the rows below it are its jobs, each alone."""
    table = PlainTable(header_style="bold")
    budgets = any(entry.budget is not None for entry in entries)
    for name in ("party", "unit", "against"):
        table.add_column(name)
    for name in ("epsilon (pld)", "epsilon (rdp)", "delta", "releases", *(("budget", "left") if budgets else ())):
        table.add_column(name, justify="right")
    alike: dict[_Key, list[str]] = {}
    for entry in entries:
        alike.setdefault(_Key(replace(entry, party="")), []).append(entry.party)
    for key, parties in alike.items():
        entry = key.entry
        more = (_number(entry.budget), _number(entry.left)) if budgets else ()
        table.add_row(
            _names(parties), entry.unit, ", ".join(entry.adversaries), _number(entry.spent.pld), _number(entry.spent.rdp),
            f"{entry.delta:g}", str(entry.releases), *more,
        )  # fmt: skip
        for job, cost in entry.jobs.items():
            name = f"{job} ({account.names[job]})" if account.names.get(job) else job or "this run"
            table.add_row(f"  {name}", "", "", _number(cost.pld), _number(cost.rdp), "", "", *("",) * len(more))
    return table


class _Key:
    """An entry by what it says."""

    def __init__(self, entry: StatementEntry) -> None:
        self.entry, self.said = entry, repr(entry.packed())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.said == other.said

    def __hash__(self) -> int:
        return hash(self.said)


def _said(entries: Sequence[StatementEntry], account: LedgerAccount, heads: dict[str, Any]) -> list[str]:
    said = [
        "Each party's epsilon covers all of its jobs together; a job's, below it, that job alone. Disjoint parties cost the largest of theirs."
    ]
    neighbours = sorted({entry.neighbours for entry in entries})
    said.append(f"Neighbours: {', '.join(neighbours) or 'none'}. A budget counts what jobs that run may still spend.")
    bare = sorted({what for entry in entries for what in entry.unprotected})
    if bare:
        said.append(f"Without differential privacy: {'; '.join(bare)}.")
    if "seeded-secret" in account.notes:
        said.append("Secrets came from a seed: no guarantee holds.")
    said += [f"{path}: {one.head}" for path, one in heads.items()]
    return said


def _names(parties: Sequence[str]) -> str:
    shown = ", ".join("everybody" if party == "*" else party for party in parties[:_SHOWN])
    return shown + (f" and {len(parties) - _SHOWN} more" if len(parties) > _SHOWN else "")


def _number(value: float | None) -> str:
    if value is None:
        return "not known"
    return "unbounded" if value == math.inf else f"{value:.4f}"
